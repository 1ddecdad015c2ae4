"""What every world must do: each `check_*` is a program that all ranks run, and asserts.

Each check leaves no message behind. `CHECKS` holds them all, in the order of this file.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from zerosim.core.allocation import allocate
from zerosim.core.comm import Communicator, Exchange, left, right
from zerosim.core.errors import CollectiveError
from zerosim.worlds.objects import broadcast_object, gather_objects

LARGE = 1 << 20  # bytes: above what an MPI library sends without asking the receiver
UNITS = {
    "?": 1, "i1": 1, "u2": 1, "i8": 2**55 + 1, "f2": 1, "f4": 1, "f8": 0.1,
    "c8": 1 + 2j, "c16": 0.1j, ml_dtypes.bfloat16: 1,
}


def face_of(world):
    """What every `World` must do, in each of its processes."""
    requests = []

    def counting(shape, dtype, *, kind, owner):
        requests.append((kind, owner))
        return allocate(shape, dtype, kind=kind, owner=owner)

    def program(comm):
        assert comm.size == world.ranks
        channels = [comm, *filter(None, [world.channel()])]
        world.take_buffers_from(counting)
        for number, channel in enumerate(channels):
            channel.send((tagged(comm.rank, LARGE) + number)[::2], to=right(comm))  # in pieces: a world has to copy it
        for number, channel in reversed([*enumerate(channels)]):
            same(received(channel, LARGE // 2, source=left(comm)), (tagged(left(comm), LARGE) + number)[::2])
        return comm.rank, len(channels)

    results = world.run(program)
    ranks = [rank for rank, _ in results]
    assert len(ranks) == 1 if world.rank_is_process else ranks == list(range(world.ranks))
    assert requests == [("buffers", "messages")] * (results[0][1] if world.rank_is_process else 0)
    assert world.words.startswith(f"{world.ranks} rank")
    assert all(said and "\n" not in said for said in (world.kind, world.library, world.words))
    with pytest.raises(ZeroDivisionError):
        world.run(lambda comm: comm.rank // 0)


def tagged(rank: int, count: int = 5, dtype="f8") -> np.ndarray:
    """What rank `rank` sends: different from every other rank's."""
    return (np.arange(count) + 10 * rank).astype(dtype)


def received(comm: Communicator, count: int = 5, dtype="f8", *, source: int) -> np.ndarray:
    into = np.zeros(count, dtype)
    comm.recv(into=into, source=source)
    return into


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


def check_exchange_with_neighbours(comm):
    into = np.zeros(5)
    comm.exchange(tagged(comm.rank), to=right(comm), into=into, source=left(comm))
    same(into, tagged(left(comm)))


def check_early_messages_wait(comm):
    for to in range(comm.size):
        for number in range(3):
            comm.send(tagged(comm.rank) + number, to=to)
    for source in reversed(range(comm.size)):
        for number in range(3):
            same(received(comm, source=source), tagged(source) + number)


def check_late_message_is_waited_for(comm):
    """A chain: no rank sends before it has received, except the first."""
    total = np.zeros(1)
    if comm.rank > 0:
        comm.recv(into=total, source=comm.rank - 1)
    total += comm.rank
    if comm.rank < comm.size - 1:
        comm.send(total, to=comm.rank + 1)
    assert total[0] == comm.rank * (comm.rank + 1) / 2


def check_message_to_self(comm):
    comm.send(tagged(1), to=comm.rank)
    comm.send(tagged(2), to=comm.rank)
    same(received(comm, source=comm.rank), tagged(1))
    into = np.zeros(5)
    comm.exchange(tagged(3), to=comm.rank, into=into, source=comm.rank)
    same(into, tagged(2))
    same(received(comm, source=comm.rank), tagged(3))


def check_exchange_from_elsewhere(comm):
    """Every distance: `to` and `source` are different ranks, or oneself."""
    for distance in range(comm.size):
        into = np.zeros(5)
        source = (comm.rank - distance) % comm.size
        comm.exchange(tagged(comm.rank), to=(comm.rank + distance) % comm.size,
                      into=into, source=source)
        same(into, tagged(source))


def check_zero_length_is_a_message(comm):
    """A receive of nothing still waits: what was sent before it has arrived too."""
    comm.send(np.zeros(0), to=right(comm))
    comm.send(tagged(comm.rank), to=right(comm))
    comm.send(np.zeros(0), to=right(comm))
    received(comm, 0, source=left(comm))
    same(received(comm, source=left(comm)), tagged(left(comm)))
    comm.recv(into=np.zeros(0), source=left(comm), reduce=np.add)


