"""A user's parts, named in a scenario: run in both worlds, planned, saved, resumed; faults in them are named."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mpi.launch import mpirun
from zerosim.autograd.differences import operation_fault
from zerosim.autograd.operations.elementwise import multiply
from zerosim.collectives.own import as_collective, collective
from zerosim.commands.cli import main
from zerosim.core.parts.loading import load_file

MINE = (Path(__file__).parents[1] / "brought" / "mine.py").read_text()
SCENARIO = """
[world]
ranks = 2
[model]
kind = "mine.py:gated"
depth = 1
[train]
steps = 2
micro_batch = 4
micro_batches = 2
optimizer = "mine.py:lion"
beta2 = 0.98
"""

STAGED = """
world.ranks = 2
train = {steps = 2, micro_batch = 4, micro_batches = 4}
[[variant]]
stage = "mine.py:compressed"
[[variant]]
stage = "zero2"
"""

SENT = """
world.ranks = 4
train = {steps = 2, micro_batch = 4, micro_batches = 8}
[parallel]
stages = ["ddp", "zero2", "zero3"]
reduce_scatter = "mine.py:halving_reduce_scatter"
all_gather = "mine.py:doubling_all_gather"
"""


DATA = """
world.ranks = 2
train = {steps = 2, micro_batch = 4, micro_batches = 2}
parallel.stages = ["zero3"]
[data]
source = "mine.py:spirals"
count = 40
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    for name, text in (("mine", SCENARIO), ("staged", STAGED), ("sent", SENT), ("data", DATA)):
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def edited(folder, old, new):
    assert old in MINE
    (folder / "mine.py").write_text(MINE.replace(old, new))


def said(capsys, *words):
    code = main([str(word) for word in words])
    return code, " ".join(capsys.readouterr().err.split())


def refused(capsys, *words):
    """What is said of a mistake."""
    code, found = said(capsys, *words)
    assert code == 2
    return found


def test_a_model_and_an_optimizer_of_ones_own_train_to_the_bits_of_one_process(folder, capsys):
    code = main(["run", str(folder / "mine.toml"), "--json", str(folder / "out.json")])
    found = json.loads((folder / "out.json").read_text())
    assert code == 0
    assert all(stage["equal"] for stage in found["stages"])
    assert found["scenario"]["model"]["depth"] == 1
    assert found["scenario"]["model"]["width"] == 16
    assert found["scenario"]["train"]["beta1"] == 0.9
    assert found["scenario"]["train"]["beta2"] == 0.98
    assert "runs your Python code: mine.py:gated (sha256 " in capsys.readouterr().out


def test_no_python_refuses_them(folder, capsys):
    for command in ("run", "plan"):
        words = refused(capsys, command, folder / "mine.toml", "--no-python")
        assert "mine.toml:5:8: model.kind: mine.py:gated is Python code, which --no-python refuses" in words


def test_a_checkpoint_is_resumed_with_the_same_code_alone_and_imports_nothing(folder, capsys):
    saved = ["run", folder / "mine.toml", "--progress", "none", "--set", 'parallel.stages=["zero3"]']
    assert said(capsys, *saved, "--checkpoint", folder / "saved")[0] == 0
    again = [*saved, "--resume", folder / "saved", "--set", "train.steps=3"]
    assert said(capsys, *again)[0] == 0
    edited(folder, "import numpy as np\n", "import numpy as np  # another text\n")
    assert "was trained with other code of mine.py:gated: sha256 " in refused(capsys, *again)
    assert said(capsys, *again, "--accept-python")[0] == 0
    (folder / "mine.py").write_text("raise AssertionError('it was imported')")
    words = refused(capsys, *again, "--set", "model.kind=mlp", "--set", "train.optimizer=adam")
    assert "unknown key 'depth'" in words


def test_a_file_may_have_dataclasses_with_annotations_that_are_strings(tmp_path):
    (tmp_path / "own.py").write_text("""\
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Rate:
    rate: int = 1
""")
    assert load_file(str(tmp_path / "own.py")).Rate().rate == 1
    assert "own" not in sys.modules


