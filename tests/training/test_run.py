"""Whole runs in the local world: every stage, many shapes, and always the same bits as one process."""

import gc
import weakref
from dataclasses import replace

import pytest

from tests.training import claiming, labelled, run, scenario
from zerosim.core.errors import ScenarioError
from zerosim.scenario import Check, Parallel
from zerosim.scenario.sections import Variant
from zerosim.training.experiment import prepare
from zerosim.training.program import Progress, Run
from zerosim.verdict.judged_run import run_locally, run_on
from zerosim.worlds.local import LocalWorld


def agree(outcome):
    """Every check holds, and the stages end with the same weights, optimizer state and losses."""
    assert outcome.failures == []
    assert len({stage.measured.weights_sha256 for stage in outcome.trained}) == 1
    assert len({stage.measured.optimizer_sha256 for stage in outcome.trained}) == 1
    assert len({tuple(float(loss[0]) for loss in stage.measured.losses) for stage in outcome.trained}) == 1
    return outcome


def test_a_wanted_accuracy_that_is_missed_fails_the_run():
    outcome = claiming(run(), Check(test_accuracy=0.999))
    assert [what for _, what in outcome.failures] == ["test accuracy is 12.5%, below 99.9%"] * 4
    assert not outcome.passed


def test_an_accuracy_cannot_be_wanted_without_a_test_split():
    data = replace(labelled(), x_test=None, y_test=None)
    with pytest.raises(ScenarioError, match="needs integer labels and a test split"):
        prepare(replace(scenario(), check=Check(test_accuracy=0.5)), data)


@pytest.mark.parametrize(("order", "counts", "different"), [
    ("exact", (1, 3, 8), 1), ("tree", (1, 2, 8), 1), ("ring", (2, 3, 4), 3)])
def test_with_these_orders_the_number_of_ranks_changes_bits_or_not(order, counts, different):
    digests = {
        agree(run(ranks=ranks, micro_batches=24 if order != "tree" else 16, order=order, learning_rate=1.0, steps=2,
                  stages=("ddp", "zero3"))).trained[0].measured.weights_sha256
        for ranks in counts}
    assert len(digests) == different


def test_other_numbers_of_ranks_are_trained_on_and_compared():
    def on(order):
        base = scenario(ranks=4, micro_batches=4, order=order, learning_rate=1.0, steps=2)
        return run_locally(prepare(replace(base, check=Check(same_bits_on=(1, 2))), labelled()))

    exact = on("exact")
    assert [(ranks, each.name) for ranks, each in exact.on_other_ranks][:3] == [(1, "DDP"), (2, "DDP"), (1, "Stage I")]
    assert exact.failures == []
    assert on("ring").failures[0] == ("DDP", "different bits on 1, 2 ranks")


class Offering(LocalWorld):
    """A world that opens another channel to whoever asks."""

    def channel(self):
        return "another channel"


@pytest.mark.parametrize(("whole", "own", "channel"), [(False, True, "another channel"), (True, False, None)])
def test_a_rank_has_a_second_channel_where_any_row_needs_one(whole, own, channel, monkeypatch):
    rows = replace(scenario(), parallel=Parallel(prefetch=whole), variant=(
        Variant(prefetch=False), Variant(prefetch=own)))
    monkeypatch.setattr("zerosim.verdict.judged_run.measure", lambda *arguments: arguments[4:5])
    monkeypatch.setattr("zerosim.verdict.judged_run.outcome_of", lambda comm, world, experiment, measured: measured[0])
    assert run_on(Offering(1), prepare(rows, labelled()), Progress()) == channel


def test_a_row_is_freed_before_the_next_begins_without_the_garbage_collector(monkeypatch):
    honest, alive = Run.begin, []

    def begin(self):
        alive.append([reference() is not None for reference in earlier])
        earlier.append(weakref.ref(self.replica))
        return honest(self)

    earlier = []
    monkeypatch.setattr(Run, "begin", begin)
    gc.disable()
    try:
        run(ranks=1, stages=("ddp", "zero1", "zero3"))
    finally:
        gc.enable()
    assert alive == [[], [False], [False, False]]
