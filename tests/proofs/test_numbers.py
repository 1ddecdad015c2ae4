"""Collectives that are right on symbols and wrong on numbers: laws and `check` both say so; and a right one that holds.

Each has one fault, and is otherwise a fold of all vectors in rank order.
"""

import re
import time

import numpy as np
import pytest

import zerosim as zs
from tests.sampling import one_in
from zerosim.collectives.own import collective
from zerosim.commands.cli import main
from zerosim.core import orders
from zerosim.core.comm import left, right
from zerosim.core.errors import UsageError
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.example import SIZES, wrong_on_numbers
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import subject
from zerosim.testing import LawBroken, laws


def of_everyone(comm, x):
    """The vector of each rank."""
    arrays, passing = {comm.rank: x.copy()}, x.copy()
    for step in range(comm.size - 1):
        arriving = np.empty_like(passing)
        comm.exchange(passing, to=right(comm), into=arriving, source=left(comm))
        arrays[(comm.rank - step - 1) % comm.size] = passing = arriving
    return [arrays[rank] for rank in range(comm.size)]


def folded(arrays, reduce=np.add):
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = reduce(total, array)
    return total


def in_float32(comm, x, reduce=np.add):
    narrow = x.astype(np.float32) if x.dtype == np.float64 else x
    return folded(of_everyone(comm, narrow), reduce).astype(x.dtype)


def through_float64(comm, x, reduce=np.add):
    wide = x.astype(np.float64) if x.dtype == np.int64 else x
    return folded(of_everyone(comm, wide), reduce).astype(x.dtype)


def without_nan(comm, x, reduce=np.add):
    clean = np.where(np.isnan(x), x.dtype.type(0), x) if x.dtype.kind == "f" else x
    return folded(of_everyone(comm, clean), reduce)


def without_subnormals(comm, x, reduce=np.add):
    normal = x
    if x.dtype.kind == "f":
        normal = np.where(np.abs(x) < np.finfo(x.dtype).tiny, x.dtype.type(0), x)
    return folded(of_everyone(comm, normal), reduce)


def without_infinities(comm, x, reduce=np.add):
    total = folded(of_everyone(comm, x), reduce)
    return np.nan_to_num(total, nan=np.nan) if x.dtype.kind == "f" else total


def from_zero(comm, x, reduce=np.add):
    arrays = of_everyone(comm, x)
    return folded(arrays if x.dtype == object or reduce is not np.add else [np.zeros_like(x), *arrays], reduce)


def of_most_if_long(comm, x, reduce=np.add):
    arrays = of_everyone(comm, x)
    return folded(arrays[:-1] if len(x) > 100 and comm.size > 1 else arrays, reduce)


def the_argument_if_alone(comm, x, reduce=np.add):
    return x if comm.size == 1 else folded(of_everyone(comm, x), reduce)


def into_the_argument(comm, x, reduce=np.add):
    x[...] = folded(of_everyone(comm, x), reduce)
    return x.copy()


def sum_whatever_is_asked(comm, x, reduce=np.add):
    return folded(of_everyone(comm, x))


def no_integers(comm, x, reduce=np.add):
    if x.dtype.kind == "i":
        raise ValueError("planted")
    return folded(of_everyone(comm, x), reduce)


@collective(order="rank")
def from_the_middle(comm, x):
    arrays = of_everyone(comm, x)
    middle = 0 if x.dtype == object else comm.size // 2
    return folded(arrays[middle:] + arrays[:middle])


def with_one_nan_for_all(comm, x):
    whole = np.concatenate(of_everyone(comm, x))
    if x.dtype.kind == "f":
        whole[np.isnan(whole)] = np.nan
    return whole


WRONG = {
    in_float32: "float64", through_float64: "int64", without_nan: "nan", without_subnormals: "e-",
    without_infinities: "inf", from_zero: "-0.0", of_most_if_long: "1031", the_argument_if_alone: "memory",
    into_the_argument: "changed", sum_whatever_is_asked: "reduce=np.maximum", from_the_middle: "expected",
    no_integers: "on 1 rank, 3 × int64: ValueError: planted, in line",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: getattr(wrong, "__name__", ""))
def test_what_is_wrong_on_numbers_alone_is_noticed_by_check(wrong):
    assert WRONG[wrong] in wrong_on_numbers(subject(wrong, "all_reduce"), SIZES)


@pytest.mark.parametrize("wrong", one_in(6, WRONG), ids=lambda wrong: getattr(wrong, "__name__", ""))
def test_and_by_laws(wrong):
    claims = {"order": orders.rank_order} if hasattr(wrong, "order") else {}
    with pytest.raises(LawBroken):
        laws.check(getattr(wrong, "function", wrong), collective="all_reduce", examples=40, **claims)


def test_the_bits_of_a_copied_nan_count():
    assert "expected nan with other bits" in wrong_on_numbers(subject(with_one_nan_for_all, "all_gather"), SIZES)


@collective(powers_of_two=True)
def doubling_all_reduce(comm, x):
    """Each rank adds what arrives to its own: of two NaNs the ranks keep different ones."""
    total, distance = x.copy(), 1
    while distance < comm.size:
        arriving = np.empty_like(total)
        comm.exchange(total, to=comm.rank ^ distance, into=arriving, source=comm.rank ^ distance)
        total, distance = total + arriving, 2 * distance
    return total


