"""Error feedback: what quantised gradients lose comes back, to the bit that loops over single numbers say."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests import quantiser
from tests.checkpointing import go
from tests.test_rehearsal import CLUSTER
from tests.test_variants import run
from tests.test_whole_steps import outcome_of
from tests.training import labelled, scenario
from zerosim.allocation import allocate
from zerosim.collectives import direct, ring, two_level
from zerosim.collectives.narrow import FedBack, OnNarrowWires
from zerosim.figures.resting import resting_bytes
from zerosim.figures.shapes import expected
from zerosim.numerics.wires import CODES, wire
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario.sections import Variant
from zerosim.sharding import split
from zerosim.stages.feedback import Residuals
from zerosim.training.build import alone
from zerosim.training.experiment import Batches, prepare
from zerosim.worlds.local import spawn

# One process replays it.


def hosts(order, per_host, **keys):
    return {"order": order, "ranks_per_host": per_host, **keys}


CASES = (
    {"ranks": 2, "quantized_block": 4}, {"ranks": 1, "micro_batches": 2}, {"quantized_block": 3, "order": "rank"},
    {"quantized_block": 0, "overlap": True, "prefetch": True}, {"accumulation": "micro_batch", "order": "rank"},
    {"accumulation": "micro_batch", "ranks": 4, "micro_batches": 8}, {"accumulation": "layered", "units": "model"},
    {"quantized_block": 5, "precision": "bf16", "clip_norm": 0.1, "reduce_dtype": "fp32"},
    {"reduce_dtype": "bf16", "frozen": (1,), "recompute": True},
    hosts("two_hop", 2, ranks=4, micro_batches=8, quantized_block=4), hosts("two_hop", 3, gradients="all_reduce"),
    hosts("two_level", 2, ranks=4, micro_batches=4, quantized_block=2),
    hosts("two_hop", 3, ranks=6, publish="updates", precision="fp16"),
    {"precision": "fp16", "loud": 300, "steps": 14, "activation": "relu", "learning_rate": 1.0, "micro_batch": 1},
    {"learning_rate": 1e30, "optimizer": "sgd"},
    {"quantized_weights": "int8", "param_dtype": "bf16", "reduce_dtype": "fp32"},
    {"offload_optimizer": "host", "offload_parameters": "disk"},
)


@pytest.mark.parametrize("keys", CASES, ids=str)
@pytest.mark.parametrize("name", ["int8", "int4", "fp8_e5m2"])
def test_what_is_lost_is_added_to_what_is_sent_next_as_one_process_does(name, keys):
    outcome = outcome_of(quantized_gradients=name, error_feedback=True, **keys)
    assert outcome.failures == []
    if "loud" in keys:
        assert all(0 < row.measured.updates < 14 for row in outcome.trained)


# A second implementation: loops over single numbers.


class Loops:
    """All ranks' vectors, and what each has lost of each chunk."""

    def __init__(self, name, block, size, length):
        self.name, self.block, self.size, self.length = name, block, size, length
        self.lost = defaultdict(lambda: [np.float32(0)] * length)

    def arrived(self, rank, chunk, values):
        """What others receive of values of a chunk that a rank sends."""
        due = [np.float32(value + lost) for value, lost in zip(values, self.lost[rank, chunk], strict=True)]
        message = quantiser.encode(self.name, self.block, due)
        found = [np.float32(each) for each in quantiser.decode(self.name, self.block, message, len(due))]
        self.lost[rank, chunk] = [
            np.float32(wanted - came) if np.isfinite(wanted) else np.float32(0)
            for wanted, came in zip(due, found, strict=True)]
        return found

    def ring(self, brought, chunk, ranks=None):
        """The sum of what `ranks` brought of a chunk; the last is its owner."""
        ranks = ranks or [(chunk + distance) % self.size for distance in range(1, self.size + 1)]
        total = brought[ranks[0]]
        for sender, receiver in pairwise(ranks):
            came = self.arrived(sender, chunk, total)
            total = [np.float32(x + y) for x, y in zip(came, brought[receiver], strict=True)]
        return total

    def direct(self, brought, chunk, ranks=None, owner=None):
        """The sum of what `ranks` brought of a chunk, in their order."""
        ranks, owner = ranks or range(self.size), chunk if owner is None else owner
        came = [brought[rank] if rank == owner else self.arrived(rank, chunk, brought[rank]) for rank in ranks]
        total = came[0]
        for each in came[1:]:
            total = [np.float32(x + y) for x, y in zip(total, each, strict=True)]
        return total

    def two_hops(self, brought, chunk):
        """On hosts of two ranks: of each host, and then of the hosts' sums."""
        place, sums = chunk % 2, {}
        for host in range(self.size // 2):
            here = 2 * host + place
            sums[here] = self.direct(brought, chunk, [2 * host, 2 * host + 1], owner=here)
        return self.direct(sums, chunk, list(sums))


WAYS = (
    (ring.reduce_scatter, Loops.ring, 2), (ring.reduce_scatter, Loops.ring, 3),
    (direct.reduce_scatter, Loops.direct, 3),
    (two_level.in_two_hops(2).reduce_scatter, Loops.two_hops, 4),
)


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize(("collective", "way", "size"), WAYS, ids=lambda each: getattr(each, "__qualname__", each))
def test_every_byte_is_that_of_loops_over_single_numbers(name, collective, way, size):
    steps, length, block = 3, 5, 2
    brought = np.random.default_rng(size).standard_normal((steps, size, size * length)).astype(np.float32)
    brought[1, 0, 3] = np.inf
    brought[1, 1, size * length - 1] = np.nan

    def program(comm):
        residual, found = np.zeros(size * length, np.float32), []
        for vectors in brought:
            vector = vectors[comm.rank].copy()
            fed = OnNarrowWires(collective, wire(name, block), allocate, residual)
            fed(comm, split(vector, size))
            found.append(split(vector, size)[comm.rank].copy())
        return found, residual

    with np.errstate(all="ignore"):
        ranks, loops = spawn(program, size), Loops(name, block, size, length)
        for step, vectors in enumerate(brought):
            for chunk in range(size):
                due = np.float32(way(loops, [list(split(mine, size)[chunk]) for mine in vectors], chunk))
                found = ranks[chunk][0][step]
                assert np.array_equal(np.isnan(found), np.isnan(due))
                assert found[~np.isnan(found)].tobytes() == due[~np.isnan(due)].tobytes(), (step, chunk)
    for rank, (_, residual) in enumerate(ranks):
        due = np.float32([loops.lost[rank, chunk] for chunk in range(size)])
        assert residual.tobytes() == due.tobytes()
        assert np.isfinite(residual).all()
        assert residual.any()


# What it is for.


class Halves:
    """A wire of 16-bit numbers, beyond whose range there is only infinity."""

    encoded_bytes = staticmethod(lambda count: 2 * count)
    encode = staticmethod(lambda x, out: np.copyto(out.view(np.float16), x, casting="same_kind"))
    decode = staticmethod(lambda coded, out: np.copyto(out, coded.view(np.float16)))


def test_a_loss_without_end_is_forgotten_whatever_its_sign():
    def program(comm):
        residual, chunk = np.float32([0.5, 0, 0, 0]), np.float32([1, 1e6, -1e6, np.nan])
        FedBack(comm, Halves, allocate, [chunk], residual).exchange(chunk, to=0, into=chunk.copy(), source=0)
        return residual.tolist()

    with np.errstate(all="ignore"):
        assert spawn(program, 1) == [[0, 0, 0, 0]]


def test_bytes_that_encoding_reads_and_writes_are_those_of_its_steps():
    """By hand, of 100 numbers: read and written to add, for scales and for codes, to decode, and to keep the loss."""
    numbers, coded = 400, Halves.encoded_bytes(100)
    due = (numbers + 2 * numbers) + 2 * numbers + coded + (coded + numbers) + 3 * numbers
    chunk = np.zeros(100, np.float32)
    assert OnNarrowWires(None, Halves, allocate, chunk).encoding_bytes(chunk) == due


@pytest.mark.parametrize("order", ["ring", "rank"])
def test_gradients_of_a_training_have_arrived_but_for_what_is_in_residuals(order):
    """What all steps together are off by is what ranks still have; without feedback it is many times as much."""
    def off(feedback):
        built = scenario(FED, steps=30, order=order, quantized_block=256, error_feedback=feedback)
        config, = prepare(built, labelled()).rows
        total = 0.0
        for (snapshot,) in alone(Batches(config, labelled())):
            for each in snapshot.gradients.values():
                total = total + np.pad((each.narrow - each.unquantised).astype(np.float64), (0, 35))[:35]
        return total, sum(np.pad(np.sum(mine, axis=0), (0, 35))[:35] for mine in snapshot.residuals.values())

    (fed, residuals), (plain, _) = off(feedback=True), off(feedback=False)
    assert np.allclose(fed, -residuals, atol=1e-5)
    assert np.linalg.norm(fed) < 0.5 * np.linalg.norm(plain)


# Memory.


def test_residuals_are_a_full_gradient_that_ledger_formula_and_plan_know():
    """Units of 35, 24 and 15 weights on 3 ranks are padded to 36, 24 and 15; fp16 keeps a second copy."""
    for precision, copies in (("fp32", 1), ("bf16", 1), ("fp16", 2)):
        changes = {"stages": ("ddp", "zero3"), "precision": precision}
        plain = run(**changes, quantized_gradients="int8").trained
        outcome = run(**changes, quantized_gradients="int8", error_feedback=True)
        assert outcome.failures == []
        for row, without in zip(outcome.trained, plain, strict=True):
            owners = row.memory[1].figures.owners["optimizer"]
            kept = {owner: held for owner, held in owners.items() if owner.endswith(" residual")}
            assert [*kept.values()] == [copies * 4 * length for length in (36, 24, 15)]
            more = sum(owners.values()) - sum(without.memory[1].figures.owners["optimizer"].values())
            assert more == sum(kept.values())
            assert resting_bytes(row.config).optimizer == sum(owners.values())
            planned = rehearse(row.config, CLUSTER)
            assert +planned.peak == +Counter(expected(row.config).peak_bytes)
            assert planned.clock.now_ns >= rehearse(without.config, CLUSTER).clock.now_ns
            parallel = replace(row.config.row.parallel, offload_optimizer="host")
            on_host = rehearse(replace(row.config, row=replace(row.config.row, parallel=parallel)), CLUSTER)
            assert on_host.resting["optimizer"] == sum(kept.values())


# A step that is skipped.


def test_a_skipped_step_leaves_residuals_as_they_were_in_units_of_the_new_scale():
    unit = prepare(scenario(), labelled()).rows[0].model.units[0]
    residuals = Residuals(copies=2)
    residuals.begin(unit, 3, allocate)
    residuals.now[unit][:] = (1, -2, 3)
    residuals.settle(used=True, rescaled=1.0)
    residuals.now[unit][:] = (7, np.inf, 9)
    residuals.settle(used=False, rescaled=0.5)
    assert residuals.now[unit].tolist() == [0.5, -1.0, 1.5]
    assert residuals.settled[unit].tolist() == [0.5, -1.0, 1.5]


# Checkpoints.

FED = scenario(stages=("zero2",), quantized_gradients="int4", quantized_block=4, error_feedback=True)


def training(**keys):
    """Six micro-batches of two samples for three ranks, four steps."""
    return scenario(FED, **keys)


@pytest.mark.parametrize("keys", [
    {"stages": ("ddp", "zero1", "zero3")}, {"order": "rank"}, {"units": "model"}, {"quantized_gradients": "int8"},
    {"error_feedback": False}, {"error_feedback": False, "quantized_gradients": "none"}], ids=str)
def test_the_same_ranks_go_on_in_another_way(tmp_path, keys):
    go(training(), labelled(), save=tmp_path / "a", steps=2)
    assert go(training(**keys), labelled(), resume=tmp_path / "a").failures == []


def test_a_run_without_feedback_goes_on_with_it_from_nothing_lost(tmp_path):
    go(training(error_feedback=False), labelled(), save=tmp_path / "a", steps=2)
    assert go(training(), labelled(), resume=tmp_path / "a").failures == []


# What goes wrong is noticed.


PLANTED = {
    "of the wrong chunk": lambda self, outgoing: self._residuals[0],
    "in the wrong chunk": lambda self, outgoing: honest(self, outgoing)[::-1],
    "not updated": lambda self, outgoing: honest(self, outgoing).copy(),
}
honest = FedBack._residual_of


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_residual_that_is_kept_otherwise_is_noticed(monkeypatch, planted):
    monkeypatch.setattr(FedBack, "_residual_of", planted)
    outcome = outcome_of(quantized_gradients="int8", quantized_block=4, error_feedback=True)
    assert {what for _, what in outcome.failures} == {"bits differ"}


def test_each_row_may_feed_back_or_not():
    built = scenario(quantized_gradients="int4", variant=(
        Variant("with", stage="zero2", error_feedback=True), Variant("without", stage="zero2")))
    outcome = go(built, labelled())
    assert outcome.failures == []
    (found,) = outcome.differences
    assert found.step == 2, "nothing is lost before the first"
    assert [order.partition(", sent as ")[2] for order in found.orders] == ["int4 with error feedback", "int4"]
