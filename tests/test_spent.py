"""Where a step's time goes: every kind is seen, and a wait that is planted in one kind is found in that kind."""

import time
from dataclasses import replace

import numpy as np
import pytest

from zerosim.commands.benches import spent
from zerosim.commands.benches.timings import Workload
from zerosim.instruments.observed import Observed
from zerosim.optim import optimizers
from zerosim.scenario import ModelKeys
from zerosim.worlds.local import spawn

TRANSFORMER = Workload(ModelKeys(kind="transformer", layers=1, width=8, heads=2), batch=2, inputs=4, outputs=5)
PAUSE = 0.02


def shares(stage: str) -> dict[str, float]:
    """The seconds of rank 0's second step, by kind."""

    def program(comm):
        steps = spent.watched(comm, stage, TRANSFORMER)
        next(steps)
        return next(steps)

    return dict(spawn(program, ranks=2)[0])


@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_every_kind_of_work_takes_time_in_every_stage(stage):
    found = shares(stage)
    assert set(found) == set(spent.KINDS)
    assert all(seconds > 0 for seconds in found.values())


def test_a_slow_update_is_seen_as_update(monkeypatch):
    adamw = optimizers.OPTIMIZERS["adamw"]

    def slow(*arguments, **named):
        time.sleep(PAUSE)
        adamw.formula(*arguments, **named)

    monkeypatch.setitem(optimizers.OPTIMIZERS, "adamw", replace(adamw, formula=slow))
    found = shares("zero1")
    assert found["update"] > PAUSE
    assert found["products"] + found["attention"] + found["other operations"] < PAUSE


def test_a_slow_message_is_seen_as_collectives(monkeypatch):
    exchange = Observed.exchange

    def slow(self, *arguments, **named):
        time.sleep(PAUSE)
        exchange(self, *arguments, **named)

    monkeypatch.setattr(Observed, "exchange", slow)
    assert shares("zero3")["collectives"] > PAUSE


def test_operations_are_told_apart():
    clock = spent.Spent()
    clock.perform(None, np.add, np.ones(2), 1.0)
    assert [*clock.seconds] == ["other operations"]
