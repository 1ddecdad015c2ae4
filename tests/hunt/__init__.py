"""A random hunt: scenarios drawn from the whole cross of keys, each carried out as a user would, until one is at fault.

`python -m tests.hunt` draws, `draw` says what may be drawn, `judge` what a fault is, `shrink` what is shown of it.
"""
