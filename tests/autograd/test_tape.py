"""What a tape draws, scales, counts and adds up, on a unit or two; and what formulas say of rows that go on."""

import json
import weakref
from dataclasses import replace

import numpy as np
import pytest

import zerosim as zs
from tests.autograd.formulas import nan
from tests.autograd.tapes import backpropagated, batches, model_of
from zerosim.autograd.operation import Into
from zerosim.autograd.tape import Tape
from zerosim.autograd.tape_collectives import TAPE_COLLECTIVES, Direction, backward_by, copy_to, reduce_from
from zerosim.commands.cli import main
from zerosim.core.errors import CollectiveError, ZerosimError
from zerosim.core.sharding import Directions
from zerosim.models.mlp import mlp
from zerosim.models.places import side_by_side
from zerosim.observe.observed import Observed
from zerosim.stages.second_channel import SecondChannel
from zerosim.training.groups import groups_of
from zerosim.worlds.local import spawn


@pytest.mark.parametrize("recomputed", ["none", "all", "the tied unit", "the block"])
def test_what_is_computed_again_has_the_same_gradients_even_of_a_unit_with_two_segments(recomputed):
    model, weights = model_of(tied_embeddings=True)
    tied, block = model.units
    assert len(tied.segments) == 2
    again = {"none": [], "all": [tied, block], "the tied unit": [tied], "the block": [block]}[recomputed]
    plain = backpropagated(Tape(), model, weights, batches())
    assert backpropagated(Tape(recomputed=again), model, weights, batches()) == plain
    assert set(plain[1]) == {unit.name for unit in model.units}


def test_each_micro_batch_adds_its_own_two_uses_of_a_tied_weight_before_the_next_one_is_added():
    model, weights = model_of(tied_embeddings=True)
    parts = batches(), batches()[:1], batches()[1:]
    both, *alone = (backpropagated(Tape(), model, weights, part)[1] for part in parts)
    assert both == {name: np.add(*(np.frombuffer(x[name], np.float32) for x in alone)).tobytes() for name in both}


def test_the_padding_of_a_gradient_is_zero_whatever_was_in_its_memory():
    (unit,) = mlp(2, [], 1, "relu", "mean_squared_error").units                # 3 numbers
    tape, weights = Tape(lambda shape, dtype, **_: np.full(shape, 7, dtype)), np.ones(5)
    outputs = tape.forward(unit, weights, [np.ones((1, 2))])
    _, upstreams = tape.loss("mean_squared_error", outputs, [np.zeros((1, 1))], 1)
    _, gradient = tape.backward(unit, weights, upstreams)
    assert gradient.tolist() == [6, 6, 6, 0, 0]
    with pytest.raises(CollectiveError, match=r"backward of layers.0: forward has not run for it"):
        tape.backward(unit, weights, upstreams)


def test_each_micro_batch_draws_its_own_numbers():
    model, weights = model_of(dropout=0.5)
    drawn = []
    tape = Tape(draw=lambda array, micro_batch, layer, operation: (drawn.append(micro_batch), array.fill(1.0)))
    tape.first_micro_batch = 5
    backpropagated(tape, model, weights, batches())
    assert set(drawn) == {5, 6}
    assert drawn.count(5) == drawn.count(6)


def test_a_gradient_is_scaled_before_it_is_rounded_to_16_bits():
    """2⁻²⁹ is nothing in float16; 2¹⁶ times as much is 2⁻¹³."""
    tape = Tape()
    tape.loss_scale = 2.0**16
    loss, (upstream,) = tape.loss(
        "mean_squared_error", [np.full((1, 1), 2.0, np.float16)], [np.ones((1, 1), np.float32)], 2**30)
    assert (upstream.dtype, upstream.item()) == (np.float16, 2.0**-13)
    assert (loss.dtype, loss.item()) == (np.float32, 2.0**-30)


def test_what_is_computed_again_counts_as_such():
    model = mlp(3, [4], 2, "relu", "cross_entropy")                              # 12 and 8 products for each sample
    weights = {unit: unit.initial(0) for unit in model.units}
    tape = Tape(recomputed=model.units[1:])
    backpropagated(tape, model, weights, [(np.ones((5, 3), np.float32), np.zeros(5, np.int64))])
    assert tape.operations == {"forward": 2 * 5 * 20, "recomputation": 2 * 5 * 8, "backward": 2 * 5 * (12 + 2 * 8)}


def test_what_was_on_its_way_is_held_by_nobody_but_who_has_taken_it():
    pending = SecondChannel(None).begin(lambda comm: np.ones(3))
    found = pending.take()
    there = weakref.ref(found)
    del found
    assert there() is None


# The collectives on the tape: each is the transpose of its backward, on ranks and in one process, to the bit.


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


def both_ways(operation, group, name):
    """x, C x, y and Cᵀ y of one rank, of integers."""
    shape, settings = CASES[name]
    shared, own = np.random.default_rng(7), np.random.default_rng(group.place)
    direction = Direction("tensor", group.size)
    due = operation.on_shapes([shape], {"group": direction, **settings})[0].shape
    x = (shared if "x" in operation.alike else own).integers(-9, 9, shape).astype(np.float64)
    y = (shared if "y" in operation.alike else own).integers(-9, 9, due).astype(np.float64)
    into = Into({"x": shape}, lambda name: nan(shape, "f8"))
    operation.backward(y, into, empty=nan, group=group, **settings)
    return x, operation.forward(x, empty=nan, group=group, **settings), y, into["x"]


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
    into["x"] = upstream


