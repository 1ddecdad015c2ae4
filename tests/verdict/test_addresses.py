"""Allocators with a fixed address space: laws, and faults that break them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verdict.outcomes import outcome_of
from zerosim.core.allocation import allocate
from zerosim.observe.ledger import Ledger, Lifetime
from zerosim.observe.observed import ObservedAllocator
from zerosim.verdict import addresses
from zerosim.verdict.addresses import Addresses, events, fragmentation, long_lived, meet, peak, placed

KINDS = st.sampled_from(["parameters", "gradients", "activations"])
OWNERS = st.sampled_from(["layers.0", "layers.1", "loss"])


@st.composite
def steps(draw):
    """The lifetimes of some step: what was there before, and what came, and perhaps went."""
    ledger = Ledger()
    allocator = ObservedAllocator(allocate, ledger)
    alive, begins, numbers = [], draw(st.integers(0, 5)), st.integers(1, 40)
    for count in range(draw(st.integers(0, 25))):
        if count == begins:
            ledger.begin_curve()
        if alive and draw(st.booleans()):
            del alive[draw(st.integers(0, len(alive) - 1))]
        else:
            alive.append(allocator(draw(numbers), np.uint8, kind=draw(KINDS), owner=draw(OWNERS)))
    ledger.end_curve()
    return ledger.lifetimes


def overlapping(lifetimes, starts):
    """The pairs that have an address in common while both are out."""
    rows = list(zip(lifetimes, starts, strict=True))
    return [
        (one, other)
        for number, (one, at) in enumerate(rows) for other, there in rows[:number]
        if meet(one, other) and at < there + other.held_bytes and there < at + one.held_bytes
    ]


@given(steps())
def test_no_two_live_blocks_overlap_and_none_needs_less_than_the_peak(lifetimes):
    found = fragmentation(lifetimes)
    for allocator in found.needed_bytes:
        starts = [each["address"][allocator] for each in found.address_space]
        assert overlapping(lifetimes, starts) == []
        assert all(start >= 0 for start in starts)
    assert all(beyond >= 0 for beyond in found.beyond_peak_bytes.values())
    assert found.peak_bytes == most_at_a_time(lifetimes)


def most_at_a_time(lifetimes):
    """By another way than events: what is out just after each lifetime began."""
    return max((sum(
        each.held_bytes for each in lifetimes if each.since <= one.since and (each.until or math.inf) > one.since
    ) for one in lifetimes), default=0)


@given(steps())
def test_what_is_laid_out_keeps_to_its_block_and_everything_else_out_of_it(lifetimes):
    found = fragmentation(lifetimes)
    for each in found.address_space:
        assert (each["address"]["first_fit_laid_out"] + each["bytes"] <= found.laid_out_bytes) is each["long_lived"]
    kept = [lifetime for lifetime, stays in zip(lifetimes, long_lived(lifetimes), strict=True) if stays]
    assert peak(kept) <= found.laid_out_bytes <= sum(lifetime.held_bytes for lifetime in kept)


def free(taken, start, needed):
    """Whether nobody of `taken` has any of these addresses."""
    return all(start + needed <= at or at + held <= start for at, held in taken.items())


@given(steps())
def test_first_fit_takes_the_lowest_hole(lifetimes):
    space, taken, where = Addresses(), {}, {}
    for lifetime, begins in events(lifetimes):
        if begins:
            start = space.take(lifetime.held_bytes)
            lower = [at for at in range(start) if free(taken, at, lifetime.held_bytes)]
            assert lower == []
            taken[start], where[lifetime] = lifetime.held_bytes, start
        else:
            del taken[where[lifetime]]
            space.give_back(where[lifetime], lifetime.held_bytes)


@given(st.lists(st.integers(1, 30), max_size=20), st.randoms())
def test_what_is_all_given_back_is_one_hole_again(sizes, chance):
    space = Addresses()
    out = [(space.take(size), size) for size in sizes]
    chance.shuffle(out)
    for start, size in out:
        space.give_back(start, size)
    assert space.take(10_000) == 0


def taken(kind, since, until=None, owner="layers.1", size=10):
    return Lifetime(kind, owner, size, since, until)


def test_who_is_long_lived():
    loss = taken("activations", 5, 8, owner="loss")
    said = [
        (taken("parameters", 0), False), (taken("gradients", 0, 1), True), (taken("gradients", 7), True),
        (taken("gradients", 6, 9), False), (taken("activations", 2, 7), True), (taken("activations", 2), True),
        (taken("activations", 2, 4), False), (taken("activations", 6, 9), False), (loss, False),
    ]
    assert long_lived([lifetime for lifetime, _ in said]) == [stays for _, stays in said]


def test_a_layout_without_lives_and_a_hole_that_is_given_twice_are_seen(monkeypatch):
    pair = [taken("gradients", 1), taken("gradients", 2)]
    monkeypatch.setattr(addresses, "laid_out", lambda lifetimes: dict.fromkeys(lifetimes, 0))
    monkeypatch.setattr(Addresses, "take", lambda self, needed: 0)
    starts = [each["address"]["first_fit_laid_out"] for each in fragmentation(pair).address_space]
    assert len(overlapping(pair, starts)) == 1
    assert len(overlapping(pair, placed(pair, {}))) == 1


def test_lifetimes_are_those_of_one_step_and_none_of_the_worlds():
    ledger = Ledger()
    give = ObservedAllocator(allocate, ledger)
    before, gone = (give(4, np.uint8, kind="parameters", owner=name) for name in "ab")
    assert ledger.lifetimes == []
    ledger.begin_curve()
    message = give(9, np.uint8, kind="buffers", owner="messages")
    empty = give(0, np.uint8, kind="buffers", owner="widened")
    del gone
    twins = [give(2, np.uint8, kind="activations", owner="c") for _ in range(2)]
    del twins[0]
    found = ledger.lifetimes
    assert [(each.owner, each.held_bytes, each.since, each.until) for each in found] == [
        ("a", 4, 0, None), ("b", 4, 0, 1), ("c", 2, 2, 4), ("c", 2, 3, None)]
    assert len({*found}) == 4
    assert len(message) + len(empty) + len(before) == 13


@pytest.mark.parametrize("keys", [
    {"recompute": True, "offload_activations": True}, {"accumulation": "micro_batch", "precision": "fp16"}], ids=str)
def test_the_record_of_a_step_has_the_peak_of_the_ledger(keys):
    """The last of two steps is like any other, so its peak is the run's."""
    outcome = outcome_of(fragmentation=True, **keys)
    assert outcome.failures == []
    for stage in outcome.trained:
        assert stage.fragmentation.peak_bytes == stage.measured.memory[0].peak_bytes["total"]


def test_nothing_is_written_down_unless_asked():
    assert [stage.fragmentation for stage in outcome_of().trained] == [None] * 4
