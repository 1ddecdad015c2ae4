"""A run's figures are declared once: terminal, page and plain rows have those of the document, and no others."""

import json
import re
from dataclasses import replace
from html import unescape

import pytest

from tests.pages import page_of, printed, read
from tests.test_planted import outcome_of
from tests.test_report import changed
from tests.training import labelled, run, scenario
from tests.training.checkpointing import go
from zerosim.commands.cli import main
from zerosim.scenario import load
from zerosim.show import columns
from zerosim.show.notebook import compared
from zerosim.show.page import page as page_module


@pytest.fixture(scope="module")
def offloading():
    """Two hosts; weights, gradients, state and activations offloaded."""
    return outcome_of(ranks=4, ranks_per_host=2, hidden=(24, 16), steps=2, micro_batches=4, stages=("zero2", "zero3"),
                      recompute=True, offload_activations=True, offload_optimizer="host", offload_parameters="host")


def by_hand(row):
    """The figures of a document's row, computed here from its ranks."""
    fullest = max(row["memory"], key=lambda rank: rank["peak_bytes"]["total"])
    kept, far = fullest["resting_bytes"], fullest["host_resting_bytes"]
    steps = 2 - (row["resumed"] or {"step": 0})["step"]

    def mean(figure):
        return round(sum(rank[figure] for rank in row["traffic"]) / len(row["traffic"]) / steps)

    return {
        "kept_bytes": sum(kept.values()), "weights_bytes": kept["parameters"], "gradients_bytes": kept["gradients"],
        "optimizer_bytes": kept["optimizer"], "sent_bytes": mean("sent_bytes"),
        "host_bytes": sum(far.values()) + fullest["host_peak_bytes"].get("activations", 0),
        "between_bytes": mean("between_bytes"), "volume": row["volume"],
        "messages": max(rank["messages"] for rank in row["traffic"]) // steps,
        "peak_bytes": fullest["peak_bytes"]["total"], "layout": row["layout"],
    }


def cells(html):
    """The figures of the page's table: for each row, the cells by heading."""
    table = re.search(r"<table>(.*?)</table>", html, re.S)[1]
    heads, *lines = re.findall(r"<tr>(.*?)</tr>", table)
    names, *rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in (heads, *lines)]
    return [dict(zip(map(unescape, names), map(unescape, cells), strict=True)) for cells in rows]


def drifts(outcome):
    """The figures in which plain rows, terminal or page differ from the document."""
    run, html = read(outcome), page_of(read(outcome).document)
    words = " ".join(printed(outcome, 400, verbose=True)).split()
    for row, plain, shown in zip(run.document["rows"], compared(run), cells(html), strict=True):
        for key, due in by_hand(row).items():
            if plain[key] != due:
                yield f"rows() has {key} = {plain[key]}, not {due}"
            (figure,) = [each for each in columns.FIGURES if each.key == key]
            heading = f"{figure.heading}, kB".replace("\n", " ") if key.endswith("_bytes") else figure.heading
            found = shown.get(heading.replace("\n", " "), "")
            if columns.PAGE in figure.tables and not matches(found, due, key):
                yield f"the page has {key} = {found!r}, not {due}"
            if due and {columns.TERMINAL, columns.VERBOSE} & figure.tables and not any(
                    matches(word, due, key) for word in words):
                yield f"the terminal has no {key} = {due}"


def matches(word, due, key):
    """Whether a printed figure is this one, in kB with as many digits as it has; nothing may stand for 0."""
    if isinstance(due, str):
        return word == due or word in due.split()
    places = len(word.partition(".")[2])
    return word == (f"{due / 1e3:.{places}f}" if key.endswith("_bytes") else f"{due:.{places}f}") or not (word or due)


def test_terminal_page_and_rows_have_the_figures_of_the_document(offloading):
    near = outcome_of(ranks=2, steps=2, micro_batches=2, stages=("ddp", "zero3"))
    split = outcome_of(ranks=4, hidden=(6, 4), steps=2, micro_batches=4, stages=("zero1",), tensor_ranks=2)
    assert [*drifts(offloading), *drifts(near), *drifts(split)] == []
    found = [by_hand(row) for outcome in (offloading, near, split) for row in read(outcome).document["rows"]]
    keys = {each.key for each in columns.FIGURES}
    assert {key for figures in found for key, figure in figures.items() if figure} == keys


@pytest.mark.parametrize("key", ["host_bytes", "between_bytes", "messages", "peak_bytes"])
def test_a_drift_of_one_reader_is_seen(offloading, monkeypatch, key):
    def drifted(table, rows):
        return [replace(each, value=lambda _: 7, of_ranks=None) if each.key == key else each
                for each in columns.shown_in(table, rows)]

    monkeypatch.setattr(page_module, "shown_in", drifted)
    assert {found.partition(" = ")[0] for found in drifts(offloading)} == {f"the page has {key}"}


