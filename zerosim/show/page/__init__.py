"""Pages: data for one template, in one HTML file that loads nothing.

    page.html      the only HTML, CSS and JavaScript; it escapes every word
    page.py        the sections of a run, of two runs, of a schedule and of a step
    pictures.py    the pictures, as specifications for Vega-Lite

A page is a function of the JSON document, so a run and its old `--json` give the same bytes. Vega-Lite itself zooms,
pans and highlights: the pictures declare it.
"""
