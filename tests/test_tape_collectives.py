"""The collectives on the tape: each is the transpose of its backward, on ranks and in one process, to the bit."""

import json
from dataclasses import replace

import numpy as np
import pytest

import zerosim as zs
from zerosim.autograd.tape_collectives import TAPE_COLLECTIVES, Direction, copy_to, reduce_from
from zerosim.cli import main
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


def empty(shape, dtype):
    return np.full(shape, 99, dtype)


def both_ways(operation, group, name):
    """x, C x, y and Cᵀ y of one rank, of integers."""
    shape, settings = CASES[name]
    shared, own = np.random.default_rng(7), np.random.default_rng(group.place)
    direction = Direction("tensor", group.size)
    due = operation.shape(shape, group=direction, **settings)
    x = (shared if "x" in operation.alike else own).integers(-9, 9, shape).astype(np.float64)
    y = (shared if "y" in operation.alike else own).integers(-9, 9, due).astype(np.float64)
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


@pytest.mark.parametrize("name", CASES)
def test_backward_is_the_transpose_of_forward(name, capsys):
    assert main(["prove", name, "--ranks", "2..4"]) == 0
    assert capsys.readouterr().out.count("⟨C x, y⟩ = ⟨x, Cᵀ y⟩ between every two ranks, exactly, on integers") == 3


@pytest.mark.parametrize("name", CASES)
def test_one_process_has_the_bits_of_the_ranks(name):
    for mine, other in zip(on_ranks(TAPE_COLLECTIVES[name], name, 3), in_one_process(TAPE_COLLECTIVES[name], name, 3),
                           strict=True):
        assert [each.tobytes() for each in mine] == [each.tobytes() for each in other]


def not_added(upstream, into, *, empty, group):
    into["x"][...] = upstream


def added_again(upstream, into, *, empty, group):
    copy_to.backward(upstream, into, empty=empty, group=group)


def of_a_different_rank(x, *, out, empty, group):
    """An all-reduce of which rank 0 alone has the sum."""
    mine = x.copy()
    reduce_from.forward(x, out=out, empty=empty, group=group)
    if group.place:
        out[...] = mine


SHIFT, GATHER, JOIN = (TAPE_COLLECTIVES[name] for name in ("shift", "gather_from", "join_from"))
WRONG = {
    "copy_to": (replace(copy_to, backward=not_added), "ranks 0 and 1 have different ∂L/∂x, which `alike` denies"),
    "reduce_from": (replace(reduce_from, backward=added_again, needs={"x": ()}, passed={}),
                    "between x of rank 0 and y of all ranks, ⟨C x, y⟩ = 2862 and ⟨x, Cᵀ y⟩ = 8586, 3 times"),
    "its forward": (replace(reduce_from, forward=of_a_different_rank), "ranks 0 and 1 have different y, which `alike`"),
    "shift": (replace(SHIFT, backward=lambda upstream, into, *, empty, group, by: SHIFT.forward(
        upstream, out=into["x"], empty=empty, group=group, by=by)), "x of rank 1 and y of rank 0, ⟨C x, y⟩ = 0"),
    "gather_from": (replace(GATHER, backward=JOIN.backward), "between x of rank 1 and y of rank 0, ⟨C x, y⟩ = 918 and"),
    "join_from": (replace(JOIN, backward=GATHER.backward), "of all ranks, ⟨C x, y⟩ = 2862 and ⟨x, Cᵀ y⟩ = 8586, 3 t"),
}


@pytest.mark.parametrize("planted", WRONG)
def test_a_wrong_transpose_is_named(planted, monkeypatch, capsys):
    wrong, said = WRONG[planted]
    monkeypatch.setitem(TAPE_COLLECTIVES, "mine", wrong)
    assert main(["prove", "mine", "--ranks", "3"]) == 1
    assert said in capsys.readouterr().out
    assert main(["show", "mine", "--ranks", "3"]) == 1


