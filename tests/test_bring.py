"""A user's parts, named in a scenario: run in both worlds, planned, saved, resumed; faults in them are named."""

import json
from pathlib import Path

import pytest

from zerosim.cli import main
from zerosim.scenario import load

MINE = (Path(__file__).parent / "brought" / "mine.py").read_text()
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


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(SCENARIO)
    return tmp_path


def edited(folder, old, new):
    assert old in MINE
    (folder / "mine.py").write_text(MINE.replace(old, new))


def said(capsys, *words):
    code = main([str(word) for word in words])
    return code, " ".join(capsys.readouterr().err.split())


def test_a_model_and_an_optimizer_of_ones_own_train_to_the_bits_of_one_process(folder, capsys):
    code = main(["run", str(folder / "mine.toml"), "--json", str(folder / "out.json")])
    found = json.loads((folder / "out.json").read_text())
    assert code == 0
    assert all(stage["equal"] for stage in found["stages"])
    assert found["scenario"]["model"]["depth"] == 1
    assert found["scenario"]["model"]["width"] == 16
    assert found["scenario"]["train"]["beta1"] == 0.9
    assert found["scenario"]["train"]["beta2"] == 0.98
    assert "runs Python of yours: mine.py:gated (sha256 " in capsys.readouterr().out


def test_they_are_planned(folder, capsys):
    assert main(["plan", str(folder / "mine.toml"), "--ranks", "4,64"]) == 0
    assert "mine.py:gated, 2 layers" in capsys.readouterr().out


def test_a_module_that_is_installed_is_named_with_dots(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "kept_elsewhere.py").write_text(MINE)
    found = load(folder / "mine.toml", ["train.optimizer=kept_elsewhere:lion"])
    assert found.train.optimizer.part.slots == ("momentum",)


def test_no_python_refuses_them(folder, capsys):
    for command in ("run", "plan"):
        code, words = said(capsys, command, folder / "mine.toml", "--no-python")
        assert code == 2
        assert "mine.toml:5:8: model.kind: mine.py:gated is Python, which --no-python refuses to run" in words


def test_a_checkpoint_is_resumed_with_the_same_text_alone(folder, capsys):
    saved = ["run", folder / "mine.toml", "--progress", "none", "--set", 'parallel.stages=["zero3"]']
    assert said(capsys, *saved, "--checkpoint", folder / "saved")[0] == 0
    again = [*saved, "--resume", folder / "saved", "--set", "train.steps=3"]
    assert said(capsys, *again)[0] == 0
    edited(folder, "import numpy as np\n", "import numpy as np  # another text\n")
    code, words = said(capsys, *again)
    assert code == 2
    assert "was trained with another text of mine.py:gated: sha256 " in words
    assert said(capsys, *again, "--accept-python")[0] == 0


def test_nothing_is_imported_because_a_checkpoint_names_it(folder, capsys):
    saved = ["run", folder / "mine.toml", "--progress", "none", "--set", 'parallel.stages=["zero3"]']
    assert said(capsys, *saved, "--checkpoint", folder / "saved")[0] == 0
    (folder / "mine.py").write_text("raise AssertionError('it was imported')")
    code, words = said(capsys, *saved, "--resume", folder / "saved", "--set", "model.kind=mlp", "--set",
                       "train.optimizer=adam")
    assert code == 2
    assert "unknown key 'depth'" in words


@pytest.mark.parametrize(("old", "new", "words"), [
    ("    momentum *= beta2", "    momentum = momentum * beta2", "the slot momentum does not change: write into it"),
    ("    momentum *= beta2", "    momentum *= beta2 * np.mean(g)", "element 0 is"),
    ("np.multiply(momentum, beta1, out=a)", "a = momentum * beta1", "it leaves elements of a that it has not written"),
    ("    a += b\n", "    g += b\n", "it writes to the gradient g, which is only to be read"),
    ("    a += b\n", "    a += c\n", "line 14, a += c: NameError: name 'c' is not defined"),
    ("(g, momentum, *, t, h, a, b,", "(g, momentum, *, t, a, b,", "does not take h; it is called with t, h, a, b"),
    ("beta1=0.9", "beta1=None", "has a key beta1 with the default None"),
    ("def lion", "def liom", "has no function 'lion'; it has "),
])
def test_a_fault_in_an_optimizer_is_named(old, new, words, folder, capsys):
    edited(folder, old, new)
    code, found = said(capsys, "run", folder / "mine.toml", "--progress", "none")
    assert code == 2
    assert "mine.toml:11:13: train.optimizer: " in found
    assert words in found


@pytest.mark.parametrize(("old", "new", "words"), [
    ('linear(x, w["up"])', "x", "layer blocks.0: an operation on two arrays"),
    ('linear(x, w["weight"], w["bias"])', 'linear(x, w["weight"])', "does not read the parameter 'bias'"),
    ('w["gate"]', 'w["gat"]', "layer blocks.0: line 26"),
    ("(task.outputs, d)", "(task.outputs + 1, d)", "layer head: linear wants"),
    ('return [*blocks, Layer("head", "head."', 'return [*blocks, *blocks, Layer("head", "head."',
     "has two parameters 'blocks.0.gate'"),
    ("return [*blocks,", "return blocks, [", "return a list of Layer"),
    ("return [*blocks, Layer", "return [*blocks] or [Layer",
     "the last layer gives shape (2, 64), where (2, 10) is due"),
])
def test_a_fault_in_a_model_is_named(old, new, words, folder, capsys):
    edited(folder, old, new)
    code, found = said(capsys, "run", folder / "mine.toml", "--progress", "none")
    assert code == 2
    assert "mine.toml:5:8: " in found
    assert words in found


def test_a_key_that_no_part_has_is_still_unknown(folder, capsys):
    code, words = said(capsys, "run", folder / "mine.toml", "--set", "train.beta3=1")
    assert code == 2
    assert "unknown key 'beta3' in [train]; did you mean 'betas'?" in words or "beta2" in words
    code, words = said(capsys, "run", folder / "mine.toml", "--set", "train.beta2=fast")
    assert code == 2
    assert 'train.beta2 must be a finite number, found "fast"' in words
