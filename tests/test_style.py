"""Documents, `--help`, messages, docstrings and comments follow the style page; planted faults are found."""

import re

import pytest

from tests import style


def test_documents_helps_messages_and_docstrings_follow_the_style():
    assert list(style.everything()) == []


def test_all_pages_but_dated_notes_are_read():
    names = {str(page.relative_to(style.ROOT)) for page in style.PAGES}
    assert names >= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/planning.md", "docs/lessons/2_zero.md"}
    assert not any(name.startswith("docs/design/") for name in names)


@pytest.mark.parametrize(("planted", "found"), [
    ("The weights come home.", ["come home"]),
    ("Moment by moment.", ["Moment", "moment"]),
    ("Stage III lets\ngo of them.", ["lets go"]),
    ("Fine. Of a transformer the blocks are kept.", ["Of a transformer the blocks are kept."]),
    ("Fine.\n\nWhat is sent is counted.", ["What is sent is counted."]),
    ("| Whoever marks it |", ["Whoever"]),
    ("What is sent? All of it.", []),
    ("The stage `takes a moment`.", []),
    ("```\nwhat a moment\n```", []),
    ("A momentum of 0.9; momentary.", []),
])
def test_what_is_out_is_seen(planted, found):
    assert [each for _, each in style.faults(style.prose(planted))] == found


def test_the_line_is_that_of_the_page():
    assert style.faults(style.prose("One.\n```\ncode\n```\n\nA moment.")) == [(6, "moment")]


def test_what_notation_names_is_checked_in_its_meaning_alone():
    row = "| moment | the {} of a step | `show/step.py` |"
    assert style.faults(style.prose(style.definitions(row.format("event")))) == []
    assert style.faults(style.prose(style.definitions(row.format("moment")))) == [(1, "moment")]


def test_the_style_page_has_ten_pairs():
    pairs = style.STYLE.read_text().partition("| before | after |\n|---|---|\n")[2].partition("\n\n")[0]
    assert len(re.findall(r"^\|", pairs, re.MULTILINE)) == 10


def test_messages_are_read_and_docstrings_are_not():
    code = '"""Whoever reads this is not told."""\nraise E(f"rank {rank} waits, whoever it is")\nraise E("whoever")\n'
    (found,) = style.messages(code)  # the third string has one word
    assert found == (2, "rank X waits, whoever it is")
    assert style.faults(found[1]) == [(1, "whoever")]


CODE = '''"""What a module is.

Fine. Whoever reads `anew`
comes home.
"""

SIZE = 1
"""
>>> "anew"
'anew'

Of a size, in bytes.
"""


class C:
    """Fine: C."""

    x: int
    """Of the moment."""

    def f(self):
        """What is sent? All.

        >>> print("Whoever")
        Whoever

        Of a rank, the size."""
        return "whoever it may be"  # lest it is sent anew
'''


def test_docstrings_and_comments_are_read_without_examples_and_messages():
    found = [(line + at - 1, each) for line, words in style.documented(CODE) for at, each in style.faults(words)]
    assert sorted(found) == [
        (1, "What a module is."), (3, "Whoever"), (4, "comes home"), (12, "Of a size, in bytes."),
        (20, "Of the moment."), (20, "moment"), (28, "Of a rank, the size."), (29, "anew"), (29, "lest"),
    ]
