"""`zs.run` and `zs.show`: objects that show themselves offline, print well, and become plain rows."""

import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import zerosim as zs
from tests.pages import Seen, hostile
from zerosim.commands.cli import main
from zerosim.core.errors import LaunchError, ScenarioError, UsageError
from zerosim.show.prepared import ShownOutcome, shown_outcome

SMALL = """
title = "Small"
[world]
ranks = 2
[model]
hidden = [8]
[train]
steps = 2
micro_batches = 2
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("scenario") / "small.toml"
    found.write_text(SMALL)
    return found


@pytest.fixture(scope="module")
def outcome(path):
    return zs.run(path)


def html(shown):
    return shown._repr_mimebundle_()["text/html"]


def mine_all_reduce(comm, chunks):
    """Does nothing."""


def test_an_outcome_prints_in_a_line_or_as_the_tables(outcome):
    assert repr(outcome) == "<outcome of 'Small': PASSED: 4 rows on 2 ranks: every bit equal to one process>"
    lines = str(outcome).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == outcome.verdict == "PASSED: 4 rows on 2 ranks: every bit equal to one process"
    assert "\x1b" not in str(outcome)
    assert outcome._repr_mimebundle_()["text/plain"] == str(outcome)


def test_rows_are_plain_and_say_what_the_document_says(outcome):
    for rows in (outcome.rows(), outcome.losses(), outcome.spans(), outcome.memory()):
        assert rows
        assert {tuple(row) for row in rows} == {tuple(rows[0])}
        assert {type(value) for row in rows for value in row.values()} <= {str, int, float, bool, type(None)}
    for row, found in zip(outcome.rows(), outcome.document["rows"], strict=True):
        assert row["final_loss"] == found["losses"][-1]
    assert [(row["name"], row["step"]) for row in outcome.losses()][:3] == [("DDP", 1), ("DDP", 2), ("Stage I", 1)]
    spans = [span for row in outcome.document["rows"] for step in row["trace"]["steps"] for span in step["spans"]]
    assert [{key: row[key] for key in spans[0]} for row in outcome.spans()] == spans
    assert {row["step"] for row in outcome.memory()} == {2}


def test_a_notebook_shows_the_tables_and_pictures_that_are_inside(outcome):
    seen = Seen(html(outcome))
    assert seen.tags == ["pre", "p", "img", "p", "img"]
    assert "".join(seen.words) == str(outcome)
    assert all(given["src"].startswith("data:image/svg+xml;base64,") for given in seen.given if given)


def test_words_of_a_scenario_are_no_html(outcome):
    hostile_outcome = shown_outcome(outcome.subject, hostile())
    assert {*Seen(html(hostile_outcome)).tags} == {"pre", "p", "img"}
    page = hostile_outcome.page()
    frame = Seen(html(page))
    (given,) = frame.given
    assert (frame.tags, given["srcdoc"], given["sandbox"], frame.words) == (["iframe"], page.html, "allow-scripts", [])


def test_without_the_extra_there_are_the_tables_and_how_to_have_pictures(outcome, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    seen = Seen(html(outcome))
    assert "Stage III" in seen.text
    assert "pip install jinja2 vl-convert-python" in seen.text
    with pytest.raises(UsageError, match="pictures need vl_convert"):
        outcome.picture("kept")


def test_pictures_are_named(outcome, tmp_path):
    for name, row in [("kept", ""), ("sent", ""), ("losses", ""), ("step", "Stage III"), ("memory", "DDP"),
                      ("partners", "Stage I")]:
        picture = outcome.picture(name, row)
        ElementTree.fromstring(picture._repr_mimebundle_()["image/svg+xml"])
        assert repr(picture) == f"<picture: {name}{f' of {row}' * bool(row)} in Small>"
    picture.save(str(tmp_path / "a.svg"))
    assert (tmp_path / "a.svg").read_text() == picture.svg
    picture.save(str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"a.gif: a picture is written as .svg or .png"):
        picture.save("a.gif")


@pytest.mark.parametrize(("name", "row", "said"), [
    ("kpet", "", "no picture 'kpet'; there are kept, sent, losses, memory-1, step-1, "),
    ("step", "", "no picture 'step'; there are kept"),
    ("step", "Stage 3", "no row 'Stage 3'; there are DDP, Stage I, "),
    ("kept", "DDP", "no picture 'kept-1'; there are kept"),
])
def test_a_picture_that_there_is_not(outcome, name, row, said):
    with pytest.raises(UsageError, match=said):
        outcome.picture(name, row)


def test_keys_are_set_as_python_has_them(path):
    found = zs.run(path, set={"parallel.stages": ("zero3",), "parallel.prefetch": True, "train.steps": np.int64(1),
                              "train.learning_rate": 1e-2, "title": 'with "quotes" and π'})
    assert [row["name"] for row in found.rows()] == ["Stage III"]
    scenario = found.document["scenario"]
    assert (scenario["parallel"]["prefetch"], scenario["train"]["learning_rate"]) == (True, 0.01)
    assert found.document["title"] == 'with "quotes" and π'


@pytest.mark.parametrize(("changes", "error", "said"), [
    ({"train.stpes": 3}, ScenarioError, "did you mean 'steps'"),
    ({"train.steps": {2}}, ScenarioError, 'found "[{]2[}]"'),
    ({"train.steps": np.zeros(2)}, ScenarioError, "train.steps must be an integer"),
    ({"world.memory_limit_mb": 9}, LaunchError, "run it with mpirun -n 2"),
])
def test_what_cannot_be_run_is_said(path, changes, error, said):
    with pytest.raises(error, match=said):
        zs.run(path, set=changes)


def test_under_a_launcher_there_is_another_command(path, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(LaunchError, match="use zerosim run under mpirun"):
        zs.run(path)


COLLECTIVE = """
kind = "collective"
title = "Mine"
[world]
ranks = 3
[[program]]
name = "ring"
calls = ["ring.all_reduce"]
[[program]]
calls = ["tree.reduce"]
"""


def test_a_scenario_of_collectives(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(COLLECTIVE)
    found = zs.run(path)
    assert not isinstance(found, ShownOutcome)
    assert found.passed
    assert repr(found) == "<outcome of 'Mine': nothing was claimed>"
    assert found._repr_mimebundle_() == {"text/plain": str(found)}
    rows = found.rows()
    assert [(row["name"], row["rank"]) for row in rows] == [("ring", r) for r in range(3)] + [
        ("tree.reduce", r) for r in range(3)]
    assert len({row["result_sha256"] for row in rows[:3]}) == 1
    assert rows[4]["result_sha256"] is None


def test_a_schedule_shows_itself():
    found = zs.show("ring.all_reduce", ranks=3)
    assert repr(found) == (
        "<ring.all_reduce on 3 ranks: 4 rounds, 12 messages; PASSED: every rank holds what all_reduce promises>")
    assert str(found).splitlines()[-1] == found.verdict
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == str(found)
    assert bundle["image/svg+xml"] == found.picture().svg
    assert bundle["image/svg+xml"].count("⊕</text>") == 6
    assert found.rows()[0] == {"round": 1, "source": 2, "to": 0, "chunks": [1], "reduced": True}
    assert "srcdoc" in Seen(html(found.page())).given[0]
    wrong = zs.show(mine_all_reduce, ranks=2, claims="reduce")
    assert (wrong.passed, wrong.subject.subject.collective) == (False, "reduce")
    assert zs.show("tree.broadcast", np.int64(33), root=2).subject.root == 2


def test_a_step_of_a_stage_shows_itself(tmp_path):
    found = zs.show("zero3", 2)
    assert found.passed
    assert repr(found).startswith("<Stage III, a step on 2 ranks, 64-64-32-10 MLP, adam: 20 events; PASSED")
    assert str(found).splitlines()[-1] == found.document["verdict"]
    rows = found.rows()
    assert len(rows) == 2 * len(found.document["moments"])
    assert rows[0] | {"held_bytes": 0} == {
        "moment": 1, "what": "all_gather", "unit": "layers.0", "rank": 0, "sent_bytes": 8320, "held_bytes": 0}
    assert found._repr_mimebundle_() == {"text/plain": str(found), "image/svg+xml": found.picture().svg}
    assert "srcdoc" in Seen(html(found.page())).given[0]
    mine = tmp_path / "mine.py"
    mine.write_text("from zerosim.stages.zero3 import step as zero3_step\n")
    assert zs.show(f"{mine}:zero3_step", 2).rows() == rows


def test_proofs_show_themselves(capsys):
    found = zs.prove("ring.all_reduce", ranks=[2, 3])
    assert found.passed
    assert repr(found) == "<ring.all_reduce on 2, 3 ranks: proved>"
    assert main(["prove", "ring.all_reduce", "--ranks", "2..3"]) == 0
    assert str(found) == capsys.readouterr().out.rstrip()
    assert found._repr_mimebundle_() == {"text/plain": str(found)}
    assert [row["order"] for row in found.rows()] == ["declared", "declared"]
    assert repr(zs.prove(mine_all_reduce, np.int64(2))) == "<mine_all_reduce on 2 ranks: not proved>"
    assert "not for 3 ranks" in str(zs.prove("halving.reduce_scatter", [2, 3]))


def test_a_plan_shows_itself(capsys):
    found = zs.plan("mpt_7b", set={"model.layers": 2, "parallel.stages": ["ddp", "zero3"]})
    assert found.passed
    assert all(not isinstance(value, dict | list) for row in found.rows() for value in row.values())
    assert found.rows()[0]["resting_parameters_bytes"] == found.document["rows"][0]["memory"]["resting"]["parameters"]
    assert main(["plan", "mpt_7b", "--set", "model.layers=2", "--set", 'parallel.stages=["ddp", "zero3"]']) == 0
    assert str(found) == "\n".join(capsys.readouterr().out.splitlines()[2:])
    assert found._repr_mimebundle_() == {"text/plain": str(found)}
    assert "srcdoc" in Seen(html(found.page())).given[0]


@pytest.mark.parametrize(("function", "arguments", "said"), [
    (zs.prove, ("ring.all_reduc",), "did you mean 'ring.all_reduce'"),
    (zs.prove, (3,), "found 3; give the name of an algorithm"),
    (zs.prove, ("ring.all_reduce", 0), "ranks: found 0"),
    (zs.prove, ("halving.reduce_scatter", 3), "serves a power of two of ranks, not 3"),
    (zs.prove, ("dissemination.barrier",), "moves no data, so there is nothing to prove"),
    (zs.show, ("ring.all_reduce", 0), "ranks: found 0; give whole numbers from 1 to 128"),
    (zs.prove, ("ring.all_reduce", []), "ranks: found none"),
    (zs.show, (np.add,), "which collective is 'add'"),
    (zs.show, (3,), "found 3; give the name of an algorithm"),
])
def test_what_cannot_be_run_proved_or_shown_is_said(function, arguments, said):
    with pytest.raises(UsageError, match=said):
        function(*arguments)
