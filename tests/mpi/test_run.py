"""Whole runs under real mpirun: the same bits as in the local world, one line for a mistake, the right exit code."""

import json
from functools import cache

import pytest

from tests.mpi.launch import commands, mpirun
from tests.small import SCENARIOS
from zerosim.commands.cli import main

pytestmark = pytest.mark.mpi
ALIKE = ("stage", "equal", "losses", "test", "weights_sha256", "optimizer_sha256", "traffic")
RUNS = {"compare": ["train.steps=3", "check.test_accuracy=0"], "wrong_on_some_ranks": [],
        "all_reduce_is_reduce_scatter_plus_all_gather": []}
FEW = ["world.ranks=4", "train.steps=2", "train.micro_batches=4", "check.test_accuracy=0"]
EQUAL = {
    "a ring in both directions": ("examples/two_way_ring/scenario.toml", []),
    "prefetching ends on fewer ranks too": ("ddp.toml", [
        "parallel={stages = ['zero3'], prefetch = true, order = 'exact'}", "check={same_bits_on = [1]}"]),
}
MISTAKES = {
    "zerosim: the scenario wants 2 ranks and the launcher started 4": [],
    "--set:1:1: data.source": ["--set", "data.source=none.npz"],
    '--set:1:1: train.steps must be an integer of at least 0, found "many"': ["--set", "train.steps=many"],
    "zerosim: --json: cannot write": ["--json", f"{SCENARIOS}/no/such"],
    "zerosim run: found '--nosuch'": ["--nosuch"],
}


def run(scenario, keys, *flags):
    return ["run", f"{SCENARIOS}/{scenario}", *(word for key in keys for word in ("--set", key)), *flags]


LINES = {**{name: run(f"{name}.toml", keys, "--json", "-") for name, keys in RUNS.items()},
         **{name: run(scenario, [*FEW, *keys]) for name, (scenario, keys) in EQUAL.items()},
         **{words: run("ddp.toml", [], *mistake) for words, mistake in MISTAKES.items()}}


@cache
def ended():
    """How each of these commands ends on four ranks; in one start, as most of its time is imports."""
    return dict(zip(LINES, commands(4, *LINES.values()), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_the_mpi_world_computes_what_the_local_world_does_and_rank_0_says_it(name, capsys):
    code, out, err = ended()[name]
    assert code == main(LINES[name])
    here, there = json.loads(capsys.readouterr().out), json.loads(out)
    assert (here["world"]["kind"], there["world"]["kind"]) == ("local", "mpi")
    assert err.count("FAILED" if code else "PASSED") == 1
    assert err.count("step 1/3") == 5 * (name == "compare")
    for ours, theirs in zip(there.get("rows", ()), here.get("rows", ()), strict=True):
        assert [ours[key] for key in ALIKE] == [theirs[key] for key in ALIKE]
    for key in ("passed", "programs", "findings"):
        assert there.get(key) == here.get(key)


@pytest.mark.parametrize("name", EQUAL)
def test_ranks_have_the_bits_of_one_process(name):
    code, out, err = ended()[name]
    assert code == 0, err
    assert "every bit equal to one process" in out


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_said_once(words):
    code, _, err = ended()[words]
    assert code == 2
    assert err.lstrip().startswith(words)
    assert err.count(words) == 1
    assert "Traceback" not in err


@pytest.mark.long
def test_where_ranks_outnumber_cores_times_say_so(tmp_path):
    """Two ranks on one core: in the tables, on the page, and in the trace and the document."""
    files = {name: tmp_path / f"a.{name}" for name in ("json", "report", "trace")}
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    code = """if True:
        import os, runpy
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        runpy.run_module("zerosim", run_name="__main__")"""
    run = ["-c", code, "run", "ddp", "--set", "train.steps=2", "--set", "check.test_accuracy=0", "-v"]
    done = mpirun(2, [*run, *flags])
    assert done.returncode == 0, done.stderr
    words = "2 ranks share 1 core, so times include waiting for a core."
    assert " ".join(done.stdout.split()).count(words) == 2
    assert words in files["report"].read_text()
    assert json.loads(files["trace"].read_text())["otherData"]["times"] == words
    assert json.loads(files["json"].read_text())["world"]["shared_cores"] == 1
