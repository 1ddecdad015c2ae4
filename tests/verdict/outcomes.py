"""The outcome of a short run of a scenario, and what its verdict says."""

from tests.training import run


def outcome_of(**changes):
    return run(**{"steps": 2, **changes})


def fails(outcome, words):
    """Every failure is of the first row, and says these words."""
    assert outcome.failures, "nothing was noticed"
    assert {name for name, _ in outcome.failures} == {outcome.trained[0].name}
    assert any(words in what for _, what in outcome.failures), outcome.failures
