"""Model states that are kept on the host or in files: the same bits, the formulas' bytes, faults caught."""

import errno
import gc
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.checkpointing import bits, go
from tests.mpi.launch import mpirun
from tests.test_offload import open_files, tree
from tests.test_planted import fails, outcome_of
from tests.training import labelled, scenario
from zerosim.cli import main
from zerosim.errors import CheckpointError, ScenarioError
from zerosim.figures.shapes import StepsOnShapes, expected
from zerosim.instruments.trace import OFFLOAD
from zerosim.models.mlp import mlp
from zerosim.optim.update import DELAYED as DELAYED_SLOT
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import ModelKeys
from zerosim.scenario.machine import ClusterKeys, LinkKeys
from zerosim.stages.storage import DelayedUpdates, FarUpdates, Storage
from zerosim.training import program
from zerosim.training.experiment import prepare
from zerosim.training.tiers import CopyThread, MappedFile, on_host

FAR = [{"offload_optimizer": one, "offload_parameters": other}
       for one, other in itertools.product(("none", "host", "disk"), repeat=2) if (one, other) != ("none", "none")]
ALL = ({"offload_optimizer": "host"}, {"offload_optimizer": "disk", "offload_parameters": "disk"})
KEYS = [
    {}, {"ranks": 1}, {"precision": "bf16", "accumulate_dtype": "fp32"}, {"precision": "fp16", "publish": "updates"},
    {"precision": "fp64"}, {"prefetch": True, "overlap": True}, {"reshard_after_forward": False}, {"optimizer": "sgd"},
    {"publish": "updates"}, {"order": "exact", "accumulation": "layered"}, {"accumulation": "micro_batch"},
    {"accumulation": "micro_batch", "accumulate_dtype": "fp32", "precision": "fp16"}, {"clip_norm": 0.01},
    {"param_dtype": "bf16"}, {"units": "model"}, {"frozen": (0,)}, {"frozen": (0, 1, 2)}, {"steps": 0},
    {"secondary_ranks": 1}, {"secondary_ranks": 1, "prefetch": True}, {"shard_ranks": 1, "order": "rank"},
    {"quantized_weights": "int8", "quantized_block": 4, "prefetch": True}, {"recompute": True},
    {"ranks": 6, "hidden": (4, 4, 4), "gradients": "all_reduce"}, {"bucket_mb": 0.0001},
]


@pytest.mark.parametrize("far", FAR, ids=lambda far: "-".join(far.values()))
@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_the_bits_are_one_process_s_and_every_byte_is_the_formulas(far, keys):
    outcome = outcome_of(**far, **keys)
    assert outcome.failures == []
    assert all(stage.equal for stage in outcome.trained)


def figures(outcome, number=0):
    return outcome.trained[number].memory[0].figures


def test_by_hand():
    """One layer of 6 · 3 + 3 = 21 numbers on one rank, Adam: 84 bytes of weights, 84 of gradients, 168 of state."""
    one = {"ranks": 1, "hidden": (), "stages": ("zero3",), "steps": 2, "micro_batches": 1}
    near = figures(outcome_of(**one))
    assert (near.resting_bytes, near.moved_bytes) == ({"parameters": 84, "gradients": 84, "optimizer": 168}, {})
    offloaded = figures(outcome_of(**one, offload_optimizer="host"))
    assert offloaded.resting_bytes == {"parameters": 84, "gradients": 0, "optimizer": 0}
    assert offloaded.far_resting_bytes == {"host": {"gradients": 84, "optimizer": 168}, "disk": {}}
    assert offloaded.moved_bytes == {
        "gradients, device to host": 2 * 84, "parameters, device to host": 2 * 84, "parameters, host to device": 2 * 84}
    infinity = figures(outcome_of(**one, offload_optimizer="disk", offload_parameters="disk"))
    assert infinity.resting_bytes == {"parameters": 0, "gradients": 0, "optimizer": 0}
    assert infinity.far_resting_bytes == {"host": {"gradients": 84}, "disk": {"parameters": 84, "optimizer": 168}}
    assert infinity.far_peak_bytes["host"] == {"gradients": 84, "parameters": 84, "optimizer": 168}
    assert infinity.moved_bytes == {
        "gradients, device to host": 2 * 84, "optimizer, disk to host": 2 * 168, "optimizer, host to disk": 2 * 168,
        "parameters, disk to device": 2 * 2 * 84, "parameters, disk to host": 2 * 84,
        "parameters, host to disk": 2 * 84}


