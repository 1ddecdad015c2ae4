"""What each command refuses: exit code 2 and one line with what was found, what is allowed, and how to mend it."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.commands.small import SMALL
from zerosim.commands.cli import main
from zerosim.core import files

REFUSALS = {
    "": {
        "rum zero3": "COMMAND: invalid choice: 'rum' (choose from ",
        "-v run x": "found '-v' before the command; give the command first",
    },
    "run": {
        "": "the following arguments are required: scenario (zerosim run --help says more)",
        "small.toml --progress loud": "--progress: invalid choice: 'loud' (choose from ",
        "small.toml --set": "--set: expected one argument",
        "small.toml y z": "found 'y z', which is not an argument of this command; leave it out",
        "small.toml --jsn=y": "found '--jsn=y', which is not an argument of this command; did you mean '--json'?",
        "small.toml --ranks 4": "mpirun -n N starts N ranks, and --set world.ranks=N asks for them",
        "no_such": "no_such:1:1: no such file or directory",
        "folder": "folder:1:1: is a directory",
        "hello.toml": "hello.toml:1:1: this is not TOML",
        "nan.toml": "x[4, 1] is nan",
        "label.toml": "y[4] is -1",
        "small.toml --set activation=1": "--set:1:1: unknown key 'activation'; did you mean 'model.activation'?",
        "small.toml --set train.stepps=1": "unknown key",
        "small.toml --set train.steps=many": "train.steps must be an integer of at least 0",
        "small.toml --set world.memory_limit_mb=100": "run it with mpirun -n 2",
        "small.toml --set data.source=no.npz": "no.npz",
        "small.toml --json no/such.json": "no/such.json",
        "small.toml --json folder": "folder",
        f"small.toml --json {'x' * 256}": "file name too long; name a file in a folder that exists",
        "small.toml --json pipe": "cannot write 'pipe': it is a pipe, which may have no reader",
        "pipe": "pipe:1:1: nobody has written to this pipe for 0.1 s",
        "small.toml --set data.source=pipe": "it is a pipe, not a file",
        "small.toml --set data.source=table.csv": "FILE.py:NAME is a function that reads other files",
        "small.toml --set variant=[{}] --set parallel.stages=['ddp']": "stages does nothing beside [[variant]]",
        "small.toml --set check.mfu=[0.3]": "check.mfu must be an array of length 2",
        "small.toml --set data.source=deep.npz": "it cannot be read as .npz",
        "small.toml --weights -": "only --json writes to standard output",
        "small.toml --resume no_such": "no_such",
        "small.toml --resume small.toml": "small.toml",
        "small.toml --checkpoint hello.toml": "hello.toml is a file; name a folder to save checkpoints in",
        "small.toml --set model.weights=no.st": "no such file or directory; it must be the path of a safetensors file",
        "small.toml --set model.weights=hello.toml": "this is not a safetensors file",
        "small.toml --every 2": "--every needs a folder for checkpoints; add --checkpoint DIR",
        "small.toml --trace-steps 2..3": "there is no step 3; train.steps = 2",
        "small.toml --set train.steps=4 --trace-steps 1,3": "[1, 3] has a gap; give one step or a range, 1..3",
        "small.toml --trace-steps 5..3": "'5..3'; give a number, a range 2..9 or a list",
        "small.toml --trace-steps 0..2": "found '0'; give a whole number from 1 to",
        "small.toml --report -": "--report: only --json writes to standard output; name a file",
        "reduce_scatter_slides --report a.html": "a scenario of collectives trains nothing; remove --report",
        "reduce_scatter_slides --checkpoint a": "[checkpoint] is for training, and this is a scenario of collectives",
        "mpt_7b": "this scenario names no data of tokens, so it is for zerosim plan",
        "small.toml --json a --weights ./a": "--weights: --json writes './a' too; name another file",
        "small.toml --json=": "--json: no file is named",
    },
    "show": {
        "--list x": "subject: not allowed with argument --list",
        "--list --html x.html": "the list of algorithms has --ranks and --json; remove all other",
        "ring.all_reduec": "did you mean",
        "mine.py:gather": "mine.py has no function 'gather'",
    },
    "prove": {"mine.py:gather": "mine.py has no function 'gather'", "no.py:f": "no.py", "leaves.py:f": "leaves.py"},
    "check": {"no.py": "no.py", "small.toml": "small.toml"},
    "memory": {"--parameters many --ranks 4": "many"},
    "plan": {"no_such": "no_such", "small.toml --set cluster.device=h1000": "h1000",
             "small.toml --set model.kind=transformer": "a plan without them needs model.vocabulary and"},
    "torch": {"--judge folder": "--judge folder: no records of ranks are there", "--check": "there is no script; give"},
    "report": {"hello.toml --html x.html": "hello.toml is not JSON", "no.json --html x.html": "cannot read no.json",
               "folder": "folder", "no.json --picture kept=a.gif": "write NAME=FILE"},
    "checkpoint": {"": "required", "no_such": "no_such"},
    "bench": {"step --rounds 0": "whole number from 1 to 1000", "nothing": "nothing"},
}
"""For each command, arguments and words of the line."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with files that commands may read, each with one mistake but `small.toml`."""
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    Path("hello.toml").write_text("hello")
    Path("mine.py").write_text("def all_gather(comm, chunks): raise NotImplementedError\n")
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n")
    Path("table.csv").write_text("a,b\n1,2.5\n")
    head = b"(" * 3000 + b"\n"
    with zipfile.ZipFile("deep.npz", "w") as deep:
        deep.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
        deep.writestr("y.npy", b"")
    os.mkfifo("pipe")
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.1)
    os.mkdir("folder")
    x = np.zeros((6, 3))
    np.savez("label.npz", x=x, y=np.array([0, 1, 2, 0, -1, 2]))
    x[4, 1] = np.nan
    np.savez("nan.npz", x=x, y=np.zeros(6))
    for name in ("label", "nan"):
        Path(f"{name}.toml").write_text(f"[data]\nsource = '{name}.npz'")


@pytest.mark.parametrize("command", REFUSALS)
def test_a_mistake_is_one_line_and_exit_code_2(command, capsys):
    for arguments, words in REFUSALS[command].items():
        try:
            code = main([*command.split(), *arguments.split()])
        except SystemExit as stop:  # argparse
            code = stop.code
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("usage:")]
        assert (code, len(lines)) == (2, 1), (arguments, lines)
        assert words in lines[0], (arguments, lines)
