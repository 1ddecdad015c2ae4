"""Views of a run, a schedule and a step: the terminal, pages, pictures and notebooks.

    document, columns         one document of a run, one declaration of its figures; everything below reads these
    table, grid               the terminal
    page.py and page.html     the pages that need no network; pictures, the pictures in them
    film.py and film.js       a collective round by round and stages event by event, on a page to step through
    recorded                  where both come from, a stage in the terminal; drawing, a collective there, and pictures
    shown                     an object that displays itself; prepared, a scenario ready to run, and its outcome
    trace_events              a step for Perfetto
    proofs                    proofs and checks
    plan, estimates           a plan; model states by formula
"""
