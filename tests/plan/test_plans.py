"""Plans of shipped scenarios: published figures, claims, sweeps and ranks, and what is refused."""

import dataclasses
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import zerosim as zs
from tests.oracles import simgrid_cases as simgrid
from tests.pages import refused
from tests.sampling import one_in
from zerosim.collectives import ring
from zerosim.commands.cli import main
from zerosim.core.errors import ScenarioError, UsageError
from zerosim.plan import planned_row, search
from zerosim.plan.cluster import Cluster, Device, Link, machines
from zerosim.plan.costs import Costs
from zerosim.plan.planned_row import parameters_met, rows_of
from zerosim.plan.reading import scenario_of
from zerosim.scenario.sections import Check

PLANS = Path(__file__).parents[2] / "scenarios" / "plans"

# Machines, and what the ZeRO paper says of them.

@pytest.mark.parametrize(("shape", "fits"), [
    ({"layers": 62, "width": 4096, "heads": 32}, {"ddp": False, "zero2": True}),
    ({"layers": 24, "width": 2048, "heads": 16}, {"ddp": True, "zero2": True}),
])
def test_what_trains_on_32_gb_without_model_parallelism_is_what_the_zero_paper_says(shape, fits):
    keys = {f"model.{name}": value for name, value in shape.items()}
    found = zs.plan(PLANS / "zero_7b5.toml", set={**keys, "train.micro_batch": 1}).subject
    assert {row.config.stage_key: row.fits for row in found.rows if row.config.stage_key in fits} == fits


def test_every_figure_of_a_machine_and_of_software_says_its_source_or_is_fitted():
    fitted = {"product_share", "attention_share", "memory_share"}
    for kind, entries in machines().items():
        for name, entry in entries.items():
            by_name = entry.keys() & {"attention", "products"}
            figures = {key for key, value in entry.items() if isinstance(value, int | float)} | by_name
            said = entry.keys() - {"title", "source"} if kind == "software" else figures - fitted
            assert said - {"as", "kernels"} <= entry["source"].keys() <= said, name
            assert all(entry["source"].values())
            assert kind != "device" or entry["fit"]


def test_a_single_rank_communicates_for_nothing():
    link = Link("", 1000, 10**9)
    machine = Cluster(Device("", 1e12, 1e9, 1e11), 8, link, link, pipelined=False, fused=False)
    assert Costs(machine, 1, 2).price(ring.all_gather, [np.zeros(3)]) == (0, 0, 0)


def test_speed_up_is_beyond_linear_where_more_replicas_make_room_for_larger_micro_batches():
    found = zs.plan(
        PLANS / "zero_60b.toml", set={"parallel.stages": ["zero2"], "check.does_not_fit": []},
        ranks=[4, 25], sweep={"train.micro_batch": [24, 48]}).subject
    best = {}
    for row in found.rows:
        if row.fits:
            ranks = row.config.directions.ranks
            best[ranks] = max(best.get(ranks, row), row, key=lambda each: each.tokens_per_second)
    assert best[25].config.train.micro_batch > best[4].config.train.micro_batch
    assert best[25].tokens_per_second > best[4].tokens_per_second


# Scenarios and the command.

@cache
def shipped(name):
    return zs.plan(PLANS / name).subject


@pytest.mark.parametrize("name", one_in(2, sorted(path.name for path in PLANS.glob("*.toml"))))
def test_a_shipped_plan_keeps_its_claims(name):
    found = shipped(name)
    assert found.broken == []
    assert found.scenario.check.fits


@pytest.mark.parametrize("name", ["mpt_7b.toml", "zero_7b5.toml", "gpt3_175b.toml"])
def test_model_states_are_those_of_another_estimator(name):
    """Of a Llama it counts neither the gate nor the head, so that is left out."""
    peer = json.loads((Path(simgrid.__file__).parent / "peers.json").read_text())[name]
    (row,) = (row for row in shipped(name).rows if row.config.stage_key == "zero3")
    resting = row.rehearsal.resting
    assert row.config.model.count == pytest.approx(peer["num_params_total"], rel=0.002)
    assert resting["parameters"] == pytest.approx(peer["weight_memory_per_gpu"], rel=0.002)
    assert resting["optimizer"] == pytest.approx(peer["optimizer_state_memory_per_gpu"], rel=0.002)
    assert 2 * resting["gradients"] == pytest.approx(peer["gradient_memory_per_gpu"], rel=0.002)


def test_claims_that_do_not_hold_are_broken():
    found = shipped("zero_7b5.toml")
    check = Check(fits=("ddp",), does_not_fit=("zero3",), mfu=(0.9, 1.0))
    broken = dataclasses.replace(found, scenario=dataclasses.replace(found.scenario, check=check)).broken
    assert len(broken) == 3


@pytest.mark.parametrize("flags", [
    ["--set", "world.ranks=16"], ["--ranks", "16"], ["--sweep", "train.micro_batch=1,2"]])