def test_three_units_are_staged_at_a_time():
    """Of 6 · 5 + 5, 5 · 4 + 4 and 4 · 3 + 3 numbers, each with two slots: two neighbours are all three."""
    found = expected(prepare(far_scenario(ranks=1, offload_optimizer="disk"), labelled()).rows[0])
    assert found.far_peak_bytes["host"]["optimizer"] == 2 * 4 * (35 + 24 + 15)
    deeper = replace(far_scenario(ranks=1, offload_optimizer="disk"), model=ModelKeys(hidden=(5, 4, 2)))
    (config,) = prepare(deeper, labelled()).rows
    assert expected(config).far_peak_bytes["host"]["optimizer"] == 2 * 4 * (35 + 24 + 10)


# Checkpoints.


def far_scenario(*, ranks=2, **parallel):
    base = scenario(ranks=ranks, micro_batches=4, stages=("zero3",))
    return replace(base, parallel=replace(base.parallel, **parallel))


@pytest.mark.parametrize("far", ALL, ids=str)
def test_a_run_resumes_with_its_states_where_they_belong(tmp_path, far):
    built = far_scenario(**far)
    whole = bits(go(far_scenario(), labelled()))
    go(built, labelled(), save=tmp_path / "a", steps=2)
    rest = go(built, labelled(), resume=tmp_path / "a")
    assert (rest.failures, bits(rest)) == ([], whole)
    near = go(far_scenario(), labelled(), resume=tmp_path / "a")
    assert (near.failures, bits(near)) == ([], whole)


def test_a_run_resumes_on_other_ranks_and_tiers(tmp_path):
    go(far_scenario(ranks=4, **ALL[1]), labelled(), save=tmp_path / "a", steps=2)
    assert go(far_scenario(ranks=2, **ALL[0]), labelled(), resume=tmp_path / "a").failures == []
    go(far_scenario(ranks=2), labelled(), save=tmp_path / "b", steps=2)
    assert go(far_scenario(ranks=4, **ALL[1]), labelled(), resume=tmp_path / "b").failures == []


# Files.


def test_nothing_is_left_of_the_files(tmp_path):
    before = open_files()
    assert outcome_of(**ALL[1], offload_folder=str(tmp_path)).failures == []
    assert (tree(tmp_path), open_files()) == ([], before)


