"""Docstrings for the site: their examples become blocks of code, which Markdown would otherwise read as quotations."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Fenced(griffe.Extension):
    """Fences the examples of every docstring before mkdocstrings reads it."""

    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"\n```pycon\n{found[0]}\n```\n", obj.docstring.value)
