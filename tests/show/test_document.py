"""The document: what is written is read again, what tables show is what it says, and every key is documented."""

import json
import math
from dataclasses import replace

import pytest

from tests.documents.outcome import PAGE, generated
from tests.pages import hostile, outcome, printed, read
from tests.training import scenario
from tests.verdict.outcomes import outcome_of
from zerosim.core.errors import UsageError
from zerosim.show import columns
from zerosim.show import document as documents
from zerosim.show.columns import FIGURES, Figure, plain_rows
from zerosim.show.document import RunDocument, written
from zerosim.show.page import page as page_of


@pytest.fixture(scope="module")
def near():
    return outcome(ranks=2, micro_batches=2)


@pytest.mark.parametrize("changes", [
    {}, {"steps": 0}, {"ranks": 1, "micro_batches": 2}, {"reference": False},
    {"stages": ("ddp",), "learning_rate": 1e30}, {"fragmentation": True, "stages": ("zero3",)},
    {"ranks": 4, "micro_batches": 4, "tensor_ranks": 2, "hidden": (6, 4)},
], ids=str)
def test_what_is_written_is_read_again(changes):
    built = scenario(**changes)
    run = outcome(built, traced=built.train.steps > 0)
    text = json.dumps(written(run), allow_nan=False)
    assert documents.read(text.encode(), "it") == run
    assert json.loads(text)["stages"] == json.loads(text)["rows"]
    page = page_of(run)
    assert page_of(documents.read(text.encode(), "it")) == page
    assert ('<section id="step">' in page) == (built.train.steps > 0)


def test_a_hostile_document_is_read_again():
    run = hostile()
    assert documents.read(json.dumps(written(run)).encode(), "it") == run


def test_the_schema_is_that_of_the_design(near):
    found = written(near)
    assert found["schema"] == "zerosim.run/2"
    for row in found["stages"]:
        assert {"stage", "equal", "first_divergence", "losses", "weights_sha256", "optimizer_sha256"} <= row.keys()
        assert [rank["rank"] for rank in row["traffic"]] == [rank["rank"] for rank in row["memory"]] == [0, 1]
        for rank in row["traffic"]:
            assert all(each.keys() == {"calls", "sent_bytes", "messages"} for each in rank["by_collective"].values())
            assert sum(each["sent_bytes"] for each in rank["by_collective"].values()) == rank["sent_bytes"]
        for rank in row["memory"]:
            assert {*rank["resting_bytes"]} == {"parameters", "gradients", "optimizer"}
            assert {*rank["peak_bytes"]} == {*rank["resting_bytes"], "activations", "buffers", "total"}


@pytest.mark.parametrize(("content", "words"), [
    (b"", "it is not JSON"), (b"{\xff}", "it is not JSON"),
    (b"[1]", "it is not an outcome of a training run"),
    (b'{"schema": "zerosim.memory/1"}', "missing required field `title`"),
])
def test_a_file_that_is_no_outcome_is_refused(content, words):
    with pytest.raises(UsageError, match=words):
        documents.read(content, "it")


def test_the_page_of_keys_is_generated_from_the_dataclasses(near):
    """`make docs` writes it."""
    text = PAGE.read_text()
    assert generated(text) == text
    assert {f"`{key}`" for key in [*written(near), *written(near)["rows"][0]] if f"`{key}`" not in text} == set()


@pytest.fixture(scope="module")
def runs(near):
    """Runs that have every figure: near, offloading on two hosts, and with a split model."""
    offloading = outcome_of(ranks=4, ranks_per_host=2, hidden=(24, 16), steps=2, micro_batches=4,
                            stages=("zero2", "zero3"), recompute=True, offload_activations=True,
                            offload_optimizer="host", offload_parameters="host")
    split = outcome_of(ranks=4, hidden=(6, 4), steps=2, micro_batches=4, stages=("zero1",), tensor_ranks=2)
    copies = {"buffers": 4_000}  # as under MPI

    def copied(rank):
        due = replace(rank.due, peak_bytes=rank.due.peak_bytes | copies)
        return replace(rank, peak_bytes=rank.peak_bytes | copies, due=due)

    copying = [replace(row, memory=[*map(copied, row.memory)]) for row in near.rows]
    return [replace(near, rows=copying), read(offloading), read(split)]


def by_hand(row):
    """The figures of a document's row, computed here from its ranks."""
    fullest = max(row["memory"], key=lambda rank: rank["peak_bytes"]["total"])
    kept, steps = fullest["resting_bytes"], len(row["losses"])
    most = {key: round(max(rank[key] for rank in row["traffic"]) / steps) for key in ("sent_bytes", "between_bytes")}
    return most | {
        "kept_bytes": sum(kept.values()), "weights_bytes": kept["parameters"], "gradients_bytes": kept["gradients"],
        "optimizer_bytes": kept["optimizer"], "volume": row["volume"], "layout": row["layout"],
        "host_bytes": sum(fullest["host_resting_bytes"].values()) + fullest["host_peak_bytes"].get("activations", 0),
        "messages": max(rank["messages"] for rank in row["traffic"]) // steps,
        "peak_bytes": fullest["peak_bytes"]["total"], "padding_bytes": fullest["due"]["padding_bytes"],
        **{f"{'weights' if kind == 'parameters' else kind}_peak_bytes": count
           for kind, count in fullest["peak_bytes"].items() if kind != "total"},
    }