def test_a_killed_run_leaves_no_file_and_resumes(tmp_path):
    """The run is killed as soon as it has saved a step; its file has no name even then."""
    path, folder, saved = tmp_path / "far.toml", tmp_path / "files", tmp_path / "saved"
    folder.mkdir()
    path.write_text(
        "[world]\nranks = 2\n[train]\nsteps = 4000\n[parallel]\nstages = ['zero3']\noffload_optimizer = 'disk'\n"
        f"offload_parameters = 'disk'\noffload_folder = '{folder}'\n[check]\nreference = false\n")
    command = [sys.executable, "-m", "zerosim", "run", str(path), "--progress", "none"]
    killed = subprocess.Popen([*command, "--checkpoint", str(saved)], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(list(saved.glob("*/step*"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert tree(folder) == []
    killed.kill()
    killed.wait()
    assert (tree(folder), killed.returncode) == ([], -9)
    (step, *_) = sorted(int(each.stem.rpartition("-")[2]) for each in saved.glob("*/step*"))[::-1]
    ended = {}
    for name, more in (("resumed", ["--resume", str(saved)]), ("whole", [])):
        found = tmp_path / f"{name}.json"
        subprocess.run([*command, *more, "--set", f"train.steps={step + 3}", "--json", str(found)], check=True,
                       stdout=subprocess.DEVNULL, timeout=120)
        (row,) = json.loads(found.read_text())["rows"]
        ended[name] = row["weights_sha256"], row["optimizer_sha256"]
    assert ended["resumed"] == ended["whole"]


def test_a_full_disk_is_one_line_and_exit_code_3(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "far.toml"
    path.write_text(f"[train]\nsteps = 1\n[parallel]\noffload_optimizer = 'disk'\noffload_folder = '{tmp_path}'\n")
    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_files()
    assert main(["run", str(path), "--progress", "none"]) == 3
    said = capsys.readouterr().err.strip()
    assert "bytes for offloaded states in" in said
    assert "no space left on device; name another folder in parallel.offload_folder" in said
    gc.collect()
    assert (said.count("\n"), open_files()) == (0, before)


def test_a_folder_that_is_not_there_is_the_scenario_s_fault(tmp_path, capsys):
    path = tmp_path / "far.toml"
    path.write_text("[parallel]\noffload_parameters = 'disk'\noffload_folder = 'nowhere'\n")
    assert main(["run", str(path), "--progress", "none"]) == 2
    assert "far.toml:3:18: cannot make a file for offloaded states in" in capsys.readouterr().err


def test_arrays_of_a_file_do_not_overlap_and_keep_their_numbers():
    file = MappedFile()
    sizes = [1, 5000, 0, 3, 5_000_000, 7]
    arrays = [file.allocate(size, np.float32, kind="optimizer", owner="") for size in sizes]
    for number, array in enumerate(arrays):
        array[:] = number
    file.give_back()
    assert [set(array.tolist()) for array in arrays] == [{0.0}, {1.0}, set(), {3.0}, {4.0}, {5.0}]
    file.give_back(np.ones(3))
    file.close()
    assert on_host(0, np.float32, kind="optimizer", owner="").size == 0


# Under MPI, with a limit on memory and on the page.

LIMITED = f"""
[world]
ranks = 2
memory_limit_mb = 45
[model]
hidden = {[1000] * 12}
[train]
steps = 2
micro_batch = 2
micro_batches = 2
[[variant]]
name = "near"
[[variant]]
name = "far"
offload_optimizer = "disk"
offload_parameters = "disk"
[check]
reference = false
does_not_fit = []
"""


@pytest.mark.mpi
@pytest.mark.long
def test_a_limit_counts_the_device_and_admits_what_fits_offloaded(tmp_path):
    """11 million parameters: 67 MB of weights and Adam's state for each rank, and full units of 4 MB."""
    path, found = tmp_path / "limited.toml", tmp_path / "found.json"
    path.write_text(LIMITED)
    done = mpirun(2, ["-m", "zerosim", "run", str(path), "--progress", "none", "--json", str(found)])
    written = json.loads(found.read_text())
    assert [row["name"] for row in written["did_not_fit"]] == ["near"], done.stderr
    assert [row["name"] for row in written["rows"]] == ["far"]


# Delayed updates.

DELAYED = {"offload_optimizer": "host", "delayed_update": True}


@pytest.mark.parametrize("keys", [
    {}, {"ranks": 1}, {"precision": "bf16", "accumulate_dtype": "fp32"}, {"precision": "fp64"}, {"clip_norm": 0.01},
    {"prefetch": True, "overlap": True}, {"optimizer": "adamw", "schedule": "cosine", "warmup_steps": 2, "steps": 5},
    {"precision": "fp16", "loss_scale": 8.0}, {"steps": 1}, {"frozen": (0,)}, {"publish": "broadcasts"},
    {"accumulation": "micro_batch"}, {"decay_biases": False, "weight_decay": 0.1}, {"param_dtype": "bf16"},
    {"autocast": "fp16", "loss_scale": 8.0}], ids=str)
def test_delayed_updates_are_replayed_bit_for_bit(keys):
    outcome = outcome_of(**DELAYED | {"steps": 3} | keys)
    assert outcome.failures == []
    assert all(stage.equal for stage in outcome.trained)


def test_each_step_applies_the_update_of_the_one_before():
    """The first step leaves weights; then the weights of t + 1 delayed steps of one batch follow those of t steps."""
    keys = {"stages": ("zero1",), "optimizer": "sgd", "ranks": 1}
    first, none = outcome_of(**keys, **DELAYED, steps=1), outcome_of(**keys, steps=0)
    assert first.trained[0].measured.weights_sha256 == none.trained[0].measured.weights_sha256
    second, once = outcome_of(**keys, **DELAYED, steps=2), outcome_of(**keys, steps=1)
    assert second.trained[0].measured.weights_sha256 == once.trained[0].measured.weights_sha256


def test_a_delayed_run_resumes_and_reshards(tmp_path):
    whole = bits(go(far_scenario(**DELAYED), labelled()))
    go(far_scenario(**DELAYED), labelled(), save=tmp_path / "a", steps=2)
    rest = go(far_scenario(**DELAYED), labelled(), resume=tmp_path / "a")
    assert (rest.failures, bits(rest)) == ([], whole)
    assert go(far_scenario(ranks=4, **DELAYED), labelled(), resume=tmp_path / "a").failures == []
    go(far_scenario(**ALL[0]), labelled(), save=tmp_path / "b", steps=2)
    with pytest.raises(CheckpointError, match=r"lacks optimizer\.delayed"):
        go(far_scenario(**DELAYED), labelled(), resume=tmp_path / "b")


def test_of_a_delayed_gradient_no_padding_is_kept():
    kept = {DELAYED_SLOT: np.zeros(4)}
    done = SimpleNamespace(call=lambda what, owner, work: work(), wait=lambda *_: None)
    storage = Storage({"gradients": "host"}, {"host": None}, done)
    unit = mlp(2, [], 3, "relu", "cross_entropy").units[0]  # 9 parameters
    for start, due in ((0, [1, 2, 3, 4]), (6, [1, 2, 3, 0]), (12, [0, 0, 0, 0])):
        kept[DELAYED_SLOT][:] = 0
        rule = SimpleNamespace(delay=lambda into, gradient, factor: np.multiply(gradient, factor, out=into))
        DelayedUpdates(rule, storage, None, ()).update(
            unit, start, None, np.arange(1.0, 5), kept, step=1, count=0, factor=1.0)
        assert kept[DELAYED_SLOT].tolist() == due


def test_an_update_that_is_not_delayed_is_seen(monkeypatch):
    def at_once(self, unit, start, weights, gradient, state, **about):
        self.rule.update(unit, start, weights, gradient, state, **about)

    monkeypatch.setattr(DelayedUpdates, "update", at_once)
    fails(outcome_of(**DELAYED, stages=("zero3",)), "bits differ")


@pytest.mark.parametrize(("keys", "words"), [
    ({"offload_optimizer": "none"}, "the optimizer is on the device; set parallel.offload_optimizer to host"),
    ({"offload_optimizer": "disk"}, "the optimizer is on the disk"),
    ({"offload_parameters": "host"}, "does not go with parallel.offload_parameters"),
    ({"publish": "updates"}, "does not go with parallel.publish"),
    *(({key: "fp16"}, "does not go with train.loss_scale") for key in ("precision", "param_dtype", "autocast"))])
def test_what_does_not_go_with_delayed_updates_is_refused(keys, words):
    with pytest.raises(ScenarioError, match=words):
        outcome_of(**DELAYED | keys)


def test_a_plan_hides_the_host_s_update_behind_the_next_step():
    config, found = planned(DELAYED)
    assert config.rule.slots[-1] == "delayed gradient"
    assert found.clock.now_ns < planned({"offload_optimizer": "host"})[1].clock.now_ns


def test_the_page_has_a_column_for_each_tier_and_the_trace_a_lane(tmp_path):
    path, page, trace = tmp_path / "far.toml", tmp_path / "far.html", tmp_path / "far.json"
    path.write_text("[world]\nranks = 2\n[train]\nsteps = 2\n[[variant]]\noffload_optimizer = 'disk'\n[[variant]]\n")
    command = ["run", str(path), "--progress", "none", "--report", str(page), "--trace", str(trace)]
    assert main(command) == 0
    assert all(words in page.read_text() for words in ("on host, ", "in files, "))
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"offload", "offload, beside the step"} <= lanes
    carried = [event["args"]["bytes"] for event in events if event.get("cat") == "offload" and "disk" in event["name"]]
    ranks, units, slots, ways = 2, 3, 2, 2
    assert len(carried) == ranks * units * slots * ways
    assert min(carried) > 0


# Plans.


def planned(far, **parallel):
    """The rehearsal of a row on one rank, with links of 1 byte a nanosecond and of a tenth of that."""
    built = far_scenario(ranks=1, **far, **parallel)
    own = ClusterKeys(host_memory=LinkKeys(0, 1.0), nvme=LinkKeys(0, 0.1))
    (config,) = prepare(built, labelled()).rows
    return config, rehearse(config, cluster_of(own, built.origin, 1))


@pytest.mark.parametrize("far", FAR, ids=lambda far: "-".join(far.values()))
@pytest.mark.parametrize("keys", [{}, {"prefetch": True}, {"reshard_after_forward": False}], ids=str)
def test_a_plan_has_the_bytes_of_a_run_in_every_tier(far, keys):
    config, found = planned(far, **keys)
    due = expected(config)
    assert {tier: dict(+held) for tier, held in found.far_peak.items()} == due.far_peak_bytes
    assert found.peak["parameters"] == due.peak_bytes["parameters"]
    carried = Counter()
    for span in found.clock.spans:
        if span.lane == OFFLOAD:
            carried[span.what] += span.bytes
    assert dict(+carried) == +StepsOnShapes(config, 1, skipped=False).moved_in(1)


def test_the_time_of_a_plan_by_hand():
    """On the host the step waits for gradients, weights out and weights back, of 74 numbers each, 4 bytes a number."""
    near, host = (planned(far)[1].clock for far in ({}, {"offload_optimizer": "host"}))
    assert 6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3 == 74
    assert host.computing_ns["offload"] == 3 * 74 * 4
    assert host.computing_ns["update"] == pytest.approx(74 * (4 + 2 * 12) / 15, abs=3)
    assert host.now_ns - near.now_ns == 3 * 74 * 4 + host.computing_ns["update"] - near.computing_ns["update"]
    disk = planned({"offload_optimizer": "disk"})[1].clock
    assert disk.now_ns > host.now_ns + 2 * 74 * 8 * 10 * 0.6


# Faults.


def late(monkeypatch):
    """Values are used before they came."""
    honest = CopyThread._copy

    def slow(self, what, owner, into, source):
        time.sleep(0.01 * ("disk to" in what))
        honest(self, what, owner, into, source)

    monkeypatch.setattr(CopyThread, "_copy", slow)
    monkeypatch.setattr(CopyThread, "wait", lambda self, owner, moving: None)


def lost(monkeypatch):
    """What goes to the disk never gets there."""
    honest = CopyThread._copy
    monkeypatch.setattr(
        CopyThread, "_copy", lambda self, what, owner, into, source:
        honest(self, what, owner, source if what.endswith("to disk") else into, source))


def stale(monkeypatch):
    """The next unit's state is not that unit's."""
    honest = FarUpdates._brought

    def other(self, unit, operands):
        here = honest(self, unit, operands)
        if "momentum" in here and "variance" in here:
            here["momentum"], here["variance"] = here["variance"], here["momentum"]
        return here

    monkeypatch.setattr(FarUpdates, "_brought", other)


@pytest.mark.parametrize("fault", [late, lost, stale])
def test_a_planted_fault_is_seen_in_the_bits(monkeypatch, fault):
    fault(monkeypatch)
    fails(outcome_of(**ALL[1], stages=("zero3",), steps=3), "bits differ")


def test_state_that_stays_on_the_device_is_seen(monkeypatch):
    monkeypatch.setattr(Storage, "room", lambda self, kind: self.rooms["device"])
    fails(outcome_of(**ALL[0], stages=("zero3",)), "bytes kept are not the formula's")


def test_state_in_another_tier_is_seen(monkeypatch):
    monkeypatch.setattr(Storage, "room", lambda self, kind: self.rooms["host" if kind == "optimizer" else "disk"])
    fails(outcome_of(**ALL[1], stages=("zero3",)), "far memory is not the formula's: rank 0, ")


def test_what_is_carried_twice_is_seen(monkeypatch):
    honest = CopyThread._copy

    def twice(self, *about):
        honest(self, *about)
        honest(self, *about)

    monkeypatch.setattr(CopyThread, "_copy", twice)
    fails(outcome_of(**ALL[0], stages=("zero3",)), "far memory is not the formula's: rank 0, bytes moved of ")


def test_state_lost_at_resume_is_seen(tmp_path, monkeypatch):
    built = far_scenario(**ALL[1])
    go(built, labelled(), save=tmp_path / "a", steps=2)
    honest = program.restored

    def forgetful(config, saved, replica, place):
        losses = honest(config, saved, replica, place)
        for slots in replica.state.optimizer.values():
            slots["variance"][:] = 0
        return losses

    monkeypatch.setattr(program, "restored", forgetful)
    fails(go(built, labelled(), resume=tmp_path / "a"), "bits differ")


@pytest.mark.parametrize("far", ALL, ids=str)
def test_a_value_that_is_late_is_waited_for(monkeypatch, far):
    honest = CopyThread._copy

    def slow(self, what, owner, into, source):
        time.sleep(0.005)
        honest(self, what, owner, into, source)

    monkeypatch.setattr(CopyThread, "_copy", slow)
    outcome = outcome_of(**far | {"offload_parameters": "disk"}, stages=("zero3",))
    assert outcome.failures == []


def mapped_bytes():
    """Pages of files that this process has in memory."""
    with open("/proc/self/status", encoding="ascii") as status:
        return int(status.read().partition("RssFile:")[2].split()[0]) * 1024


def test_pages_leave_memory_as_they_are_copied():
    file, numbers = MappedFile(), np.ones(8_000_000, np.float32)
    state = file.allocate(len(numbers), np.float32, kind="optimizer", owner="")
    queue, before = CopyThread(file), mapped_bytes()
    queue.wait("", queue.begin("", "", state, numbers))
    assert mapped_bytes() - before < 6e6
    assert np.array_equal(state, numbers)
    assert mapped_bytes() - before > 25e6
    queue.settle()
    assert mapped_bytes() - before < 6e6
    queue.wait("", queue.begin("", "", numbers, state))
    assert mapped_bytes() - before < 6e6
    queue.close()


def test_a_copy_that_fails_is_told_though_nobody_waits_for_it():
    queue = CopyThread(MappedFile())
    moving = queue.begin("", "", np.zeros(2), np.zeros(3))
    assert isinstance(moving.exception(60), ValueError)
    with pytest.raises(ValueError, match="broadcast"):
        queue.begin("", "", np.zeros(2), np.zeros(2))
    queue.settle()
    queue.close()


# Resident memory.

RESIDENT = """
[world]
ranks = 1
[model]
hidden = [{width}, {width}, {width}, {width}]
[train]
steps = 2
micro_batch = 1
micro_batches = 1
[[variant]]
name = "near"
[[variant]]
name = "disk"
offload_optimizer = "disk"
offload_parameters = "disk"
[check]
reference = false
"""


def resident(folder, width):
    """For each row, resident bytes between steps, and what its ledgers say of all tiers but the disk."""
    path, found = folder / "resident.toml", folder / "resident.json"
    path.write_text(RESIDENT.format(width=width))
    done = mpirun(1, ["-m", "zerosim", "run", str(path), "--progress", "none", "--json", str(found)])
    assert done.returncode == 0, done.stderr
    return [(memory["resident_bytes"], memory["alive_bytes"] + sum(memory["far_resting_bytes"]["host"].values()))
            for row in json.loads(found.read_text())["rows"] for memory in row["memory"]]


@pytest.mark.mpi
@pytest.mark.parametrize("width", [1250, pytest.param(2550, marks=pytest.mark.long)])
def test_resident_memory_falls_by_what_is_in_files(tmp_path, width):
    """78 MB of model states, 20 MB of them gradients, which are on the host; and 315 MB."""
    near, disk = resident(tmp_path, width)
    assert near[1] - disk[1] > 0.7 * near[1]
    assert near[0] - disk[0] == pytest.approx(near[1] - disk[1], rel=0.03)
