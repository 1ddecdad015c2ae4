"""Small facts on which larger ones rest, each by itself: defaults, what is left in padding, the one NaN."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tests.training import labelled, run, scenario
from zerosim.errors import ZerosimError
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import Observed
from zerosim.instruments.traffic import Traffic
from zerosim.models.mlp import mlp
from zerosim.numerics.not_a_number import NOT_A_NUMBER, with_one_nan
from zerosim.numerics.precisions import PRECISIONS
from zerosim.optim.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.optim.scaling import skipped_in_vain
from zerosim.optim.update import MASTER, LearningRate, UpdateRule
from zerosim.sharding import Mesh
from zerosim.stages.beside import Beside
from zerosim.stages.gathering import Filled, Prefetched
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally
from zerosim.worlds.local import spawn


def test_a_ledger_begins_empty_and_draws_no_curve_unasked():
    ledger = Ledger()
    assert (ledger.total, ledger.peak_total, ledger.curve) == (0, 0, [])
    ledger.taken("buffers", "owner", 8)
    assert ledger.curve == []
    ledger.begin_curve()
    ledger.taken("buffers", "owner", 8)
    assert [sum(now.values()) for _, now in ledger.curve] == [8, 16]
    ledger.end_curve()
    ledger.taken("buffers", "owner", 8)
    assert len(ledger.curve) == 2


def test_messages_are_counted_one_by_one_in_both_directions():
    def program(comm):
        traffic = Traffic()
        observed = Observed(comm, traffic)
        for _ in range(3):
            observed.exchange(np.ones(2), to=0, into=np.empty(2), source=0)
        return traffic.messages, traffic.received_messages, traffic.received_bytes

    assert spawn(program, 1) == [(3, 3, 48)]


@pytest.mark.parametrize("groups", [[[0], [2]], [[0, 1]], [[0, 1], [1, 2]], [[0], [], [1, 2]], [[0], [1, 1, 2]]])
def test_units_name_every_layer_once(groups):
    with pytest.raises(ZerosimError, match=r"must name the layers 0 to 2, each once$"):
        mlp(2, [2, 2], 2, "relu", "cross_entropy", groups=groups)


@pytest.mark.parametrize("groups", [[[1], [2, 0]], [[0, 2], [1]], [[2, 0], [1]]])
def test_units_come_in_the_order_of_their_first_layers(groups):
    model = mlp(2, [2, 2], 2, "relu", "cross_entropy", groups=groups)
    assert [(unit.name, unit.numbers) for unit in model.units] == [
        ("layers.0+layers.2", (0, 2)), ("layers.1", (1,))]
    assert [(unit.name, segment.numbers) for unit, segment in model.segments] == [
        ("layers.0+layers.2", (0,)), ("layers.1", (1,)), ("layers.0+layers.2", (2,))]


def test_a_unit_is_frozen_as_a_whole_or_not_at_all():
    with pytest.raises(ZerosimError, match=r"the unit of layers \[0, 1\] is partly frozen"):
        mlp(2, [2, 2], 2, "relu", "cross_entropy", groups=[[0, 1], [2]], frozen=[1])


def test_there_is_one_nan_and_it_is_this_processors():
    assert np.isnan(NOT_A_NUMBER)
    assert type(NOT_A_NUMBER) is np.float32
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001], np.uint32).view(np.float32)
    assert with_one_nan(nans) is nans
    assert set(nans.view(np.uint32).tolist()) == {int(NOT_A_NUMBER.view(np.uint32))}
    assert with_one_nan(np.array([np.inf, -0.0], np.float32)).tolist() == [np.inf, -0.0]


def test_skipping_is_in_vain_from_the_first_step_at_the_lowest_scale():
    assert [skipped_in_vain(updates, skipped) for updates, skipped in (
        (1, 40), (1, 41), (2000, 41), (2000, 42), (0, 0), (0, 1))] == [False, True, False, True, False, True]


def test_without_warm_up_the_cosine_begins_at_once():
    rate = LearningRate(1.0, "cosine", steps=4)
    assert [rate.learning_rate(step) for step in (2, 4)] == pytest.approx([0.5, 0.0])
    assert LearningRate(1.0).learning_rate(1) == 1.0


(UNIT,) = mlp(2, [], 1, "relu", "mean_squared_error").units


def sgd(precision):
    return UpdateRule(OPTIMIZERS["sgd"], Hyperparameters(), LearningRate(0.25), PRECISIONS[precision])


def test_16_bit_weights_are_the_rounded_master_copy():
    master, weights = np.array([1, 2, 3, 0], np.float32) + 2.0**-12, np.full(4, 9, ml_dtypes.bfloat16)
    gradient = np.array([1, 1, 1, 7], ml_dtypes.bfloat16)
    sgd("bf16").update(UNIT, 0, weights, gradient, {MASTER: master}, step=1, count=1, factor=1.0)
    assert master.tolist() == [0.75 + 2.0**-12, 1.75 + 2.0**-12, 2.75 + 2.0**-12, 2.0**-12]
    assert weights.tobytes() == master.astype(ml_dtypes.bfloat16).tobytes()


def test_nothing_is_to_be_subtracted_from_padding():
    out = np.full(4, 9, np.float32)
    sgd("fp32").differences(
        UNIT, 0, np.ones(4, np.float32), np.ones(4, np.float32), {}, step=1, count=1, factor=1.0, out=out)
    assert out.tolist() == [0.25, 0.25, 0.25, 0.0]


def test_what_is_prefetched_travels_in_the_second_channel():
    channels = []
    shard = np.ones(3, np.float32)
    replica = SimpleNamespace(
        comm=SimpleNamespace(rank=0, size=1), full=lambda unit, kind: np.empty(3, np.float32), own=lambda full: full,
        shards=SimpleNamespace(begin=lambda unit: None, take=lambda unit: shard), mesh=Mesh(0, 1, 1),
        collectives=SimpleNamespace(all_gather=lambda owner, comm, chunks: channels.append(comm)),
    )
    second = SimpleNamespace(rank=0, size=1)
    for comm, due in ((second, [second] * 2), (None, [replica.comm] * 2)):
        channels.clear()
        ahead = Prefetched(Beside(replica.comm, comm), Filled())
        ahead.prefetch(replica, None)
        assert ahead.gather(replica, UNIT).tolist() == [1, 1, 1]
        ahead.prefetch(replica, UNIT)
        assert ahead.gather(replica, UNIT).tolist() == [1, 1, 1]
        assert all(found is wanted for found, wanted in zip(channels, due, strict=True))


def test_updates_on_their_way_are_buffers_of_one_unit():
    (stage,) = run(steps=1, stages=("zero1",), publish="updates").trained
    assert {rank.figures.peak_bytes["buffers"] for rank in stage.memory} == {4 * 36}     # 6 · 5 + 5, padded for 3 ranks


@pytest.mark.parametrize("keep", [False, True])
def test_weights_are_kept_only_if_somebody_asks(keep):
    experiment = prepare(scenario(steps=1, stages=("zero3",)), labelled())
    (stage,) = run_locally(experiment, Silent(), keep_weights=keep).trained
    assert (stage.measured.weights is not None) is keep
