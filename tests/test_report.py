"""What a run shows: within 80 columns, without colour, with the numbers that settle it."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.pages import printed, read
from tests.training import labelled, run, scenario
from zerosim.observe.memory import Lifetime
from zerosim.scenario import Check
from zerosim.scenario.data import Dataset
from zerosim.scenario.sections import Variant
from zerosim.show.document import document
from zerosim.show.legend import STATE_BARS
from zerosim.show.notebook import compared
from zerosim.show.table import show_run
from zerosim.training.experiment import prepare
from zerosim.training.measurement import Measurement
from zerosim.verdict.addresses import fragmentation
from zerosim.verdict.diagnosis import Divergence, RowDifference
from zerosim.verdict.judged_run import run_locally
from zerosim.verdict.outcome import RowOutcome

NAME = "a variant with long name"
ROOT = Path(__file__).parents[1]


def measured(stage, **changes):
    """The row with other measurements."""
    return replace(stage, measured=replace(stage.measured, **changes))


def changed(outcome, row=0, **changes):
    """The outcome with one row that is otherwise."""
    stages = list(outcome.trained)
    stages[row] = replace(stages[row], **changes)
    return with_stages(outcome, stages)


@pytest.fixture(scope="module")
def four():
    return run(ranks=4, micro_batches=4)


def named(config, name=NAME):
    return replace(config, name=name)


def called(stage, name):
    return measured(stage, config=named(stage.config, name))


def with_stages(outcome, stages, *others):
    """The outcome with other rows."""
    return replace(outcome, rows=[*stages, *others])


def unfit(config, would_fit):
    """A row that did not fit."""
    return RowOutcome(Measurement(config, fits=False), needed_bytes=2, allowed_bytes=1, would_fit=would_fit)


def scaled(stage, factor):
    """As of a model that much larger, on ranks that do not send alike, with a long name."""

    def times(counts):
        return {kind: count * factor for kind, count in counts.items()}

    memory = [
        replace(rank, due=replace(rank.due, resting_bytes=times(rank.due.resting_bytes)), measured=replace(
            rank.measured, peak_bytes=times(rank.measured.peak_bytes),
            resting_bytes=times(rank.measured.resting_bytes)))
        for rank in stage.memory
    ]
    traffic = [
        replace(rank, measured=replace(
            rank.measured, sent_bytes=rank.measured.sent_bytes * factor * (2 + rank.measured.rank),
            messages=rank.measured.messages * (2 + rank.measured.rank)))
        for rank in stage.traffic
    ]
    longer = measured(stage, config=named(stage.config), seconds={"train": 7.5})
    return replace(longer, memory=memory, traffic=traffic, equal=False)


def rows(lines, *names):
    """The cells of the main table, by row; bars are left out."""
    table = lines[: next(number for number, line in enumerate(lines) if not line)]
    return {
        name: [cell for cell in line.removeprefix(name).split() if not set(cell) & set("█▓░━")]
        for name in names for line in table if line.startswith(f"{name} ")
    }


FOUR = ("DDP", "Stage I", "Stage II", "Stage III")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("factor", [1, 10, 1_000, 100_000, 3_000_000])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_broken(four, factor, width):
    outcome = with_stages(four, [scaled(stage, factor) for stage in four.trained])
    lines = printed(outcome, width, verbose=True, kind="mpi")
    assert [line for line in lines if len(line) > width and not re.fullmatch(r"FAILED: .*|  [0-9a-f]{64}", line)] == []
    wide = {word for line in printed(outcome, 500, verbose=True, kind="mpi") for word in line.split()}
    figures = {word for line in lines for word in line.split() if word[-1].isdigit()}
    assert figures - wide == set()


@pytest.mark.parametrize("width", [80, 60, 52])
def test_the_table_says_what_each_row_sends_keeps_and_holds(four, width):
    found = rows(printed(four, width), *FOUR)
    for name, stage in zip(FOUR, four.trained, strict=True):
        memory = max((rank.measured for rank in stage.memory), key=lambda figures: figures.peak_bytes["total"])
        kept, sent = sum(memory.resting_bytes.values()), stage.traffic[0].measured.sent_bytes / 4
        figures = [cell for cell in found[name] if cell[0].isdigit()]
        assert found[name][0] == "yes"
        assert figures == [f"{count / 1e3:.2f}" for count in (kept, sent, memory.peak_bytes["total"])]


WIDE = {60: (8, 6), 80: (16, 12), 120: (32, 18)}


def bar_faults(lines, stages, for_kept, for_sent):
    """Where a bar is not as long as what it stands for, of the four rows of `stages`."""
    most = sum(stages[0].memory[0].measured.resting_bytes.values())
    for stage, sent in zip(stages, (2, 2, 2, 3), strict=True):
        (line,) = [line for line in lines if line.startswith(f"{stage.name} ") and "━" in line]
        for kind in STATE_BARS:
            length, due = line.count(kind.shade), stage.memory[0].measured.resting_bytes[kind.name] * for_kept / most
            if not length or abs(length - due) > max(0.5, 1 - due):
                yield f"{length} columns of {kind.name} in {stage.name}, not {due:.1f}"
        if line.count("━") != sent * for_sent // 3:
            yield f"{stage.name} does not send {sent} units"


@pytest.mark.parametrize(("width", "most"), WIDE.items(), ids=str)
def test_bars_are_as_long_as_what_is_kept_and_sent(four, width, most):
    lines = printed(four, width)
    assert list(bar_faults(lines, four.trained, *most)) == []
    longer = {kind: 4 * count for kind, count in four.trained[2].memory[0].measured.resting_bytes.items()}
    held = [replace(rank, measured=replace(rank.measured, resting_bytes=longer)) for rank in four.trained[2].memory]
    assert list(bar_faults(lines, changed(four, 2, memory=held).trained, *most))
    assert not any("━" in line or "█" in line for line in printed(four, 52))


def test_headings_marks_and_names_are_explained_and_no_others(four):
    lines = printed(four, 220)
    keys = [line.split("  ")[0] for line in lines[lines.index("") + 1 : -1]]
    assert keys == [*FOUR, "same bits", "keeps", "sends", "peak"]
    assert "keeps      between steps: █ weights  ▓ gradients  ░ optimizer state" in printed(four)
    assert any(line.startswith("keeps      between steps: weights,") for line in printed(four, 52))
    two = printed(run(stages=("zero2", "zero3"), reference=False))
    assert "another row  keeps" in two[1]
    assert any(line.endswith("compared with those of the first row that adds in the same order") for line in two)
    assert "same bits as" not in "".join(printed(run(stages=("ddp",), reference=False)))


def test_colour_is_an_addition(four, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", highlight=False)
    show_run(console, read(changed(four, 1, equal=False)))
    coloured = console.file.getvalue()
    for each in ("\x1b[32myes", "\x1b[1;31mNO", "\x1b[34m█", "\x1b[33m▓", "\x1b[32m░", "\x1b[36m━"):
        assert each in re.sub(r" +", "", coloured)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines() == printed(changed(four, 1, equal=False), 80)


def test_what_rows_share_is_said_once_and_what_not_by_row(four):
    lines = printed(four)
    (shared,) = [line for line in lines if line.startswith("In all 4 rows: ")]
    stage = four.trained[0]
    assert shared == (
        f"In all 4 rows: 4 steps, final loss {float(stage.measured.losses[-1][0]):.4g}, test accuracy "
        f"{stage.measured.test:.2%}, the same weights")
    other = printed(changed(four, 1, measured=replace(four.trained[1].measured, weights_sha256="0")))
    digest = stage.measured.weights_sha256[:12]
    assert f"Weights SHA-256: {digest}... in DDP, Stage II and Stage III; 0 in Stage I" in other
    alike = printed(with_stages(four, four.trained[:2]))
    assert any(line.startswith("In both rows: ") for line in alike)


def test_rows_that_send_alike_are_spoken_of_as_their_stage(four):
    def sent(stages):
        return next(line for line in printed(with_stages(four, stages)) if line.startswith("sends "))

    first, *_, third = four.trained
    assert "a step: 2× that in DDP; 3× that in Stage III. " in sent([first, called(first, "DDP, overlap"), third])
    more = replace(called(third, "a, b"), volume=2.0)
    assert 'a step: 2× that in DDP and "a, b"; 3× that in Stage III. ' in sent([first, more, third])


def test_verbose_adds_to_the_tables(four):
    plain, verbose = printed(four), printed(four, verbose=True)
    assert [line for line in plain if line not in verbose] == []
    assert four.trained[0].measured.weights_sha256 in "".join(verbose)
    assert four.trained[0].measured.weights_sha256 not in "".join(plain)
    memory = four.trained[3].memory[0].measured
    at = [number for number, line in enumerate(verbose) if line.startswith("Stage III ")]
    held, peak = verbose[at[3]].split()[2:], verbose[at[3] + 1].split()[3:]
    assert held == [f"{count / 1e3:.1f}" for count in [*memory.resting_bytes.values(),
                                                       sum(memory.resting_bytes.values())]]
    assert peak == [f"{count / 1e3:.1f}" for count in memory.peak_bytes.values()]
    assert any(line.startswith("Kept bytes are the formula's, ") for line in verbose)


def test_the_time_of_a_step_is_shown_only_where_it_was_measured(four):
    def timed(**how):
        return any(re.search(r"messages .*\bms\b", line) for line in printed(four, **how))

    assert timed(verbose=True, kind="mpi")
    assert not timed(verbose=True)
    assert not timed(kind="mpi")


def test_what_is_not_the_formulas_is_marked(four):
    traffic = [replace(rank, due=replace(rank.due, messages=17)) for rank in four.trained[1].traffic]
    memory = [replace(rank, due=replace(rank.due, resting_bytes={**rank.due.resting_bytes, "gradients": 0}))
              for rank in four.trained[1].memory]
    wrong = printed(changed(four, 1, traffic=traffic, memory=memory), verbose=True)
    assert [cell[0] == "≠" for cell in rows(wrong, *FOUR)["Stage I"]] == [False, True, True, False]
    assert sum(line.startswith("  by formula") for line in wrong) == 1
    assert "≠          not what the formula says" in wrong
    assert not any("Kept bytes are the formula's" in line for line in wrong)
    assert wrong[-1].startswith(
        "FAILED: Stage I: messages are not the formula's: 72 of rank 0; expected 17; Stage I: bytes kept are not")
    right = printed(four, verbose=True)
    assert not any("≠" in line or line.startswith("  by formula") for line in right)


def test_failures_that_fit_no_line_stand_one_by_one_above_the_last(four):
    broken = changed(changed(four, 1, equal=False), 3, equal=False)
    assert printed(broken, 80)[-1] == "FAILED: Stage I: bits differ; Stage III: bits differ"
    assert printed(broken, 50)[-3:] == [
        "Stage I: bits differ", "Stage III: bits differ", "FAILED: 2 checks did not hold, of Stage I and Stage III"]


def test_a_name_is_not_taken_for_markup(four):
    first = replace(called(four.trained[0], "[bold]x[/] :smile:"), equal=False)
    lines = printed(with_stages(four, [first, *four.trained[1:]]))
    assert lines[1].startswith("[bold]x[/]") or lines[2].startswith("[bold]x[/]")
    assert lines[-1] == "FAILED: [bold]x[/] :smile:: bits differ"


def test_long_names_take_lines_and_long_words_keep_both_ends(four):
    long = "by reduce_scatter_and_then_all_gather, 2"
    lines = printed(with_stages(four, [called(four.trained[0], long), *four.trained[1:]]), 80)
    assert any(line.startswith("reduce_s…gather, ") or "…" in line for line in lines[:8])
    (first,) = [number for number, line in enumerate(lines) if line.startswith("by ")]
    assert lines[first].split()[-1] == f"{four.trained[0].memory[0].measured.peak_bytes['total'] / 1e3:.2f}"
    assert lines[first + 2] == "2"


def test_one_rank_and_no_steps_and_one_row():
    alone = printed(run(ranks=1, micro_batches=1, steps=1, stages=("ddp",)))
    assert alone[-1] == "PASSED: DDP on 1 rank: every bit equal to one process"
    assert rows(alone, "DDP")["DDP"][0::2] == ["yes", "0.0"]
    assert "sends      one rank sends nothing" in alone
    assert any(line.startswith("1 step, final loss") for line in alone)
    still = printed(run(stages=("ddp", "zero3"), steps=0), verbose=True)
    assert rows(still, "Stage III")["Stage III"] == ["yes"]
    assert any(line.startswith("In both rows: 0 steps, test accuracy") for line in still)
    assert still[-1] == "PASSED: 2 rows on 3 ranks: every bit equal to one process"


def test_sixteen_rows_and_those_that_do_not_fit(four):
    short = unfit(four.trained[3].config, ["ddp"])
    many = [called(four.trained[0], f"row {number}") for number in range(16)]
    lines = printed(with_stages(four, many, short), 80)
    assert len(rows(lines, *(stage.name for stage in many))) == 16
    assert rows(lines, "Stage III")["Stage III"] == ["does", "not", "fit"]
    assert any(line.startswith("Stage III does not fit: needs 0 MB") for line in lines)
    nothing = printed(with_stages(four, [], short))
    assert nothing[-1].startswith("FAILED: Stage III: needs 0 MB")


def test_regression_has_an_error_in_place_of_an_accuracy():
    data = labelled()
    y = data.x[:, :2].copy()
    lines = printed(run(Dataset(data.x, y, data.x[:8], y[:8], None), stages=("ddp",)))
    assert any(re.search(r"mean squared test error \d", line) for line in lines)
    assert not any("accuracy" in line for line in lines)


def test_rows_without_names_are_told_apart_wherever_one_is_spoken_of():
    variants = (Variant(stage="zero3"), Variant(stage="zero3", prefetch=True), Variant(stage="zero3", prefetch=True))
    names = ["Stage III", "Stage III, prefetch = true", "Stage III, prefetch = true (2)"]
    base = replace(scenario(steps=1), variant=variants)
    checks = Check(volumes=(5, 2, 5), messages=(30, 30, 17), same_bits_on=(1,), does_not_fit=("zero3",))
    outcome = run_locally(prepare(replace(base, check=checks), labelled()))
    assert [stage.name for stage in outcome.trained] == names
    failures = outcome.failures
    assert [name for name, what in failures if what == "fits after all"] == names
    assert (names[1], "sends 5 P (N−1)/N, not 2") in failures
    assert (names[2], "sends 30 messages a step, not 17") in failures
    assert [name for name, what in outcome.failures if what == "different bits on 1 rank"] == names


def test_digests_on_other_ranks_are_named_where_rows_differ(four):
    def elsewhere(stage):
        return {2: measured(stage, weights_sha256="1" if stage.name == "DDP" else "2")}

    lines = printed(replace(four, rows=[replace(row, on_other_ranks=elsewhere(row)) for row in four.rows]))
    assert " 2 ranks  1  DDP" in lines
    assert " 2 ranks  2  Stage I, Stage II and Stage III" in lines
    assert f" 4 ranks  {four.trained[0].measured.weights_sha256[:12]}..." in lines


FOUND = Divergence(
    step=2, layer=1, parameter="weight", name="layers.1.weight", index=(0, 2), ours=0.5, reference=0.25,
    ours_bits="0x3f000000", reference_bits="0x3e800000", ulps=8388608, rank=1, state=None,
    differing_elements=3, chunk=0,
)


def divergence_lines(four, order, **changes):
    broken = changed(four, 3, equal=False, first_divergence=replace(FOUND, **changes), order=order)
    return [line for line in printed(broken, width=300) if line.startswith("Stage III: after") or " adds " in line]


def test_a_divergence_is_one_line_where_both_add_alike(four):
    same = {"ours": "g[0] + g[1]", "reference": "g[0] + g[1]"}
    assert divergence_lines(four, same) == [
        "Stage III: after step 2, rank 1 holds layers.1.weight[0, 2] = 0.5, one process 0.25 (8388608 ULP apart; "
        "chunk 0)"]


def test_two_orders_of_addition_are_printed(four):
    orders = {"ours": "g[1] + g[0]", "reference": "g[0] + g[1]"}
    assert divergence_lines(four, orders)[1:] == [
        "    ours adds       g[1] + g[0]", "    reference adds  g[0] + g[1]"]


def documented(page):
    """By heading, the keys in the first column of the tables below it; `.b` continues the key before it."""
    keys, heading, section = {}, "", ""
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| `"):
            for word in line.split("|")[1].replace("`", "").split(","):
                key = word.strip()
                section = section if key.startswith(".") else key.rpartition(".")[0]
                keys.setdefault(heading, set()).add(section + key if key.startswith(".") else key)
    return keys


def test_every_key_of_the_document_is_documented(four):
    where = fragmentation([Lifetime("activations", "layers.0", 8, since=1)])
    broken = changed(four, first_divergence=FOUND, order={"ours": "a", "reference": "b"}, fragmentation=where)
    config, other = four.rows[0].config, {2: four.trained[0]}
    broken = replace(broken, rows=[
        replace(broken.rows[0], on_other_ranks=other), unfit(config, ["zero3"])])
    apart = RowDifference("a", "b", 1, "gradient", "w", (0,), (1.0, 2.0), 1, (0, 1), ("g0", "g1"), 1, 1, 1, 1, {"1": 1})
    written = document(replace(broken, differences=[apart]), {})
    stage = written["rows"][0]
    traced = document(run(steps=1, stages=("ddp",), traced=range(1, 2)), {})["rows"][0]["trace"]
    of_a_plan = {"The JSON document of `zerosim plan`", "`rows` of a plan", "`memory` of a row", "`answers`"}
    found = documented(ROOT / "docs" / "outcome.md")
    assert {heading: set(keys) for heading, keys in found.items() if heading not in of_a_plan} == {
        "The JSON document of `zerosim run`": set(written),
        "Each of `rows`": {*stage, "own_stage"},
        "Each of `traffic`": set(stage["traffic"][0]),
        "Each of `memory`": set(stage["memory"][0]),
        "`trace`": set(traced),
        "Each of `clocks`": set(traced["clocks"][0]),
        "Each of `steps`": set(traced["steps"][0]),
        "Each of `spans`": set(traced["steps"][0]["spans"][0]),
        "`fragmentation`": set(stage["fragmentation"]),
        "Each of `address_space`": set(stage["fragmentation"]["address_space"][0]),
        "As plain rows": set(compared(read(four))[0]),
        "`first_divergence`": set(stage["first_divergence"]),
        "Each of `differences`": set(written["differences"][0]),
        "Each of `did_not_fit`": set(written["did_not_fit"][0]),
        "Each of `on_other_ranks`": set(written["on_other_ranks"][0]),
    }
