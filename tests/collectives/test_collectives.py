"""The family on numbers, and what it refuses; `tests/laws` proves it on symbols and counts it on the wire."""

import functools
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import zerosim as zs
from tests.collectives import mpi_suites
from zerosim import collectives
from zerosim.collectives import ALGORITHMS, dissemination, find
from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.collectives.pairs import near_first
from zerosim.core.errors import CollectiveError
from zerosim.core.sharding import bounds
from zerosim.core.terms import leaves, symbols
from zerosim.worlds.local import spawn

SIZES = range(1, 17)
REDUCING = [name for name, row in ALGORITHMS.items() if row.order is not None]


def served(name, sizes=SIZES):
    return [size for size in sizes if ALGORITHMS[name].serves(size)]


@pytest.mark.parametrize("name", REDUCING)
def test_ordered_says_whether_the_declared_order_is_that_of_ranks(name):
    row = ALGORITHMS[name]
    dues = ([symbols(rank, size)[chunk] for rank in range(size)] for size in served(name) for chunk in range(size))
    assert row.ordered == all([*leaves(row.order(due, due[0].element))] == due for due in dues)


def left_too_early(barrier, size, seed):
    """Whether a rank came out of `barrier` before the last had gone in."""
    inside = []

    def program(comm):
        inside.append(comm.rank)
        barrier(comm)
        return len(inside) < size

    return any(spawn(program, size, seed=seed))


@pytest.mark.parametrize("size", SIZES)
def test_nobody_leaves_the_barrier_before_all_have_come(size):
    assert not any(left_too_early(dissemination.barrier, size, seed) for seed in range(5))


def test_a_barrier_without_its_last_step_is_seen():
    def too_short(comm):
        nothing = np.empty(0)
        for distance in [*near_first(comm.size)][:-1]:
            comm.exchange(nothing, to=(comm.rank + distance) % comm.size,
                          into=nothing, source=(comm.rank - distance) % comm.size)

    assert any(left_too_early(too_short, 6, seed) for seed in range(5))


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_what_textbooks_say_of_the_bytes(size):
    n = 64 * size
    chunks = [64] * size
    expected = {
        "ring.all_reduce": 2 * n * (size - 1) // size,
        "rabenseifner.all_reduce": 2 * n * (size - 1) // size,
        "doubling.all_reduce": n * (size.bit_length() - 1),
        "halving.reduce_scatter": n * (size - 1) // size,
        "bruck.all_gather": n * (size - 1) // size,
    }
    for name, sent_bytes in expected.items():
        for rank in range(size):
            assert ALGORITHMS[name].sent_bytes(chunks, rank) == sent_bytes


# Whole arrays.

DTYPES = ["?", "i1", "u2", "i8", "f2", "f4", "f8", ">f4", "c8", "c16", ml_dtypes.bfloat16]


def strided(x):
    memory = np.empty((*x.shape, 2), x.dtype)
    memory[..., 0] = x
    return memory[..., :1].reshape(x.shape, copy=False)


def backwards(x):
    return x[(*[slice(None, None, -1)] * x.ndim, ...)]


LAYOUTS = {
    "plain": lambda x: x.copy(),
    "transposed": lambda x: x.T.copy().T,
    "strided": strided,
    "reversed": lambda x: backwards(backwards(x).copy()),
}
REDUCTIONS = [np.add, np.maximum, np.minimum, lambda arrived, mine: arrived + mine]


@st.composite
def worlds(draw):
    """One array of each rank: small integers, whose sums are exact in every dtype."""
    size = draw(st.integers(1, 6))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    return [layout(random.integers(0, 9, shape).astype(dtype)) for _ in range(size)]


def out_for(kind, x, result):
    """The memory that `out=` names: nothing, the input itself, or fresh, in one piece or not."""
    if kind == "input":
        return x
    return None if kind is None else LAYOUTS[kind](np.ones_like(result))


def same(a, b):
    assert (a.shape, a.dtype, a.tolist()) == (b.shape, b.dtype, b.tolist())


def chunk_of(x, rank, size):
    return x.reshape(-1)[slice(*bounds(x.size, size)[rank])]


@settings(max_examples=400)
@given(worlds(), st.sampled_from(sorted({*ALGORITHMS} - {"dissemination.barrier"})), st.booleans(),
       st.sampled_from(REDUCTIONS), st.sampled_from([None, "input", *LAYOUTS]), st.data())
