"""Which cases of a law `make test` has; the others are long, and CI has them all."""

import pytest


def one_in(count, cases):
    """The cases as values of a parameter, all but one in so many marked `long`."""
    return [case if number % count == 0 else pytest.param(case, marks=pytest.mark.long)
            for number, case in enumerate(cases)]
