"""Data ranks joined by context and expert ranks: bytes of each rank, collectives and their links, by closed forms."""

import dataclasses
from math import prod

import pytest

import zerosim as zs
from zerosim.collectives import ring
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.plan.calls import Rates
from zerosim.plan.costs import Costs
from zerosim.plan.joined import resting_of
from zerosim.plan.rehearsal import rehearsed_apart

WIDTH, INNER, EXPERTS, VOCABULARY, RANKS = 512, 256, 8, 1024, 32
SMALL = {
    "train.micro_batch": 4, "train.precision": "bf16", "model.kind": "mixture", "model.layers": 2,
    "model.sequence": 256, "model.width": WIDTH, "model.inner": INNER, "model.heads": 8,
    "model.key_value_heads": 8, "model.vocabulary": VOCABULARY, "model.experts": EXPERTS,
    "model.experts_per_token": 2, "model.queue_tokens": 32, "parallel.recompute": False, "check.fits": [],
    "check.does_not_fit": [], "check.mfu": [],
}
OVER = {
    "expert": {"expert_ranks": 4},
    "context+expert": {"context_ranks": 2, "expert_ranks": 4},
    "tensor+context+expert": {"tensor_ranks": 2, "context_ranks": 2, "expert_ranks": 2, "sequence_parallel": True},
    "tensor ranks with copies": {"tensor_ranks": 2, "expert_ranks": 4},
    "groups of data ranks": {"expert_ranks": 4, "shard_ranks": 4},
    "experts without data ranks": {"expert_ranks": 4, "ranks": 4},
}
WEIGHT, STATE = 2, 12
"""Bytes of a weight or gradient in 16 bits, and of its master copy and Adam's moments."""


def places(over):
    """The ranks of each direction, and all ranks."""
    sizes = [OVER[over].get(f"{name}_ranks", 1) for name in ("tensor", "context", "expert")]
    return sizes, OVER[over].get("ranks", RANKS)


def row(over, software="fused", **keys):
    sizes, ranks = places(over)
    parallel = {f"parallel.{key}": value for key, value in (OVER[over] | keys).items() if key != "ranks"}
    machine = {"world.ranks": ranks, "train.micro_batches": ranks // prod(sizes), "cluster.software": software}
    (found,) = zs.plan("scenarios/plans/llama3_8b.toml", set=SMALL | parallel | machine).subject.rows
    return found


def counts(over):
    """The elements of a rank's weights that are not experts', and of its experts'; the ranks of the groups of both."""
    (tensor, context, expert), ranks = places(over)
    data = OVER[over].get("shard_ranks", ranks // (tensor * context * expert))
    block = 4 * WIDTH**2 // tensor + (2 + EXPERTS) * WIDTH
    dense = 2 * block + (2 * VOCABULARY + 1) * WIDTH
    cut = context * expert * (tensor if OVER[over].get("sequence_parallel") else 1)
    return dense, 2 * 3 * EXPERTS * WIDTH * INNER // cut, data * context * expert, data


@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("over", OVER)
def test_a_rank_has_its_share_of_the_ranks_that_hold_a_weight_and_another_of_an_expert(over, stage):
    dense, experts, wide, narrow = counts(over)
    whole, shard = dense + experts, dense // wide + experts // narrow
    assert (dense % wide, experts % narrow) == (0, 0)
    sharded = ["parameters", "gradients", "optimizer"][3 - ["ddp", "zero1", "zero2", "zero3"].index(stage):]
    due = {kind: (shard if kind in sharded else whole) * size
           for kind, size in (("parameters", WEIGHT), ("gradients", WEIGHT), ("optimizer", STATE))}
    found = row(over, stages=[stage])
    assert {kind: found.found.resting[kind] for kind in due} == due
    (by_formula,) = resting_of(found.config, found.cluster)
    assert {kind: getattr(by_formula, kind) for kind in due} == due


@pytest.mark.parametrize(("stage", "gathers"), [("ddp", 1), ("zero1", 1), ("zero3", 2)])
@pytest.mark.parametrize("over", [name for name in OVER if name != "groups of data ranks"])
def test_each_group_sends_its_share_of_a_reduce_scatter_and_of_each_all_gather(over, stage, gathers):
    dense, experts, wide, narrow = counts(over)
    sent = WEIGHT * (dense * (wide - 1) // wide + experts * (narrow - 1) // narrow)
    found = row(over, stages=[stage]).found.clock.sent_by       # one micro-batch on each rank
    assert (found["reduce_scatter"], found["all_gather"]) == (sent, gathers * sent)


def test_experts_are_reduced_over_the_links_of_their_own_ranks():
    found = row("expert", stages=["zero1"])
    _, experts, _, narrow = counts("expert")
    of_block = [span for span in found.found.clock.spans if span.what == "reduce_scatter" and span.unit == "layers.1"]
    assert len(of_block) == 2
    apart = Costs(found.cluster.seen_by(RANKS // narrow, narrow), narrow, WEIGHT)
    price = apart.price(ring.reduce_scatter, split(Extent(experts // 2, "u2"), narrow))
    assert of_block[1].end_ns - of_block[1].begin_ns == price.ns


def test_ranks_one_by_one_send_what_all_at_once_do():
    found = row("tensor+context+expert", stages=["zero3"])
    each = rehearsed_apart(found.config, found.cluster)
    assert [one.clock.sent_by for one in each] == [found.found.clock.sent_by] * 16
    assert [one.peak_total for one in each] == [found.peak_bytes] * 16


def test_weights_that_are_broadcast_lie_over_the_ranks_that_all_weights_share():
    found = row("context+expert", stages=["zero1"], publish="broadcasts")
    dense, experts, _, narrow = counts("context+expert")
    assert found.found.resting["optimizer"] == STATE * (dense + experts) // narrow


def test_on_a_device_with_rates_for_calls_only_ranks_that_share_every_weight_are_joined():
    found = row("context+expert", stages=["zero1"])
    device = dataclasses.replace(found.cluster.device, calls=Rates(1, (1, 1), ((8, 1e9),), {}))
    (resting,) = resting_of(found.config, dataclasses.replace(found.cluster, device=device))
    dense, experts, _, narrow = counts("context+expert")
    assert resting.optimizer == STATE * (dense + experts) // narrow


def test_the_room_of_an_update_is_for_a_ranks_own_weights():
    """Of DDP: 8 bytes of each in `eager`, and the time to read and write the weights, gradients and state of each."""
    found = row("expert", stages=["ddp"], software="eager")
    whole = sum(counts("expert")[:2])
    assert found.found.peak["buffers"] == (4 + 4) * whole
    assert found.update_seconds == pytest.approx(
        found.cluster.update_ns(whole * (2 * WEIGHT + 2 * STATE + WEIGHT)) / 1e9, rel=0.01)


def test_sums_over_a_pipeline_take_their_time_whatever_the_software_joins():
    """Of the gradient of tied embeddings and of the last norm, in 16 bits, between two ranks."""
    keys = {"world.ranks": 2, "train.micro_batches": 2, "cluster.software": "fused", "parallel.pipeline_ranks": 2,
            "parallel.stages": ["zero1"], "model.kind": "transformer", "model.tied_embeddings": True}
    mixture = {key: value for key, value in SMALL.items() if "expert" not in key and "queue" not in key}
    (found,) = zs.plan("scenarios/plans/llama3_8b.toml", set=mixture | keys).subject.rows
    assert found.found.clock.sent_by["ends_all_reduce"] == WEIGHT * (VOCABULARY + 1) * WIDTH
    assert found.found.clock.communicating_ns["ends_all_reduce"] > 0