def test_every_collective_is_what_numpy_says(xs, name, auto, reduce, kind, data):
    size, collective = len(xs), ALGORITHMS[name].collective
    assume(auto or ALGORITHMS[name].serves(size))
    of_kind, root = COLLECTIVE_KINDS[collective], data.draw(st.integers(0, size - 1))
    gathers, pieces = "gather" in collective, ("reduce_scatter", "scatter", "all_to_all")
    brought = [chunk_of(xs[0], rank, size) for rank in range(size)] if gathers else xs
    if collective == "all_to_all":
        brought = [np.concatenate([x.reshape(-1)] * size) for x in xs]
    keywords = {"algorithm": "auto" if auto else ALGORITHMS[name].name} if collective != "all_to_all" else {}
    keywords |= ({"root": root} if of_kind.rooted else {}) | ({"reduce": reduce} if of_kind.reducing else {})
    flat = [x.reshape(-1) for x in brought]
    if gathers or "scatter" in collective:
        kind = None if kind == "input" else kind

    def program(comm):
        x, expected = brought[comm.rank].copy(), mpi_suites.expected(collective, flat, comm.rank, root, reduce)
        if expected is not None:
            expected = expected.astype(x.dtype).reshape(-1 if collective in pieces else xs[0].shape)
        out = out_for(kind or ("plain" if gathers else None), x, xs[0] if expected is None else expected)
        untouched = None if out is None else out.copy()
        result = getattr(collectives, collective)(comm, x, out=out, **keywords)
        if expected is None:
            assert result is None
            assert out is None or out.tolist() == untouched.tolist()
        else:
            same(result, expected)
            assert out is None or result is out
            assert out is not None or not np.shares_memory(result, x)
        if out is not x:
            same(x, brought[comm.rank])

    spawn(program, size, seed=data.draw(st.integers(0, 3)))


def test_equal_shards_need_no_out():
    def program(comm):
        shard = np.full((2, 1), comm.rank, np.int16)
        gathered = collectives.gather(comm, shard, root=1)
        return collectives.all_gather(comm, shard), gathered

    for rank, (everywhere, gathered) in enumerate(spawn(program, 3)):
        same(everywhere, np.array([0, 0, 1, 1, 2, 2], np.int16))
        assert rank != 1 or gathered.tolist() == everywhere.tolist()


def test_out_may_overlap_the_input():
    def program(comm):
        memory = np.arange(9) + 10 * comm.rank
        summed = collectives.all_reduce(comm, memory[:-1], out=memory[1:])
        memory = np.arange(9) + 10 * comm.rank
        swapped = collectives.all_to_all(comm, memory[1:], out=memory[:-1])
        return summed.tolist(), swapped.tolist()

    assert spawn(program, 2) == [
        ([10, 12, 14, 16, 18, 20, 22, 24], [1, 2, 3, 4, 11, 12, 13, 14]),
        ([10, 12, 14, 16, 18, 20, 22, 24], [5, 6, 7, 8, 15, 16, 17, 18]),
    ]


# Operations whose operands may not be swapped.


def test_commutative_false_needs_no_name_of_an_algorithm():
    def program(comm):
        x = mpi_suites.matrices(comm.rank, 7)
        return (
            collectives.all_reduce(comm, x, mpi_suites.multiply, commutative=False),
            collectives.reduce_scatter(comm, x, mpi_suites.multiply, commutative=False),
        )

    expected = functools.reduce(mpi_suites.multiply, [mpi_suites.matrices(rank, 7) for rank in range(3)])
    for rank, (whole, chunk) in enumerate(spawn(program, 3)):
        same(whole, expected)
        same(chunk, chunk_of(expected, rank, 3))


# The table, and what is refused.


@pytest.mark.parametrize("collective", sorted({row.collective for row in ALGORITHMS.values()}))
@pytest.mark.parametrize("commutative", [True, False])
def test_auto_always_finds_one_that_serves(collective, commutative):
    for size in range(1, 40):
        chosen = find(collective, "auto", size, commutative=commutative)
        assert chosen.serves(size)
        assert chosen is find(collective, chosen.name, size, commutative=commutative)


@pytest.mark.parametrize(("ranks", "name"), [(6, "bruck"), (4, "doubling")])
def test_a_run_and_a_plan_gather_by_the_first_algorithm_for_their_ranks(ranks, name):
    keys = {"world": {"ranks": ranks}, "model": {"hidden": [8]}, "train": {"steps": 1, "micro_batches": ranks}}
    auto, named, by_ring = (zs.run(keys | {"parallel": {"all_gather": each}}) for each in ("auto", name, "ring"))
    assert auto.passed
    bits, traffic = ([[row[key] for row in outcome.document["rows"]] for outcome in (auto, named, by_ring)]
                     for key in ("weights_sha256", "traffic"))
    assert bits[0] == bits[2]
    assert traffic[0] == traffic[1] != traffic[2]
    assert f"{name} is priced" in zs.plan(keys | {"parallel": {"all_gather": "auto"}}).rows()[0]["pricing"]


