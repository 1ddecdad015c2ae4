"""Published runs beside their plans: how far off they are, of runs that were fitted and of runs that were not."""

import dataclasses
import json
from functools import cache
from importlib import resources

import pytest

from tests.oracles.fit_devices import FITTED, Noted, fit, held_out, off
from tests.pages import refused
from zerosim.commands.benches.published import NEAR, compare, errors, grouped, task_of
from zerosim.commands.benches.run_lines import CONTEXT_BYTES, GIB, MPT, OUTSIDE, lines_of, shipped
from zerosim.commands.cli import main
from zerosim.plan.cluster import cluster_of, machines
from zerosim.plan.planning import planned

FIRST, *REST = MPT.allowed["device"]
DEVICES = [FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in REST)]
MOST_OFF = {"a100_40gb": 0.03, "a100_80gb": 0.04, "h100_80gb": 0.04}


@cache
def noted(device):
    return [Noted.of(run) for run in MPT.read() if run.groups == [device]]


def machine(run):
    return cluster_of(run.scenario.cluster, run.scenario.origin, run.scenario.world.ranks).device


@pytest.mark.parametrize("device", DEVICES)
def test_plans_of_published_runs_are_near_them(device):
    runs = noted(device)
    found = errors(off(runs, machine(runs[0].run)))
    assert found.mean < MOST_OFF[device]
    assert found.near >= 0.9


@pytest.mark.parametrize("device", DEVICES)
def test_runs_that_were_not_fitted_are_near_as_well(device):
    runs = noted(device)
    found = errors(held_out(runs, machine(runs[0].run), [runs[::2]]))
    assert found.mean < 0.06
    assert found.near >= 0.88


def test_what_is_fitted_is_found_again():
    (run, *_), runs = MPT.read(), noted("a100_40gb")[::4]
    device = dataclasses.replace(machine(run), product_share=0.5, attention_share=0.4, memory_share=0.6)
    measured = [
        dataclasses.replace(each, run=dataclasses.replace(each.run, measured=each.mfu(device))) for each in runs]
    found = fit(measured, device)
    assert [getattr(found, name) for name in FITTED] == pytest.approx([0.5, 0.4, 0.6], rel=0.06)


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_noted_takes_what_is_planned(device):
    one = min(noted(device), key=lambda each: each.run.scenario.model.layers)
    (planned,) = compare([one.run])
    assert one.mfu(machine(one.run)) == pytest.approx(planned.planned, rel=1e-4)


def test_a_plan_for_another_device_is_far_off():
    run, *_ = MPT.read()
    other = dataclasses.replace(run.scenario, cluster=dataclasses.replace(run.scenario.cluster, device="h100_80gb"))
    (found,) = compare([dataclasses.replace(run, scenario=other)])
    assert abs(found.error) > NEAR


def test_at_most_four_numbers_of_a_device_are_fitted():
    shares = {name for entry in machines()["device"].values() for name in entry if name.endswith("share")}
    assert shares == set(FITTED)
    assert len(shares) <= 4


def test_runs_in_8_bits_of_which_none_was_fitted_are_near(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    columns, *lines = shipped_lines()
    path.write_text("\n".join([columns, *(line for line in lines if "amp_fp8" in line)]))
    assert main(["bench", "published", "--runs", str(path), "--json", str(tmp_path / "found.json")]) == 0
    assert "h100_80gb, fp8 4" in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "found.json").read_text())["runs"]
    assert all(abs(each["error"]) < NEAR for each in found)


def shipped_lines():
    return (resources.files("zerosim.commands.benches") / "runs" / "mpt.csv").read_text("utf-8").splitlines()


