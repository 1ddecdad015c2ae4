"""The kit: its laws hold for the whole family, and each is broken by a planted bug, on a small example."""

import re
import subprocess
import sys
from time import time

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import zerosim as zs
from tests.sampling import one_in
from zerosim.collectives import ALGORITHMS, naive, ring
from zerosim.collectives.kinds import COLLECTIVES
from zerosim.core import orders
from zerosim.core.comm import left, right
from zerosim.core.errors import UsageError
from zerosim.core.sharding import split
from zerosim.proofs.example import Example
from zerosim.proofs.subject import Subject
from zerosim.testing import LAWS, LawBroken, check, laws, strategies

FAMILY = [name for name, row in ALGORITHMS.items() if row.collective in COLLECTIVES]


@pytest.mark.parametrize("name", one_in(5, FAMILY))
def test_the_family_obeys_every_law(name):
    row = ALGORITHMS[name]
    held = check(row.function, examples=8)
    assert {"is_linear", "sends_the_declared_bytes", "sends_the_declared_messages", "works_when_sends_wait"} <= {*held}
    assert ("adds_in_the_declared_order" in held) == (row.order is not None)


@pytest.mark.parametrize("collective", one_in(3, COLLECTIVES))
def test_whole_arrays_obey_every_law(collective):
    assert "inputs_stay_unchanged" in check(getattr(zs, collective), examples=8)


# A bug for each law.


def all_reduce_of_three_forgets_a_step(comm, chunks, reduce=np.add):
    ring.reduce_scatter(comm, chunks, reduce)
    for step in range(comm.size - 1 - (comm.size == 3)):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))


def all_reduce_counts_its_neighbour_twice(comm, x):
    other = np.empty_like(x)
    comm.exchange(x, to=right(comm), into=other, source=left(comm))
    return zs.all_reduce(comm, x) + other * (comm.size > 1)


def reduce_scatter_can_only_add(comm, chunks, reduce=np.add):
    ring.reduce_scatter(comm, chunks)


def reduce_to_rank_0(comm, x, root):
    return zs.all_reduce(comm, x) * x.dtype.type(comm.rank == 0)


def all_gather_with_an_off_by_one(comm, chunks):
    for step in range(comm.size - 2):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))


def broadcast_that_adds_zero(comm, x, root):
    return zs.broadcast(comm, x + x.dtype.type(0), root)


def scatter_backwards(comm, chunks, root):
    vector = chunks.flat
    naive.broadcast(comm, vector, root)
    vector[:] = vector[::-1].copy()


def gather_in_the_order_of_arrival(comm, shard, root):
    if comm.rank != root:
        return comm.send(shard, to=root)
    arrived = [np.empty_like(shard) for _ in range(comm.size - 1)]
    for into, source in zip(arrived, [rank for rank in range(comm.size) if rank != root], strict=True):
        comm.recv(into=into, source=source)
    return np.concatenate([shard, *arrived])


def all_to_all_that_rotates(comm, outgoing, incoming):
    for block in range(comm.size):
        incoming[block][...] = outgoing[(block + 1) % comm.size]


def all_to_all_that_does_nothing(comm, outgoing, incoming):
    incoming.flat[:] = outgoing.flat


def all_reduce_of_at_most_30(comm, x):
    return np.minimum(zs.all_reduce(comm, x), x.dtype.type(30))


def all_reduce_weighted_by_rank(comm, x):
    return zs.all_reduce(comm, x * x.dtype.type(comm.rank + 1))


def all_reduce_from_here_to_the_left(comm, x):
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        comm.exchange(passing, to=right(comm), into=passing, source=left(comm))
        total = total + passing
    return total


def all_reduce_into_its_input(comm, x):
    return zs.all_reduce(comm, x, out=x)


def all_reduce_in_an_alias(comm, x):
    total = x.ravel()
    ring.all_reduce(comm, split(total, comm.size))
    return total


def all_reduce_that_returns_its_argument_if_alone(comm, x):
    return x if comm.size == 1 else zs.all_reduce(comm, x)


BUFFERS = {}


