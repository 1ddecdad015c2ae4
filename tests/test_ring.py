"""The ring, proved on symbols and tried on numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from zerosim.collectives import ring
from zerosim.comm import left, right
from zerosim.numerics.orders import ORDERS
from zerosim.payloads.terms import Term, missing_and_doubled
from zerosim.sharding import split
from zerosim.teach.proofs.proof import summed
from zerosim.worlds.local import spawn

SIZES = range(1, 17)
DTYPES = ["float16", "float32", "float64", "int8", "int64", "complex64", "complex128"]
REDUCTIONS = [np.add, np.maximum, np.minimum, np.multiply]


def declared(size):
    return [ORDERS["ring"].across([Term(rank, c) for rank in range(size)], c) for c in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_every_contribution_once_and_in_the_declared_order(size):
    sums = summed(ring.reduce_scatter, size)
    assert [missing_and_doubled(term, size) for term in sums] == [([], [])] * size
    assert sums == declared(size)


@pytest.mark.parametrize("size", range(2, 9))
def test_a_ring_that_starts_elsewhere_is_not_proved(size):
    def starts_at_its_own_chunk(comm, chunks):
        for step in range(comm.size - 1):
            comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                          into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm),
                          reduce=np.add)
        comm.exchange(chunks[(comm.rank + 1) % comm.size], to=right(comm),
                      into=chunks[comm.rank], source=left(comm))

    assert summed(starts_at_its_own_chunk, size) != declared(size)


def test_a_ring_with_one_step_too_many_doubles_a_term():
    def doubled(comm, chunks):
        ring.reduce_scatter(comm, chunks)
        comm.exchange(chunks[comm.rank], to=comm.rank, into=chunks[comm.rank], source=comm.rank,
                      reduce=np.add)

    assert missing_and_doubled(summed(doubled, 2)[0], 2) == ([], [0, 1])


@st.composite
def vectors(draw):
    size = draw(st.integers(1, 8))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    count = draw(st.integers(0, 20))
    return draw(arrays.arrays(dtype, (size, count), elements=arrays.from_dtype(dtype)))


@given(vectors(), st.sampled_from(REDUCTIONS), st.integers(0, 3))
def test_all_reduce_is_all_gather_after_reduce_scatter(values, reduce, seed):
    if values.dtype.kind == "c":  # NumPy multiplies complex numbers differently in place
        reduce = np.add
    size = len(values)

    def at_once(comm):
        x = values[comm.rank].copy()
        ring.all_reduce(comm, split(x, size), reduce)
        return x.tobytes()

    def in_two(comm):
        x = values[comm.rank].copy()
        ring.reduce_scatter(comm, split(x, size), reduce)
        whole = np.empty_like(x)
        split(whole, size)[comm.rank][:] = split(x, size)[comm.rank]
        ring.all_gather(comm, split(whole, size))
        return whole.tobytes()

    with np.errstate(all="ignore"):
        results = spawn(at_once, size, seed=seed)
        assert results == spawn(in_two, size, seed=seed + 1)
        assert len(set(results)) == 1
        for chunk, mine in enumerate(split(np.frombuffer(results[0], values.dtype), size)):
            around = [split(values[(chunk + 1 + k) % size], size)[chunk] for k in range(size)]
            total = around[0]
            for nxt in around[1:]:
                total = reduce(total, nxt)
            assert mine.tobytes() == total.tobytes()


def test_the_slides_example():
    def program(comm):
        chunks = [np.array([comm.rank + 1.0, 2.0 * (comm.rank + 1)]) ** (j + 1) for j in range(3)]
        ring.reduce_scatter(comm, chunks)
        return chunks[comm.rank].tolist()

    assert spawn(program, 3) == [[6, 12], [14, 56], [36, 288]]
