"""Collectives out of place leave the bits of those in place and their input as it is, and copy as little as can be."""

import numpy as np
import pytest

import zerosim as zs
from zerosim.collectives import results
from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.collectives.results import Unmodified
from zerosim.collectives.table import ALGORITHMS
from zerosim.core.sharding import split
from zerosim.worlds.local import spawn

ROWS = [row for row in ALGORITHMS.values() if row.collective in ("all_reduce", "reduce_scatter", "broadcast", "reduce")]
LENGTH = 23


def brought(rank):
    found = np.random.default_rng(rank).standard_normal(LENGTH).astype("f4")
    found[rank :: 7] = np.array([0x7FC00000 + rank], np.uint32).view("f4")[0]
    return found


def carried_out(row, comm, flat, reduce):
    kind = COLLECTIVE_KINDS[row.collective]
    works_on = split(flat, comm.size) if kind.parameters == ("chunks",) else flat
    root = (comm.size - 1,) if kind.rooted else ()
    row.function(comm, works_on, *root, *((reduce,) if kind.reducing else ()))


def differs(row, size, reduce):
    """Whether any rank is left with other bytes out of place than in place, or its input has changed."""
    def program(comm):
        in_place, x, out = brought(comm.rank), brought(comm.rank), np.full(LENGTH, 7, "f4")
        carried_out(row, comm, in_place, reduce)
        apart = Unmodified(comm, x, out)
        carried_out(row, apart, out, reduce)
        apart.finish()
        return in_place.tobytes() != out.tobytes() or x.tobytes() != brought(comm.rank).tobytes()

    with np.errstate(all="ignore"):
        return any(spawn(program, ranks=size))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}.{row.collective}")
def test_every_algorithm_leaves_the_bits_of_one_in_place_unless_it_reads_its_vector(row):
    tried = [(size, reduce) for size in (1, 2, 3, 4, 5, 8) if row.serves(size)
             for reduce in (np.add, np.subtract, lambda arrived, mine: arrived - 2 * mine)]
    assert any(differs(row, size, reduce) for size, reduce in tried) == row.reads_vector


@pytest.mark.parametrize("plant", ["operands", "accounts", "rest"])
def test_a_fault_in_it_is_seen(plant, monkeypatch):
    if plant == "operands":
        monkeypatch.setattr(results.From, "reduce_into", lambda _, arrived, into: np.subtract(into, arrived, into))
    elif plant == "accounts":
        monkeypatch.setattr(results, "outside", lambda runs, first, last: iter(runs))
    else:
        monkeypatch.setattr(Unmodified, "finish", lambda self: None)
    assert any(differs(row, 3, np.subtract) for row in ROWS if row.serves(3) and not row.reads_vector)


@pytest.mark.parametrize("where", ["fresh", "out", "in place", "overlapping", "in pieces"])
def test_arrays_go_wherever_they_shall(where, monkeypatch):
    def program(comm):
        memory = np.zeros(2 * LENGTH, "f4")
        x = memory[:LENGTH]
        x[:] = brought(comm.rank)
        out = {"fresh": None, "out": np.empty(LENGTH, "f4"), "in place": x, "overlapping": memory[3 : LENGTH + 3],
               "in pieces": np.empty((LENGTH, 2), "f4")[:, 1]}[where]
        found = zs.all_reduce(comm, x, out=out)
        assert out is None or found is out
        assert where in ("in place", "overlapping") or x.tobytes() == brought(comm.rank).tobytes()
        return found.tobytes()

    due = spawn(program, ranks=3)
    monkeypatch.setattr(results, "WORTH_BYTES", 0)
    assert spawn(program, ranks=3) == due


def test_a_ring_copies_nothing(monkeypatch):
    def refuse(self, first, last):
        assert not any(begin < last and first < end for begin, end in self._fresh), "it copies"

    monkeypatch.setattr(Unmodified, "_settle", refuse)

    def program(comm):
        x, out = brought(comm.rank), np.empty(LENGTH, "f4")
        apart = Unmodified(comm, x, out)
        ALGORITHMS["ring.all_reduce"].function(apart, split(out, comm.size), np.add)
        return apart._fresh

    assert spawn(program, ranks=4) == [[]] * 4