def all_reduce_into_one_buffer(comm, x):
    buffer = BUFFERS.setdefault((comm.rank, x.size, x.dtype), np.empty_like(x))
    return zs.all_reduce(comm, x, out=buffer)


def all_reduce_in_rank_order(comm, x):
    return zs.all_reduce(comm, x, algorithm="direct")


def all_reduce_in_rank_order_but_of_numbers(comm, x):
    return zs.all_reduce(comm, x, algorithm="direct" if x.dtype == object else "ring")


def all_reduce_with_noise(comm, x):
    return zs.all_reduce(comm, x * (1 + 2.0**-40) if x.dtype == np.float64 else x)


def all_reduce_by_the_clock(comm, x):
    return zs.all_reduce(comm, x, algorithm="direct" if int(time()) // 3600 % 2 else "ring")


BOARD = {}


def broadcast_on_a_board(comm, x, root):
    """A vector passes through a dict; an empty message makes ranks wait."""
    BOARD[comm.size, comm.rank] = x.copy()
    zs.barrier(comm)
    return BOARD[comm.size, root].copy()


def all_reduce_of_whole_vectors(comm, x):
    return zs.all_reduce(comm, x, algorithm="doubling")


def all_reduce_with_a_farewell(comm, x):
    comm.exchange(x[:0], to=right(comm), into=x[:0], source=left(comm))
    return zs.all_reduce(comm, x)


def reduce_scatter_that_sends_first(comm, chunks):
    for step in range(comm.size - 1):
        comm.send(chunks[(comm.rank - step - 1) % comm.size], to=right(comm))
        comm.recv(into=chunks[(comm.rank - step - 2) % comm.size], source=left(comm), reduce=np.add)


RING = ALGORITHMS["ring.all_reduce"]
BUGS = [
    (laws.all_reduce_is_all_gather_after_reduce_scatter, all_reduce_of_three_forgets_a_step, {}, 3, 3),
    (laws.all_reduce_is_broadcast_after_reduce, all_reduce_counts_its_neighbour_twice, {}, 2, 1),
    (laws.reduce_scatter_is_scatter_after_reduce, reduce_scatter_can_only_add, {}, 2, 1),
    (laws.reduce_is_gather_after_reduce_scatter, reduce_to_rank_0, {}, 2, 1),
    (laws.all_gather_is_broadcast_after_gather, all_gather_with_an_off_by_one, {}, 2, 1),
    (laws.broadcast_is_all_gather_after_scatter, broadcast_that_adds_zero, {}, 2, 2),
    (laws.scatter_is_undone_by_gather, scatter_backwards, {}, 1, 2),
    (laws.gather_undoes_scatter, gather_in_the_order_of_arrival, {}, 2, 2),
    (laws.all_to_all_twice_is_nothing, all_to_all_that_rotates, {}, 3, 3),
    (laws.all_to_all_transposes, all_to_all_that_does_nothing, {}, 2, 2),
    (laws.is_linear, all_reduce_of_at_most_30, {}, 1, 3),
    (laws.ranks_may_be_permuted, all_reduce_weighted_by_rank, {}, 3, 1),
    (laws.every_rank_holds_the_same_bytes, all_reduce_from_here_to_the_left, {}, 3, 1),
    (laws.inputs_stay_unchanged, all_reduce_into_its_input, {}, 2, 1),
    (laws.inputs_stay_unchanged, all_reduce_in_an_alias, {}, 2, 1),
    (laws.results_stay_as_they_are, all_reduce_into_one_buffer, {}, 2, 1),
    (laws.results_have_memory_of_their_own, all_reduce_that_returns_its_argument_if_alone, {}, 1, 1),
    (laws.adds_in_the_declared_order, all_reduce_in_rank_order, {"order": orders.ring}, 3, 1),
    (laws.adds_in_the_declared_order, all_reduce_in_rank_order_but_of_numbers, {"order": orders.rank_order}, 3, 1),
    (laws.adds_within_the_rounding_of_any_order, all_reduce_with_noise, {}, 1, 1),
    (laws.has_the_same_bytes_at_another_time, all_reduce_by_the_clock, {}, 3, 1),
    (laws.sends_no_fewer_bytes_than_any_can, broadcast_on_a_board, {}, 2, 2),
    (laws.sends_the_declared_bytes, all_reduce_of_whole_vectors, {"sent_bytes": RING.sent_bytes}, 3, 2),
    (laws.sends_the_declared_messages, all_reduce_with_a_farewell, {"messages": RING.messages}, 1, 0),
    (laws.works_when_sends_wait, reduce_scatter_that_sends_first, {}, 2, 0),
]


@pytest.mark.parametrize(("law", "bug", "declared", "ranks", "length"), BUGS, ids=[bug.__name__ for _, bug, *_ in BUGS])
def test_a_bug_breaks_its_law_on_a_small_example(law, bug, declared, ranks, length):
    with pytest.raises(LawBroken, match=f"^{bug.__name__} breaks {law.name}: ") as broken:
        law(bug, **declared)
    x = broken.value.example
    assert x.size <= ranks
    assert x.count <= length
    *lines, see = str(broken.value).splitlines()
    assert len([line for line in lines if not line.startswith("  why: ")]) == 2 + x.size
    assert re.match(rf"  see: zerosim (show|prove) .*test_laws.py:{bug.__name__} --ranks \d", see)


def test_every_law_has_its_bug_and_its_place_in_the_table():
    assert list(dict.fromkeys(law for law, *_ in BUGS)) == list(LAWS)
    assert len(LAWS) == 23
    assert all(law.says for law in LAWS)


def broken_by(function, law=check, **declared):
    with pytest.raises(LawBroken) as broken:
        law(function, **declared)
    assert not hasattr(broken.value, "__notes__")
    return str(broken.value).splitlines()


def test_a_message_says_what_each_rank_brings_has_and_should_have():
    assert broken_by(gather_in_the_order_of_arrival, laws.gather_undoes_scatter)[:4] == [
        "gather_in_the_order_of_arrival breaks gather_undoes_scatter: 2 ranks, 2 × float64, root 1",
        "  gather reverses scatter",
        "  rank 0 starts with [1.0], has nothing",
        "  rank 1 starts with [12.0], has [12.0, 2.0], expected [2.0, 12.0]",
    ]
    assert broken_by(all_reduce_in_rank_order, laws.adds_in_the_declared_order, order=orders.ring)[2:5] == [
        f"  rank {r} starts with [g{r}], has [((g0 + g1) + g2)], expected [((g1 + g2) + g0)]" for r in range(3)
    ]
    assert "reduce=np.m" in broken_by(reduce_scatter_can_only_add)[0]


def all_reduce_that_raises(comm, x):
    if comm.rank == 1:
        raise KeyError("planted")
    return x


def all_reduce_of_another_dtype(comm, x):
    return zs.all_reduce(comm, x.astype(np.float64))


def all_reduce_of_another_length(comm, x):
    return zs.all_reduce(comm, x)[:-1]


def all_reduce_that_forgets_to_return(comm, x):
    zs.all_reduce(comm, x)


def all_reduce_that_litters(comm, x):
    comm.send(x, to=right(comm))
    return zs.all_reduce(comm, x)


def all_reduce_that_waits(comm, x):
    comm.recv(into=x.copy(), source=left(comm))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (all_reduce_that_raises, "KeyError: 'planted', in line "),
        (all_reduce_of_another_dtype, " × float64 on rank 0; expected 0 × float32"),
        (all_reduce_of_another_length, "returned 0 × float64 on rank 0; expected 1 × float64"),
        (all_reduce_that_forgets_to_return, "returned None on rank 0: return the result"),
        (all_reduce_that_litters, "rank 0 ended without receiving 1 message(s) from rank 0"),
        (all_reduce_that_waits, "no rank can go on: rank 0 waits for a message from rank 0"),
    ],
)
def test_what_goes_wrong_on_the_way_is_told(function, said):
    with pytest.raises(LawBroken) as broken:
        check(function)
    assert said in str(broken.value).splitlines()[1]
    assert isinstance(broken.value.__cause__, KeyError) == ("KeyError" in said)


