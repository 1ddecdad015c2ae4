"""Laws of the whole family of collectives: on symbols, on numbers and on the wire."""

from collections import defaultdict, deque
from itertools import product

import numpy as np
import pytest

from tests.sampling import one_in
from zerosim.collectives import ALGORITHMS, exact, ring
from zerosim.collectives.table import algorithm_of, levels
from zerosim.core.extents import Extent
from zerosim.core.fixed_point import exact_sum
from zerosim.core.orders import ORDERS
from zerosim.core.sharding import Mesh, bounds
from zerosim.core.terms import symbols
from zerosim.observe.observed import Observed
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import Subject, named_subject
from zerosim.stages.adding import ADDITIONS, in_order
from zerosim.verdict.diagnosis import chunk_sums
from zerosim.worlds.local import spawn

FAMILY = [*ALGORITHMS.values(), *(row for hosts in range(1, 6) for row in levels(hosts))]
SENDING = [row for row in FAMILY if row.collective != "barrier"]


def subject(row):
    return named_subject(row.name) if row.name in ALGORITHMS else Subject(
        f"{row.name}.{row.collective}", row.collective, row.function, "in place", row)


class Clock:
    """Counts the bytes of messages, and steps: a rank sends one message and receives one in each."""

    def __init__(self, rank, departures):
        self.rank, self.departures, self.now, self.messages = rank, departures, 0, []

    def sending(self, outgoing, to):
        self.departures[self.rank, to].append(self.now)
        self.departed = self.now

    def sent(self, outgoing, to):
        self.messages.append(outgoing.nbytes)
        self.now = max(self.now, self.departed + 1)

    def received(self, into, source, reduce):
        self.now = max(self.now, self.departures[source, self.rank].popleft()) + 1