def test_the_default_is_the_ring():
    x = 0.1 * np.arange(1, 8)

    def program(comm):
        mine = (comm.rank + 0.3) ** 3 * x
        named, unnamed = (collectives.all_reduce(comm, mine, **keywords)
                          for keywords in ({"algorithm": "ring"}, {}))
        assert named.tobytes() == unnamed.tobytes()
        return unnamed.tobytes() != collectives.all_reduce(comm, mine, algorithm="naive").tobytes()

    assert all(spawn(program, 5))


x = np.zeros(5)
read_only = np.zeros(5)
read_only.flags.writeable = False
WRONG = [
    ("all_reduce", {"algorithm": "rign"}, "no algorithm 'rign' for all_reduce; did you mean 'ring'?"),
    ("reduce_scatter", {"algorithm": "bruck"}, "there are halving, ring, rabenseifner, direct"),
    ("reduce_scatter", {"algorithm": "halving"},
     "halving serves a power of two of ranks in reduce_scatter, not 3: use 'ring' or 'direct'"),
    ("all_reduce", {"algorithm": "ring", "commutative": False},
     "which commutative=False rules out: use 'rabenseifner' or 'doubling' or 'direct'"),
    ("all_reduce", {"reduce": np.subtract}, "np.subtract is not associative"),
    ("all_reduce", {"out": np.zeros(4)}, r"out= is \(4,\) of float64, the result \(5,\) of float64"),
    ("all_reduce", {"out": np.zeros(5, "f4")}, r"pass np.empty\(\(5,\), 'float64'\)"),
    ("all_reduce", {"out": read_only}, "out= is read-only"),
    ("all_reduce", {"out": [0]}, "out= is a list"),
    ("reduce_scatter", {"out": np.zeros(5)}, r"out= is \(5,\) of float64, the result \(\d,\)"),
    ("all_gather", {"out": np.zeros(14)},
     "rank 2 brings 5 elements, but its chunk of an out= of 14 over 3 ranks has 4"),
    ("all_gather", {"out": np.zeros(15, "f4")}, "of float32, the result"),
    ("broadcast", {"root": 3}, "root=3 is not a rank of 3; give an integer from 0 to 2"),
    ("reduce", {"root": -1}, "root=-1"),
    ("scatter", {"root": True}, "root=True"),
    ("all_to_all", {}, "all_to_all of 5 elements over 3 ranks has no equal blocks; pad to 6"),
]


@pytest.mark.parametrize(("collective", "keywords", "message"), WRONG)
def test_what_cannot_work_is_refused_in_one_line(collective, keywords, message):
    def program(comm):
        getattr(collectives, collective)(comm, x, **keywords)

    with pytest.raises(CollectiveError) as error:
        spawn(program, 3, seed=1)
    assert re.search(message, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


def test_ranks_that_bring_different_lengths_are_told():
    with pytest.raises(CollectiveError, match=r"rank [01] sent [12] × float64"):
        spawn(lambda comm: collectives.all_gather(comm, np.zeros(1 + comm.rank)), 2)


def test_a_function_of_the_user_is_taken_at_its_word():
    larger = np.frompyfunc(max, 2, 1)

    def program(comm):
        return collectives.all_reduce(comm, np.array([comm.rank, 1], object), larger).tolist()

    assert spawn(program, 3) == [[2, 1]] * 3


@pytest.mark.parametrize("name", ["ring.all_gather", "direct.all_gather", "naive.gather", "naive.scatter"])
def test_blocks_of_unequal_length_are_a_list_of_views(name):
    """As the docstrings of all_gather, gather and scatter promise."""
    lengths = [3, 0, 7, 1]
    whole = np.arange(sum(lengths))
    cuts = np.cumsum(lengths)[:-1]

    def program(comm):
        has_all = name.endswith("scatter") and comm.rank == 0
        x = whole.copy() if has_all else np.full_like(whole, -1)
        chunks = np.split(x, cuts)
        if not name.endswith("scatter"):
            chunks[comm.rank][...] = np.split(whole, cuts)[comm.rank]
        root = [] if name.endswith("all_gather") else [0]
        ALGORITHMS[name].function(comm, chunks, *root)
        return x, chunks[comm.rank]

    for rank, (x, mine) in enumerate(spawn(program, ranks=4)):
        assert mine.tolist() == np.split(whole, cuts)[rank].tolist()
        if name.endswith("all_gather") or (name == "naive.gather" and rank == 0):
            assert x.tolist() == whole.tolist()
