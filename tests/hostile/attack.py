"""Mutated scenarios, data, weights, checkpoints and outcomes, each met by the command line as a user's would be."""

import contextlib
import dataclasses
import io
import json
import random
import re
import shutil
import signal
from pathlib import Path

import numpy as np

from tests.hostile.mutate import bytes_of, document_of, lines_of
from zerosim.commands.cli import main
from zerosim.core.errors import ScenarioError
from zerosim.scenario import Scenario, load

SECONDS = 60
"""That any attempt may take, as a net: a few hundredths are usual."""
SMALL = b"""\
title = "small"
[world]
ranks = 2
[data]
source = "d.npz"
[model]
hidden = [4]
activation = "tanh"
[train]
steps = 1
micro_batch = 2
micro_batches = 4
optimizer = "momentum"
[parallel]
stages = ["zero3"]
order = "ring"
units = "layer"
[check]
reference = true
"""
COLLECTIVE = b"""\
kind = "collective"
[world]
ranks = 3
[values]
lengths = [5, 3]
[[program]]
name = "first"
calls = ["all_reduce", "ring.all_gather"]
[expect]
same_results = true
"""
FEW = {"ranks": 4, "steps": 2, "samples": 64, "parameters": 5000, "variants": 4}
"""What is run; larger scenarios are read and refused, or left alone."""


class Grounds:
    """A folder with a whole file of each kind, from which the others are made."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        rng = np.random.default_rng(0)
        np.savez(folder / "d.npz", x=rng.random((12, 3), np.float32), y=rng.integers(0, 3, 12))
        np.savez_compressed(folder / "e.npz", x=rng.random((6, 2, 2)), y=rng.random((6, 2)), x_test=rng.random((2, 4)),
                            y_test=rng.random((2, 2)))
        (folder / "s.toml").write_bytes(SMALL)
        said = self.attempt(
            ["run", "s.toml", "--weights", "w", "--json", "o.json", "--checkpoint", "k", "--progress", "none"])
        assert said == (0, ""), said
        self.files = {each: (folder / each).read_bytes() for each in ("d.npz", "e.npz", "s.toml", "w", "o.json")}

    def attempt(self, command):
        """The exit code of a command in this folder, and what it said on standard error."""
        out, error = io.StringIO(), io.StringIO()
        captured = contextlib.redirect_stdout(out), contextlib.redirect_stderr(error)
        with contextlib.chdir(self.folder), captured[0], captured[1], in_time():
            try:
                code = main(command)
            except SystemExit as left:
                code = left.code
        return code, error.getvalue()


@contextlib.contextmanager
def in_time():
    def hangs(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fault_of(found, codes=(0, 1, 2, 3), lines=1):
    """What is wrong with an attempt's end, if anything is."""
    code, said = found
    if code == 130:
        return f"still busy after {SECONDS} s, or interrupted"
    if code not in codes:
        return f"exit code {code}: {said[-300:]}"
    if "Traceback" in said or len(said.splitlines()) > lines or len(said) > 2000:
        return f"said more than {lines} line(s): {said[-2000:]}"
    if code in (2, 3) and not said:
        return f"exit code {code}, and not a word"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said):
        return f"control characters: {said!r}"
    return None


def small_enough(scenario):
    if not isinstance(scenario, Scenario):
        return scenario.world.ranks <= 8 and len(scenario.program) <= 4
    ranks, train, model = scenario.world.ranks, scenario.train, scenario.model
    widths = (*model.hidden, model.width, model.layers, model.sequence, model.vocabulary, model.inner)
    return (
        ranks <= FEW["ranks"] and train.steps <= FEW["steps"]
        and train.micro_batch * train.micro_batches <= FEW["samples"]
        and sum(each * each for each in widths) <= FEW["parameters"] and len(scenario.variant) <= FEW["variants"]
        and not scenario.checkpoint.folder and not scenario.parallel.offload_activations
    )


def scenario(grounds, rng):
    """A mutated scenario is refused in one line, or runs."""
    content = lines_of(rng, rng.choice([SMALL, SMALL, SMALL, COLLECTIVE]))
    (grounds.folder / "m.toml").write_bytes(content)
    with contextlib.chdir(grounds.folder), in_time():
        try:
            read = load("m.toml")
        except ScenarioError as error:
            said = str(error)
            return None if re.fullmatch(r"m\.toml:\d+:\d+: [^\n]{1,600}", said) else said
    if not small_enough(read):
        return None
    return fault_of(grounds.attempt(["run", "m.toml", "--progress", "none"]))


def data(grounds, rng):
    """A mutated .npz is refused in one line, or trained on."""
    (grounds.folder / "m.npz").write_bytes(bytes_of(rng, grounds.files[rng.choice(["d.npz", "e.npz"])]))
    return fault_of(grounds.attempt(["run", "s.toml", "--set", "data.source=m.npz", "--progress", "none"]))


def weights(grounds, rng):
    """Mutated weights are refused in one line, or begun with."""
    content = grounds.files["w"]
    if rng.random() < 0.5:
        length = int.from_bytes(content[:8], "little")
        header = json.dumps(document_of(rng, json.loads(content[8 : 8 + length]))).encode()
        content = len(header).to_bytes(8, "little") + header + content[8 + length :]
    else:
        content = bytes_of(rng, content)
    (grounds.folder / "m.w").write_bytes(content)
    return fault_of(grounds.attempt(["run", "s.toml", "--set", "model.weights=m.w", "--progress", "none"]))


def checkpoint(grounds, rng):
    """A mutated checkpoint is refused in one line, or gone on from."""
    shutil.rmtree(grounds.folder / "m", ignore_errors=True)
    shutil.copytree(grounds.folder / "k", grounds.folder / "m")
    (wounded,) = (grounds.folder / "m" / "zero3").iterdir()
    wounded.write_bytes(bytes_of(rng, wounded.read_bytes()))
    for command in (
        ["run", "s.toml", "--resume", "m", "--progress", "none", "--set", "train.steps=2"], ["checkpoint", "m"],
    ):
        fault = fault_of(grounds.attempt(command))
        if fault:
            return f"{' '.join(command)}: {fault}"
    return None


def outcome(grounds, rng):
    """A mutated outcome is refused in one line, or drawn."""
    content = json.dumps(document_of(rng, json.loads(grounds.files["o.json"]))).encode()
    (grounds.folder / "m.json").write_bytes(bytes_of(rng, content) if rng.random() < 0.2 else content)
    return fault_of(grounds.attempt(["report", "m.json", "--picture", "sent=m.svg"]))


@dataclasses.dataclass(frozen=True)
class Found:
    """A fault, and how to have it again."""

    kind: str
    seed: int
    what: str


KINDS = {"scenario": scenario, "data": data, "weights": weights, "checkpoint": checkpoint, "outcome": outcome}


def attacked(folder: Path, kind, seeds):
    """The faults that came of mutants of a kind, one for each seed, in a folder that is made for them."""
    grounds = Grounds(folder)
    for seed in seeds:
        try:
            what = KINDS[kind](grounds, random.Random(f"{kind} {seed}"))
        except BaseException as error:  # that is what is looked for
            what = f"{type(error).__name__}: {error}"
        if (grounds.folder / "executed").exists():
            what = "it was executed"
        if what:
            yield Found(kind, seed, what)
