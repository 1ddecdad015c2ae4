"""Which cases of a law `make test` has; the others are long, and CI has them all."""

import pytest


def one_in(count, cases):
    """The cases as values of a parameter, all but one in so many marked `long`."""
    return [case if number % count == 0 else pytest.param(case, marks=pytest.mark.long)
            for number, case in enumerate(cases)]


def long_if(is_long, cases):
    """The cases as values of a parameter, marked `long` where `is_long(case)`."""
    return [pytest.param(case, marks=pytest.mark.long) if is_long(case) else case for case in cases]


def takes_long(page):
    """Whether the examples of a page or notebook take more than a second, or plan what does not fit: a minute."""
    return page.stem.endswith(("which_stage", "laws", "narrow_wires", "when_is_it_free", "18_pipelines"))
