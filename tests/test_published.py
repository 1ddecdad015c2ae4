"""Published runs beside their plans: how far off they are, of runs that were fitted and of runs that were not."""

import dataclasses
import json
from functools import cache
from importlib import resources

import pytest

from tests.oracles.fit_devices import FITTED, Noted, fit, held_out, off
from tests.pages import refused
from zerosim.cli import main
from zerosim.commands.benches.published import BETWEEN, MPT, NEAR, compare, errors
from zerosim.plan.cluster import cluster_of, machines

DEVICES = ["a100_40gb", *(pytest.param(name, marks=pytest.mark.long) for name in BETWEEN if name != "a100_40gb")]
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
