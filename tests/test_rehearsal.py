"""All ranks at once, in the lockstep world, against each by itself, in the local one, where messages are counted."""

import dataclasses
import random
from itertools import product

import numpy as np
import pytest

from zerosim.core.errors import Unlike, ZerosimError
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.models.units import Task
from zerosim.plan import rehearsal
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.costs import Costs, Price
from zerosim.plan.rehearsal import rehearse, rehearsed_apart, rehearsed_at_once
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Check, ModelKeys, Parallel, Train, WorldKeys
from zerosim.stages import STAGES
from zerosim.training.config import configured
from zerosim.worlds.lockstep import ranks

LINK = Link("slow", 1000, 10**9)
CLUSTER = Cluster(Device("a device", 1e12, 1e9, 1e11), 2, LINK, Link("slower", 3000, 10**8), True, False)

SHARED = {
    "accumulate_dtype": ("weights", "fp32"), "reduce_dtype": ("weights", "fp32"), "overlap": (False, True),
    "bucket_mb": (0.0, 0.0001), "recompute": (False, True), "offload_activations": (False, True),
    "accumulation": ("boundary", "layered"),
}
OWN = {
    "ddp": {},
    "zero1": {"gradients": ("reduce_scatter", "all_reduce"), "publish": ("weights", "broadcasts", "updates")},
    "zero2": {"gradients": ("reduce_scatter", "all_reduce"), "publish": ("weights", "broadcasts", "updates"),
              "accumulation": ("boundary", "micro_batch", "layered")},
    "zero3": {"accumulation": ("boundary", "micro_batch", "layered"), "prefetch": (False, True),
              "reshard_after_forward": (True, False)},
}
MODELS = (
    (ModelKeys(hidden=(5, 4)), Task(7, 3, "cross_entropy")),
    (ModelKeys(kind="transformer", layers=2, width=6, heads=2, vocabulary=11, sequence=5, tied_embeddings=True),
     Task(5, 11, "cross_entropy", tokens=True)),
)
"""Units of 40, 24 and 15 elements, and of 108, 510 and 510: most have padding."""
SIZES = (2, 3, 4, 5, 7)


def variants(stage):
    """All that a scenario may say of a stage."""
    values = SHARED | OWN[stage]
    said = [dict(zip(values, each, strict=True)) for each in product(*values.values())]
    return [
        keys for keys in said
        if (keys["recompute"] or not keys["offload_activations"])
        and (keys.get("reshard_after_forward", True) or not keys.get("prefetch"))
    ]


