"""Buckets: the same bits and bytes in more messages, none of them larger; and what gives itself out as that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verdict.outcomes import fails, outcome_of
from zerosim.training.buckets import Buckets

TINY = 0.00004
"""40 bytes: three elements of 4 bytes of each chunk on 3 ranks, or one of 8 bytes."""


@given(st.integers(0, 50), st.integers(1, 64), st.integers(0, 400))
def test_pieces_follow_one_another_and_none_is_too_long(length, column, most):
    pieces = Buckets(most).pieces(length, column)
    assert [at for piece in pieces for at in range(piece.start, piece.stop)] == list(range(length))
    assert len(pieces) == 1 or all(0 < (piece.stop - piece.start) * column <= max(most, column) for piece in pieces)
    longest = pieces[0].stop
    assert all(piece.stop - piece.start == longest for piece in pieces[:-1])
    assert most or len(pieces) == 1


def test_messages_of_a_step_by_hand():
    """Chunks of 12, 8 and 5 elements of 4 bytes on 3 ranks; 40 bytes have 3 elements of each: 4 + 3 + 2 pieces."""
    ddp, *_, third = outcome_of(bucket_mb=TINY).trained
    for rank in ddp.measured.traffic:
        assert (rank.messages, rank.largest_message_bytes) == (2 * 2 * 9 * 2, 12)
        assert rank.by_collective["all_gather"].calls == 2 * 9
    assert {rank.messages for rank in third.measured.traffic} == {2 * (2 * 2 + 1) * 9 * 2}  # two micro-batches gather


def test_an_order_free_sum_has_copies_of_a_bucket_and_no_more():
    """40 bytes are one integer of 8 bytes of each of 3 chunks; two contributions of float32."""
    for stage in outcome_of(order="exact", bucket_mb=TINY).trained:
        assert {rank.peak_bytes["buffers"] for rank in stage.measured.memory} == {2 * 1 * 3 * 4}
    for stage in outcome_of(order="exact").trained:
        assert {rank.peak_bytes["buffers"] for rank in stage.measured.memory} == {0}


def unbounded(self, collective):
    return collective


@pytest.mark.parametrize("name", ["chunked", "broadcast"])
def test_a_bucket_without_a_bound_is_seen(monkeypatch, name):
    monkeypatch.setattr(Buckets, name, unbounded)
    fails(outcome_of(stages=("zero1",), publish="broadcasts", bucket_mb=TINY), "are not the formula's")
