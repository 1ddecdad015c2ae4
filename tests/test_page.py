"""The page of a run: everything in order, nothing from elsewhere, and no word of a scenario taken for HTML."""

import configparser
import copy
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import zerosim
from tests.pages import HOSTILE, added_otherwise, outcome, page_of, refused
from tests.training import scenario
from zerosim.commands.cli import main
from zerosim.core.errors import ZerosimError
from zerosim.scenario.sections import Variant
from zerosim.show import run_document
from zerosim.show.page import pictures
from zerosim.show.run_document import TURNS, RunDocument

PACKAGE = Path(zerosim.__file__).parent
SMALL = ["--set", "train.steps=3", "--set", "check.test_accuracy=0", "--progress", "none"]
SCENARIO = str(PACKAGE.parent / "scenarios" / "zero3.toml")


class Seen(HTMLParser):
    """The elements of a page, the words outside of scripts, what it would load, and its pictures by description."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.words, self.loads, self.pictures, self.given = [], [], [], [], {}, []
        self.policy, self._code = "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.given.append(given)
        self.policy += given["content"] if given.get("http-equiv") == "Content-Security-Policy" else ""
        self.ids += [given["id"]] if tag == "section" else []
        self.loads += [given[key] for key in ("src", "href") if not given.get(key, "#").startswith("#")]
        if "data-picture" in given:
            self.pictures[given["aria-label"]] = json.loads(given["data-picture"])
        self._code = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._code = False

    def handle_data(self, data):
        self.words += [] if self._code else [data]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def values(spec):
    """The data of a picture, those of its layers and views one after the other."""
    inner = [value for part in (*spec.get("layer", []), *spec.get("vconcat", [])) for value in values(part)]
    return [*spec.get("data", {"values": []})["values"], *inner]


@pytest.fixture(scope="module")
def four():
    return outcome()


@pytest.fixture(scope="module")
def seen(four):
    return Seen(page_of(four))


def test_its_sections_are_in_the_order_in_which_one_reads_a_run(seen, four):
    assert seen.ids == ["table", "step", "traffic", "losses", "origin"]
    assert seen.text.index(four["verdict"]) < seen.text.index("Results")
    for words in (four["command"], four["rows"][3]["weights_sha256"], four["versions"]["numpy"]):
        assert words in seen.text


def test_it_loads_nothing(seen):
    assert seen.loads == []
    assert seen.policy.startswith("default-src 'none'; ")
    assert Seen('<img src="http://a.example/b.png"><a href="c.html">').loads == ["http://a.example/b.png", "c.html"]


def test_every_span_and_both_ends_of_every_message_are_in_it(four):
    for row, found in zip(RunDocument(four).rows, four["rows"], strict=True):
        drawn = [each for each in values(pictures.timeline(row)) if each["activity"] != "wait"]
        assert len(drawn) == len([span for span in row.spans if span["kind"] != "collectives"])
        ends = {}
        for each in drawn:
            ends.setdefault(each["message"], []).append(each)
        messages = {number: both for number, both in ends.items() if number >= 0}
        assert len(messages) == sum(rank["messages"] for rank in found["traffic"]) // 4
        assert all(one["bytes"] == other["bytes"] and one["unit"] == other["unit"] for one, other in messages.values())
        assert sum(each["kB"] for each in values(pictures.partners(row))) == pytest.approx(
            sum(rank["sent_bytes"] for rank in found["traffic"]) / 4e3)


def test_a_diverging_run_points_at_the_first_element(monkeypatch):
    found = added_otherwise(monkeypatch, stages=("zero2",), ranks=4, micro_batches=8)
    first, text = found["rows"][0]["first_divergence"], Seen(page_of(found)).text
    where = f"layers.{first['layer']}.{first['parameter']}[{', '.join(map(str, first['index']))}]"
    assert f"{where} is the first element that differs, after step {first['step']}." in text
    assert f"{first['ours']!r} ({first['ours_bits']})" in text
    assert all(f"{side} adds {words}" in text for side, words in first["order_of_addition"].items())
    assert "FAILED" in text


def test_words_of_a_scenario_are_never_html():
    hostile = outcome(replace(
        scenario(stages=("zero3",)), title=HOSTILE, caption=HOSTILE, variant=(Variant(name=HOSTILE, stage="zero3"),)))
    hostile["command"] = hostile["world"]["library"] = HOSTILE
    hostile["failures"] = [{"name": HOSTILE, "what": HOSTILE}]
    for step in hostile["rows"][0]["trace"]["steps"]:
        step["spans"] = [span | {"unit": HOSTILE} for span in step["spans"]]
    page = page_of(hostile)
    seen = Seen(page)
    assert seen.tags.count("script") == 2
    assert "img" not in seen.tags
    assert seen.text.count("<script>alert(1)") >= 6
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", "".join(page.split("<script>")[0]))
    for spec in pictures.files(RunDocument(hostile).rows).values():
        assert "<script" not in pictures.svg(spec)


def test_two_outcomes_stand_side_by_side(four):
    other = copy.deepcopy(four)
    other["scenario"]["train"]["learning_rate"] = 7.0
    seen = Seen(page_of(four, other))
    assert seen.ids == ["table", "differences", "step", "traffic", "losses", "originA", "originB"]
    assert "train.learning_rate 0.01 7.0" in seen.text
    assert "All rows of both end with the same weights" in seen.text
    assert "A: Stage I" in seen.text
    other["rows"] = [dict(stage, weights_sha256="0") for stage in other["rows"]]
    assert "They end with different weights." in Seen(page_of(four, other)).text


@pytest.mark.parametrize("changes", [
    {"steps": 0}, {"ranks": 1, "micro_batches": 2}, {"steps": 1, "reference": False}, {"order": "exact"},
    {"order": "tree", "ranks": 4, "micro_batches": 4},
])
def test_every_kind_of_run_has_a_page(changes):
    built = scenario(**changes)
    seen = Seen(page_of(outcome(built, traced=built.train.steps > 0)))
    assert ("step" in seen.ids) == (built.train.steps > 0)


def test_a_run_of_which_nothing_fitted_has_a_page(four):
    nothing = dict(four, rows=[], passed=False, did_not_fit=[
        {"stage": "ddp", "name": "DDP", "needed_bytes": 9 * 10**6, "allowed_bytes": 10**6, "would_fit": ["zero3"]}])
    assert "DDP does not fit: needs 9 MB" in Seen(page_of(nothing)).text


@pytest.mark.parametrize(("measure", "words"), [
    ("accuracy", "test accuracy: 25.00%"), ("exact sequences", "test sequences without a mistake: 25.00%"),
    ("loss", "test loss: 0.25"), ("mean squared error", "mean squared test error: 0.25"), (None, None)])
def test_what_the_test_split_came_to_has_its_name(measure, words, four):
    assert four["test_measure"] == "accuracy"
    rows = [row | {"test": measure and 0.25} for row in four["rows"]]
    said = [each for each in Seen(page_of(four | {"test_measure": measure, "rows": rows})).words if "test " in each]
    assert said[:1] == [words] * (measure is not None)


def test_of_very_many_spans_those_of_the_first_ranks_are_drawn(four, monkeypatch):
    assert {row.drawn for row in RunDocument(four).rows} == {3}
    monkeypatch.setattr(run_document, "MOST_SPANS", sum(len(row.spans) for row in RunDocument(four).rows) - 1)
    assert {row.drawn for row in RunDocument(four).rows} == {2}
    seen = Seen(page_of(four))
    assert "Stage III: ranks 0 to 1 are drawn, of 3." in seen.text
    monkeypatch.setattr(run_document, "MOST_SPANS", 1)
    assert {row.drawn for row in RunDocument(four).rows} == {1}


@pytest.mark.long
def test_a_run_and_its_outcome_give_the_same_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", SCENARIO, *SMALL, "--report", "a.html", "--json", "a.json"]) == 0
    assert main(["report", "a.json", "--html", "b.html", "--pictures", "pictures/of/it"]) == 0
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()
    assert Path("pictures/of/it/step-1.svg").exists()
    assert main(["report", "a.json", "a.json", "--html", "b.html"]) == 0
    written = json.loads(Path("a.json").read_text())
    assert written["command"] == f"zerosim run {SCENARIO} --set train.steps=3 --set check.test_accuracy=0"
    assert written["rows"][0]["trace"]["steps"][0]["step"] == 3
    assert sorted(os.listdir()) == ["a.html", "a.json", "b.html", "pictures"]


def test_times_of_ranks_that_take_turns_are_said_to_be_none(four):
    assert four["world"]["kind"] == "local"
    assert TURNS in page_of(four)
    assert TURNS not in page_of(four | {"world": four["world"] | {"kind": "mpi"}})


def test_a_collective_is_a_page_too(tmp_path, capsys):
    file = tmp_path / "ring.html"
    assert main(["show", "ring.all_reduce", "--ranks", "5", "--html", str(file)]) == 0
    seen = Seen(file.read_text())
    assert seen.ids == ["schedule"]
    assert "PASSED: every rank holds what all_reduce promises" in seen.text
    assert main(["show", "--list", "--html", str(file)]) == 2
    assert "remove --html" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "words"), [
    (["run", SCENARIO, *SMALL, "--report", "-"], "--report: only --json writes to standard output; name a file"),
    (["run", SCENARIO, *SMALL, "--report", "nowhere/a.html"], "--report: cannot write 'nowhere/a.html'"),
    (["run", SCENARIO.replace("zero3", "reduce_scatter_slides"), "--report", "a.html"],
     "a scenario of collectives has no page"),
    (["report", "absent.json", "--html", "a.html"],
     "cannot read absent.json: no such file or directory; write an outcome with zerosim run"),
    (["report", "empty", "--html", "a.html"], "empty is not JSON: it is empty; write an outcome"),
    (["report", "bytes", "--html", "a.html"], "bytes is not JSON: found the byte 0xff; write an outcome"),
    (["report", "nan", "--html", "a.html"], "nan is not JSON: NaN is not a JSON number"),
    (["report", "list", "--html", "a.html"], "list is not an outcome of a training run: it names no schema"),
    (["report", "memory", "--html", "a.html"], "its schema is 'zerosim.memory/1', not 'zerosim.run/1'"),
    (["report", "old", "--html", "a.html"], "old has no 'title': it was written by another version of zerosim"),
    (["report", "list"], "list is not an outcome"),
    (["report", "list", "list", "--html", "a.html"], "list is not an outcome"),
])
def test_a_mistake_is_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in {"empty": "", "list": "[1]", "memory": '{"schema": "zerosim.memory/1"}', "nan": "[NaN]",
                       "old": '{"schema": "zerosim.run/1"}'}.items():
        Path(name).write_text(text)
    Path("bytes").write_bytes(b"{\xff}")
    assert words in refused(capsys, *arguments)
    assert not Path("a.html").exists()


def test_an_outcome_from_before_its_rows_were_called_rows_is_read(four):
    old = {key: each for key, each in four.items() if key != "rows"}
    assert page_of(old) == page_of(four)


def test_a_row_that_lacks_something_is_refused(four):
    with pytest.raises(ZerosimError, match="has no 'memory'"):
        page_of(dict(four, rows=[{key: each for key, each in four["rows"][0].items() if key != "memory"}]))


def test_without_the_extra_nothing_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    assert refused(capsys, "run", SCENARIO, *SMALL, "--report", str(tmp_path / "a.html")) == (
        "zerosim: pictures need vl-convert, which is not installed: pip install 'vl-convert-python>=1.9', or zerosim "
        "with its extra [report]")


def test_every_file_of_the_package_is_installed():
    config = configparser.ConfigParser()
    config.read(PACKAGE.parent / "setup.cfg")
    patterns = {room: re.split(r"[,\s]+", found) for room, found in config["options.package_data"].items()}
    others = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}

    def taken(rooms):
        return {path for room in rooms for pattern in patterns[room] if pattern
                for path in PACKAGE.parent.joinpath(*room.split(".")).glob(pattern)}

    assert others - taken(patterns) == set()
    assert {path.name for path in others - taken(patterns.keys() - {"zerosim.show.page"})} >= {"page.html"}


def test_one_picture_of_a_name(four, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(four))
    assert main(["report", "a.json", "--picture", "step-4=a.svg", "--picture", "kept=b.png"]) == 0
    assert "Stage III" in Path("a.svg").read_text()
    assert Path("b.png").read_bytes().startswith(b"\x89PNG")
    assert main(["report", "a.json", "--picture", "step-5=a.svg"]) == 2
    assert "there is no picture 'step-5'; there are kept, sent, losses, memory-1, step-1" in capsys.readouterr().err
    for wrong in ("step-4", "step-4=a.gif"):
        with pytest.raises(SystemExit):
            main(["report", "a.json", "--picture", wrong])
        assert "write NAME=FILE, where FILE ends in .svg or .png" in " ".join(capsys.readouterr().err.split())


def test_above_a_step_stands_how_each_row_compares_with_the_first(four):
    rows = RunDocument(four).rows
    found = Seen(page_of(four)).text
    first, last = rows[0], rows[3]
    ratio = last.step_ns / first.step_ns
    more = last.sent_bytes / first.sent_bytes
    assert (f"Stage III sends {more:.2f}× the bytes and takes {ratio:.2f}× the time of DDP: "
            f"{last.hidden:.0%} of its communication is overlapped.") in found
    for each in (first, last):
        assert 0 < each.computing_ns <= each.step_ns
        ends = [span["end_ns"] for step in each.traced for span in step["spans"]]
        begins = [step["begin_ns"] for step in each.traced]
        assert each.step_ns == max(ends) - min(begins)


def test_a_picture_for_a_file_says_stage_ranks_and_model(four):
    for row in RunDocument(four).rows:
        model = row.found["model"]
        assert row.heading == f"{row.name}, 3 ranks, {model['title']}, {model['parameters']:,} parameters"


def test_losses_that_are_no_numbers_are_left_out(four):
    odd = copy.deepcopy(four)
    odd["rows"][1]["losses"][1:] = ["nan", "inf", "-inf"]
    steps = [each["step"] for each in values(pictures.losses(RunDocument(odd).rows))]
    assert (steps.count(1), steps.count(3)) == (2, 1)


def test_pictures_for_files_have_marks_and_are_the_same_each_time(four):
    files = pictures.files(RunDocument(four).rows)
    each_row = {f"{what}-{number}" for what in ("step", "memory", "partners") for number in range(1, 5)}
    assert set(files) == {"kept", "sent", "losses"} | each_row
    drawn = {name: pictures.svg(spec) for name, spec in files.items()}
    assert all(svg.count("<path") >= 10 for svg in drawn.values())
    assert drawn["step-4"].count("<path") > len(RunDocument(four).rows[3].spans)
    assert all(f">{word}<" in drawn["step-4"] for word in ("forward", "update", "weights", "gradients"))
    assert pictures.pixels(drawn["kept"])[:8] == b"\x89PNG\r\n\x1a\n"


def test_every_span_that_a_run_traces_has_an_activity(four):
    done = {span["what"] for row in RunDocument(four).rows for span in row.spans}
    assert "other" not in {pictures.activity(what) for what in done}
    assert not set(pictures.KINDS.values()) & set(pictures.ACTIVITIES.values())