def config(stage, keys, size=3, number=0):
    """A row; what else there is to vary goes by its number."""
    model, task = MODELS[number % 2]
    order = ("ring", "rank", "tree" if size in (2, 4, 8) and "micro_batch" not in keys.values() else "ring")[number % 3]
    each = 4 if order == "tree" else 3                      # so few that all of them are run
    precision, clip_norm = (("fp16", 1.0), ("fp32", 0.0), ("bf16", 0.5), ("fp16", 0.0))[number // 2 % 4]
    scenario = Scenario(
        world=WorldKeys(size), model=model, check=Check(reference=False),
        train=Train(steps=1, micro_batch=2, micro_batches=each * size, precision=precision, clip_norm=clip_norm),
        parallel=Parallel(stages=(stage,), order=order, **keys),
    )
    (row,) = scenario.rows
    return configured(row, task)


def difference(at_once, alone, rank):
    """What a rehearsal of all does not say of this rank as its own does; empty if nothing."""
    same_bytes = not isinstance(at_once.clock.sent_counts["bytes"], np.ndarray) or rank == 0
    found = {
        each: (getattr(at_once, each), getattr(alone, each))
        for each in ("resting", "peak", "peak_total", "operations")
    }
    found["sent"] = at_once.sent(rank), alone.sent(0)
    found["times"] = times(at_once), times(alone)
    found["spans"] = spans(at_once, same_bytes), spans(alone, same_bytes)
    return [name for name, (mine, its_own) in found.items() if mine != its_own]


def times(found):
    reading = found.clock.reading()
    counts = {key: n for key, n in reading.counts.items() if not key[0].startswith("sent")}
    return reading.now_ns, reading.exposed_ns, counts


def spans(found, with_bytes):
    return [span if with_bytes else span._replace(bytes=0) for span in found.clock.spans]


def check(row, cluster=CLUSTER):
    at_once, apart = rehearsed_at_once(row, cluster), rehearsed_apart(row, cluster)
    assert len(apart) == row.ranks
    for rank, alone in enumerate(apart):
        assert difference(at_once, alone, rank) == [], f"rank {rank}, {row.name}, {row.parallel}"


@pytest.mark.parametrize("stage", STAGES)
def test_all_at_once_are_as_each_by_itself(stage):
    """Bytes, messages, memory and the times of the clock, whatever a stage is told, padded and not."""
    drawn = random.Random(stage).sample(variants(stage), 14)
    for number, keys in enumerate(drawn):
        check(config(stage, keys, size=SIZES[number % 5], number=number))


@pytest.mark.parametrize("stage", STAGES)
def test_collectives_as_written_take_as_long_all_at_once(stage):
    written = dataclasses.replace(CLUSTER, pipelined=False)
    check(config(stage, dict.fromkeys(OWN[stage].keys() & {"prefetch"}, True), size=4), written)


# What is planted is found.

def stage_with(row, after):
    """The row, whose stage ends its step by `after(replica)`."""
    stage = row.stage

    def step(replica, batch):
        loss = stage.step(replica, batch)
        after(replica)
        return loss

    return dataclasses.replace(stage, step=step)


@pytest.fixture
def planted(monkeypatch):
    def plant(after, size=3):
        row = config("zero3", {}, size)
        monkeypatch.setitem(STAGES, "zero3", stage_with(row, after))
        return row

    return plant


def root_keeps_more(replica):
    if replica.comm.rank == 0:
        replica.kept = replica.allocate(100_000, np.float32, kind="buffers", owner="root")


def each_keeps_its_number(replica):
    replica.kept = replica.allocate(1000 * (replica.comm.rank + 1), np.float32, kind="buffers", owner="rank")


def cuts_what_is_not_padded(replica):
    replica.kept = replica.allocate(
        split(Extent(100_001, np.float32), replica.comm.size)[replica.comm.rank].shape, np.float32, kind="buffers",
        owner="ragged")


def each_sends_its_number(replica):
    each_keeps_its_number(replica)
    replica.comm.clock.send(1000 * (replica.comm.rank + 1), 1)
    replica.comm.clock.sent_by["all_gather"] += 1000 * (replica.comm.rank + 1)
    replica.comm.clock.compute("update", replica.comm.rank)


def root_gathers_more(replica):
    if replica.comm.rank == 0:
        replica.comm.clock.compute("update", 10**6)
    replica.all_gather(replica.units[0], replica.full(replica.units[0], "parameters"))


@pytest.mark.parametrize("after", [root_keeps_more, each_keeps_its_number, cuts_what_is_not_padded])
def test_where_ranks_do_different_things_the_local_world_takes_over(after, planted):
    row = planted(after)
    with pytest.raises(Unlike, match="ranks would do different things"):
        rehearsed_at_once(row, CLUSTER)
    apart = rehearsed_apart(row, CLUSTER)
    assert rehearse(row, CLUSTER).peak_total == max(rank.peak_total for rank in apart)
    assert len({rank.peak["buffers"] for rank in apart}) > 1


def test_each_rank_of_a_plan_made_rank_by_rank_sends_what_it_sent(planted):
    """The last rank is the slowest, and sends 2,000 bytes more than the first."""
    row = planted(each_sends_its_number)
    (found,), apart = rehearse(row, CLUSTER).stages, rehearsed_apart(row, CLUSTER)
    assert found.clock.now_ns == apart[2].clock.now_ns > apart[0].clock.now_ns
    assert [found.sent(rank) for rank in range(3)] == [each.sent(rank) for rank, each in enumerate(apart)]
    assert found.sent(2)["bytes"] != found.sent(0)["bytes"]
    assert found.clock.sent_by == apart[0].clock.sent_by


def test_who_comes_first_waits_for_the_last(planted):
    root, *others = rehearsed_apart(planted(root_gathers_more), CLUSTER)
    assert {rank.clock.now_ns for rank in others} == {root.clock.now_ns}
    assert {rank.clock.exposed_ns - root.clock.exposed_ns for rank in others} == {10**6}


def test_too_many_ranks_that_differ_are_refused_in_one_line(planted):
    with pytest.raises(ZerosimError, match=r"at most 64 ranks are planned one by one; set world\.ranks to") as caught:
        rehearse(planted(root_keeps_more, 65), CLUSTER)
    assert "\n" not in str(caught.value)


def test_a_price_that_forgets_a_byte_is_seen(monkeypatch):
    price = Costs.price

    def forgetful(self, *arguments):
        found = price(self, *arguments)
        return Price(found.ns, found.sent_bytes - 1, found.messages)

    monkeypatch.setattr(Costs, "price", forgetful)
    row = config("zero2", {})
    assert difference(rehearsed_at_once(row, CLUSTER), rehearsed_apart(row, CLUSTER)[0], 0) == ["sent", "spans"]


def test_memory_that_one_rank_forgets_is_seen(monkeypatch):
    counted = rehearsal.ObservedAllocator

    def forgetful(plain, ledger):
        kept = counted(plain, ledger)
        return lambda shape, dtype, *, kind, owner: (plain if kind == "gradients" else kept)(
            shape, dtype, kind=kind, owner=owner)

    row = config("zero2", {})
    true = rehearsed_at_once(row, CLUSTER)
    monkeypatch.setattr(rehearsal, "ObservedAllocator", forgetful)
    assert difference(true, rehearsed_apart(row, CLUSTER)[1], 1) == ["resting", "peak", "peak_total"]


def test_extents_are_cut_by_vectors_where_pieces_are_equally_long():
    padded = split(Extent(12, np.float32), 4)
    assert padded[ranks(4)].shape == (3,)
    assert padded[(ranks(4) + 1) % 4].shape == (3,)
    with pytest.raises(Unlike, match="not equally long"):
        split(Extent(10, np.float32), 4)[ranks(4)]