def test_claims_of_what_is_not_planned_are_not_judged(flags, capsys):
    assert main(["plan", str(PLANS / "mpt_7b.toml"), "--set", "model.layers=2", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "changed it: Stage III fits, DDP does not fit and an MFU of 45% to 56%" in said
    assert "PASSED" not in said


def test_each_claim_is_judged_by_itself():
    claims = {"check.fits": ["ddp"], "check.does_not_fit": ["zero3"]}
    found = zs.plan(PLANS / "mpt_7b.toml", set={"model.layers": 2, **claims}).subject
    assert [claim.title for claim in found.claims if claim.broken is None] == ["an MFU of 45% to 56%"]
    assert found.broken == ["Stage III must not fit, but it does"]


def test_a_training_has_its_time_and_what_it_takes_and_a_row_the_accuracy_of_its_kind(tmp_path, capsys):
    assert "give a price above 0, and --tokens" in refused(capsys, "plan", "llama3_8b", "--price", "2")
    words = ["plan", "llama3_8b", "--set", "model.layers=1", "--json", str(tmp_path / "plan.json"), "--tokens"]
    assert main([*words, "1T", "--price", "2.5"]) == 0
    for row in json.loads((tmp_path / "plan.json").read_text())["rows"]:
        hours = 1e12 / row["tokens_per_second_per_device"] / 3600
        assert row["run"] == pytest.approx({
            "seconds": hours * 3600 / 64, "device_hours": hours, "kilowatt_hours": 0.7 * hours, "cost": 2.5 * hours})
        assert row["measured"].startswith("h100_80gb, dense, over data ranks alone: 41 of 42 published speeds")
    offloaded = rows_of(scenario_of("llama3_8b", {"model.layers": 1, "cluster.adapter_rank": 8}))[0].error_bar
    assert offloaded.endswith("adapters: no figure of speed or memory of this kind was ever measured")


@pytest.mark.parametrize("ranks", ["8", 0, [8.0], True, 2**20 + 1])
def test_ranks_of_a_plan_are_numbers(ranks):
    with pytest.raises(UsageError, match=r"ranks: found .*; give whole numbers from 1 to 1048576"):
        zs.plan(PLANS / "mpt_7b.toml", ranks)


@pytest.mark.parametrize(("sweep", "found"), [
    ({"train.micro_batch": 3}, "sweep: found 3 for train.micro_batch; give a list of its values"),
    ({"train.micro_batch": "12"}, "sweep: found '12' for train.micro_batch; give a list of its values"),
    ({"train.micro_batch": [1, 0]}, "--sweep train.micro_batch=0: train.micro_batch must be an integer of at least 1"),
    ({"train.micro_batc": [1]}, "--sweep train.micro_batc=1: unknown key 'micro_batc' in [train]; did you mean"),
])
def test_what_cannot_be_swept_is_told_as_a_sweep(sweep, found):
    with pytest.raises(UsageError, match=f"^{re.escape(found)}"):
        zs.plan(PLANS / "mpt_7b.toml", sweep=sweep)


def test_what_is_wrong_without_a_sweep_is_not_blamed_on_it():
    with pytest.raises(ScenarioError, match=r"^--set:1:1: train\.micro_batch must be"):
        zs.plan(PLANS / "mpt_7b.toml", set={"train.micro_batch": 0}, sweep={"model.layers": [1, 2]})


def test_collectives_have_no_plan():
    with pytest.raises(UsageError, match="which cannot be planned"):
        zs.plan(PLANS.parent / "unsafe_sends.toml")


def test_nothing_fits_is_said(capsys, monkeypatch):
    monkeypatch.setattr(search, "ENOUGH", 1)
    keys = ["cluster.device={flops=1e12,memory_bandwidth=1e12,memory=1e6}", "check.fits=['zero3']", "world.ranks=1",
            "model.layers=1"]
    assert main(["plan", str(PLANS / "mpt_7b.toml"), *(f"--set={key}" for key in keys)]) == 1
    out, err = capsys.readouterr()
    assert "Nothing fits. None of" in " ".join(out.split())
    assert err == "Nothing fits: searching for a layout that does\n"


@pytest.mark.parametrize("experts", [2, 8, 64])
def test_mfu_counts_the_experts_that_are_chosen(experts):
    """Of each block's experts, of 2 · 64 · 16 weights, 2 are met by a sample; all other parameters are met by each."""
    plan = zs.plan("scenarios/examples/mixture_of_experts/scenario.toml", set={
        "model.experts": experts, "model.slack": 1.0, "model.width": 16, "train.micro_batch": 64})
    row = plan.subject.rows[0]
    assert row.config.model.count - parameters_met(row.config.model, 64) == 2 * (experts - 2) * 2 * 64 * 16
    assert 0.9 * row.hfu < row.mfu < 1.2 * row.hfu


def test_a_plan_says_whether_its_pricing_distinguishes_a_named_collective(capsys):
    words = ["plan", "llama3_8b", "--ranks", "8", "--set", "model.layers=1", "--set", "parallel.reduce_scatter=halving"]
    for pricing, said in (("pipelined", "every algorithm with as many takes the same time"),
                          ("written", "halving is priced message by message over the links")):
        assert main([*words, "--set", f"cluster.collectives={pricing}"]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
    assert zs.plan("llama3_8b", 8, set={"model.layers": 1}).rows()[0]["pricing"] == ""


@pytest.mark.parametrize("keys", [
    {"parallel.stages": ["zero3"], "parallel.accumulation": "micro_batch", "train.clip_norm": 1.0},
    {"parallel.pipeline_ranks": 4, "parallel.model_chunks": 2, "parallel.schedule": "interleaved_1f1b",
     "parallel.stages": ["zero1"], "parallel.tensor_ranks": 2},
    {"parallel.pipeline_ranks": 2, "parallel.stages": ["zero2"], "parallel.accumulation": "micro_batch"}], ids=str)
def test_bytes_between_hosts_are_those_of_all_micro_batches(keys, monkeypatch):
    keys |= {"model.layers": 8, "model.width": 256, "model.inner": 512, "model.sequence": 64, "world.ranks": 16,
             "parallel.recompute": False, "train.micro_batches": 64, "cluster.devices_per_host": 4}
    (row,) = zs.plan("llama3_8b", set=keys).subject.rows
    sent = row.between_bytes_per_host
    monkeypatch.setattr(planned_row, "turn_of", lambda config: config.passes)     # all of them are one round
    assert row.between_bytes_per_host == sent > 0
