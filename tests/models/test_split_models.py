"""Models split over tensor ranks: the bits of one process, the formulas, and the function of the model in one piece."""

import pytest

from tests.models.split import GPT, MLP, SPLIT, outcome
from zerosim.commands.cli import main
from zerosim.scenario.data import load_dataset
from zerosim.scenario.load import load
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally


@pytest.mark.parametrize(("sequence", "due"), [
    (False, {"all_reduce": 4}),
    (True, {"all_gather": 4, "reduce_scatter": 4, "all_reduce": 4}),
])
def test_the_collectives_of_a_block_by_hand(sequence, due, tmp_path):
    """Megatron-LM: four all-reduces of b·s·h a block, or their halves with pieces of the sequence.

    With pieces, each of a block's norms adds the gradients of its weight and of its bias, and the bias of each
    row-parallel product; head and embedding join once each, in forward and in backward.
    """
    (row,) = outcome(GPT, tmp_path, "parallel.tensor_ranks=2", f"parallel.sequence_parallel={str(sequence).lower()}",
                     'parallel.stages=["ddp"]').trained
    steps, blocks, micro_batches = 2, 2, 2
    passes = steps * micro_batches
    found = row.measured.traffic[3].by_collective
    counted = {name.removeprefix("tensor_"): each.calls for name, each in found.items() if "tensor" in name}
    if not sequence:
        assert counted == {"all_reduce": passes * blocks * due["all_reduce"]}
        assert found["tensor_all_reduce"].sent_bytes == passes * blocks * 4 * (2 * 8 * 16 * 4)
    else:
        assert counted == {
            "all_gather": passes * (blocks * due["all_gather"] + 2), "reduce_scatter": passes * blocks * 4,
            "all_reduce": passes * blocks * 6}
        halves = found["tensor_all_gather"].sent_bytes + found["tensor_reduce_scatter"].sent_bytes
        assert halves == passes * (blocks * 8 + 2) * (2 * 8 * 16 * 4 // 2)


@pytest.mark.parametrize(("forgotten", "difference"), [
    ("copy_to", "first.bias: place 1 and place 0 have different gradients of a parameter that all have"),
    ("reduce_from", "loss: "),
    ("once", "loss: "),
    ("join_from", "last.moved: 2 times the gradient of the model in one piece"),
])
def test_a_wrong_model_is_refused_although_all_its_bits_are_equal(forgotten, difference, tmp_path, capsys):
    path = tmp_path / "scenario.toml"
    path.write_text(MLP.replace("hidden = [8, 6, 8]", f'kind = "{SPLIT}"\nforget = "{forgotten}"'))
    assert main(["run", str(path), "--set", "parallel.tensor_ranks=2"]) == 2
    said = capsys.readouterr().err
    assert f"is not the model in one piece: {difference}" in said
    scenario = load(path, ["parallel.tensor_ranks=2", 'parallel.stages=["ddp"]'])
    assert run_locally(prepare(scenario, load_dataset(scenario))).failures == []


OWN = """
from zerosim.extend import Layer, Operation, Parameter, linear, uniform

def sum_forward(x, *, empty, group):
    y = empty(x.shape, x.dtype)
    y[...] = x
    if {called}:
        group.all_reduce(y.reshape(-1))
    return y

def sum_backward(upstream, into, *, empty, group):
    into["x"] = upstream

total = Operation(sum_forward, sum_backward, {{"x": ()}})

def net(task):
    tensor, begins = task.parallel.tensor, uniform(0.1)
    def layer(w, x):
        return total(linear(x, w["weight"]), group=tensor)
    return [Layer("a", "a.", (Parameter("weight", (task.outputs, task.inputs), begins),), layer)]
"""


def run_own(tmp_path, called, *changes):
    (tmp_path / "own.py").write_text(OWN.format(called=called))
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(MLP.replace("hidden = [8, 6, 8]", 'kind = "own.py:net"'))
    return main(["run", str(scenario), *(word for each in changes for word in ("--set", each))])


def test_an_operation_of_ones_own_with_a_direction_runs_over_one_rank(tmp_path):
    assert run_own(tmp_path, "True") == 0


def test_places_that_make_different_calls_are_named_and_end(tmp_path, capsys):
    assert run_own(tmp_path, "group.place == 0", "parallel.tensor_ranks=2") != 0
    assert "rank 1 sent 1 × float64 to rank 0, which receives it into 20 × float64" in capsys.readouterr().err


def test_a_file_of_whole_weights_is_read_by_every_split(tmp_path):
    path, weights = tmp_path / "scenario.toml", tmp_path / "weights.safetensors"
    path.write_text(MLP)
    split = ["--set", "parallel.tensor_ranks=2", "--set", 'parallel.stages=["ddp"]']
    assert main(["run", str(path), *split, "--weights", str(weights)]) == 0
    assert main(["run", str(path), *split, "--set", f'model.weights="{weights}"']) == 0
    assert main(["run", str(path), "--set", f'model.weights="{weights}"']) == 0


TURNED = """
from zerosim.extend import (
    Layer, Parameter, all_to_all, copy_to, join_from, linear, reshape, scatter_to, shift, tanh, transpose, uniform)

def net(task, *, forget=False):
    group, begins, width = task.parallel.{direction}, uniform(0.1), task.inputs
    def layer(w, x):
        samples = x.shape[0]
        x = all_to_all(scatter_to(x, group=group, axis=1), group=group)     # from features to samples
        x = transpose(reshape(x, shape=(group.size, samples // group.size, group.of(width))), axes=(1, 0, 2))
        x = reshape(x, shape=(samples // group.size, width))
        inner = w["inner"] if forget else copy_to(w["inner"], group=group)
        x = shift(shift(tanh(linear(x, inner)), group=group, by=1), group=group, by=-1)
        return linear(join_from(x, group=group, axis=0), w["head"])
    parameters = Parameter("inner", (8, width), begins), Parameter("head", (task.outputs, 8), begins)
    return [Layer("a", "a.", parameters, layer)]
"""


@pytest.mark.parametrize("direction", ["context", "expert"])
def test_models_of_ones_own_are_split_over_every_direction(direction, tmp_path, capsys):
    (tmp_path / "turned.py").write_text(TURNED.format(direction=direction))
    path = tmp_path / "scenario.toml"
    path.write_text(MLP.replace("hidden = [8, 6, 8]", 'kind = "turned.py:net"'))
    split = ["run", str(path), "--set", f"parallel.{direction}_ranks=2", "--set"]
    assert main([*split, 'parallel.stages=["ddp", "zero3"]']) == 0
    assert main([*split, f"parallel.{direction}_ranks=4", "--set", 'parallel.stages=["zero2"]']) == 0
    assert main([*split, "model.forget=true"]) == 2
    assert "a.inner: place 1 and place 0 have different gradients" in capsys.readouterr().err
    assert main([*split, "parallel.tensor_ranks=2"]) == 2
    assert "has no operation and no cut over tensor ranks, which would repeat the same work; remove" in (
        capsys.readouterr().err)


@pytest.mark.parametrize(("written", "message"), [
    ("Cut(task.parallel.tensor, 2)", "of shape (8, 64) has cut Cut("),
    ("Cut(task.parallel.tensor, 0, blocks=3)", "and blocks that divide that one"),
    ('"tensor"', "has cut 'tensor'; give Cut(direction, axis)"),
    ("None) if task.parallel.tensor.of(7) else (0", "2 tensor ranks must divide 7; choose another size"),
])
def test_a_wrong_cut_is_one_line(written, message, tmp_path, capsys):
    (tmp_path / "own.py").write_text(f"""
from zerosim.extend import Cut, Layer, Parameter, linear, uniform

def net(task):
    wrong = ({written})
    def layer(w, x):
        return linear(linear(x, w["a"]), w["b"])
    return [Layer("a", "a.", (Parameter("a", (8, task.inputs), uniform(0.1), cut=wrong),
                              Parameter("b", (task.outputs, 8), uniform(0.1))), layer)]
""")
    path = tmp_path / "scenario.toml"
    path.write_text(MLP.replace("hidden = [8, 6, 8]", 'kind = "own.py:net"'))
    assert main(["run", str(path), "--set", "parallel.tensor_ranks=2"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
