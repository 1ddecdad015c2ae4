"""Precision, accumulation, clipping, schedules and variants of a stage, one by one; the hunt draws any combination."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.mpi.launch import mpirun
from tests.training import SMALL, batches_of, labelled, sabotaged, scenario
from zerosim.allocation import allocate
from zerosim.data import load_dataset
from zerosim.errors import CollectiveError, Deadlock
from zerosim.instruments.observed import Observed
from zerosim.optim.scaling import INITIAL_SCALE
from zerosim.optim.update import MASTER, LearningRate
from zerosim.scenario import load
from zerosim.sharding import chunk_length
from zerosim.stages import STAGES
from zerosim.training.alike import alike_everywhere
from zerosim.training.build import initial_weights, reference
from zerosim.training.build import replica as replica_of
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally
from zerosim.worlds.local import spawn


def run(base=None, *, dataset=None, **changes):
    return run_locally(prepare(scenario(base or SMALL, **changes), dataset or labelled()), Silent(), keep_weights=True)


def tensors(stage):
    """The final weights by parameter."""
    return {name: view for unit, flat in stage.measured.weights.items() for name, view in unit.views(flat).items()}


def replicas(name, dataset, **changes):
    """Each rank's replica at the end of training by one stage."""
    batches = batches_of(scenario(stages=(name,), **changes), dataset)

    def program(comm):
        replica = replica_of(batches.config, Observed(comm), allocate)
        replica.begin(initial_weights(batches.config))
        for batch in batches.of_rank(comm.rank):
            STAGES[name].step(replica, batch)
        return replica

    with alike_everywhere():
        return spawn(program, batches.config.ranks)


# Loss scaling.


def one_large_sample():
    """Gradients of one rank's first micro-batch overflow float16 under the initial loss scale."""
    data = labelled(samples=12)
    data.x[:] *= 0.1
    data.x[3] = 60.0
    return data


OVERFLOWING = {"precision": "fp16", "optimizer": "adam", "activation": "relu", "steps": 5}


def test_steps_that_overflow_are_skipped_by_every_stage_alike():
    outcome = run(**OVERFLOWING, dataset=one_large_sample())
    assert outcome.failures == []
    assert {stage.measured.updates for stage in outcome.trained} == {outcome.trained[0].measured.updates}
    assert 0 < outcome.trained[0].measured.updates < 5


@pytest.mark.parametrize("name", STAGES)
def test_ranks_agree_to_skip_and_to_halve_the_loss_scale(name):
    skipped = {steps: replicas(name, one_large_sample(), **(OVERFLOWING | {"steps": steps})) for steps in (1, 5)}
    for steps, ranks in skipped.items():
        assert len({(replica.state.updates, replica.state.scaling.loss_scale) for replica in ranks}) == 1
        assert ranks[0].state.scaling.loss_scale == INITIAL_SCALE / 2 ** (steps - ranks[0].state.updates)
    assert skipped[1][0].state.updates == 0


def test_a_skipped_step_changes_nothing():
    skipped, untrained = (run(**(OVERFLOWING | {"steps": steps}), dataset=one_large_sample()) for steps in (1, 0))
    for after, before in zip(skipped.trained, untrained.trained, strict=True):
        assert after.measured.updates == 0
        assert after.measured.weights_sha256 == before.measured.weights_sha256
        assert after.measured.optimizer_sha256 == before.measured.optimizer_sha256


# Clipping, schedules, decay.


def gradient_of_first_step(built):
    batches = batches_of(built)
    initial = {unit: initial_weights(batches.config)(unit) for unit in batches.config.model.units}
    _, found = reference(batches.config).gradients(initial, batches.micro_batches(1), 1, 1.0, {})
    return {name: view for unit, flat in found.items() for name, view in unit.views(flat.used).items()}, {
        name: view for unit, flat in initial.items() for name, view in unit.views(flat).items()
    }


@pytest.mark.parametrize("clip_norm", [0.01, 0.2, 1e6])
def test_gradients_are_clipped_as_by_pytorch(clip_norm):
    """coefficient = min(1, max_norm / (norm + 1e-6)), and with plain SGD at rate 1 the step is the gradient."""
    base = scenario(optimizer="sgd", learning_rate=1.0, steps=1)
    gradients, initial = gradient_of_first_step(base)
    norm = math.sqrt(sum(float(np.sum(g.astype(np.float64) ** 2)) for g in gradients.values()))
    coefficient = min(1.0, clip_norm / (norm + 1e-6))
    assert norm > 0.2
    outcome = run(base, clip_norm=clip_norm)
    assert outcome.failures == []
    for stage in outcome.trained:
        steps = {name: initial[name] - after for name, after in tensors(stage).items()}
        for name, step in steps.items():
            np.testing.assert_allclose(step, coefficient * gradients[name], rtol=1e-4, atol=1e-7)
        length = math.sqrt(sum(float(np.sum(step.astype(np.float64) ** 2)) for step in steps.values()))
        assert length == pytest.approx(min(norm, clip_norm), rel=1e-4)


