"""The page, the trace and the document of a plan; and what is refused, each in one line."""

import dataclasses
import json
from pathlib import Path

import pytest

import zerosim as zs
from tests.pages import Seen, documented, refused, values
from zerosim.commands.cli import main
from zerosim.show import plan as shown
from zerosim.show.pictures import Axis, files, kept, memory, timeline
from zerosim.show.plan import drawn_rows, plan_page, thinned

ROOT = Path(__file__).parents[2]
MPT = str(ROOT / "scenarios" / "plans" / "mpt_7b.toml")
SMALL = {"model.layers": 1, "check.mfu": [], "check.fits": [], "check.does_not_fit": []}
FLAGS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def small():
    return zs.plan(MPT, ranks=[8, 64], set=SMALL | {"parallel.stages": ["ddp", "zero3"]}).subject


@pytest.fixture(scope="module")
def drawn(small):
    return drawn_rows(small)


@pytest.fixture(scope="module")
def seen(small):
    return Seen(plan_page(small, "zerosim plan <b>mine</b>.toml"))


def test_its_sections_are_in_the_order_in_which_one_reads_a_plan(seen):
    assert seen.ids == ["table", "step", "origin"]
    assert seen.loads == []
    assert "Fewest devices that fit" in seen.text
    assert "zerosim plan <b>mine</b>.toml" in seen.text


def test_a_step_is_drawn_from_the_spans_and_the_memory_of_the_plan(small, drawn):
    along = Axis(drawn)
    for row, one in zip(small.rows, drawn, strict=True):
        spans = [each for each in values(timeline(one, along)) if each["activity"] != "wait"]
        assert len(spans) == sum(span.lane != "waiting" for span in row.trace.steps[0].spans)
        held, totals = values(memory(one, along)), {}
        assert len({(each["ms"], each["kind"]) for each in held}) == len(held)
        for each in held:
            totals[each["ms"]] = totals.get(each["ms"], 0) + each["bytes"]
        assert max(totals.values()) == row.peak_bytes
        assert max(totals) == pytest.approx(one.step_ns / 1e6)


def test_a_curve_that_lost_its_fullest_moment_would_be_seen(small):
    row = small.rows[0]
    curve = thinned(row.trace.steps[0].memory)
    assert max(sum(held.values()) for _, held in curve) == row.peak_bytes
    assert max(sum(held.values()) for _, held in curve[: len(curve) // 10]) != row.peak_bytes


def test_a_page_says_which_rows_it_draws(small, seen, monkeypatch):
    monkeypatch.setattr(shown, "MOST_DRAWN", 1)
    two = dataclasses.replace(small, rows=small.rows[:2])
    assert "Pictures have the first 1 of these 2 rows." in plan_page(two, "")
    assert "Pictures have" not in seen.text


def test_only_links_that_are_there_are_named():
    link = "; RoCE, 8 × 200 Gbit/s between hosts"
    for ranks, machine in ((1, "1 rank of A100 SXM 40 GB"), (2, f"2 ranks of A100 SXM 40 GB{link}")):
        plan = zs.plan(MPT, ranks=ranks, set=SMALL | {"cluster.devices_per_host": 1}).subject
        assert plan.setting.splitlines()[0] == f"{machine}; collectives pipelined"


def test_the_command_writes_page_trace_and_document(tmp_path, capsys):
    paths = {name: tmp_path / f"a.{name}" for name in ("report", "trace", "json")}
    code = main(["plan", MPT, *FLAGS, *(word for name, path in paths.items() for word in (f"--{name}", str(path)))])
    assert code == 0
    assert "<!doctype html>" in paths["report"].read_text()[:20]
    events = json.loads(paths["trace"].read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "C", "M"}
    written = json.loads(paths["json"].read_text())
    keys = documented(ROOT / "docs" / "outcome.md")
    assert set(written) == keys["The JSON document of `zerosim plan`"]
    assert set(written["rows"][0]) == keys["`rows` of a plan"]
    assert set(written["rows"][0]["memory"]) == keys["`memory` of a row"]
    capsys.readouterr()


@pytest.mark.parametrize(("flags", "found"), [
    ("--ranks 12", "12 ranks do not fill hosts of 8 devices"),
    ("--sweep a.b=1", "unknown key 'a'"), ("--sweep train.micro_batch=1,x", 'found "x"'),
    ("--sweep train.micro_batch=1 --sweep train.micro_batch=2", "train.micro_batch is swept twice"),
    ("--set parallel.order=exact --set parallel.accumulation=boundary", "parallel.order exact adds"),
    ("--set cluster.device=h100_80", "cluster.device: no device \"h100_80\"; did you mean 'h100_80gb'?"),
    ("--set cluster.device=h999", "there are v100_32gb"),
    ("--set cluster.device={flops=1e12}", "lacks memory_bandwidth"),
    ("--set cluster.products=fp8 --set cluster.device=v100_32gb",
     "has no 8-bit matrix products of fp8; use h100_80gb, h100_96gb, h200,"),
    ("--set cluster.products=mxfp8 --set cluster.device=h100_80gb", "products of mxfp8; use b200, gb200, b300,"),
    ("--set model.heads=7", "7 heads must divide"),
    ("--picture losses=a.svg", "--picture: there is no picture 'losses'; there are kept, memory-1, step-1, memory-2, "),
    ("--report /nonexistent/a.html", "cannot write"), ("--cluster /nonexistent/cluster.toml", "no such file"),
])
def test_what_cannot_be_planned_is_refused_in_one_line(flags, found, capsys):
    assert found in refused(capsys, "plan", MPT, *FLAGS, *flags.split())


@pytest.mark.parametrize(("flags", "found"), [
    ("--ranks 0", "found '0'; give a whole number from 1 to 1048576"), ("--sweep nonsense", "give section.key=value"),
    ("--set train.micro_batch=", "give section.key=value")])
def test_words_that_are_no_arguments_are_refused_in_one_line(flags, found, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", MPT, *flags.split()])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert found in line


@pytest.mark.parametrize(("content", "found"), [
    ("[cluster]\ndevice = {flops = [1979-05-27]}", "cluster.device.flops must be"),
    ("cluster = 1", "file.toml has no [cluster]"), ("\xff", "cannot read"), ("[cluster", "this is not TOML"),
    ("[cluster]\ndevice = 'h100'", "did you mean 'h100_80gb'"),
])
def test_a_machine_is_read_as_a_scenario_is(content, found, tmp_path, capsys):
    path = tmp_path / "file.toml"
    path.write_text(content, "latin-1")
    assert found in refused(capsys, "plan", MPT, "--cluster", path)


def test_pictures_have_what_decides_whether_a_row_fits_and_a_line_at_the_device(small, drawn):
    bars = values(kept(drawn, 0, peak=True))
    for name, row in zip(small.names, small.rows, strict=True):
        assert sum(each["bytes"] for each in bars if each["row"] == name) == row.peak_bytes
    device_bytes = int(small.rows[0].cluster.device.memory)
    pictures = files(drawn, device_bytes)
    for name in ("memory-1", "kept"):
        assert f"'datum': {device_bytes}" in str(pictures[name]["layer"][-1])
    assert len(files(drawn)["memory-1"]["layer"]) == 1, "a run has no device"


def test_a_plan_shows_machine_software_and_rows_in_a_notebook_and_little_at_the_prompt():
    found = zs.plan("scenarios/plans/mpt_7b.toml", set={"model.layers": 2, "cluster.software": "eager"})
    assert all(words in str(found) for words in ("64 ranks of A100 SXM 40 GB", "PyTorch's kernels one by one"))
    assert len(repr(found)) < 1000