def check_noncontiguous_views(comm):
    outgoing = np.arange(24.0).reshape(4, 6) + comm.rank
    expected = np.arange(24.0).reshape(4, 6) + left(comm)
    for cut in (np.s_[::2], np.s_[:, 1], np.s_[::-1], np.s_[1:3, ::-2]):
        into = np.full((4, 6), -1.0)
        comm.exchange(outgoing[cut], to=right(comm), into=into[cut], source=left(comm))
        same(into[cut], expected[cut])
        untouched = np.ones((4, 6), bool)
        untouched[cut] = False
        assert (into[untouched] == -1).all()
        comm.exchange(outgoing[cut], to=right(comm), into=into[cut], source=left(comm),
                      reduce=np.add)
        same(into[cut], 2 * expected[cut])
    into = np.zeros((6, 4)).T
    comm.exchange(np.asfortranarray(outgoing), to=right(comm), into=into, source=left(comm))
    same(into, expected)


def check_sender_may_reuse_its_array(comm):
    for count in (5, LARGE // 8):
        outgoing = tagged(comm.rank, count)
        for _ in range(2):
            comm.send(outgoing, to=right(comm))
            outgoing[:] += 1
        outgoing[:] = -1
        for number in range(2):
            same(received(comm, count, source=left(comm)), tagged(left(comm), count) + number)


def check_receiver_owns_what_arrived(comm):
    outgoing = tagged(comm.rank)
    into = np.zeros(5)
    comm.exchange(outgoing, to=right(comm), into=into, source=left(comm))
    into[:] = -1
    comm.exchange(outgoing, to=right(comm), into=into, source=left(comm))
    same(outgoing, tagged(comm.rank))
    same(into, tagged(left(comm)))


def check_outgoing_may_be_into(comm):
    for count in (5, LARGE // 8):
        for reduce, factor in ((None, 0), (np.add, 1)):
            both = tagged(comm.rank, count)
            comm.exchange(both, to=right(comm), into=both, source=left(comm), reduce=reduce)
            same(both, tagged(left(comm), count) + factor * tagged(comm.rank, count))


def check_outgoing_may_overlap_into(comm):
    for count in (6, LARGE // 8):
        both = tagged(comm.rank, count)
        comm.exchange(both[:-2], to=right(comm), into=both[2:], source=left(comm))
        same(both[2:], tagged(left(comm), count)[:-2])
        same(both[:2], tagged(comm.rank, count)[:2])


def check_order_between_two_ranks(comm):
    """Large messages may not be overtaken by small ones."""
    counts = [1, LARGE // 8, 0, 2, LARGE // 8, LARGE // 4, 3, 1]
    for number, count in enumerate(counts):
        comm.send(np.full(count, 100.0 * comm.rank + number), to=right(comm))
    for number, count in enumerate(counts):
        same(received(comm, count, source=left(comm)), np.full(count, 100.0 * left(comm) + number))


def check_large_messages_are_buffered(comm):
    """All send before any receives, and an exchange precedes the receive its partner waits for."""
    count = LARGE // 8
    for to in range(comm.size):
        comm.send(tagged(comm.rank, count), to=to)
    into = np.zeros(count)
    comm.exchange(tagged(comm.rank, count) + 1, to=left(comm), into=into, source=left(comm))
    same(into, tagged(left(comm), count))
    for source in range(comm.size):
        if source != left(comm):
            same(received(comm, count, source=source), tagged(source, count))
    same(received(comm, count, source=right(comm)), tagged(right(comm), count) + 1)


def check_reduce_with_ufuncs(comm):
    for ufunc in (np.add, np.maximum, np.multiply, np.subtract):
        into = 7 - tagged(comm.rank)
        comm.exchange(tagged(comm.rank), to=right(comm), into=into, source=left(comm),
                      reduce=ufunc)
        same(into, ufunc(tagged(left(comm)), 7 - tagged(comm.rank)))


def check_reduce_with_a_function(comm):
    """It is called as (arrived, mine) and its value, cast to the dtype of `into`, is kept."""
    into = np.full(5, 1000, np.int32)
    comm.exchange(tagged(comm.rank, dtype=np.int32), to=right(comm), into=into,
                  source=left(comm), reduce=lambda arrived, mine: arrived - mine.astype(np.int64))
    same(into, tagged(left(comm), dtype=np.int32) - np.int32(1000))


def check_reduce_on_recv(comm):
    comm.send(tagged(comm.rank), to=right(comm))
    into = np.full(5, 0.5)
    comm.recv(into=into, source=left(comm), reduce=np.subtract)
    same(into, tagged(left(comm)) - 0.5)


def check_reduce_does_not_touch_what_was_sent(comm):
    outgoing = tagged(comm.rank)
    comm.exchange(outgoing, to=right(comm), into=np.ones(5), source=left(comm), reduce=np.add)
    same(outgoing, tagged(comm.rank))


def check_dtypes(comm):
    for dtype, unit in UNITS.items():
        mine, theirs = (
            tagged(rank, 3, dtype) * np.array(unit, dtype) for rank in (comm.rank, left(comm))
        )
        into = np.zeros(3, dtype)
        comm.exchange(mine, to=right(comm), into=into, source=left(comm))
        same(into, theirs)
        comm.exchange(mine, to=right(comm), into=into, source=left(comm), reduce=np.add)
        same(into, theirs + theirs)


def check_bits_survive(comm):
    """Signed zeros, payloads of NaN and denormals arrive as they were."""
    bits = np.array([0x8000_0000, 0x7FC0_1234, 0xFFA0_0001, 1], np.uint32) + np.uint32(comm.rank)
    into = np.zeros(4, np.float32)
    comm.exchange(bits.view(np.float32), to=right(comm), into=into, source=left(comm))
    sent = bits - np.uint32(comm.rank) + np.uint32(left(comm))
    same(into.view(np.uint32), sent)


def check_wrong_length_is_refused(comm):
    for count in (0, 4, 6, LARGE // 8):
        comm.send(tagged(comm.rank, count), to=right(comm))
        with pytest.raises(CollectiveError, match=f"rank {left(comm)} sent .*rank {comm.rank}"):
            received(comm, 5, source=left(comm))


def check_wrong_dtype_is_refused(comm):
    """Also of the same length in bytes."""
    for sent, due in (("i8", "f8"), ("f2", ml_dtypes.bfloat16), (">f4", "<f4"), ([("a", "i4")], [("b", "i4")])):
        comm.send(np.zeros(5, sent), to=right(comm))
        with pytest.raises(CollectiveError, match=f"rank {left(comm)} sent .*rank {comm.rank}"):
            received(comm, 5, due, source=left(comm))
    comm.send(np.zeros(2, [("a", "i4")]), to=right(comm))
    received(comm, 2, np.dtype([("a", "i4")], align=True), source=left(comm))


def check_what_cannot_travel_is_refused(comm):
    read_only = np.zeros(1)
    read_only.flags.writeable = False
    masked = ("masked", np.ma.zeros(1))
    for refused, into in (("read-only", read_only), ("type list", [0.0]), ("type float64", np.float64(0)), masked):
        with pytest.raises(CollectiveError, match=f"into .*{refused}"):
            comm.recv(into=into, source=left(comm))
    for refused, outgoing in (("type list", [0.0]), ("type float", 0.0), ("type float64", np.float64(0)), masked):
        with pytest.raises(CollectiveError, match=f"outgoing .*{refused}"):
            comm.send(outgoing, to=right(comm))


def check_a_function_must_return_what_fits(comm):
    for returned, found in (
        (None, "None"), ([0.0] * 5, "a list"),
        (np.zeros(4), r"float64 of shape \(4,\)"), (np.float64(0), r"float64 of shape \(\)"),
        (np.zeros(5, complex), "complex128"), (np.full(5, "a"), "<U1"),
    ):
        comm.send(np.zeros(5), to=right(comm))
        with pytest.raises(CollectiveError, match=f"reduce= returned {found}"):
            comm.recv(into=np.zeros(5), source=left(comm), reduce=lambda arrived, mine: returned)


def check_exchanges_at_once(comm):
    """Both neighbours, twice, with messages of several lengths; what is sent is what was there at the call."""
    for count in (0, 1, 5, 50_000):
        mine = np.full(count, comm.rank + 1.0)
        beside = mine.copy(), np.full(count, 100.0)
        comm.exchange_all([
            Exchange(beside[0], right(comm), beside[0], left(comm)),
            Exchange(mine * 10, right(comm), mine, left(comm), np.subtract),
            Exchange(mine, left(comm), beside[1], right(comm), np.add),
        ])
        same(beside[0], np.full(count, left(comm) + 1.0))
        same(beside[1], np.full(count, right(comm) + 101.0))
        same(mine, np.full(count, 10.0 * (left(comm) + 1) - (comm.rank + 1)))


def check_bad_rank_is_refused(comm):
    for bad in (-1, comm.size, True, 0.0, None, "0"):
        with pytest.raises(CollectiveError, match=f"to={bad!r}"):
            comm.send(np.zeros(1), to=bad)
        with pytest.raises(CollectiveError, match=f"source={bad!r}"):
            comm.recv(into=np.zeros(1), source=bad)
        with pytest.raises(CollectiveError, match=f"to={bad!r}"):
            comm.exchange(np.zeros(1), to=bad, into=np.zeros(1), source=comm.rank)


CHECKS: list[Callable[[Communicator], None]] = [
    check for name, check in list(globals().items()) if name.startswith("check_")
]


def objects_arrive(comm):
    def told_by(rank):
        return {"rank": rank, "path": [None, "ä" * 100_000, (1.5,)]}

    everything = [told_by(rank) for rank in range(comm.size)]
    assert broadcast_object(comm, told_by(comm.rank)) == told_by(0)
    assert gather_objects(comm, told_by(comm.rank)) == (None if comm.rank else everything)