def test_the_schedules_figures():
    warm = LearningRate(0.4, "constant", warmup_steps=4, steps=8)
    assert [warm.learning_rate(step) for step in range(1, 9)] == pytest.approx([0.1, 0.2, 0.3] + 5 * [0.4])
    cosine = LearningRate(2.0, "cosine", warmup_steps=1, steps=5)
    assert [cosine.learning_rate(step) for step in range(1, 6)] == pytest.approx(
        [2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0]
    )


def test_a_run_follows_its_schedule():
    """Plain SGD on one and the same batch: the first step is as long as the rate says; the last, at rate 0, is none."""
    base = scenario(optimizer="sgd", learning_rate=0.5, steps=1, stages=("zero2",))
    gradients, initial = gradient_of_first_step(base)
    first = run(scenario(base, steps=4), warmup_steps=4, schedule="cosine", steps=4)
    assert first.failures == []
    slow = run(scenario(base, steps=1), warmup_steps=1, learning_rate=0.125)
    batches = batches_of(scenario(base, steps=4, schedule="cosine", warmup_steps=2))
    history = [
        {unit.name: flat.copy() for unit, flat in snapshot.weights.items()}
        for snapshot in reference(batches.config).train(batches.all_ranks())
    ]
    assert all(history[4][name].tobytes() == flat.tobytes() for name, flat in history[3].items())
    assert all(history[3][name].tobytes() != flat.tobytes() for name, flat in history[2].items())
    for name, after in tensors(slow.trained[0]).items():
        np.testing.assert_allclose(initial[name] - after, 0.125 * gradients[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_without_their_decay_biases_are_as_if_there_were_none(optimizer):
    base = scenario(optimizer=optimizer, steps=1, micro_batches=3)
    none, weights_only, all_of_it = (
        run(base, weight_decay=decay, decay_biases=biases)
        for decay, biases in ((0.0, True), (0.3, False), (0.3, True))
    )
    assert none.failures == weights_only.failures == all_of_it.failures == []
    for number in range(len(STAGES)):
        without, some, every = (tensors(outcome.trained[number]) for outcome in (none, weights_only, all_of_it))
        for name in without:
            if name.endswith(".bias"):
                assert some[name].tobytes() == without[name].tobytes() != every[name].tobytes()
            else:
                assert some[name].tobytes() == every[name].tobytes() != without[name].tobytes()


# Frozen layers, accumulation, publication, prefetch.


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1)])
def test_frozen_layers_stay_as_they_are_and_cost_no_gradients(frozen):
    outcome = run(frozen=frozen, micro_batches=3)
    assert outcome.failures == []
    config = outcome.rows[0].config
    trained = [unit for number, unit in enumerate(config.model.units) if number not in frozen]
    names = {unit.name for unit in trained}
    for stage in outcome.trained:
        for unit, flat in stage.measured.weights.items():
            same = flat.tobytes() == initial_weights(config)(unit).tobytes()
            assert same == (unit.name not in names)
        for counts in stage.traffic:
            reduced = counts.counts.by_collective["reduce_scatter"]
            assert reduced["calls"] == 4 * len(trained)
            assert reduced["sent_bytes"] == 4 * sum(2 * 4 * chunk_length(unit.count, 3) for unit in trained)
        for rank in stage.memory:
            assert rank.rests


def test_reducing_every_micro_batch_adds_in_another_order_and_sends_more():
    boundary, parts = (
        run(micro_batches=9, stages=("zero2", "zero3"), accumulation=how, learning_rate=0.3)
        for how in ("layered", "micro_batch")
    )
    assert boundary.failures == parts.failures == []
    for once, thrice in zip(boundary.trained, parts.trained, strict=True):
        assert once.measured.weights_sha256 != thrice.measured.weights_sha256
        sent = [stage.traffic[0].counts.by_collective["reduce_scatter"]["sent_bytes"] for stage in (once, thrice)]
        assert sent[1] == 3 * sent[0]
    assert [stage.volume for stage in boundary.trained] == [2, 3]
    assert [stage.volume for stage in parts.trained] == [3 + 1, 3 * 3]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_updates_of_rounded_weights_are_another_computation_which_the_reference_replays(precision):
    outcome = run(publish="updates", precision=precision, stages=("ddp", "zero1", "zero2"))
    assert outcome.failures == []
    assert [stage.equal for stage in outcome.trained] == [True] * 3
    ddp, *others = (stage.measured.weights_sha256 for stage in outcome.trained)
    assert others[0] == others[1] != ddp


def test_in_float32_updates_are_as_good_as_weights():
    updates, weights = run(publish="updates"), run(publish="weights")
    assert updates.failures == weights.failures == []
    digests = {stage.measured.weights_sha256 for stage in (*updates.trained, *weights.trained)}
    assert digests == {weights.trained[0].measured.weights_sha256}


