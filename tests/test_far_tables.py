"""The host's memory by formula and in plans: what a row keeps on the device and on the host."""

import json
from dataclasses import replace

import pytest

from tests.training.test_far import FAR, UPDATES
from tests.verdict.test_planted import outcome_of
from zerosim.commands.cli import main
from zerosim.stages import STAGES

ONE = {"ranks": 1, "hidden": (), "steps": 2, "micro_batches": 1}
"""One layer of 6 · 3 + 3 = 21 numbers, Adam: 84 bytes of weights, 84 of gradients, 168 of state."""


def estimated(*words, tmp_path):
    out = tmp_path / "memory.json"
    flags = ["--parameters", "21", "--ranks", "1", "--precision", "fp32", "--json", str(out)]
    assert main(["memory", *flags, *words]) == 0
    rows = json.loads(out.read_text())["stages"]
    return {row["stage"]: row.get("tiers_bytes", {"device": row["total_bytes"], "host": 0}) for row in rows}


@pytest.mark.parametrize("keys", [{}, *FAR], ids=str)
def test_the_command_estimates_what_a_run_keeps(keys, tmp_path, capsys):
    flags = [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", value)]
    found = estimated(*flags, tmp_path=tmp_path)
    for stage in outcome_of(**ONE, **keys).trained:
        (rank,) = stage.measured.memory
        kept = rank.resting_bytes, rank.host_resting_bytes
        assert found[stage.stage] == dict(zip(("device", "host"), (sum(each.values()) for each in kept), strict=True))
    out = capsys.readouterr().out
    assert ("on device" in out) == bool(keys)


def test_gradients_that_are_left_on_the_device_are_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr("zerosim.verdict.memory.STAGES", {"zero2": replace(STAGES["zero2"], sharded=())})
    found = estimated("--offload-optimizer", "host", tmp_path=tmp_path)["zero2"]
    (stage,) = outcome_of(**ONE, **UPDATES, stages=("zero2",)).trained
    assert found["host"] == 168
    assert stage.measured.memory[0].host_resting_bytes == {"gradients": 84, "optimizer": 168}


def test_the_command_fits_narrow_terminals(monkeypatch, capsys):
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["memory", "--parameters", "7.5B", "--ranks", "64", "--offload-optimizer", "host",
                     "--offload-parameters", "host"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        assert "; optimizer offloaded to host; parameters offloaded to host" in " ".join(lines)


@pytest.mark.parametrize("words", [["--table", "figure1"], ["--parameters", "8", "--ranks", "2", "--estimator",
                                                            "deepspeed"]])
def test_counts_without_offloading_refuse_it(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["memory", *words, "--offload-optimizer", "host"])
    assert stop.value.code == 2
    assert "remove --offload-optimizer: " in capsys.readouterr().err


@pytest.mark.parametrize("keys", [{}, *FAR], ids=str)
def test_the_table_of_a_plan_has_the_host_s_bytes_of_its_document(keys, capsys):
    flags = [word for key, tier in keys.items() for word in ("--set", f"parallel.{key}={tier}")]
    small = ["--set", "model.layers=1", "--set", "model.width=512", "--set", "model.heads=4"]
    assert main(["plan", "mpt_7b", "--ranks", "8", *small, *flags, "--json", "-"]) == 0
    printed = capsys.readouterr()
    for row in json.loads(printed.out)["rows"]:
        there = row["memory"]["host"]
        line = next(line for line in printed.err.splitlines() if line.startswith(f"{row['name']}  "))
        figures = [float(cell) for cell in line.split("yes")[0].removeprefix(row["name"]).split()]
        due = [row["memory"]["peak"], *([there] if "on host" in printed.err else [])]
        unit = due[0] / figures[0]
        assert figures == pytest.approx([count / unit for count in due], abs=0.06)
    assert ("on host   the same of offloaded states" in printed.err) == bool(keys)

