"""What leaves a host: counted on the wire and by formula, for every order, stage, group and number of hosts."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from tests.training import run
from zerosim.collectives import direct, rabenseifner, ring, tree, two_level
from zerosim.core.sharding import split
from zerosim.observe.observed import Observed
from zerosim.observe.traffic import Traffic
from zerosim.verdict.flows import flow
from zerosim.worlds.local import spawn
from zerosim.worlds.mpi_start import numbered

COLLECTIVES = [
    ring.reduce_scatter, ring.all_gather, direct.reduce_scatter, rabenseifner.reduce_scatter,
    two_level.on_hosts(2).reduce_scatter, two_level.on_hosts(4).all_gather, two_level.in_two_hops(2).reduce_scatter,
]


class To:
    def __init__(self):
        self.chunks = {}

    def sent(self, outgoing, to):
        self.chunks[to] = self.chunks.get(to, 0) + len(outgoing)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_rank_alone_sends_what_it_sends_among_others(collective, size):
    def program(comm):
        seen = To()
        collective(Observed(comm, seen), split(np.zeros(3 * size), size))
        return seen.chunks

    assert [flow(collective, size, rank, 3, 1, None).to for rank in range(size)] == spawn(program, size)


def test_a_rank_alone_broadcasts_what_it_broadcasts_among_others():
    def program(comm):
        seen = To()
        for root in range(comm.size):
            tree.broadcast(Observed(comm, seen), np.zeros(1), root)
        return seen.chunks

    for size in (1, 2, 3, 6):
        found = [Counter() for _ in range(size)]
        for rank, root in product(range(size), repeat=2):
            found[rank].update(flow(tree.broadcast, size, rank, 1, 1, root).to)
        assert found == spawn(program, size)


def test_a_ledger_knows_what_leaves_its_host():
    def program(comm):
        traffic = Traffic(away=lambda to: to // 2 != comm.rank // 2)
        ring.all_gather(Observed(comm, traffic), split(np.zeros(4, np.uint8), 4))
        return traffic.sent_bytes, traffic.between_bytes

    assert spawn(program, 4) == [(3, 0), (3, 3), (3, 0), (3, 3)]


def on_hosts(ranks, per_host, group=0, stages=("ddp", "zero2", "zero3"), **keys):
    return run(ranks=ranks, micro_batches=2 * ranks, steps=2, stages=stages, ranks_per_host=per_host,
               shard_ranks=group, **keys)


def between(outcome):
    return [sum(measured.between_bytes for measured, _ in row.traffic) for row in outcome.trained]


def test_hybrid_sharding_sends_less_between_hosts_and_one_host_nothing():
    (whole,), (hybrid,) = (between(on_hosts(4, 2, group, stages=("zero3",))) for group in (0, 2))
    assert 0 < hybrid < whole
    assert between(on_hosts(4, 4)) == between(on_hosts(4, 0)) == [0, 0, 0]


def test_two_levels_share_what_leaves_a_host_among_its_ranks():
    flat, levels = (on_hosts(4, 2, order=order, stages=("ddp",)) for order in ("ring", "two_level"))
    assert between(levels)[0] * 3 == between(flat)[0] * 2
    assert len({measured.between_bytes for measured, _ in levels.trained[0].traffic}) == 1


def test_a_rank_that_sends_to_another_host_unseen_is_caught(monkeypatch):
    monkeypatch.setattr("zerosim.training.program.Traffic", Traffic)
    honest = Traffic.sent
    monkeypatch.setattr(Traffic, "sent", lambda self, outgoing, to: (
        honest(self, outgoing, to), setattr(self, "between_bytes", 0))[0])
    failures = on_hosts(4, 2, stages=("zero3",)).failures
    assert "bytes sent to other hosts are not the formula's" in failures[0][1]


def test_hosts_are_numbered_by_their_first_ranks():
    assert numbered([0, 0, 2, 2]) == [0, 0, 1, 1]
    assert numbered([3, 0, 3, 0]) == [1, 0, 1, 0]
