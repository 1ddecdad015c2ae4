"""The outcome of a short run of a scenario, and what its verdict says."""

from tests.training import run, sabotaged
from zerosim.stages import STAGES


def outcome_of(**changes):
    return run(**{"steps": 2, **changes})


def fails(outcome, words):
    """Every failure is of the first row, and says these words."""
    assert outcome.failures, "nothing was noticed"
    assert {name for name, _ in outcome.failures} == {outcome.trained[0].name}
    assert any(words in what for _, what in outcome.failures), outcome.failures


def plant(monkeypatch, name, fault):
    """Let `fault(replica, batch)` happen before each step of the stage; where it yields, the step comes then."""
    honest = STAGES[name]

    def step(replica, batch):
        around = fault(replica, batch)
        if around is not None:
            next(around)
        loss = honest.step(replica, batch)
        if around is not None:
            next(around, None)
        return loss

    monkeypatch.setitem(STAGES, name, sabotaged(STAGES, name, step=step))
