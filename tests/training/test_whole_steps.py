"""Whole steps of every stage: a loss that is no number, and the order of reductions; the laws draw all else."""

from dataclasses import replace

import numpy as np
import pytest

from tests.training import labelled, run, scenario
from zerosim.scenario.sections import Variant
from zerosim.stages import STAGES
from zerosim.training.experiment import prepare
from zerosim.training.program import Progress
from zerosim.verdict.judged_run import run_locally


def outcome_of(*, loud=1, features=6, **changes):
    """A run of all stages on samples that are so many times as large."""
    data = labelled(features)
    return run(replace(data, x=data.x * np.float32(loud)), **{"ranks": 3, "micro_batches": 6, "steps": 3, **changes})


def test_a_loss_that_is_no_number_is_the_same_one_everywhere():
    """Samples have NaNs of which every bit is set: none that a processor makes."""
    data = labelled()
    data.x.view(np.uint32)[:, 1] = 0xFFFFFFFF
    assert run_locally(prepare(scenario(steps=1), data)).failures == []


def test_a_stage_that_says_samples_divides_by_the_targets_that_count(monkeypatch):
    honest = STAGES["ddp"].step
    monkeypatch.setitem(STAGES, "ddp", replace(STAGES["ddp"], step=lambda replica, batch: honest(
        replica, replace(batch, counted=batch.samples))))
    assert run(stages=("ddp",), steps=1).failures == []


@pytest.mark.parametrize("name", STAGES)
def test_a_reduction_is_waited_for_before_the_next_one_begins(name, monkeypatch):
    """Of gradients that are reduced beside the step at most one is on its way, and none as weights are updated."""
    honest, begun = STAGES[name].step, []

    def step(replica, batch):
        def alone(verb):
            def call(*given):
                if not given or given[-1] is not None:
                    assert replica.reducing == []
                    begun.append(verb.__name__)
                return verb(*given)
            return call

        watched = {verb: getattr(replica, verb) for verb in ("reduce_scatter", "unscale_and_clip")}
        vars(replica).update({verb: alone(method) for verb, method in watched.items()})
        loss = honest(replica, batch)
        for verb in watched:
            del vars(replica)[verb]
        return loss

    monkeypatch.setitem(STAGES, name, replace(STAGES[name], step=step))
    assert run_locally(prepare(replace(scenario(), variant=(Variant(stage=name, overlap=True),)), labelled()),
                       Progress()).failures == []
    assert begun.count("reduce_scatter") == 3 * begun.count("unscale_and_clip") > 0