def drifts(run: RunDocument):
    """The figures in which plain rows, terminal or page differ from the document."""
    text, lines = page_of(run), printed(run, 400, verbose=True)
    for row, plain in zip(written(run)["rows"], plain_rows(run), strict=True):
        for key, due in by_hand(row).items():
            (figure,) = [each for each in columns.FIGURES if each.key == key]
            (cell,) = figure.cells([next(each for each in run.rows if each.name == row["name"])],
                                   documents.unit_of(run.rows))
            if plain[key] != due:
                yield f"rows() has {key} = {plain[key]}, not {due}"
            shown = float(cell) * documents.unit_of(run.rows).size if figure.in_bytes else None
            if shown is not None and abs(shown - due) > 0.06 * documents.unit_of(run.rows).size:
                yield f"{key} is shown as {cell}, not {due}"
            if due and columns.PAGE in figure.tables and figure.name not in text:
                yield f"the page has no {key}"
            if due and {columns.TERMINAL, columns.VERBOSE} & figure.tables and not any(
                    figure.heading.split("\n")[0] in line for line in lines):
                yield f"the terminal has no {key}"


def test_terminal_page_and_rows_have_the_figures_of_the_document(runs):
    assert [drift for run in runs for drift in drifts(run)] == []
    found = [by_hand(row) for run in runs for row in written(run)["rows"]]
    assert {key for figures in found for key, figure in figures.items() if figure} == {each.key for each in FIGURES}


def test_a_drift_is_seen(runs, monkeypatch):
    wrong = [replace(each, value=lambda _: 7) if each.key == "peak_bytes" else each for each in FIGURES]
    monkeypatch.setattr(columns, "FIGURES", wrong)
    assert any("rows() has peak_bytes = 7" in drift for drift in drifts(runs[0]))


def test_a_shown_figure_is_declared_once(near, monkeypatch):
    """One line of `FIGURES` gives a column, a line of the legends, a column of the page, and a key of `rows()`."""
    added = Figure("largest_bytes", "largest\nmessage", "bytes of the largest message that a rank sends",
                   lambda row: max(rank.largest_message_bytes for rank in row.traffic), frozenset({columns.TERMINAL,
                                                                                                   columns.PAGE}))
    monkeypatch.setattr(columns, "FIGURES", (*FIGURES, added))
    lines = printed(near, 120)
    assert [line.split()[-1] for line in lines[:2]] == ["largest", "kB"]
    assert "largest message  bytes of the largest message that a rank sends" in lines
    assert "<th scope=\"col\">largest message, kB</th>" in page_of(near)
    assert "<li>largest message: bytes of the largest message that a rank sends</li>" in page_of(near)
    assert plain_rows(near)[0]["largest_bytes"] == near.rows[0].traffic[0].largest_message_bytes > 0


@pytest.mark.parametrize(("changes", "marked"), [
    ({"resting_bytes": {"parameters": 1, "gradients": 1, "optimizer": 1}}, {"weights", "gradients", "optimizer",
                                                                           "each rank keeps"}),
    ({"peak_bytes": {"total": 1}}, {"peak"}),
    ({"host_peak_bytes": {"activations": 1}}, {"on host", "peak"}),
    ({}, {"peak"}),
])
def test_every_figure_that_is_not_as_due_is_marked(runs, changes, marked):
    run = runs[1]
    row = replace(run.rows[1], memory=[
        replace(rank, due=replace(rank.due, **changes), lingering=[] if changes else ["a buffer"])
        for rank in run.rows[1].memory])
    unit = documents.unit_of(run.rows)
    assert {figure.name for figure in FIGURES if "≠" in figure.cells([row], unit)[0]} == marked
    assert not any("≠" in figure.cells([run.rows[0]], unit)[0] for figure in FIGURES)
    assert "≠" in " ".join(printed(replace(run, rows=[run.rows[0], row])))
    sent = replace(run.rows[1], traffic_holds=False)
    assert {figure.key for figure in FIGURES if "≠" in figure.cells([sent], unit)[0]} == {
        "sent_bytes", "between_bytes", "volume", "messages"}


def test_rows_of_a_run_that_went_to_nan_or_made_no_step(near):
    run = replace(near, rows=[replace(near.rows[0], losses=[math.nan, -math.inf], test=math.nan)])
    (found,) = plain_rows(documents.read(json.dumps(written(run), allow_nan=False).encode(), "it"))
    assert found["final_loss"] == -math.inf
    assert math.isnan(found["test"])
    assert "The loss is not finite since step 1 in DDP" in printed(run)
    idle = replace(near.rows[0], resumed={"step": len(near.rows[0].losses)})
    assert "No step was left to train in DDP: the checkpoint is of the last one" in printed(replace(near, rows=[idle]))
    assert plain_rows(outcome(steps=0, traced=False))[0]["final_loss"] is None
