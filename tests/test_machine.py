"""This machine as a cluster: what is measured is what is planned with, call by call; nothing here asserts a time."""

import dataclasses
import json
import tomllib
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from tests.mpi.launch import mpirun
from zerosim.commands.benches import cluster as bench
from zerosim.commands.benches.cluster import (
    TimedRun,
    cluster_toml,
    compared_step,
    fastest,
    measure_cluster,
    undisturbed,
)
from zerosim.commands.benches.tables import show_samples
from zerosim.commands.benches.timings import Workload, batches_of
from zerosim.commands.cli import main
from zerosim.plan.calls import NotedExtent, NumpyCall, Rates, calls_of
from zerosim.plan.cluster import cluster_of, machines
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import ModelKeys, Scenario
from zerosim.scenario.machine import ClusterKeys, DeviceKeys, Functions, LinkKeys
from zerosim.worlds.local import spawn

MLP = Workload(ModelKeys(hidden=(4,)), batch=4, inputs=5, outputs=3)
TRANSFORMER = Workload(ModelKeys(kind="transformer", layers=1, width=4, heads=2), batch=4, inputs=5, outputs=7)
LLAMA = Workload(ModelKeys(kind="transformer", architecture="llama", layers=1, width=4, heads=2), 4, 5, 7)
HERE = ClusterKeys(
    DeviceKeys(1e11, 1e10, 8e9, launch_us=2.0, half_width=16.0, working_sets=(1e5, 1e8), bandwidths=(1e11, 1e10),
           functions=Functions(exp=1e9, update=1e10)),
    inside=LinkKeys(10, 4), collectives="written",
)


def planned(workload, stage="zero3", **device):
    said = dataclasses.replace(HERE, device=dataclasses.replace(HERE.device, **device))
    return rehearse(batches_of(2, stage, workload).config, cluster_of(said, Scenario().origin, 2))


def test_a_call_takes_the_longest_of_its_work_and_its_bytes_and_a_launch():
    rates = Rates(7.0, (1e9, 10.0), ((100.0, 1e9), (10_000.0, 1e8)), {"exp": 1e9})
    assert rates.ns(NumpyCall("add", None, 10, 100)) == 107.0
    assert rates.ns(NumpyCall("add", None, 10, 1_000_000)) == pytest.approx(1e7 + 7)
    assert rates.ns(NumpyCall("exp", None, 500, 100)) == 507.0
    assert rates.ns(NumpyCall("matmul", (10, 20, 30, 2), 600, 1)) == pytest.approx(7 + 2 * 10 * 20 * 30 * 2 * 2)
    assert 1e8 < rates.bandwidth(1000) < 1e9


@pytest.mark.parametrize("workload", [MLP, TRANSFORMER, LLAMA], ids=["mlp", "gpt2", "llama"])
@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_every_launch_of_a_step_takes_as_long(workload, stage):
    """Time is a whole number of launches beyond that of none, and memory is the same."""
    free, one, two = (planned(workload, stage, launch_us=launch) for launch in (0.0, 1.0, 2.0))
    assert (one.clock.now_ns - free.clock.now_ns) % 1000 == 0
    assert two.clock.now_ns - one.clock.now_ns == one.clock.now_ns - free.clock.now_ns > 0
    assert one.peak == two.peak == rehearse(
        batches_of(2, stage, workload).config, cluster_of(ClusterKeys(), Scenario().origin, 2)).peak


PLAIN = {"working_sets": (), "bandwidths": (), "functions": Functions()}


def test_without_calls_no_operation_is_shorter_than_a_launch():
    """Three operations forward and three backward, a loss, and an update of each of two layers, all of them short."""
    free, one = (planned(MLP, launch_us=launch, **PLAIN).clock for launch in (0.0, 1.0))
    assert dict(one.computing_ns) == {"forward": 3000, "loss": 1000, "backward": 3000, "update": 2000}
    assert one.bound_ns["launches"] == 6000
    assert 0 < sum(free.computing_ns.values()) < 9000
    assert free.bound_ns["launches"] == 0


def test_what_takes_longer_than_a_launch_hides_it():
    wide = Workload(ModelKeys(hidden=(1024,)), batch=256, inputs=256, outputs=256)
    free, one = (planned(wide, launch_us=launch, **PLAIN).clock.now_ns for launch in (0.0, 1.0))
    assert free == one


@pytest.mark.parametrize("device", machines()["device"])
def test_launches_cost_something_on_every_device(device):
    said = ClusterKeys(device, devices_per_host=2)
    clock = rehearse(batches_of(2, "zero3", MLP).config, cluster_of(said, Scenario().origin, 2)).clock
    assert min(clock.computing_ns[what] for what in ("forward", "loss", "backward", "update")) >= 3800


