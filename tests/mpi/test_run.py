"""Whole runs under real mpirun: the same bits as in the local world, one line for a mistake, the right exit code."""

import json

import pytest

from tests.mpi.launch import mpirun
from tests.small import SCENARIOS
from zerosim.proofs.programs import programs_of, run_collectives
from zerosim.scenario import Scenario, load
from zerosim.scenario.data import load_dataset
from zerosim.show.document import document, written
from zerosim.show.prepared import shown_collectives
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally
from zerosim.worlds.local import LocalWorld

pytestmark = pytest.mark.mpi
ALIKE = ("stage", "equal", "losses", "test", "weights_sha256", "optimizer_sha256", "traffic")


def locally(scenario):
    if isinstance(scenario, Scenario):
        return written(document(run_locally(prepare(scenario, load_dataset(scenario))), {}))
    world, programs = LocalWorld(scenario.world.ranks, sends=scenario.world.sends), programs_of(scenario)
    return shown_collectives(world.run(lambda comm: run_collectives(comm, scenario, programs))[0], {}).document


@pytest.mark.parametrize(("name", "keys"), [
    ("compare", ["train.steps=3", "check.test_accuracy=0"]), ("wrong_on_some_ranks", []),
    pytest.param("all_reduce_is_reduce_scatter_plus_all_gather", [], marks=pytest.mark.long),
])
def test_the_mpi_world_computes_what_the_local_world_does_and_rank_0_says_it(name, keys, tmp_path):
    scenario, file = load(SCENARIOS / f"{name}.toml", keys), tmp_path / "outcome.json"
    done = mpirun(scenario.world.ranks, [
        "-m", "zerosim", "run", str(SCENARIOS / f"{name}.toml"), "--json", str(file),
        *(word for key in keys for word in ("--set", key))])
    here, there = locally(scenario), json.loads(file.read_text())
    assert done.returncode == (not here["passed"]), done.stderr
    assert (there["world"]["kind"], there["passed"]) == ("mpi", here["passed"])
    assert done.stdout.count("PASSED" if here["passed"] else "FAILED") == 1
    assert done.stderr.count("step 1/3") == 5 * (name == "compare")
    for ours, theirs in zip(there.get("rows", ()), here.get("rows", ()), strict=True):
        assert [ours[key] for key in ALIKE] == [theirs[key] for key in ALIKE]
    assert [there.get(key) for key in ("programs", "findings")] == [here.get(key) for key in ("programs", "findings")]


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


@pytest.mark.parametrize(("ranks", "mistake", "words"), [
    (3, [], "zerosim: the scenario wants 2 ranks and the launcher started 3"),
    (2, ["--set", "data.source=none.npz"], "--set:1:1: data.source"),
    *(pytest.param(2, *case, marks=pytest.mark.long) for case in (
        (["--set", "train.steps=many"], '--set:1:1: train.steps must be an integer of at least 0, found "many"'),
        (["--json", f"{SCENARIOS}/no/such"], "zerosim: --json: cannot write"),
        (["--nosuch"], "zerosim run: found '--nosuch'"))),
])
def test_a_mistake_is_said_once(ranks, mistake, words):
    done = mpirun(ranks, ["-m", "zerosim", "run", str(SCENARIOS / "ddp.toml"), *mistake])
    assert done.returncode == 2
    assert done.stderr.lstrip().startswith(words)
    assert done.stderr.count(words) == 1
    assert "Traceback" not in done.stderr


def test_prefetching_ends_on_fewer_ranks_too():
    done = mpirun(2, ["-m", "zerosim", "run", str(SCENARIOS / "ddp.toml"), "--set", "train.steps=2", "--set",
                      "parallel={stages = ['zero3'], prefetch = true, order = 'exact'}", "--set",
                      "check={same_bits_on = [1]}"], timeout=120)
    assert done.returncode == 0, done.stderr
    assert "every bit equal to one process" in done.stdout