@pytest.mark.parametrize("sizes", [range(1, 9), pytest.param((9, 11, 13, 16), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("row", one_in(2, FAMILY), ids=lambda row: f"{row.name} {row.collective}")
def test_it_is_proved_and_costs_what_is_declared(row, sizes):
    """On every number of ranks that it serves: results, order of addition, bytes of each message, and steps."""
    due = subject(row)
    for size in filter(row.serves, sizes):
        proof = prove(due, size)
        assert proof.holds, (size, proof.faults)
        assert proof.order == ("declared" if row.order else None)
        counts = (3 * size,) if due.even else (0, 1, 3 * size - 1)
        for count, root in product(counts, {0, size // 2, size - 1} if due.kind.rooted else {0}):
            chunk_bytes = [4 * (last - first) for first, last in bounds(count, size)]
            departures = defaultdict(deque)

            def program(comm, count=count, root=root, departures=departures):
                clock = Clock(comm.rank, departures)
                due(Observed(comm, clock), Extent(count, np.float32), root=root)
                return clock.messages, clock.now

            for rank, (messages, _) in enumerate(ran := spawn(program, size)):
                declared = sorted(
                    sum(chunk_bytes[chunk] for chunk in message) for message in row.volume(rank, size, root))
                assert sorted(messages) == declared, f"bytes of the messages of rank {rank}, and those of its volume"
                assert len(messages) == row.messages(rank, size, root)
                assert sum(messages) == row.sent_bytes(chunk_bytes, rank, root)
            assert max(steps for _, steps in ran) == row.steps(size)


@pytest.mark.parametrize("order", ["ring", "rank", "tree", "two_level", "two_hop"])
@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_stages_add_as_the_reference_does(order, block):
    """In groups too; all-gathers know of hosts where sums do: that is what leaves a host, and has no bits."""
    two = order.startswith("two")
    for ranks, per_host in product(range(1, 9), (1, 2, 3) if two else (1,)):
        if ranks % per_host == 0 and (order != "tree" or ranks.bit_count() == block.bit_count() == 1):
            addition = ADDITIONS[order].with_hosts(per_host)
            contributions = [symbols(number, ranks) for number in range(ranks * block)]
            for group in (ranks,) if two else (group for group in range(1, ranks + 1) if ranks % group == 0):
                mesh = Mesh(0, ranks, group)
                due = ORDERS[order].with_hosts(per_host).total(contributions, mesh)
                assert list(map(str, chunk_sums(addition, mesh, block))) == list(map(str, due))
            assert algorithm_of(addition.all_gather).per_host == (per_host if two else 0)


def test_micro_batches_added_backwards_are_seen():
    def backwards(total, contribution):
        return contribution if total is None else np.add(contribution, total)

    mesh, planted = Mesh(0, 2, 2), in_order(backwards, ring.reduce_scatter)
    assert chunk_sums(planted, mesh, 2) != chunk_sums(ADDITIONS["ring"], mesh, 2)
    assert list(ADDITIONS) == list(ORDERS)


ALIKE = [row for row in SENDING if row.collective == "all_reduce"]
SPECIAL = (np.inf, -np.inf, np.nan, -0.0, 0.0, 1.0, 3e38)


@pytest.mark.filterwarnings("ignore:.*encountered in add")
@pytest.mark.parametrize("row", ALIKE, ids=lambda row: row.name)
def test_infinities_and_nans_leave_the_same_bits_on_all_ranks(row):
    for size in filter(row.serves, (2, 3, 4, 6, 8)):
        for count in (1, 5):
            drawn = np.random.default_rng(size).choice(SPECIAL, (20, size, count * row_pieces(row, size))).astype("f4")

            def program(comm, drawn=drawn):
                x = drawn[:, comm.rank].copy()
                for vector in x:
                    subject(row)(comm, vector)
                return x.tobytes()

            assert len(set(spawn(program, size))) == 1, size


def row_pieces(row, size):
    """The elements of a vector that a row takes come in so many equal pieces."""
    return size if subject(row).even else 1


def exactly(contributions):
    """The sum of whole numbers, element by element, with the zero, infinity or NaN that IEEE 754 has for it."""
    for values in contributions.T:
        finite = [int(x) for x in values if np.isfinite(x)]
        odd = {str(x) for x in values if not np.isfinite(x)}
        total = float(sum(finite))
        yield np.nan if "nan" in odd or len(odd) == 2 else float(odd.pop()) if odd else (
            -0.0 if np.all((values == 0) & np.signbit(values)) else total)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_exact_sums_are_exact(dtype):
    """Of whole numbers that fit on the grid, all of a wide range, zeros of both signs, infinities and NaN."""
    random = np.random.default_rng(0)
    whole = random.integers(-(2**20), 2**20, (9, 400)) * 2.0 ** random.integers(0, 4 if dtype == "f4" else 30, 400)
    odd = random.choice([np.inf, -np.inf, np.nan, -0.0, 0.0, 1.0], (9, 400), p=[0.03, 0.03, 0.03, 0.6, 0.26, 0.05])
    contributions = np.concatenate([whole, odd, np.full((9, 1), -0.0), np.full((9, 1), 0.0)], axis=1).astype(dtype)
    due = np.array(list(exactly(contributions)), dtype)
    found = exact_sum(list(contributions))
    assert found[~np.isnan(due)].tobytes() == due[~np.isnan(due)].tobytes()
    assert np.isnan(found[np.isnan(due)]).all()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_exact_sums_are_the_same_bytes_however_they_are_spread(dtype):
    random = np.random.default_rng(0)
    spread = 4 if dtype == "f2" else 60
    contributions = np.ldexp(random.standard_normal((12, 50)), random.integers(-spread, spread, (12, 50))).astype(dtype)
    cancelling = random.standard_normal((5, 17))       # what is left of them was rounded to the grid of all
    contributions[:, ::3] = np.concatenate(
        [cancelling, -cancelling, random.standard_normal((2, 17)) * 2.0 ** -(10 if dtype == "f2" else 36)])
    contributions[:, ::7] = random.choice([-0.0, 0.0, np.inf, np.nan], (12, 8), p=[0.8, 0.1, 0.05, 0.05])

    def program(comm):
        return exact.reduce_scatter(comm, np.split(contributions.copy(), comm.size)[comm.rank]).tobytes()

    for ranks in (1, 2, 3, 6):
        assert b"".join(spawn(program, ranks)) == exact_sum(list(contributions)).tobytes()