BESIDE = """
[world]
ranks = {ranks}
[model]
hidden = [30, 20, 10]
[train]
steps = 6
micro_batch = 3
micro_batches = {micro_batches}
precision = "bf16"
[parallel]
stages = ["ddp", "zero1", "zero2", "zero3"]
prefetch = {prefetch}
overlap = {overlap}
accumulation = "micro_batch"
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "prefetch", "overlap"), [(2, "true", "true"), *(
        pytest.param(3, *kinds, marks=pytest.mark.long) for kinds in (("true", "false"), ("false", "true")))])
def test_what_goes_on_beside_computation_changes_no_bit_and_no_byte(ranks, prefetch, overlap, tmp_path):
    path = tmp_path / "beside.toml"
    path.write_text(BESIDE.format(ranks=ranks, micro_batches=2 * ranks, prefetch=prefetch, overlap=overlap))
    out = tmp_path / "out.json"
    done = mpirun(ranks, ["-m", "zerosim", "run", str(path), "--progress", "none", "--json", str(out)])
    assert done.returncode == 0, done.stderr
    found = load(path, ["parallel.prefetch=false", "parallel.overlap=false"])
    in_turn = run_locally(prepare(found, load_dataset(found)), Silent()).trained
    for there, here in zip(json.loads(out.read_text())["rows"], in_turn, strict=True):
        assert there["weights_sha256"] == here.measured.weights_sha256
        assert there["optimizer_sha256"] == here.measured.optimizer_sha256
        assert [counts["by_collective"] for counts in there["traffic"]] == [
            counts.by_collective for counts in here.measured.traffic]


# Planted bugs.


def plant(monkeypatch, name, prepare_rank, after=lambda replica: None):
    """Let stage `name` go through every step with what `prepare_rank(replica)` makes of the replica."""
    honest = STAGES[name]

    def step(replica, batch):
        prepare_rank(replica)
        loss = honest.step(replica, batch)
        after(replica)
        return loss

    monkeypatch.setitem(STAGES, name, sabotaged(STAGES, name, step=step))


def goes_on_alone(replica):
    """Rank 1 looks at the sums of its own chunks, and not at those of the others."""
    if replica.comm.rank == 1 and "unscale_and_clip" not in vars(replica):
        honest = replica.unscale_and_clip

        def unscale_and_clip():
            honest()
            if replica.factor is None:
                replica.factor = 1.0 / INITIAL_SCALE
                replica.state.updates += 1

        replica.unscale_and_clip = unscale_and_clip


def test_a_rank_that_does_not_skip_with_the_others_is_caught_by_its_bits(monkeypatch):
    plant(monkeypatch, "zero3", goes_on_alone)
    outcome = run(**OVERFLOWING, stages=("zero2", "zero3"), dataset=one_large_sample())
    assert outcome.failures == [("Stage III", "bits differ")]
    assert outcome.trained[1].first_divergence.step == 1


@pytest.mark.parametrize("name", ["zero1", "zero2"])
def test_a_rank_that_publishes_what_the_others_skip_is_left_alone(monkeypatch, name):
    plant(monkeypatch, name, goes_on_alone)
    with pytest.raises((Deadlock, CollectiveError)):
        run(**OVERFLOWING, stages=(name,), dataset=one_large_sample())


@pytest.mark.parametrize("name", STAGES)
def test_a_master_copy_that_stays_as_it_was_is_caught(monkeypatch, name):
    before = {}

    def remember(replica):
        before[replica.comm.rank] = {unit: state[MASTER].copy() for unit, state in replica.state.optimizer.items()}

    def restore(replica):
        for unit, master in before[replica.comm.rank].items():
            replica.state.optimizer[unit][MASTER][:] = master

    plant(monkeypatch, name, remember, restore)
    outcome = run(precision="bf16", stages=(name,))
    assert outcome.failures == [(STAGES[name].title, "bits differ")]
    assert outcome.trained[0].first_divergence.step == 1


@pytest.mark.parametrize("name", STAGES)
def test_one_rank_that_clips_otherwise_is_caught(monkeypatch, name):
    def clips_less(replica):
        if replica.comm.rank == 2:
            replica.state.scaling.clip_norm = 0.011

    plant(monkeypatch, name, clips_less)
    outcome = run(clip_norm=0.01, optimizer="sgd", stages=(name,))
    assert outcome.failures == [(STAGES[name].title, "bits differ")]
    assert outcome.trained[0].first_divergence.step == 1


def test_a_variant_that_sends_what_it_should_not_is_caught(monkeypatch):
    def reduces_to_all(replica):
        replica.reduction = replace(replica.reduction, to_all=True)

    plant(monkeypatch, "zero1", reduces_to_all)
    assert run(stages=("zero1",)).failures == [
        ("Stage I", "bytes sent are not the formula's: 2,400 of rank 0; expected 1,600")]
