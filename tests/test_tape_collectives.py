"""The collectives on the tape: each is the transpose of its backward, on ranks and in one process, to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from zerosim.autograd.tape_collectives import TAPE_COLLECTIVES, Direction, copy_to, reduce_from
from zerosim.errors import ZerosimError
from zerosim.instruments.observed import Observed
from zerosim.places import side_by_side
from zerosim.sharding import Directions
from zerosim.training.groups import groups_of
from zerosim.worlds.local import spawn

CASES = {
    "copy_to": ((3, 5), {}),
    "reduce_from": ((3, 5), {}),
    "gather_from": ((2, 3), {"axis": 1}),
    "scatter_sum_to": ((12, 3), {"axis": 0}),
    "scatter_to": ((2, 12), {"axis": 1}),
    "join_from": ((2, 3), {"axis": 0}),
    "all_to_all": ((12, 2), {}),
    "shift": ((3, 2), {"by": 1}),
}
ALIKE_BEFORE, ALIKE_AFTER = {"copy_to", "scatter_to"}, {"reduce_from", "join_from"}
"""The operations whose input, or whose output, all ranks have alike: such a vector counts once."""


def empty(shape, dtype):
    return np.full(shape, 99, dtype)


def both_ways(operation, group, name):
    """x, C x, y and Cᵀ y of one rank, of integers."""
    shape, settings = CASES[name]
    shared, own = np.random.default_rng(7), np.random.default_rng(group.place)
    direction = Direction("tensor", group.size)
    due = operation.shape(shape, group=direction, **settings)
    x = (shared if name in ALIKE_BEFORE else own).integers(-9, 9, shape).astype(np.float64)
    y = (shared if name in ALIKE_AFTER else own).integers(-9, 9, due).astype(np.float64)
    out = np.full(due, 99.0)
    found = operation.forward(x, out=out, empty=empty, group=group, **settings)
    if operation.backward is None:
        back = operation.passed["x"](y, shape)
    else:
        back = np.full(shape, 99.0)
        operation.backward(y, {"x": back}, empty=empty, group=group, **settings)
    return x, out if found is None else found, y, back


def on_ranks(operation, name, size):
    def program(comm):
        return both_ways(operation, groups_of(Observed(comm), Directions(tensor=size))["tensor"], name)

    return spawn(program, ranks=size)


def in_one_process(operation, name, size):
    def program(place, groups):
        yield both_ways(operation, groups["tensor"], name)

    return next(side_by_side(Directions(tensor=size), program))


def transposed(found, name):
    """⟨C x, y⟩ − ⟨x, Cᵀ y⟩ over all ranks; vectors that all ranks have alike count once."""
    inner, outer = ([float((one * other).sum()) for one, other in pairs] for pairs in (
        [(cx, y) for _, cx, y, _ in found], [(x, back) for x, _, _, back in found]))
    return (inner[0] if name in ALIKE_AFTER else sum(inner)) - (outer[0] if name in ALIKE_BEFORE else sum(outer))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_backward_is_the_transpose_of_forward(name, size):
    assert transposed(on_ranks(TAPE_COLLECTIVES[name], name, size), name) == 0


@pytest.mark.parametrize("name", CASES)
def test_one_process_has_the_bits_of_the_ranks(name):
    for mine, other in zip(on_ranks(TAPE_COLLECTIVES[name], name, 3), in_one_process(TAPE_COLLECTIVES[name], name, 3),
                           strict=True):
        assert [each.tobytes() for each in mine] == [each.tobytes() for each in other]


def not_added(upstream, into, *, empty, group):
    into["x"][...] = upstream


def added_again(upstream, into, *, empty, group):
    copy_to.backward(upstream, into, empty=empty, group=group)


@pytest.mark.parametrize(("name", "wrong"), [
    ("copy_to", replace(copy_to, backward=not_added)),
    ("reduce_from", replace(reduce_from, backward=added_again)),
    ("shift", replace(TAPE_COLLECTIVES["shift"], backward=lambda upstream, into, *, empty, group, by:
                      TAPE_COLLECTIVES["shift"].forward(upstream, out=into["x"], empty=empty, group=group, by=by))),
    ("gather_from", replace(TAPE_COLLECTIVES["gather_from"], backward=TAPE_COLLECTIVES["join_from"].backward)),
    ("join_from", replace(TAPE_COLLECTIVES["join_from"], backward=TAPE_COLLECTIVES["gather_from"].backward)),
])
def test_a_wrong_transpose_is_noticed(name, wrong):
    assert transposed(on_ranks(wrong, name, 3), name) != 0


def test_every_collective_on_the_tape_has_a_case():
    assert CASES.keys() == TAPE_COLLECTIVES.keys()


def test_pieces_that_are_not_equal_are_refused():
    with pytest.raises(ZerosimError, match="dimension 1 to be a multiple of 4 ranks"):
        TAPE_COLLECTIVES["scatter_to"].shape((2, 6), group=Direction("tensor", 4), axis=1)


def test_an_error_of_one_place_ends_all():
    def program(place, groups):
        if place == 1:
            raise ZeroDivisionError("place 1")
        groups["tensor"].all_reduce(np.ones(2))
        yield place

    with pytest.raises(ZeroDivisionError, match="place 1"):
        next(side_by_side(Directions(tensor=3), program))


def test_a_transposed_array_is_added_too():
    def program(comm):
        group, x = groups_of(Observed(comm), Directions(tensor=2))["tensor"], np.arange(6.0).reshape(2, 3).T
        reduce_from.forward(x, out=x, empty=empty, group=group)
        return x

    assert spawn(program, ranks=2)[0].tolist() == (2 * np.arange(6.0).reshape(2, 3).T).tolist()
