"""Objects for notebooks and the Python prompt: they display themselves, offline, and print well.

A result knows no terminal and no picture. The HTML of several cells is one page, so a cell has no styles, scripts or
names of its own. SVG inside it would share its `clip0` and its `text{…}` with all others: pictures are images that
contain their data, and whole pages are in frames.
"""