def test_a_recursive_doubling_is_right_for_all_three_tools():
    assert prove(subject(doubling_all_reduce), 4).holds
    assert zs.check(doubling_all_reduce).passed
    assert "every_rank_holds_the_same_bytes" in laws.check(doubling_all_reduce, examples=10)


def swapped_at_the_end(comm, chunks):
    zs.collectives.ring.all_gather(comm, chunks)
    chunks[0][:], chunks[1][:] = chunks[1].copy(), chunks[0].copy()


def twice_on_odd_ranks(comm, x):
    return folded([*of_everyone(comm, x), *[x] * (comm.rank % 2)])


def by_the_hour(comm, x):
    return folded(of_everyone(comm, x)[:: -1 if int(time.time()) // 3600 % 2 else 1])


@pytest.mark.parametrize(("function", "kind", "fault", "why"), [
    (swapped_at_the_end, "all_gather", "and no message changed it", "; rank 0 itself fills chunk 0 wrongly"),
    (twice_on_odd_ranks, "all_reduce", "and no message changed it", "rank 1 adds g1 again, without a message"),
    (by_the_hour, "all_reduce", "may not depend on the time", "two calls with the same arguments add in two orders"),
])
def test_what_ranks_do_wrong_without_a_message_is_told(function, kind, fault, why):
    proof = prove(subject(function, kind), 3)
    assert proof.faults[0].what.endswith(fault)
    assert why in diagnosis(proof).cause


def test_long_vectors_in_small_buckets_are_no_endless_loop():
    def all_reduce_in_buckets(comm, x):
        return np.concatenate([x[:0], *(zs.all_reduce(comm, x[at : at + 3]) for at in range(0, len(x), 3))])

    assert prove(subject(all_reduce_in_buckets), 2).holds


BOARD = {}


def all_reduce_on_a_board(comm, x):
    """Vectors pass through a dict; empty messages make ranks wait for each other."""
    BOARD[comm.rank, comm.size], nothing = x.copy(), np.empty(0, np.uint8)
    for distance in range(1, comm.size):
        comm.exchange(nothing, to=(comm.rank + distance) % comm.size, into=nothing.copy(),
                      source=(comm.rank - distance) % comm.size)
    return folded([BOARD[rank, comm.size] for rank in range(comm.size)])


def test_a_collective_that_sends_fewer_chunks_than_any_can_is_not_proved():
    assert [fault.what for fault in prove(subject(all_reduce_on_a_board), 3).faults] == [
        "the ranks send 0 chunks, and 12 is the least: data passes outside of messages, which processes cannot do"]
    assert not zs.check(all_reduce_on_a_board).passed


def all_gather_but_for_the_last_full_bucket(comm, shard):
    whole, kept = np.concatenate(of_everyone(comm, shard)), len(shard) and not len(shard) % 32
    whole[len(whole) - 32 * kept :] = shard[len(shard) - 32 * kept :]
    return whole


def test_buckets_that_divide_a_vector_are_tried():
    assert not prove(subject(all_gather_but_for_the_last_full_bucket), 3).holds
    with pytest.raises(LawBroken, match=r"3 ranks, 768 × float64(.|\n)*\(first in element 736: .*, expected "):
        laws.check(all_gather_but_for_the_last_full_bucket, examples=10)


def all_reduce_into_less(comm, x):
    if len(x) == 1:
        comm.exchange(x, to=comm.rank, into=np.empty_like(x[:0]), source=comm.rank)
    return of_most_if_long(comm, x)


def test_a_message_into_less_memory_is_no_wait_for_itself():
    """Its one element is said as one."""
    for ranks, where in ((1, ""), (2, "with 1 element: ")):
        proof = prove(subject(all_reduce_into_less), ranks)
        assert proof.faults[0].what.startswith(f"{where}rank ")
        assert "both sides must name the same length" in proof.faults[0].what
        assert "itself" not in str(diagnosis(proof))


def long_all_reduce(comm, x):
    return of_most_if_long(comm, x)


def test_a_collective_that_is_wrong_on_long_vectors_is_not_proved(capsys):
    name = f"{__file__}:long_all_reduce"
    for ranks in range(2, 6):
        assert re.match(r"with \d+ elements: rank 0, chunk 0: g\d+ is missing; it holds",
                        prove(subject(long_all_reduce), ranks).faults[0].what)
    assert main(["prove", name, "--ranks", "3", "--elements", "0,100"]) == 0
    assert "the same on every rank, with 0, 3, 100 elements, also when sends wait" in capsys.readouterr().out
    assert main(["prove", name, "--ranks", "3", "--elements", "101"]) == 1
    assert "test_numbers.py:long_all_reduce --ranks 3 --elements 101" in capsys.readouterr().out


def test_shards_of_unequal_length_are_tried_where_they_are_asked_for():
    def all_gather_of_equal_shards(comm, shard):
        return np.concatenate(of_everyone(comm, shard))

    examined = subject(all_gather_of_equal_shards)
    assert prove(examined, 3).holds
    assert "sent 1 × object to rank 0, which receives it into 3" in prove(examined, 3, [7]).faults[0].what


def test_blocks_of_equal_length_refuse_other_elements():
    with pytest.raises(UsageError, match="has blocks of equal length, and is asked for 7 on 2 ranks; give a multip"):
        zs.prove("direct.all_to_all", ranks=2, elements=[7])
