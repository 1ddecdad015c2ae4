"""The command line without a launcher: exit codes, one line for each mistake, JSON and weights."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from zerosim.cli import main

SMALL = """\
title = "small"
[world]
ranks = 2
[model]
hidden = [6]
[train]
steps = 2
micro_batch = 2
micro_batches = 2
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def zerosim(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "zerosim", *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=cwd, timeout=60,
    )


def test_a_run_passes_and_says_so(small):
    done = zerosim("run", small)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("PASSED: DDP, Stage I, Stage II, Stage III on 2 ranks")
    assert "in this process" in done.stdout
    assert "step 2/2" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_progress_can_be_silenced_and_forced(small):
    assert zerosim("run", small, "--progress", "none").stderr == ""
    assert "\x1b" in zerosim("run", small, "--progress", "live").stderr


def test_the_json_document(small):
    done = zerosim("run", small, "--json", "-", "--progress", "none")
    document = json.loads(done.stdout)
    assert document["schema"] == "zerosim.run/1"
    assert document["passed"] is True
    assert document["title"] == "small"
    assert document["scenario"]["train"]["betas"] == [0.9, 0.999]
    assert document["world"] == {"kind": "local", "ranks": 2, "library": "threads"}
    assert [stage["stage"] for stage in document["stages"]] == ["ddp", "zero1", "zero2", "zero3"]
    for stage in document["stages"]:
        assert stage["equal"] is True
        assert stage["first_divergence"] is None
        assert len(stage["losses"]) == 2
        assert len(stage["weights_sha256"]) == len(stage["optimizer_sha256"]) == 64
        assert [counts["rank"] for counts in stage["traffic"]] == [0, 1]
        assert stage["seconds"]["train"] > 0
    assert "PASSED" in done.stderr


def test_the_weights_file(small, tmp_path):
    out = tmp_path / "w.safetensors"
    assert zerosim("run", small, "--weights", out, "--set", "train.steps=0").returncode == 0
    weights = load_file(out)
    assert {name: array.shape for name, array in weights.items()} == {
        "layers.0.weight": (6, 64), "layers.0.bias": (6,),
        "layers.1.weight": (10, 6), "layers.1.bias": (10,),
    }
    assert all(array.dtype == np.float32 for array in weights.values())
    assert abs(weights["layers.0.weight"]).max() <= 1 / 8


def test_the_digest_is_that_of_the_weights_file(small, tmp_path):
    import hashlib

    out, document = tmp_path / "w.safetensors", tmp_path / "o.json"
    zerosim("run", small, "--weights", out, "--json", document)
    weights = load_file(out)
    names = [f"layers.{layer}.{name}" for layer in (0, 1) for name in ("weight", "bias")]
    whole = b"".join(weights[name].astype("<f4").tobytes() for name in names)
    found = json.loads(document.read_text())["stages"][0]["weights_sha256"]
    assert found == hashlib.sha256(whole).hexdigest()


def write_npz(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)


GOOD_X = np.zeros((6, 3))
NAN_X = np.zeros((6, 3))
NAN_X[4, 1] = np.nan

MISTAKES = {
    "not TOML": (b"hello", {}, ":1:6: this is not TOML"),
    "not text": (b"\xff\xfe", {}, ":1:1: found the byte 0xff"),
    "unknown key": (b"[train]\nstpes = 3", {}, ":2:1: unknown key 'stpes' in [train]; did you mean 'steps'?"),
    "unknown table": (b"[trian]\nsteps = 3", {}, ":1:2: unknown key 'trian'; did you mean 'train'?"),
    "wrong type": (b"[train]\nsteps = 'x'", {}, ":2:9: train.steps must be an integer"),
    "negative size": (b"[model]\nhidden = [4, -1]", {}, ":2:14: model.hidden[1] must be"),
    "ranks": (b"[world]\nranks = 3\n[train]\nmicro_batches = 4", {}, ":4:17: train.micro_batches must be a multiple"),
    "wrong choice": (b"[parallel]\nstages = ['zero4']", {}, ":2:11: parallel.stages[0] must be"),
    "missing file": (b"[data]\nsource = 'data.npz'", {}, ":2:10: data.source"),
    "NaN": (b"[data]\nsource = 'data.npz'", {"x": NAN_X, "y": np.zeros(6)}, "x[4, 1] is nan"),
    "label": (b"[data]\nsource = 'data.npz'", {"x": GOOD_X, "y": np.array([0, 1, 2, 0, -1, 2])}, "y[4] is -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, mistake, capsys):
    text, arrays, words = MISTAKES[mistake]
    path = tmp_path / "bad.toml"
    path.write_bytes(text)
    if arrays:
        write_npz(tmp_path, **arrays)
    assert main(["run", str(path), "--progress", "none"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"{path}:")
    assert words in line


@pytest.mark.parametrize("arguments", [
    ["run", "{small}", "--json", "/nowhere/at/all.json"],
    ["run", "{small}", "--weights", "/"],
    ["run", "nosuch.toml"],
    ["run", "{small}", "--set", "train.steps"],
    ["run", "{small}", "--set", "train.stpes=1"],
])
def test_mistakes_on_the_command_line(small, arguments, capsys):
    assert main([each.format(small=small) for each in arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run"], ["run", "x", "--progress", "loud"]])
def test_argparse_mistakes_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    capsys.readouterr()


def test_a_failed_check_exits_with_1(small, capsys):
    assert main(["run", str(small), "--set", "check.test_accuracy=0.99", "--progress", "none"]) == 1
    assert "FAILED: DDP: test accuracy is below 99.00%" in capsys.readouterr().out


def test_no_color_is_honoured(small):
    environment = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "zerosim", "run", str(small), "--progress", "live"],
        capture_output=True, text=True, check=False, env=environment, timeout=60,
    )
    assert "\x1b[3" not in done.stdout + done.stderr