FAULTS = {
    "mine.toml:11:13: train.optimizer: ": [
        ("    momentum *= beta2", "    momentum = momentum * beta2", "slot momentum does not change: write into it"),
        ("    momentum *= beta2", "    momentum *= beta2 * np.mean(g)", "element 0 is"),
        ("np.multiply(momentum, beta1, out=a)", "a = momentum * beta1",
         "it rebinds a with a = …, so the previous contents"),
        ("beta1=0.9", "beta1=(0.9, 1)", "has a key beta1 with the default (0.9, 1)"),
        ("momentum", "gradient", "lion has a slot gradient, a name that a model state has")],
    "mine.toml:5:8: ": [
        ('linear(x, w["up"])', "x", "layer blocks.0: an operation on two arrays"),
        ("(task.outputs, d)", "(task.outputs + 1, d)", "layer head: linear needs"),
        ('return [*blocks, Layer("head", "head."', 'return [*blocks, *blocks, Layer("head", "head."',
         "has two parameters 'blocks.0.gate'")],
    "mine.toml:": [    # what would be lost in silence
        ("beta1=0.9,", "beta1=0.9, steps=3,", "mine.py:lion has a key steps, which [train] reserves"),
        ("def gated(task, *, ", "def gated(task, *, kind=16, ", "mine.py:gated has a key kind, which [model]")],
    "staged.toml:5:": [
        ('("optimizer", "gradients")', '("gradients",)',
         "shards gradients; a stage shards one of: nothing; optimizer;"),
        ("def compressed(replica, batch)", "def compressed(replica)",
         "compressed(replica) is no step; write def compressed(replica, batch)"),
        ('@stage(sharded=("optimizer", "gradients"), wire="bf16")\n', "", "mine.py:compressed does not say what it")],
    "sent.toml:": [
        ("@collective(order=halves_first, powers_of_two=True)\n", "", "does not declare its order of addition"),
        ("def doubling_all_gather(comm, chunks)", "def doubling_all_gather(chunks)",
         "takes chunks; as all_gather it works")],
    "data.toml:6:": [
        ("np.random.default_rng(0)", "np.random.default_rng()", "its x changes from call to call; seed"),
        ('"y_test": y[:10]}', '"y_test": y[:10], "z": 1}',
         "it returned a dict of x, y, x_test, y_test, z; return x, y")],
}


@pytest.mark.parametrize(("place", "old", "new", "words"), [
    (place, *fault) for place, faults in FAULTS.items() for fault in faults])
def test_a_fault_in_a_part_is_one_line_at_the_key_that_names_it(place, old, new, words, folder, capsys):
    edited(folder, old, new)
    found = refused(capsys, "run", folder / f"{place.partition('.')[0]}.toml", "--progress", "none")
    assert f"{folder}/{place}" in found
    assert words in found, found


def test_a_declared_number_that_raises_is_one_line(folder, capsys):
    edited(folder, ")\ndef doubling_all", ", chunks_sent=lambda n: 1 / 0)\ndef doubling_all")
    assert "chunks_sent(4) gives no number: ZeroDivisionError" in refused(capsys, "run", folder / "sent.toml")


def test_a_key_that_no_part_has_is_still_unknown(folder, capsys):
    words = refused(capsys, "run", folder / "mine.toml", "--set", "train.beta3=1")
    assert "unknown key 'beta3' in [train]; did you mean 'betas'?" in words or "beta2" in words
    words = refused(capsys, "run", folder / "mine.toml", "--set", "train.beta2=fast")
    assert 'train.beta2 must be a finite number, found "fast"' in words


def test_a_stage_of_ones_own_has_the_bits_that_it_declares(folder, capsys):
    code = main(["run", str(folder / "staged.toml"), "--json", str(folder / "out.json"), "--checkpoint",
                 str(folder / "saved"), "--report", str(folder / "page.html")])
    mine, theirs = json.loads((folder / "out.json").read_text())["stages"]
    assert code == 0
    assert mine["equal"]
    assert theirs["equal"]
    assert mine["stage"] == "mine.py:compressed"
    assert mine["weights_sha256"] != theirs["weights_sha256"]
    sent = [row["traffic"][0]["by_collective"]["reduce_scatter"]["sent_bytes"] for row in (mine, theirs)]
    assert 2 * sent[0] == sent[1]
    assert "Stage II whose gradients travel in bfloat16" in capsys.readouterr().out
    assert said(capsys, "run", folder / "staged.toml", "--set", "train.steps=3", "--resume", folder / "saved")[0] == 0


def test_collectives_of_ones_own_serve_every_stage_in_their_declared_order(folder, capsys):
    code = main(["run", str(folder / "sent.toml"), "--json", str(folder / "out.json"), "--checkpoint",
                 str(folder / "saved")])
    found = json.loads((folder / "out.json").read_text())["stages"]
    assert code == 0
    assert all(row["equal"] for row in found)
    reduced = found[1]["traffic"][0]["by_collective"]["reduce_scatter"]
    assert reduced["messages"] == 2 * reduced["calls"]  # log2 of 4 ranks
    assert said(capsys, "run", folder / "sent.toml", "--set", "train.steps=3", "--resume", folder / "saved")[0] == 0
    mine = found[0]["weights_sha256"]
    main(["run", str(folder / "sent.toml"), "--json", str(folder / "ring.json"),
          "--set", "parallel.reduce_scatter=ring", "--set", "parallel.all_gather=ring"])
    assert json.loads((folder / "ring.json").read_text())["stages"][0]["weights_sha256"] != mine