@pytest.mark.parametrize(("change", "said"), [
    (("30b", "31b"), "runs.csv:2: model: no '31b'; there are 125m,"),
    (("a100_40gb", "a100"), "device: no 'a100'"),
    (("2048", "some"), "invalid literal"),
    (("51.74", ""), "lacks mfu_percent; each line needs model,"),
])
def test_a_run_that_cannot_be_read_gets_one_line(change, said, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    columns, line, *_ = shipped_lines()
    path.write_text(f"{columns}\n{line.replace(*change, 1)}\n")
    assert said in refused(capsys, "bench", "published", "--runs", path)
    path.write_text(f"{columns}\n")
    assert "runs.csv: found no run; give CSV" in refused(capsys, "bench", "published", "--runs", path)


# Figures of other trainers.

LINES = lines_of(shipped("outside.csv"))


def written(path, *changes):
    """The shipped file's first line, with some columns changed, as a file of its own."""
    line = {**LINES[0], **dict(changes)}
    path.write_text(",".join(line) + "\n" + ",".join(f'"{each}"' for each in line.values()) + "\n")
    return str(path)


def test_every_line_is_read_with_what_its_notes_say():
    figures = OUTSIDE.read()
    assert len(figures) == 71
    by_source = {each.source: each for each in figures}
    hybrid = next(each for each in figures if each.source == "IBM fms-fsdp")
    assert (hybrid.software, hybrid.scenario.parallel.shard_ranks) == ("compiled", 8)
    assert hybrid.scenario.cluster.between == "infiniband_8x100"
    assert by_source["llm.c"].scenario.model.tied_embeddings
    assert by_source["torchtitan"].scenario.parallel.reduce_dtype == "fp32"
    on_host = {each.source for each in figures if each.scenario.parallel.offload_optimizer == "host"}
    assert on_host == {"ml-engineering", "FSDP blog 2022"}
    assert by_source["torchtitan"].scenario.cluster.device == "h100_96gb"
    assert not by_source["nanoGPT"].software
    assert "throughput, of nanoGPT" in by_source["nanoGPT"].groups
    assert "memory, of torchtitan (fitted)" in by_source["torchtitan"].groups


def test_figures_are_grouped_by_software_and_feature():
    small = [each for each in OUTSIDE.read() if each.scenario.model.layers <= 32 and each.memory][:3]
    found = compare(small)
    groups = grouped(found)
    assert len(groups["memory, all"]) == 3
    assert groups["memory, all"][0].error == pytest.approx(found[0].planned / small[0].measured - 1)


def test_a_source_is_left_out_of_what_is_fitted_to_it():
    """torchtitan's H100 without a known limit of power, and the reserve of torchao's peaks."""
    figures = OUTSIDE.read()
    ours = next(each for each in figures if each.source == "torchtitan" and not each.memory)
    left = ours.left_out.cluster
    assert (left.device, left.reserve, left.figures.memory) == ("h100_80gb", 0.17, 100.9e9)
    other = next(each for each in figures if each.source == "IBM fms-fsdp")
    assert other.left_out == other.scenario
    (fitted,) = compare([ours])
    assert fitted.error_left_out > fitted.error


def test_notes_say_how_a_peak_was_measured_and_how_8_bits_are_scaled(tmp_path):
    peaks = {each.source: each for each in OUTSIDE.read() if each.memory}
    found = {each.figure.source: each for each in compare(
        [peaks["dlrover atorch"], peaks["InternEvo"], peaks["torchao B200"]])}
    row = {source: found[source].planned * GIB for source in found}
    (alive,), (held,) = (
        planned(peaks[source].scenario, (), task_of) for source in ("dlrover atorch", "InternEvo"))
    assert row["dlrover atorch"] == pytest.approx(alive.peak_bytes)
    assert row["InternEvo"] == pytest.approx(held.reserved_bytes + CONTEXT_BYTES)
    by_row = {**LINES[1], "notes": "compile; fp8 = rowwise; reduce fp32"}
    (figure,) = OUTSIDE.figures([by_row], "")
    assert (figure.scenario.cluster.products, figure.scenario.parallel.param_dtype) == ("fp8_rowwise", "bf16")
    assert figure.scenario.parallel.recompute_keeps == "half_products"


def test_a_file_of_such_figures_is_planned_alone(tmp_path, capsys):
    path = written(tmp_path / "some.csv", ("layers", "2"), ("measured_value", "100000"))
    assert main(["bench", "published", "--runs", path, "--json", str(tmp_path / "found.json")]) == 0
    document = json.loads((tmp_path / "found.json").read_text())
    assert "runs" not in document
    (found,) = document["elsewhere"]
    assert found["error"] == pytest.approx(found["planned"] / 100000 - 1)
    assert "throughput, compiled" in capsys.readouterr().out


@pytest.mark.parametrize(("column", "value", "said"), [
    ("sharding", "SOME", "sharding: no 'SOME'; there are FULL_SHARD,"),
    ("measured_kind", "seconds", "measured_kind: no 'seconds'"),
    ("recompute", "some", "recompute: no 'some'; there are none, full,"),
    ("layers", "many", "invalid literal"),
    ("device", "", "lacks device; each line needs source,"),
])
def test_a_line_that_cannot_be_read_gets_one_line(column, value, said, tmp_path, capsys):
    assert said in refused(capsys, "bench", "published", "--runs", written(tmp_path / "some.csv", (column, value)))