def test_forward_and_its_transpose_are_drawn(capsys):
    assert main(["show", "scatter_sum_to", "--ranks", "2"]) == 0
    assert capsys.readouterr().out.startswith("""\
forward, 1 round, 2 messages
          x            y
  rank 0  x0[0] x0[1]  x1[0]+x0[0]
  rank 1  x1[0] x1[1]  x0[1]+x1[1]
backward, 1 round, 2 messages
          ∂y      ∂x
  rank 0  ∂y0[0]  ∂y0[0] ∂y1[0]
  rank 1  ∂y1[0]  ∂y0[0] ∂y1[0]
PASSED: backward is the transpose of forward""")
    assert repr(zs.show("copy_to", ranks=3)).startswith("<copy_to on 3 ranks: PASSED")
    assert zs.prove("copy_to", ranks=[2]).rows() == [{"ranks": 2, "fault": None, "holds": True}]


OWN = """
import numpy as np
from zerosim.extend import Direction, Operation, TapeCollective, model
from tests.brought.split import net as split

def norm_forward(x, *, out, empty, group):
    total = empty((1,), x.dtype)
    np.sum((x * x).reshape(-1), axis=0, keepdims=True, out=total)
    group.all_reduce(total)
    np.divide(x, total, out=out)
    return total

def norm_backward(upstream, into, *, empty, group, x, saved):
    dot = empty((1,), x.dtype)
    np.sum((upstream * x).reshape(-1), axis=0, keepdims=True, out=dot)
    if ALL:
        group.all_reduce(dot)
    into["x"][...] = upstream / saved - 2.0 * x * dot / (saved * saved)

def mean_forward(x, *, out, empty, group):
    out[...] = x
    group.all_reduce(out.reshape(-1))
    out /= group.size

norm = Operation(norm_forward, norm_backward, lambda x, *, group: x, {"x": ("x",)})
mean = TapeCollective(mean_forward, lambda upstream, into, *, empty, group: mean_forward(
    upstream, out=into["x"], empty=empty, group=group), lambda x, *, group: x, {"x": ()})
EXAMPLES = {"norm": ((3, 4), {"group": Direction("tensor", SIZE)}), "mean": ((2,), {"group": Direction("tensor", 2)})}

@model()
def net(task, *, forget="FORGET"):
    return split(task, forget=forget)
"""


@pytest.mark.parametrize(("size", "everywhere", "forget", "faults"), [
    (3, True, "", [None, None]),
    (3, False, "copy_to", ["⟨C x, y⟩ = ", "over two tensor ranks: first.bias: place 1 and place 0 have different"]),
    (1, True, "", ["over one rank the law says nothing; give Direction('tensor', 2) in EXAMPLES", None]),
])
def test_parts_of_ones_own_with_a_direction_are_checked(size, everywhere, forget, faults, tmp_path):
    path, found = tmp_path / "own.py", tmp_path / "found.json"
    path.write_text(OWN.replace("SIZE", f"{size}").replace("ALL", f"{everywhere}").replace("FORGET", forget))
    assert main(["check", str(path), "--json", str(found)]) == int(any(faults))
    told = {part["name"]: part["fault"] for part in json.loads(found.read_text())["parts"]}
    for name, due in zip(("norm", "net"), faults, strict=True):
        assert (told[name] is None) == (due is None)
        assert due is None or due in told[name]


def test_operations_of_ones_own_are_proved_by_name(tmp_path, capsys):
    path = tmp_path / "own.py"
    path.write_text(OWN.replace("SIZE", "2").replace("ALL", "True"))
    assert main(["prove", f"{path}:mean", "--ranks", "3"]) == 0
    assert main(["prove", f"{path}:norm", "--ranks", "2"]) == 0
    said = capsys.readouterr().out
    assert "exactly, on integers" in said
    assert "by central differences in float64" in said
    assert main(["show", f"{path}:norm"]) == 2
    assert "forward does not run on symbols" in capsys.readouterr().err
    assert main(["prove", "copy_to", "--ranks", "1..4"]) == 2
    assert main(["prove", "copy_to", "--as", "all_reduce"]) == 2
    assert main(["show", "copy_to", "--root", "1"]) == 2
    (path).write_text("from zerosim.extend import dropout\nmine = dropout\n")
    assert main(["prove", f"{path}:mine"]) == 2
    assert "a proof sets group, axis and by" in capsys.readouterr().err


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
        reduce_from.forward(x, out=(y := np.empty((3, 2))), empty=empty, group=group)
        return y

    assert spawn(program, ranks=2)[0].tolist() == (2 * np.arange(6.0).reshape(2, 3).T).tolist()
