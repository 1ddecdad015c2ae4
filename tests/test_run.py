"""Whole runs in the local world: every stage, many shapes, and always the same bits as one process."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.training import claiming, labelled, run, scenario
from zerosim.data import Dataset, load_dataset
from zerosim.errors import ScenarioError
from zerosim.scenario import Check, Parallel, load
from zerosim.scenario.sections import Variant
from zerosim.training.alike import alike_everywhere
from zerosim.training.build import initial_weights
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally, run_on
from zerosim.worlds.local import LocalWorld


def agree(outcome):
    """Every check holds, and the stages end with the same weights, optimizer state and losses."""
    assert outcome.failures == []
    assert len({stage.measured.weights_sha256 for stage in outcome.trained}) == 1
    assert len({stage.measured.optimizer_sha256 for stage in outcome.trained}) == 1
    assert len({tuple(float(loss[0]) for loss in stage.measured.losses) for stage in outcome.trained}) == 1
    return outcome


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_every_rank_count_and_optimizer(ranks, optimizer):
    agree(run(ranks=ranks, optimizer=optimizer, micro_batches=2 * ranks, steps=3))


def test_regression():
    random = np.random.default_rng(1)
    x = random.standard_normal((30, 3)).astype(np.float32)
    y = np.stack([x.sum(axis=1), x[:, 0]], axis=1)
    outcome = agree(run(Dataset(x, y, x, y, None), steps=40, learning_rate=0.05))
    assert outcome.trained[0].measured.losses[-1] < outcome.trained[0].measured.losses[0] / 4
    assert outcome.trained[0].measured.test < outcome.trained[0].measured.losses[0] / 4


def test_losses_that_overflow_are_still_the_same_bytes():
    outcome = run(optimizer="sgd", learning_rate=1e38, steps=4)
    assert not np.isfinite(outcome.trained[0].measured.losses[-1])
    assert outcome.failures == []


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("rate", [1e10, 1e20, 1e38])
def test_what_is_no_number_any_more_is_still_the_same_bytes(optimizer, rate):
    """Shards have other lengths than units: which of two NaNs an addition leaves may not depend on that."""
    outcome = run(
        labelled(features=23), ranks=4, micro_batches=4, hidden=(31, 17), activation="relu",
        optimizer=optimizer, learning_rate=rate, steps=8,
    )
    assert outcome.failures == []


def test_without_steps_the_initial_weights_are_left():
    outcome = agree(run(steps=0, keep_weights=True))
    config = outcome.rows[0].config
    for unit, flat in outcome.trained[-1].measured.weights.items():
        assert flat.tobytes() == initial_weights(config)(unit).tobytes()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_traffic_is_counted_by_collective_and_is_the_formulas(ranks):
    outcome = run(ranks=ranks, micro_batches=ranks, steps=2)
    for stage in outcome.trained:
        volume = {"ddp": 2, "zero1": 2, "zero2": 2, "zero3": 3}[stage.stage]
        units = [6 * 5 + 5, 5 * 4 + 4, 4 * 3 + 3]
        once = sum(-(-count // ranks) * 4 * (ranks - 1) for count in units)
        for counts in (rank.counts for rank in stage.traffic):
            assert counts.sent_bytes == counts.received_bytes == volume * once * 2
            by = counts.by_collective
            assert by["reduce_scatter"] == {
                "calls": 2 * 3, "sent_bytes": 2 * once, "messages": 2 * 3 * (ranks - 1)
            }
            assert by["all_gather"]["calls"] == 2 * 3 * (volume - 1)
            assert sum(each["sent_bytes"] for each in by.values()) == counts.sent_bytes
            assert sum(each["messages"] for each in by.values()) == counts.messages


def test_a_seed_is_a_run_and_another_seed_another_one():
    first, again, other = run(seed=1), run(seed=1), run(seed=2)
    assert first.trained[0].measured.weights_sha256 == again.trained[0].measured.weights_sha256
    assert first.trained[0].measured.weights_sha256 != other.trained[0].measured.weights_sha256


def test_a_wanted_accuracy_that_is_missed_fails_the_run():
    outcome = claiming(run(), Check(test_accuracy=0.999))
    assert [what for _, what in outcome.failures] == ["test accuracy is 12.5%, below 99.9%"] * 4
    assert not outcome.passed


def test_an_accuracy_cannot_be_wanted_without_a_test_split():
    data = replace(labelled(), x_test=None, y_test=None)
    with pytest.raises(ScenarioError, match="needs integer labels and a test split"):
        prepare(replace(scenario(), check=Check(test_accuracy=0.5)), data)


def test_who_wants_the_accuracy_of_a_text_is_told_of_its_loss():
    path = Path(__file__).parents[1] / "scenarios" / "shakespeare.toml"
    wanted = replace(load(path), check=Check(test_accuracy=0.5))
    with pytest.raises(ScenarioError, match=r"data\.source; of this data use check\.test_loss"):
        prepare(wanted, load_dataset(wanted))


@pytest.mark.parametrize("order", ["ring", "rank", "tree", "exact"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_order_of_addition(order, ranks):
    agree(run(ranks=ranks, micro_batches=8, order=order, steps=3, learning_rate=1.0))


@pytest.mark.parametrize(("order", "counts"), [("exact", (1, 2, 3, 4, 6, 8, 12)), ("tree", (1, 2, 4, 8))])
def test_with_these_orders_the_number_of_ranks_changes_no_bit(order, counts):
    micro_batches = 24 if order == "exact" else 16
    digests = {
        stage.measured.weights_sha256
        for ranks in counts
        for stage in agree(run(ranks=ranks, micro_batches=micro_batches, order=order, learning_rate=1.0)).trained
    }
    assert len(digests) == 1


def test_with_the_ring_it_does():
    digests = {
        run(ranks=ranks, micro_batches=12, stages=("ddp",), learning_rate=1.0).trained[0].measured.weights_sha256
        for ranks in (2, 3, 4)
    }
    assert len(digests) == 3


def test_other_numbers_of_ranks_are_trained_on_and_compared():
    def on(order):
        base = scenario(ranks=4, micro_batches=4, order=order, learning_rate=1.0)
        return run_locally(prepare(replace(base, check=Check(same_bits_on=(1, 2))), labelled()), Silent())

    assert [(ranks, each.name) for ranks, each in on("exact").on_other_ranks][:3] == [
        (1, "DDP"), (2, "DDP"), (1, "Stage I")]
    assert on("exact").failures == []
    assert on("ring").failures[0] == ("DDP", "other bits on 1, 2 ranks")


class Offering(LocalWorld):
    """A world that opens another channel to whoever asks."""

    def channel(self):
        return "another channel"


@pytest.mark.parametrize("key", ["prefetch", "overlap"])
@pytest.mark.parametrize(("whole", "own", "channel"), [
    (False, None, None), (False, True, "another channel"), (True, None, "another channel"), (True, False, None),
])
def test_a_rank_has_a_second_channel_where_any_row_needs_one(key, whole, own, channel, monkeypatch):
    rows = replace(
        scenario(), parallel=Parallel(**{key: whole}), variant=(Variant(**{key: False}), Variant(**{key: own})))
    monkeypatch.setattr("zerosim.verdict.judged_run.measure_and_judge", lambda comm, run: run.second_channel)
    assert run_on(Offering(1), prepare(rows, labelled()), Silent()) == channel


def test_runs_in_two_threads_share_the_limit_of_blas():
    """The first to end does not lift it for the other."""
    def threads():
        return max((each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"), default=1)

    with threadpool_limits(2):
        before, (first, second) = threads(), (alike_everywhere() for _ in range(2))
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == 1
        second.__exit__(None, None, None)
        assert threads() == before
