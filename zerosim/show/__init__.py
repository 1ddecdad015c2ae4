"""Views of a run, a schedule and a step: the terminal, pages, pictures and notebooks.

    document, columns         one document of a run, one declaration of its figures; everything below reads these
    table, grid               the terminal
    page.py and page.html     the pages that need no network; pictures, the pictures in them
    drawing                   a collective round by round; step, a stage event by event; recorded, where both come from
    film.py and film.js       both on a page to step through, several stages at the same computation
    shown                     an object that displays itself; prepared, a scenario ready to run, and its outcome
    trace_events              a step for Perfetto
    proofs, transposes, collectives    proofs, checks and programs
    plan, estimates           a plan; model states by formula
"""
