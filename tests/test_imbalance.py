"""Uneven experts in plans: the busiest rank's time, queues and messages by hand, and the tokens that queues drop."""

from fractions import Fraction

import numpy as np
import pytest

import zerosim as zs
from tests.pages import refused
from zerosim.autograd.operations.routing import queue_slots
from zerosim.plan.imbalance import Busiest, ExpertLoad

TOKENS, WIDTH, INNER, LAYERS, EXPERTS, CHOSEN, RANKS = 64, 32, 48, 2, 8, 2, 4
MIXTURE = {
    "model.kind": "mixture", "model.layers": LAYERS, "model.width": WIDTH, "model.inner": INNER, "model.heads": 4,
    "model.key_value_heads": 4, "model.vocabulary": 64, "model.sequence": TOKENS, "model.experts": EXPERTS,
    "model.experts_per_token": CHOSEN, "model.capacity_factor": 8.0, "world.ranks": RANKS, "train.micro_batch": RANKS,
    "train.micro_batches": 1, "parallel.expert_ranks": RANKS, "parallel.stages": ["ddp"], "parallel.recompute": False,
    "check.mfu": [], "check.fits": [], "check.does_not_fit": []}
SHARES = [3, 2, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


def planned(**cluster):
    keys = {f"cluster.{key}": value for key, value in cluster.items()}
    (row,) = zs.plan("llama3_8b", set=MIXTURE | keys).subject.rows
    return row


def queue_rows(load):
    """The rows of a rank's queues: those that `RANKS` samples send to its experts."""
    return Fraction(load) * RANKS * TOKENS * CHOSEN / RANKS


@pytest.mark.parametrize(("cluster", "load"), [
    ({"expert_load": SHARES}, 2.5), ({"expert_load": [4.5]}, 2.5), ({"expert_load": [1] * 8}, 1.0)])
def test_products_and_messages_of_the_busiest_rank_are_those_by_hand(cluster, load):
    row, even = planned(**cluster), planned(expert_load=[1.0])
    assert row.uneven_experts == Busiest(load, 0.0)
    more = queue_rows(load) - queue_rows(1)
    of_experts = 3 * 2 * 3 * WIDTH * INNER * LAYERS      # forward and twice backward; three matrices
    assert row.found.operations.total() - even.found.operations.total() == of_experts * more
    sent = row.found.sent_by_direction["expert"] - even.found.sent_by_direction["expert"]
    assert sent == 4 * LAYERS * more * WIDTH * 2 * Fraction(RANKS - 1, RANKS)
    assert (row.found.peak["activations"] > even.found.peak["activations"]) == (load > 1)
    assert (row.step_seconds > even.step_seconds) == (load > 1)


def test_a_plan_of_the_mean_rank_would_be_seen(monkeypatch):
    right = planned(expert_load=SHARES).found.operations.total()
    monkeypatch.setattr(ExpertLoad, "busiest", lambda self, experts, ranks, capacity: Busiest(1.0, 0.0))
    assert planned(expert_load=SHARES).found.operations.total() < right


def test_a_load_without_a_place_apart_costs_nothing():
    assert ExpertLoad(tuple(SHARES)).busiest(8, ranks=1, capacity=8.0) == Busiest(1.0, 0.0)
    assert ExpertLoad(zipf=0.0).shares(3) == [1.0, 1.0, 1.0]
    assert ExpertLoad(zipf=1.0).shares(3) == pytest.approx([18 / 11, 9 / 11, 6 / 11])


@pytest.mark.parametrize(("capacity", "wrong"), [(1.0, 0.5), (1.25, 1.0), (2.0, 1.5)])
def test_dropped_tokens_are_those_that_full_queues_refuse(capacity, wrong):
    """A router that sends each expert its share of 1,024 tokens, through the operation of the model."""
    rows = 1024
    choices = np.repeat(np.arange(EXPERTS), [int(share * rows / EXPERTS) for share in SHARES])[:, np.newaxis]
    slots = np.empty(choices.shape, np.int64)
    queue_slots.forward(choices, out=slots, empty=np.empty, queues=EXPERTS, capacity=int(capacity * rows / EXPERTS))
    dropped = np.mean(slots < 0)
    assert ExpertLoad(tuple(SHARES)).busiest(EXPERTS, RANKS, capacity).dropped == pytest.approx(dropped, abs=1e-12)
    assert ExpertLoad(tuple(SHARES)).busiest(EXPERTS, RANKS, wrong).dropped != pytest.approx(dropped)
    served = [np.sum((slots // int(capacity * rows / EXPERTS) // 2 == rank) & (slots >= 0)) for rank in range(RANKS)]
    assert ExpertLoad(tuple(SHARES)).busiest(EXPERTS, RANKS, capacity).load == max(served) * RANKS / rows


@pytest.mark.parametrize(("words", "line"), [
    (["--set", "cluster.expert_load=[1.5]"], "the load of experts is for model.kind mixture, and this is transformer"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[1, 2]"], "found 2 shares for 4 experts; give one"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[5]"], "at least and 4 at most; found 5"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[0, 0, 0, 0]"], "all shares are 0"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[2]", "--set", "cluster.expert_zipf=1"],
     "say the same; leave one out"),
])
def test_a_load_that_cannot_be_is_one_line(words, line, capsys):
    assert line in refused(capsys, "plan", "llama3_8b", *words)
