"""Checkpoints on the command line and under mpirun: saved, resumed, shown, verified, united; first weights."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.commands.small import SMALL as HEAD
from tests.mpi.launch import ROOT, commands
from zerosim.commands.cli import main

SMALL = HEAD.replace("steps = 2", "steps = 4").replace("batches = 2", "batches = 4")
SMALL += '[parallel]\nstages = ["zero3"]\n'


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def zerosim(*words):
    return main([str(word) for word in words])


def run(*flags):
    return zerosim("run", "small.toml", "--progress", "none", *flags)


def outcome(*flags):
    """The only row of a run that passes."""
    assert run("--json", "out.json", *flags) == 0
    with open("out.json", encoding="utf-8") as file:
        (row,) = json.load(file)["stages"]
    return row


def bits(row):
    return [row[key] for key in ("losses", "weights_sha256", "optimizer_sha256", "updates")]


def test_a_run_goes_on_where_it_was_saved_and_says_so(small, capsys):
    whole = outcome()
    assert whole["resumed"] is None
    assert run("--set", "train.steps=3", "--checkpoint", "kept", "--every", "2") == 0
    assert sorted(os.listdir("kept/zero3")) == ["step-00000002.safetensors", "step-00000003.safetensors"]
    capsys.readouterr()
    rest = outcome("--resume", "kept")
    said = " ".join(capsys.readouterr().out.split())
    assert "Stage III resumes after step 3 of 4, from kept/zero3/step-00000003.safetensors, saved by zero3 on 2" in said
    assert said.endswith("PASSED: Stage III on 2 ranks: every bit equal to one process")
    assert bits(rest) == bits(whole)
    assert rest["resumed"] == {
        "folder": "kept/zero3/step-00000003.safetensors", "step": 3, "stage": "zero3", "ranks": 2}
    earlier = outcome("--resume", "kept/zero3/step-00000002.safetensors", "--set", "world.ranks=4")
    assert earlier["resumed"]["step"] == 2


def test_a_scenario_says_where_beside_itself(small, tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "small.toml").write_text(SMALL + '[checkpoint]\nfolder = "kept"\nevery = 2\nkeep = 1\n')
    assert zerosim("run", "there/small.toml", "--progress", "none") == 0
    assert os.listdir(folder / "kept" / "zero3") == ["step-00000004.safetensors"]
    assert zerosim("run", "there/small.toml", "--progress", "none", "--checkpoint", "here") == 0
    assert os.listdir("here/zero3") == ["step-00000004.safetensors"]


# zerosim checkpoint


def test_checkpoints_are_shown_and_verified(small, capsys):
    assert run("--checkpoint", "kept", "--set", "train.precision=fp16", "--every", "2") == 0
    capsys.readouterr()
    assert zerosim("checkpoint", "kept", "--json", "shown.json") == 0
    assert capsys.readouterr().out.count("kept/zero3/step-") == 2
    with open("shown.json", encoding="utf-8") as file:
        shown = json.load(file)
    assert [(each["step"], each["ranks"], each["stage"]) for each in shown["checkpoints"]] == [
        (2, 2, "zero3"), (4, 2, "zero3")]
    path = "kept/zero3/step-00000004.safetensors"
    assert zerosim("checkpoint", path) == 0
    assert "optimizer.variance.layers.0.weight" in capsys.readouterr().out
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert zerosim("checkpoint", "kept") == 1
    assert f"{path} is damaged: its SHA-256 does not match; use another" in capsys.readouterr().err
    assert zerosim("checkpoint", "nowhere") == 2
    assert "nowhere has no checkpoint in it" in capsys.readouterr().err


def test_a_checkpoint_is_a_file_of_weights(small):
    whole = outcome("--weights", "of_run.st", "--checkpoint", "kept")
    path = "kept/zero3/step-00000004.safetensors"
    saved = load_file(path)
    assert all(saved[name].tobytes() == array.tobytes() for name, array in load_file("of_run.st").items())
    row = outcome("--set", f"model.weights={path}", "--set", "train.steps=0", "--set", "train.seed=9")
    assert row["weights_sha256"] == whole["weights_sha256"]


# Weights to begin with.


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_drawn_weights_from_a_file_train_to_the_same_bits(small, precision):
    flags = ["--set", f"train.precision={precision}"]
    assert run("--set", "train.steps=0", "--weights", "first.st") == 0
    drawn = outcome(*flags)
    assert bits(outcome(*flags, "--set", "model.weights=first.st")) == bits(drawn)
    assert run(*flags, "--set", "model.weights=first.st", "--set", "train.steps=2", "--checkpoint", "kept") == 0
    assert bits(outcome(*flags, "--set", "model.weights=first.st", "--resume", "kept")) == bits(drawn)


def renamed(found):
    return {name.replace("layers", "layer"): array for name, array in found.items()}


CHANGES = {
    'there is no array "layers.0.weight", there is "layer.0.weight"': renamed,
    'the model has no parameter "more"; leave it out': lambda found: found | {"more": np.zeros(1, np.float32)},
    "layers.1.weight has shape [6, 10], and in the model [10, 6]": lambda found: found | {
        "layers.1.weight": np.ascontiguousarray(found["layers.1.weight"].T)},
    "layers.0.bias is F64; train.precision fp32 begins with F32, F16, BF16, which it": lambda found: found | {
        "layers.0.bias": found["layers.0.bias"].astype(np.float64)},
}


def test_weights_that_are_not_the_models_are_refused(small, capsys):
    assert run("--set", "train.steps=0", "--weights", "first.st") == 0
    for words, change in CHANGES.items():
        save_file(change(load_file("first.st")), "other.st")
        capsys.readouterr()
        assert run("--set", "model.weights=other.st") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"--set:1:1: model.weights \"other.st\": {words}")


# Processes.


@pytest.mark.mpi
def test_processes_go_on_where_threads_were_and_refuse_alike(small):
    whole = outcome("--set", "parallel.order=exact")
    base = ["run", str(small / "small.toml"), "--progress", "none", "--set", "parallel.order=exact"]
    kept = ["--checkpoint", str(small / "kept"), "--every", "2"]
    assert zerosim(*base, "--set", "world.ranks=4", "--set", "train.steps=2", *kept) == 0
    (small / "bad").mkdir()
    (small / "bad/step-00000004.safetensors").write_bytes(b"")
    goes_on, refused = commands(
        2, [*base, *kept, "--resume", str(small / "kept"), "--json", str(small / "mpi.json")],
        [*base, "--set", "train.steps=5", "--resume", str(small / "bad")])
    assert goes_on[0] == 0, goes_on[2]
    (row,) = json.loads((small / "mpi.json").read_text())["stages"]
    assert bits(row) == bits(whole)
    assert refused[0] == 2
    assert refused[2].count("step-00000004.safetensors is no checkpoint of zerosim, or its header is") >= 1


DIES = """
import itertools, os
from zerosim.commands.cli import main
from zerosim.training import state_file
honest, calls = {function}, itertools.count(1)
{function} = lambda *given: os._exit(9) if next(calls) == {nth} else honest(*given)
main(["run", "{folder}/small.toml", "--set", "checkpoint={{folder='{folder}/kept', keep=1}}", "--progress", "none"])
"""


@pytest.mark.parametrize(("function", "nth"), [("state_file.little_endian", 18), ("os.rename", 3)])
def test_a_run_that_is_killed_while_it_saves_goes_on_from_the_checkpoint_before(small, function, nth):
    """In step 3, amid the arrays and before the file has its name."""
    code = DIES.format(function=function, nth=nth, folder=small)
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 9
    rest = outcome("--resume", "kept")
    assert rest["resumed"]["step"] == 2
    assert bits(rest) == bits(outcome())