def test_a_function_that_answers_differently_each_time_is_told():
    answers = iter(range(10**6))

    def all_reduce_at_random(comm, x):
        total = zs.all_reduce(comm, x)
        return total + x.dtype.type(1) if next(answers) == 53 else total

    assert "not when repeated" in broken_by(all_reduce_at_random)[-1]


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ((laws.adds_in_the_declared_order, all_reduce_in_rank_order), "order="),
        ((laws.sends_the_declared_bytes, all_reduce_in_rank_order), "sent_bytes="),
        ((laws.inputs_stay_unchanged, ring.all_reduce), "an argument that is not worked on in place"),
        ((laws.all_to_all_transposes, ring.all_reduce), "it needs all_to_all"),
    ],
)
def test_a_law_that_does_not_apply_says_what_it_needs(arguments, needed):
    law, function = arguments
    with pytest.raises(UsageError, match=needed):
        law(function)


def test_the_collective_can_be_told():
    with pytest.raises(UsageError, match="Name one of reduce_scatter"):
        check(lambda comm, x: x)
    assert check(lambda comm, x: zs.all_reduce(comm, 1 * x), collective="all_reduce", examples=5)


def test_only_ranks_that_an_algorithm_serves_are_drawn():
    seen = set()

    def halving(comm, chunks, reduce=np.add):
        seen.add(comm.size)
        ALGORITHMS["halving.reduce_scatter"].function(comm, chunks, reduce)

    subject = Subject("halving", "reduce_scatter", halving, "in place", ALGORITHMS["halving.reduce_scatter"])
    check(subject, examples=30)
    assert seen == {1, 2, 4, 8, 16}