@pytest.mark.parametrize("key", ["flops", "half_width", "bandwidths", "functions"])
def test_every_figure_of_a_device_counts(key):
    slower = {"flops": 1e9, "half_width": 1000.0, "bandwidths": (1e8, 1e7), "functions": Functions(exp=1e4)}
    assert planned(TRANSFORMER, **{key: slower[key]}).clock.now_ns > planned(TRANSFORMER).clock.now_ns


def test_calls_are_those_of_an_operation_and_pieces_are_walked():
    def double(x, *, out, empty):
        np.multiply(x, 2.0, out=out)
        np.add.at(out, np.arange(3), x)
        out[:2] = np.exp(x[:2])

    x = NotedExtent((3, 2), np.float32, report=pytest.fail)
    assert [(call.name, call.numbers) for call in calls_of(double, (x,), {"out": x})] == [
        ("multiply", 6), ("scatter", 6), ("exp", 4), ("copyto", 4)]
    small, large = (
        planned(Workload(ModelKeys(hidden=(1024,), activation="gelu"), batch, 4, 3), launch_us=1e3).clock.now_ns
        for batch in (2, 256))
    assert large - small > 20e6


def test_copies_of_a_stage_take_time():
    clock = planned(MLP).clock
    assert clock.computing_ns["copies"] > 0
    assert clock.now_ns >= sum(clock.computing_ns.values())


def test_samples_that_others_disturbed_are_left_out():
    samples = [TimedRun(float(number), share) for number, share in enumerate([1.0, 0.5, 0.99, 0.98, 0.2])]
    assert undisturbed(samples) == [0.0, 2.0, 3.0]
    assert undisturbed(samples[3:] + samples[1:2]) == [3.0, 1.0, 4.0]
    assert fastest(samples) == 0.0


def test_a_cluster_is_measured_written_and_planned_with(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "MOST_SECONDS", 0.0)
    subjects = {"an MLP": ("zero3", MLP), "a transformer": ("zero1", TRANSFORMER)}
    found, nothing = spawn(lambda comm: measure_cluster(comm, 1, subjects), ranks=2)
    assert nothing is None
    cluster, compared = found
    for document in (each.document() for each in compared):
        assert 0 < document["quartiles"][0] <= document["step_seconds"] <= document["quartiles"][1]
        assert document["ratio"] * document["step_seconds"] == pytest.approx(document["planned_seconds"]) != 0
    path = tmp_path / "here.toml"
    path.write_text(cluster_toml(cluster))
    assert tomllib.loads(path.read_text())["cluster"]["device"]["flops"] == pytest.approx(
        cluster.device.flops, rel=1e-3)
    scenario = tmp_path / "a.toml"
    scenario.write_text("world.ranks = 2\n[train]\nmicro_batches = 2\n")
    assert main(["plan", str(scenario), "--cluster", str(path)]) == 0
    assert "collectives as written" in capsys.readouterr().out


def test_the_table_says_what_was_planned_and_what_was_measured():
    console = Console(file=StringIO(), width=120)
    show_samples(console, "cluster", [compared_step("an MLP", "zero3", 0.011, [0.010, 0.012, 0.020], 7).document()])
    assert "Stage III 11.0 12.0 11.0 … 16.0 0.92 3 of 7" in " ".join(console.file.getvalue().split())


def test_a_narrow_terminal_breaks_no_figure():
    console = Console(file=StringIO(), width=60)
    step = compared_step("784-1024-1024-1024-10 MLP", "zero3", 0.011, [0.010, 0.012, 0.020], 7)
    show_samples(console, "cluster", [step.document()])
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= 60
    assert all(cell in printed for cell in ("measured", "quartiles", "11.0 … 16.0", "0.92", "3 of 7"))


@pytest.mark.mpi
def test_the_command_measures_on_two_processes(tmp_path):
    code = (
        "import sys; from zerosim.commands.benches import cluster; from zerosim.commands.cli import main; "
        "cluster.MOST_SECONDS = 0.0; cluster.MEASURED.clear(); sys.exit(main(sys.argv[1:]))")
    out, written = tmp_path / "out.json", tmp_path / "here.toml"
    done = mpirun(2, ["-c", code, "bench", "cluster", "--rounds", "1", "--json", str(out), "--toml", str(written)])
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["cluster"]["device"]["launch_us"] >= 0
    assert "[cluster.device]" in written.read_text()