def added_again(upstream, into, *, empty, group):
    copy_to.backward(upstream, into, empty=empty, group=group)


def of_a_different_rank(x, *, empty, group):
    """An all-reduce of which rank 0 alone has the sum."""
    y = reduce_from.forward(x, empty=empty, group=group)
    return x if group.place else y


SHIFT, GATHER, JOIN = (TAPE_COLLECTIVES[name] for name in ("shift", "gather_from", "join_from"))
WRONG = {
    "copy_to": (replace(copy_to, backward=not_added), "ranks 0 and 1 have different ∂L/∂x, which `alike` denies"),
    "reduce_from": (replace(reduce_from, backward=added_again),
                    "between x of rank 0 and y of all ranks, ⟨C x, y⟩ = 2862 and ⟨x, Cᵀ y⟩ = 8586"),
    "its forward": (replace(reduce_from, forward=of_a_different_rank), "ranks 0 and 1 have different y, which `alike`"),
    "shift": (replace(SHIFT, backward=backward_by(SHIFT.forward)), "x of rank 1 and y of rank 0, ⟨C x, y⟩ = 0"),
    "gather_from": (replace(GATHER, backward=JOIN.backward), "between x of rank 1 and y of rank 0, ⟨C x, y⟩ = 918 and"),
    "join_from": (replace(JOIN, backward=GATHER.backward), "of all ranks, ⟨C x, y⟩ = 2862 and ⟨x, Cᵀ y⟩ = 8586"),
}


@pytest.mark.parametrize("planted", WRONG)
def test_a_wrong_transpose_is_named(planted, monkeypatch, capsys):
    wrong, said = WRONG[planted]
    monkeypatch.setitem(TAPE_COLLECTIVES, "mine", wrong)
    assert main(["prove", "mine", "--ranks", "3"]) == 1
    assert said in capsys.readouterr().out


def test_a_proof_of_a_transpose_is_a_row():
    assert zs.prove("copy_to", ranks=[2]).rows() == [{"ranks": 2, "fault": None, "holds": True}]


OWN = """
import numpy as np
from zerosim.extend import Direction, Operation, TapeCollective, model
from tests.brought.split import net as split

def norm_forward(x, *, empty, group):
    total = empty((1,), x.dtype)
    np.sum((x * x).reshape(-1), axis=0, keepdims=True, out=total)
    group.all_reduce(total)
    return np.divide(x, total, out=empty(x.shape, x.dtype)), total

def norm_backward(upstream, into, *, empty, group, x, saved):
    dot = empty((1,), x.dtype)
    np.sum((upstream * x).reshape(-1), axis=0, keepdims=True, out=dot)
    if ALL:
        group.all_reduce(dot)
    into["x"][...] = upstream / saved - 2.0 * x * dot / (saved * saved)

def mean_forward(x, *, empty, group):
    y = empty(x.shape, x.dtype)
    y[...] = x
    group.all_reduce(y.reshape(-1))
    y /= group.size
    return y

def mean_backward(upstream, into, *, empty, group):
    into["x"] = mean_forward(upstream, empty=empty, group=group)

norm = Operation(norm_forward, norm_backward, {"x": ("x",)})
mean = TapeCollective(mean_forward, mean_backward, {"x": ()})
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
    path, written = tmp_path / "own.py", tmp_path / "claims.json"
    path.write_text(OWN.replace("SIZE", f"{size}").replace("ALL", f"{everywhere}").replace("FORGET", forget))
    assert main(["check", str(path), "--json", str(written)]) == int(any(faults))
    claims = [json.loads(line) for line in written.read_text().splitlines()]
    for name, due in zip(("norm", "net"), faults, strict=True):
        of_part = [claim for claim in claims if claim["part"].endswith(name)]
        complaints = [claim["complaint"] for claim in of_part if claim["state"] == "does not hold"]
        assert of_part
        assert [due in complaint for complaint in complaints] == [True] * bool(due)


def test_operations_of_ones_own_are_proved_by_name(tmp_path, capsys):
    path = tmp_path / "own.py"
    path.write_text(OWN.replace("SIZE", "2").replace("ALL", "True"))
    assert main(["prove", f"{path}:mean", "--ranks", "3"]) == 0
    assert main(["prove", f"{path}:norm", "--ranks", "2"]) == 0
    said = capsys.readouterr().out
    assert "exactly, on integers" in said
    assert "by central differences in float64" in said
    assert main(["prove", "copy_to", "--ranks", "1..4"]) == 2
    assert main(["prove", "copy_to", "--as", "all_reduce"]) == 2
    (path).write_text("from zerosim.extend import dropout\nmine = dropout\n")
    assert main(["prove", f"{path}:mine"]) == 2
    assert "a proof sets group, axis and by" in capsys.readouterr().err


def test_every_collective_on_the_tape_has_a_case():
    assert CASES.keys() == TAPE_COLLECTIVES.keys()


def test_pieces_that_are_not_equal_are_refused():
    with pytest.raises(ZerosimError, match="dimension 1 to be a multiple of 4 ranks"):
        TAPE_COLLECTIVES["scatter_to"].on_shapes([(2, 6)], {"group": Direction("tensor", 4), "axis": 1})


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
        return reduce_from.forward(x, empty=nan, group=group)

    assert spawn(program, ranks=2)[0].tolist() == (2 * np.arange(6.0).reshape(2, 3).T).tolist()
