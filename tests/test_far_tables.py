"""The host's memory in tables and legends: what a row keeps on the device and on the host."""

import json
from dataclasses import replace

import pytest

from tests.pages import printed, read
from tests.test_far import BOTH, FAR, UPDATES
from tests.test_planted import outcome_of
from tests.test_report import changed, rows
from zerosim.commands.cli import main
from zerosim.observe.trace import COLLECTIVES, OFFLOAD, Span
from zerosim.show.page.pictures import timeline
from zerosim.show.run_document import RunDocument
from zerosim.show.timeline import ANYTHING, LETTERS, OFFLOADED, piece
from zerosim.stages import STAGES

ONE = {"ranks": 1, "hidden": (), "steps": 2, "micro_batches": 1}
"""One layer of 6 · 3 + 3 = 21 numbers, Adam: 84 bytes of weights, 84 of gradients, 168 of state."""


@pytest.fixture(scope="module")
def both():
    return outcome_of(**ONE, **BOTH)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_has_what_a_row_keeps_in_each_memory(both, width):
    """DDP offloads state alone, Stage II also reduced gradients, Stage III weights."""
    lines = printed(both, width)
    assert max(map(len, lines)) <= width
    assert "on host" in " ".join(lines)
    found = rows([*lines[:6], ""], "DDP", "Stage I", "Stage II", "Stage III")
    due = {"DDP": [168, 168], "Stage I": [168, 168], "Stage II": [84, 252], "Stage III": [0, 336]}
    for name, cells in found.items():
        assert [1e3 * float(cell) for cell in cells[1:3]] == pytest.approx(due[name], abs=5), name


def test_the_host_has_a_column_and_a_line_of_the_legend_if_a_row_uses_it():
    near, host = outcome_of(**ONE), outcome_of(**ONE, **UPDATES)
    assert (read(near).offloads, read(host).offloads) == (False, True)
    text = "\n".join(printed(near))
    assert not any(words in text for words in ("on host", "on the device"))
    text = "\n".join(printed(host))
    assert "on host    offloaded states between steps" in text
    assert "keeps      between steps on the device:" in text


@pytest.mark.parametrize(("planted", "marked"), [
    ({"host_resting_bytes": {"gradients": 85, "parameters": 84, "optimizer": 168}}, ["≠0.34"]),
    ({"host_peak_bytes": {"activations": 4, "gradients": 84, "parameters": 84, "optimizer": 168}}, ["≠0.34"]),
])
def test_a_figure_that_is_not_the_formulas_is_marked(both, planted, marked):
    measured = both.trained[3].measured
    (rank,) = measured.memory
    wrong = changed(both, 3, measured=replace(measured, memory=[replace(rank, **planted)]))
    cells = rows(printed(wrong), "Stage III")["Stage III"]
    assert [cell for cell in cells[:-1] if "≠" in cell] == marked


def test_verbose_has_the_kinds_of_the_host(both):
    lines = [line.split() for line in printed(both, verbose=True)]
    assert any(line[:2] == ["on", "host"] for line in lines)


# By formula.


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


# A step.


@pytest.fixture
def traced(tmp_path):
    path, out = tmp_path / "far.toml", tmp_path / "far.json"
    path.write_text("[world]\nranks = 2\n[train]\nsteps = 2\n[[variant]]\noffload_optimizer = 'host'\n")
    assert main(["run", str(path), "--progress", "none", "--trace", str(tmp_path / "trace.json"), "--json",
                 str(out)]) == 0
    return json.loads(out.read_text())


def test_copies_between_tiers_have_a_lane_of_their_own(traced):
    drawn = timeline(RunDocument(traced).rows[0])
    assert {each["lane"] for each in drawn["data"]["values"] if " to host" in each["what"]} <= {
        "rank 0 offloads", "rank 1 offloads", "rank 0 computes", "rank 1 computes"}


def test_the_timeline_has_a_letter_for_copies():
    stretch = piece(Span(0, OFFLOAD, 2, "gradients, device to host", "", 0, 5))
    assert stretch.letter == OFFLOADED.letter not in {each.letter for each in (*LETTERS.values(), ANYTHING)}
    assert piece(Span(0, COLLECTIVES, 1, "compress", "", 0, 5)).letter == ANYTHING.letter