@given(st.data())
@settings(max_examples=17)
def test_exact_values_have_one_sum(data):
    """In every order, after doubling too, in the smallest dtype that is drawn for them."""
    vectors = data.draw(strategies.vectors(64, 9, "float32", "exact"))
    exact = sum(2 * vector.astype(int) + 1 for vector in vectors).astype("f4")
    for order in (vectors, vectors[::-1], vectors[::2] + vectors[1::2]):
        assert sum((2 * vector + 1 for vector in order), np.zeros(9, "f4")).tobytes() == exact.tobytes()


@pytest.mark.parametrize("values", ["cancelling", "special", "random"])
@pytest.mark.parametrize("dtype", one_in(2, strategies.FLOATS))
def test_other_values_show_what_they_are_for(values, dtype):
    def wanted(vectors):
        with np.errstate(all="ignore"):
            a, b, c = vectors
            return ((a + b) + c).tobytes() != (a + (b + c)).tobytes()

    a, b, c = find(strategies.vectors(3, 1, dtype, values), wanted)
    assert a.dtype == dtype
    assert a.shape == b.shape == c.shape == (1,)


@pytest.mark.parametrize("length", [0, 1, 3, 8, 9])
def test_lengths_shorter_uneven_and_multiples_are_drawn(length):
    assert find(strategies.lengths(4), lambda n: n == length) == length
    assert find(strategies.lengths(4, even=True), lambda n: n > 4) == 8


@given(strategies.worlds(), strategies.rank_counts(4), st.data())
@settings(max_examples=10)
def test_worlds_are_arguments_of_spawn(world, ranks, data):
    x = data.draw(strategies.examples(ranks=st.just(ranks), rooted=True, reduction=strategies.reductions()))
    assert isinstance(x, Example)
    assert x.root < ranks == x.size
    got = zs.spawn(lambda comm: zs.all_reduce(comm, x.vectors[comm.rank], x.reduce), ranks, **world)
    np.testing.assert_array_equal(got, [x.reduce.reduce(x.vectors)] * ranks)


def test_unknown_values_are_refused():
    with pytest.raises(UsageError, match="values='odd': one of exact"):
        find(strategies.vectors(1, 1, values="odd"), lambda _: True)


def test_without_hypothesis_one_line_says_what_to_install():
    program = "import sys; sys.modules['hypothesis'] = None; import zerosim.testing"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert last == "ImportError: zerosim.testing needs Hypothesis: pip install 'hypothesis>=6.100'"