def test_a_resumed_run_counts_its_own_steps(tmp_path):
    built = scenario(ranks=2, micro_batches=2, steps=2, stages=("zero3",))
    go(built, labelled(), save=tmp_path / "a", steps=1)
    found = go(built, labelled(), resume=tmp_path / "a")
    (row,) = compared(read(found))
    assert row["messages"] == compared(read(go(built, labelled())))[0]["messages"] > 0
    assert list(drifts(found)) == []


@pytest.mark.parametrize(("changes", "marked"), [
    (lambda rank: {"resting_bytes": {**rank.resting_bytes, "gradients": 1}}, {"weights", "gradients", "optimizer"}),
    (lambda rank: {"peak_bytes": dict.fromkeys(rank.peak_bytes, 1)}, {"peak"}),
    (lambda rank: {"host_peak_bytes": {"activations": 1}}, {"on host", "peak"}),
])
def test_every_wrong_figure_is_marked_on_the_page(offloading, changes, marked):
    due = offloading.trained[1].due
    memory = [replace(rank, **changes(rank)) for rank in due.memory]
    right, wrong = cells(page_of(read(changed(offloading, 1, due=replace(due, memory=memory))).document))
    assert {heading.removesuffix(", kB") for heading, cell in wrong.items() if "≠" in cell} == marked
    assert not any("≠" in cell for cell in right.values())


def test_peaks_that_do_not_fall_have_a_reason():
    said = "Stage III does not lower the peak of Stage II: beside the states"
    one = run(stages=("zero2", "zero3"), hidden=(), ranks=4, micro_batches=4)
    many = run(stages=("zero2", "zero3"), hidden=(40,) * 8, ranks=4, micro_batches=4)
    assert [said in " ".join(printed(found)) for found in (one, many)] == [True, False]
    assert [said in page_of(read(found).document) for found in (one, many)] == [True, False]


def test_an_outcome_prints_what_its_run_printed(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("from zerosim.stages.zero2 import SHARDED, step as zero2_step\n")
    (tmp_path / "a.toml").write_text(
        f"title = 'A'\n[world]\nranks = 2\n[train]\nsteps = 2\n[[variant]]\nstage = '{tmp_path}/mine.py:zero2_step'\n"
        "[[variant]]\nstage = 'zero3'\n[check]\ntest_accuracy = 0.99\n")
    out = str(tmp_path / "a.json")
    assert main(["run", str(tmp_path / "a.toml"), "--progress", "none", "-v", "--json", out]) == 1
    ran = capsys.readouterr().out.splitlines()
    assert main(["report", out, "-v"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:] == ran[ran.index(shown[1]):]
    document = json.loads((tmp_path / "a.json").read_text())
    assert {*document["rows"][0]["own_stage"]["sharded"]} == {"gradients", "optimizer"}


@pytest.mark.parametrize(("changes", "caption"), [
    ([], "Four ways to keep weights"), (["train.steps=1"], "Changed from the file: train.steps = 1"),
    (["world.ranks=4", "check.test_accuracy=0"], "Changed from the file: check.test_accuracy = 0"),
    (["train.steps=1", "caption=Mine."], "Mine."),
])
def test_a_caption_says_what_was_changed(changes, caption):
    found = load("compare", changes)
    assert found.title == "Handwritten digits by DDP and ZeRO Stages I, II and III"
    assert found.caption.startswith(caption)
    assert ("Changed" in found.caption) == ("Changed" in caption)


def test_run_page_plan_and_notebook_say_what_was_changed(tmp_path, capsys):
    said, keys = "Changed from the file: world.ranks = 2, train.steps = 1", {"world.ranks": 2, "train.steps": 1}
    flags = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    page = tmp_path / "a.html"
    assert main(["run", "zero3", *flags, "--set", "check.test_accuracy=0", "--progress", "none", "--report",
                 str(page)]) == 0
    shown = [capsys.readouterr().out, page.read_text()]
    assert all(said in each for each in shown)
    small = ["--set", "model.layers=1", "--set", "model.width=512", "--set", "model.heads=4"]
    assert main(["plan", "mpt_7b", "--ranks", "8,16", *small, "--report", str(page)]) == 0
    said = "Changed from the file: model.layers = 1, model.width = 512, model.heads = 4, world.ranks = 8, 16"
    assert all(said in " ".join(each.split()) for each in (capsys.readouterr().out, page.read_text()))