def test_a_collective_that_two_keys_name_is_of_the_kind_of_each():
    algorithm = collective(order="ring")(lambda comm, chunks, reduce=np.add: None)
    for kind in ("all_reduce", "reduce_scatter"):
        made = as_collective(kind)("mine.py:one", algorithm)
        assert (made.name, made.collective) == ("mine.py:one", kind)


BROADCAST = """\
def f(comm, vector, root):
    if comm.rank != root:
        return comm.recv(into=vector, source=root)
    for rank in range(comm.size):
        if rank != root:
            comm.send(vector, to=rank)
"""


@pytest.mark.parametrize(("old", "new", "code", "words"), [
    ("", "", 0, "every bit equal to one process"),
    ("(vector, to=rank)", "(vector[:1], to=rank)", 3, "rank 0 sent 1 × float32 to rank 1"),
    ("range(comm.size)", "range(comm.size - 1)", 3, "waits for a message from rank 0"),
])
def test_a_broadcast_of_ones_own_publishes_weights(old, new, code, words, folder, capsys):
    (folder / "root.py").write_text(BROADCAST.replace(old, new))
    (folder / "root.toml").write_text(
        'train.steps = 2\nparallel = {stages = ["zero1", "zero2"], publish = "broadcasts", broadcast = "root.py:f"}')
    assert main(["run", str(folder / "root.toml"), "--progress", "none"]) == code
    found = capsys.readouterr()
    assert words in " ".join(f"{found.out} {found.err}".split())


def test_a_function_gives_samples(folder, capsys):
    saved = ["--json", str(folder / "out.json"), "--checkpoint", str(folder / "saved")]
    assert main(["run", str(folder / "data.toml"), *saved]) == 0
    found = json.loads((folder / "out.json").read_text())
    assert found["scenario"]["data"]["count"] == 40
    assert "2-64-64-2 MLP" in capsys.readouterr().out
    assert main(["plan", str(folder / "data.toml")]) == 0


EVERYTHING = """
world.ranks = 2
data.source = "mine.py:spirals"
model.kind = "mine.py:gated"
train = {steps = 3, micro_batch = 4, micro_batches = 4, optimizer = "mine.py:lion", clip_norm = 0.5}
[parallel]
reduce_scatter = "mine.py:halving_reduce_scatter"
all_gather = "mine.py:doubling_all_gather"
[[variant]]
stage = "mine.py:compressed"
[[variant]]
stage = "zero3"
"""


@pytest.mark.mpi
def test_parts_of_every_kind_have_the_same_bits_under_mpirun(folder):
    (folder / "all.toml").write_text(EVERYTHING)
    assert main(["run", str(folder / "all.toml"), "--progress", "none", "--json", str(folder / "here.json")]) == 0
    ended = mpirun(2, ["-m", "zerosim", "run", str(folder / "all.toml"), "--progress", "none", "--json",
                       str(folder / "there.json")])
    assert ended.returncode == 0, ended.stderr
    here, there = (json.loads((folder / f"{name}.json").read_text())["stages"] for name in ("here", "there"))
    assert [row["weights_sha256"] for row in here] == [row["weights_sha256"] for row in there]


def test_a_parameter_without_shape_or_numbers_is_one_line(folder, capsys):
    found = refused(capsys, "run", folder / "mine.toml", "--set", "model.width=-3")
    assert "has shape (" in found
    assert "give a tuple of whole numbers above 0" in found
    text = (folder / "mine.py").read_text()
    first = re.search(r"Parameter\(\"\w+\", \([^)]*\), (uniform\([^)]*\)|normal\([^)]*\)|constant\([^)]*\))", text)
    (folder / "mine.py").write_text(text.replace(first[1], "1.0", 1))
    found = refused(capsys, "run", folder / "mine.toml")
    assert "begins with 1.0; give uniform(bound), normal(deviation), constant(value)" in found


def test_an_operation_that_leaves_its_output_unwritten_is_caught():
    def forward(x, other, *, empty):
        np.divide(x, 1.0 + np.exp(-other))
        return empty(x.shape, x.dtype)

    broken = replace(multiply, forward=forward)
    assert "forward leaves elements of y unwritten" in operation_fault(broken, [(4,), (4,)], {})
