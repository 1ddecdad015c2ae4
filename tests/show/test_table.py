"""What a run shows in the terminal: within its columns, without colour, with the numbers that settle it."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.pages import outcome, printed
from tests.training import labelled, scenario
from tests.training.variants import BOTH, UPDATES
from tests.verdict.outcomes import outcome_of
from zerosim.commands.cli import main
from zerosim.scenario import Check
from zerosim.scenario.sections import Variant
from zerosim.show.document import MisfitDocument, OtherRanksDocument
from zerosim.show.grid import SHADES, Column, show_grid
from zerosim.show.table import show_run
from zerosim.training.experiment import prepare
from zerosim.verdict.diagnosis import Divergence
from zerosim.verdict.judged_run import run_locally

FOUR = ("DDP", "Stage I", "Stage II", "Stage III")
NAME = "a variant with a long name"


@pytest.fixture(scope="module")
def four():
    return outcome(ranks=4, micro_batches=4)


def changed(found, row=0, **changes):
    """The run with one row that is otherwise."""
    rows = list(found.rows)
    rows[row] = replace(rows[row], **changes)
    return replace(found, rows=rows)


def times(counts, factor):
    return {kind: count * factor for kind, count in counts.items()}


def scaled(row, factor):
    """A row as of a model that much larger, on ranks that do not send alike, with a long name."""
    memory = [replace(rank, peak_bytes=times(rank.peak_bytes, factor), resting_bytes=times(rank.resting_bytes, factor),
                      due=replace(rank.due, resting_bytes=times(rank.due.resting_bytes, factor)))
              for rank in row.memory]
    traffic = [replace(rank, sent_bytes=rank.sent_bytes * factor * (2 + rank.rank),
                       messages=rank.messages * (2 + rank.rank)) for rank in row.traffic]
    return replace(row, name=NAME, memory=memory, traffic=traffic, equal=False, seconds={"train": 7.5})


def cells(lines, *names):
    """The cells of the main table, by row; bars are left out."""
    table = lines[: next(number for number, line in enumerate(lines) if not line)]
    return {name: [cell for cell in line.removeprefix(name).split() if not set(cell) & set("█▓░━")]
            for name in names for line in table if line.startswith(f"{name} ")}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("factor", [1, 1_000, 3_000_000])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_broken(four, factor, width):
    large = replace(four, rows=[scaled(row, factor) for row in four.rows])
    lines = printed(large, width, verbose=True)
    unbroken = re.compile(r"(FAILED|PASSED): .*|  [0-9a-f]{64}")
    assert [line for line in lines if len(line) > width and not unbroken.fullmatch(line)] == []
    wide = {word for line in printed(large, 500, verbose=True) for word in line.split()}
    assert {word for line in lines for word in line.split() if word[-1].isdigit()} - wide == set()


def bar_faults(lines, rows, room):
    """Where a bar is not as long as what it stands for, of the four rows."""
    most = max(sum(row.fullest.resting_bytes.values()) for row in rows)
    for row, sent in zip(rows, (2, 2, 2, 3), strict=True):
        (line,) = [line for line in lines if line.startswith(f"{row.name} ") and "━" in line]
        for kind, count in row.fullest.resting_bytes.items():
            length, due = line.count(SHADES[kind][0]), count * room / most
            if not length or abs(length - due) > max(0.5, 1 - due):
                yield f"{length} columns of {kind} in {row.name}, not {due:.1f}"
        if line.count("━") != sent * room // 3:
            yield f"{row.name} does not send {sent} units"


@pytest.mark.parametrize(("width", "room"), [(120, 24), (80, 12)])
def test_bars_are_as_long_as_what_is_kept_and_sent(four, width, room):
    assert list(bar_faults(printed(four, width), four.rows, room)) == []
    longer = [replace(rank, resting_bytes=times(rank.resting_bytes, 2)) for rank in four.rows[2].memory]
    assert list(bar_faults(printed(four, width), changed(four, 2, memory=longer).rows, room))
    table = printed(four, 50)[:8]
    assert not any("━" in line or "█" in line for line in table)


def test_headings_marks_and_names_are_explained_and_no_others(four):
    lines = printed(four, 220, times=False)
    keys = [line.split("  ")[0] for line in lines[lines.index("") + 1 : -1]]
    assert keys == [*FOUR, "same bits", "each rank keeps", "sends a step", "peak"]
    assert "each rank keeps  between steps: █ weights  ▓ gradients  ░ optimizer state" in lines
    assert "Stage II         ZeRO-2: keeps 1/4 of gradients and optimizer state, all weights" in lines
    two = printed(outcome(stages=("zero2", "zero3"), reference=False))
    assert "another row  keeps" in two[1]
    assert any(line.endswith("compared with those of the first row that adds in the same order") for line in two)
    assert "same bits as" not in "".join(printed(outcome(stages=("ddp",), reference=False)))


def test_colour_is_an_addition(four, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", highlight=False)
    show_run(console, changed(four, 1, equal=False))
    coloured = console.file.getvalue()
    for each in ("\x1b[32myes", "\x1b[1;31mNO", "\x1b[34m█", "\x1b[33m▓", "\x1b[32m░", "\x1b[36m━"):
        assert each in re.sub(r" +", "", coloured)
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()]
    assert plain == printed(changed(four, 1, equal=False), 80)


def test_what_rows_share_is_said_once_and_what_not_by_row(four):
    lines, row = printed(four), four.rows[0]
    assert (f"In all 4 rows: 4 steps, final loss {row.losses[-1]:.4g}, test accuracy {row.test:.2%}, the same weights"
            in lines)
    other = printed(changed(four, 1, weights_sha256="0"))
    assert f"Weights SHA-256: {row.weights_sha256[:12]}... in DDP, Stage II and Stage III; 0 in Stage I" in other
    assert any(line.startswith("In both rows: ") for line in printed(replace(four, rows=four.rows[:2])))


def test_verbose_adds_to_the_tables(four):
    plain, verbose = printed(four), printed(four, verbose=True)
    assert [line for line in plain if line not in verbose] == []
    digest, memory = four.rows[0].weights_sha256, four.rows[3].fullest
    assert (digest in "".join(verbose), digest in "".join(plain)) == (True, False)
    (line,) = [line.split()[2:] for line in verbose[verbose.index(""):] if line.startswith("Stage III ") and line not in
               plain]
    peak = [count for kind, count in memory.peak_bytes.items() if kind != "total" and count]
    assert [*map(float, [*line[:3], *line[6:6 + len(peak)]])] == pytest.approx(
        [count / 1e3 for count in [*memory.resting_bytes.values(), *peak]], abs=0.006)
    fragmented = " ".join(printed(outcome(fragmentation=True, stages=("zero3",))))
    assert re.search(r"of rank 0's bytes [\d,]+ by first fit and [\d,]+ by first fit laid out", fragmented)


def test_times_are_shown_where_a_step_was_traced(four):
    lines = printed(four)
    at = lines.index("The time of a step")
    assert lines[at + 1].split() == ["step", "computing", "waiting", "idle", "collectives", "hidden"]
    row, steps = lines[at + 3].split(), four.rows[0].trace.steps
    assert row[1:3] == [f"{sum(each) / 4e6:.1f}" for each in (
        [step.end_ns - step.begin_ns for step in steps], [step.computation_ns for step in steps])]
    assert any(line.startswith("Mean over ranks") for line in lines)
    assert "The time of a step" not in printed(outcome(traced=False, stages=("ddp",)))
    seconds = {kind: any(re.search(r"messages .*\bms\b", line) for line in printed(
        replace(four, world=four.world | {"kind": kind}), verbose=True)) for kind in ("mpi", "local")}
    assert seconds == {"mpi": True, "local": False}


def test_what_is_not_the_formulas_is_marked(four):
    memory = [replace(rank, due=replace(rank.due, resting_bytes=rank.due.resting_bytes | {"gradients": 0}))
              for rank in four.rows[1].memory]
    wrong = changed(four, 1, traffic_holds=False, memory=memory)
    wrong = printed(replace(wrong, passed=False, failures=[{"name": "Stage I", "what": "it is wrong"}]), verbose=True)
    assert [cell[0] == "≠" for cell in cells(wrong, *FOUR)["Stage I"]] == [False, True, True, False]
    assert any(line.startswith("≠ ") and line.endswith(" not what the formula says") for line in wrong)
    assert wrong[-1] == "FAILED: Stage I: it is wrong"
    assert not any("≠" in line for line in printed(four, verbose=True))


def test_failures_that_fit_no_line_stand_one_by_one_above_the_last(four):
    failures = [{"name": name, "what": "bits differ"} for name in ("Stage I", "Stage III")]
    broken = replace(four, passed=False, verdict="FAILED: 2 checks did not hold", failures=failures)
    assert printed(broken, 80)[-1] == "FAILED: Stage I: bits differ; Stage III: bits differ"
    assert printed(broken, 50)[-3:] == [
        "Stage I: bits differ", "Stage III: bits differ", "FAILED: 2 checks did not hold"]


def test_a_name_is_neither_markup_nor_lost(four):
    lines = printed(changed(four, name="[bold]x[/] :smile:"))
    assert any(line.startswith("[bold]x[/]") for line in lines[:4])
    long = printed(changed(four, name="by reduce_scatter_and_then_all_gather, 2"), 80)[2:6]
    assert re.sub(r"\s", "", "".join(line[:37] for line in long)).startswith("byreduce_scatter_and_then_all_gather,2")


def test_one_rank_and_no_steps_and_one_row():
    alone = printed(outcome(ranks=1, micro_batches=1, steps=1, stages=("ddp",)))
    assert alone[-1] == "PASSED: DDP on 1 rank: every bit equal to one process"
    assert "sends a step     one rank sends nothing" in alone
    assert any(line.startswith("1 step, final loss") for line in alone)
    still = printed(outcome(stages=("ddp", "zero3"), steps=0, traced=False), verbose=True)
    assert cells(still, "Stage III")["Stage III"] == ["yes"]
    assert any(line.startswith("In both rows: 0 steps, test accuracy") for line in still)


def test_sixteen_rows_and_those_that_do_not_fit(four):
    misfit = MisfitDocument("zero3", "Stage III, alone", 9_000_000, 1_000_000, ["ddp"])
    many = replace(four, did_not_fit=[misfit],
                   rows=[replace(four.rows[0], name=f"row {number}") for number in range(16)])
    lines = printed(many, 90)
    assert len(cells(lines, *(row.name for row in many.rows))) == 16
    assert cells(lines, "Stage III, alone")["Stage III, alone"] == ["does", "not", "fit"]
    assert any(line.startswith("Stage III, alone does not fit: needs 9 MB") for line in lines)
    assert printed(replace(many, rows=[]))[-2].startswith("Stage III, alone does not fit: needs 9 MB")


@pytest.mark.parametrize(("measure", "words"), [
    ("accuracy", "test accuracy 25.00%"), ("exact sequences", "test sequences without a mistake 25.00%"),
    ("loss", "test loss 0.25"), ("mean squared error", "mean squared test error 0.25"), (None, None)])
def test_the_measure_of_the_test_split_has_its_name(measure, words, four):
    rows = [replace(row, test=measure and 0.25) for row in four.rows]
    lines = printed(replace(four, test_measure=measure, rows=rows))
    shown = [line for line in lines if "test" in line.partition(":")[2]]
    assert [words in line for line in shown[:1]] == [True] * (measure is not None)


def test_rows_without_names_are_told_apart_wherever_one_is_spoken_of():
    variants = (Variant(stage="zero3"), Variant(stage="zero3", prefetch=True), Variant(stage="zero3", prefetch=True))
    names = ["Stage III", "Stage III, prefetch = true", "Stage III, prefetch = true (2)"]
    checks = Check(volumes=(5, 2, 5), messages=(30, 30, 17), same_bits_on=(1,), does_not_fit=("zero3",))
    base = replace(scenario(steps=1), variant=variants, check=checks)
    found = run_locally(prepare(base, labelled()))
    assert [row.name for row in found.trained] == names
    assert [name for name, what in found.failures if what == "fits after all"] == names
    assert (names[1], "sends 5 P (N−1)/N, not 2") in found.failures
    assert (names[2], "sends 30 messages a step, not 17") in found.failures
    assert [name for name, what in found.failures if what == "different bits on 1 rank"] == names


def test_digests_on_other_ranks_are_named_where_rows_differ(four):
    others = [OtherRanksDocument(2, name, "1" if name == "DDP" else "2") for name in FOUR]
    lines = printed(replace(four, on_other_ranks=others))
    assert "SHA-256 of the weights on 2 ranks: 1 in DDP; 2 in Stage I, Stage II and Stage III" in lines
    assert f"SHA-256 of the weights on 4 ranks: {four.rows[0].weights_sha256[:12]}..." in lines


@pytest.mark.parametrize("orders", [{"ours": "g1 + g0", "reference": "g0 + g1"}, {"ours": "g0", "reference": "g0"}])
def test_a_divergence_is_one_line_and_two_orders_where_they_differ(four, orders):
    first = Divergence(
        step=2, layer=1, parameter="weight", name="layers.1.weight", index=[0, 2], ours=0.5, reference=0.25,
        ours_bits="0x3f000000", reference_bits="0x3e800000", ulps=8388608, rank=1, state=None, differing_elements=3,
        chunk=0, order_of_addition=orders)
    lines = printed(changed(four, 3, equal=False, first_divergence=first), 300)
    assert ("Stage III: after step 2, rank 1 holds layers.1.weight[0, 2] = 0.5, one process 0.25 (8388608 ULP apart; "
            "chunk 0)") in lines
    assert [line for line in lines if " adds " in line and line.startswith("    ")] == (
        ["    ours adds       g1 + g0", "    reference adds  g0 + g1"] if len({*orders.values()}) > 1 else [])


ONE = {"ranks": 1, "hidden": (), "steps": 2, "micro_batches": 1}
"""One layer of 6 · 3 + 3 = 21 numbers, Adam: 84 bytes of weights, 84 of gradients, 168 of state."""


def test_the_host_has_a_column_and_a_line_of_the_legend_if_a_row_uses_it():
    """DDP offloads state alone, Stage II also reduced gradients, Stage III weights."""
    lines = printed(outcome_of(**ONE, **BOTH), 80)
    due = {"DDP": [168, 168], "Stage I": [168, 168], "Stage II": [84, 252], "Stage III": [0, 336]}
    for name, found in cells(lines, *FOUR).items():
        assert [1e3 * float(cell) for cell in found[1:3]] == pytest.approx(due[name], abs=5), name
    text = "\n".join(printed(outcome_of(**ONE, **UPDATES), verbose=True))
    assert "on host          offloaded states between steps" in text
    assert "each rank keeps  between steps on the device:" in text
    assert not any(words in "\n".join(printed(outcome_of(**ONE))) for words in ("on host", "on the device"))


def test_columns_that_do_not_fit_stand_below_and_lines_of_a_cell_stay_together():
    console = Console(file=io.StringIO(), width=40)
    show_grid(console, ["a", "b"], [Column(f"column {number}", ["1\n2", "3"]) for number in range(6)], "corner")
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[0] == "corner  column 0  column 1  column 2"
    assert [line.split() for line in lines[1:4]] == [["a", "1", "1", "1"], ["2", "2", "2"], ["b", "3", "3", "3"]]
    assert lines[4] == "corner  column 3  column 4  column 5"


def test_progress_is_live_or_in_lines(tmp_path, capsys):
    flags = ["--set", "train.steps=6", "--set", "check.test_accuracy=0", "--set", 'parallel.stages=["zero3"]']
    assert main(["run", "compare", *flags, "--progress", "plain"]) == 0
    assert [line.split()[2:4] for line in capsys.readouterr().err.splitlines()] == [
        ["step", f"{step}/6"] for step in (1, 2, 4, 6)] * 2  # one process, and Stage III
    assert main(["run", "compare", *flags, "--progress", "live"]) == 0
    assert "12/12" in capsys.readouterr().err
    assert main(["run", "compare", *flags, "--progress", "none"]) == 0
    assert capsys.readouterr().err == ""
