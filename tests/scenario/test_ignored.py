"""What a row cannot follow of [parallel] is said: in the terminal, on the page, in both documents."""

import json

from tests.pages import printed
from tests.verdict.outcomes import outcome_of
from zerosim.commands.cli import main
from zerosim.scenario.conditions import ignored
from zerosim.show.document import document

ONCE = "parallel.accumulation does nothing in DDP and Stage I: it reduces once a step, at the boundary"


def said(outcome):
    return "\n".join(printed(outcome))


def test_rows_that_reduce_once_a_step_say_so_below_the_table():
    outcome = outcome_of(stages=("ddp", "zero1", "zero2"), accumulation="micro_batch")
    assert ONCE in said(outcome)
    rows = document(outcome, {"kind": "local", "ranks": 3, "library": ""}).rows
    why = {"accumulation": "it reduces once a step, at the boundary"}
    assert [row.ignored for row in rows] == [why, why, {}]


def test_every_key_that_some_row_cannot_follow_is_named():
    told = said(outcome_of(prefetch=True, gradients="all_reduce", publish="updates"))
    for words in ("parallel.prefetch does nothing in DDP, Stage I and Stage II: it gathers no weights during the pass",
                  "parallel.gradients does nothing in Stage III",
                  "parallel.publish does nothing in DDP: every rank updates all weights"):
        assert words in told
    assert "a rank has one micro-batch in a step" in said(outcome_of(accumulation="layered", micro_batches=3))


def test_nothing_is_said_where_all_is_followed():
    assert "does nothing" not in said(outcome_of(accumulation="layered", overlap=True))


def test_of_one_micro_batch_one_reason_is_given():
    assert ignored("ddp", {"accumulation": "micro_batch"}, 1) == {
        "accumulation": "a rank has one micro-batch in a step"}


def test_the_command_says_it_on_the_page_and_in_a_plan(tmp_path, capsys):
    (tmp_path / "a.toml").write_text(
        '[world]\nranks = 2\n[train]\nsteps = 1\n[parallel]\naccumulation = "micro_batch"\nstages = ["ddp", "zero1"]\n')
    page = tmp_path / "a.html"
    assert main(["run", str(tmp_path / "a.toml"), "--report", str(page)]) == 0
    assert ONCE in page.read_text()
    assert main(["plan", str(tmp_path / "a.toml"), "--json", str(tmp_path / "a.json"), "--report", str(page)]) == 0
    assert ONCE in " ".join(capsys.readouterr().out.split())
    assert ONCE in page.read_text()
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [list(row["ignored"]) for row in rows] == [["accumulation"], ["accumulation"]]
