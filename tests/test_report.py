"""What a run shows: within 80 columns, without colour, with the numbers that settle it."""

import io
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.training import run
from zerosim.report.conclusion import conclusion
from zerosim.report.document import document
from zerosim.report.table import show_outcome
from zerosim.scenario import Scenario
from zerosim.scenario.schema import Variant
from zerosim.verdict.diagnosis import Divergence
from zerosim.verdict.outcome import OtherRanks, RowOutcome, Shortage

NAME = "a variant with long name"
ROOT = Path(__file__).parents[1]


def shown(outcome, width=200):
    """The lines that go to a file of so many columns."""
    file = io.StringIO()
    show_outcome(Console(file=file, width=width), outcome)
    return file.getvalue().splitlines()


def changed(outcome, row=0, **changes):
    """The outcome with one row that is otherwise."""
    stages = list(outcome.stages)
    stages[row] = replace(stages[row], **changes)
    return with_stages(outcome, stages)


@pytest.fixture(scope="module")
def four():
    return run(ranks=4, micro_batches=4)


def named(config, name=NAME):
    return replace(config, row=replace(config.row, name=name))


def with_stages(outcome, stages):
    """The outcome with other figures for its rows."""
    return replace(outcome, rows=[replace(row, config=stage.config, trained=stage)
                                  for row, stage in zip(outcome.rows, stages, strict=True)])


def scaled(stage, factor):
    """As of a model that much larger, on ranks that do not send alike, with a long name."""

    def times(counts):
        return {kind: count * factor for kind, count in counts.items()}

    memory = [
        replace(rank, resting_bytes=times(rank.resting_bytes), formula_bytes=times(rank.formula_bytes),
                peak_bytes=times(rank.peak_bytes))
        for rank in stage.memory
    ]
    traffic = [
        replace(rank, sent_bytes=rank.sent_bytes * factor * (2 + rank.rank), messages=rank.messages * (2 + rank.rank))
        for rank in stage.traffic
    ]
    return replace(stage, config=named(stage.config), memory=memory, traffic=traffic, seconds=7.5, equal=False)


@pytest.mark.parametrize("factor", [1, 10, 1_000, 100_000, 3_000_000])
def test_tables_fit_80_columns(four, factor):
    assert len(NAME) == 24
    outcome = with_stages(four, [scaled(stage, factor) for stage in four.stages])
    tables = shown(outcome)[: 3 + 4 + 2 + 2 * 4]
    assert [line for line in tables if len(line.rstrip()) > 80] == []
    assert sum(line.startswith(NAME) for line in tables) == 2 * 4
    assert not any("…" in line for line in tables)


def test_everything_fits_80_columns_when_it_must(four):
    lines = shown(with_stages(four, [scaled(stage, 1_000) for stage in four.stages]), width=80)
    assert max(map(len, lines)) <= 80


def test_the_tables_have_the_numbers(four):
    sent, held = four.stages[3].traffic[0].sent_bytes / 4 / 1e3, four.stages[3].memory[0]
    lines = [line.split() for line in shown(four)]
    (computed, _), (kept, peak) = [
        (line, after) for line, after in pairwise(lines) if line[:2] == ["Stage", "III"]]
    assert computed[2] == "equal"
    assert computed[-4:-1] == [f"{sent:.1f}", "3", "27"]
    assert kept[2:] == [f"{held.resting_bytes[kind] / 1e3:.1f}" for kind in held.resting_bytes] + [
        f"{sum(held.resting_bytes.values()) / 1e3:.1f}"]
    assert peak[3:] == [f"{count / 1e3:.1f}" for count in held.peak_bytes.values()]


def test_what_is_not_the_formulas_is_marked(four):
    traffic = [replace(rank, formula_messages=17) for rank in four.stages[1].traffic]
    memory = [replace(rank, formula_bytes={**rank.formula_bytes, "gradients": 0}) for rank in four.stages[1].memory]
    wrong = shown(changed(four, 1, traffic=traffic, memory=memory))
    assert sum("≠ 2" in line for line in wrong) == 1
    assert sum(line.startswith("  by formula") for line in wrong) == 1
    assert not any("At rest: the formula's bytes" in line for line in wrong)
    assert wrong[-1].startswith(
        "FAILED: Stage I: messages are not the formula's: 72 of rank 0, where 17 are due; Stage I: bytes kept are not")
    right = shown(four)
    assert not any("≠" in line or "by formula" in line for line in right)
    assert any(line.startswith("At rest: the formula's bytes, ") for line in right)


def test_a_name_is_not_taken_for_markup(four):
    assert sum(line.startswith("[bold]x[/]") for line in shown(changed(four, name="[bold]x[/]"))) == 2


def test_one_step_and_one_rank_are_singular():
    assert shown(run(ranks=1, micro_batches=1, steps=1, stages=("ddp",)))[-1] == (
        "PASSED: DDP on 1 rank, 1 step: every bit equal to one process")
    assert shown(run(stages=("ddp",), steps=0))[-1].startswith("PASSED: DDP on 3 ranks, 0 steps: ")


def test_the_conclusion_names_what_differs(four):
    text = conclusion(four)
    assert text.startswith(
        "All 4 rows end with the same weights, bit for bit. "
        "A rank sends 2, 2, 2 and 3 P (N−1)/N in 18, 18, 18 and 27 messages a step; "
        "for each parameter it keeps 4.11, 4.11, 4.11 and 1.03 bytes of weights, ")
    by_kind = [stage.memory[0].peak_bytes for stage in four.stages]
    weights, gradients = ([f"{peak[kind] / 1e3:.1f}" for peak in by_kind] for kind in ("parameters", "gradients"))
    assert weights[2] > weights[3]
    assert text.endswith(
        f"; at the peak it holds {', '.join(weights[:3])} and {weights[3]} kB of weights, "
        f"{', '.join(gradients[:3])} and {gradients[3]} kB of gradients.")


def test_the_conclusion_leaves_out_what_is_the_same(four):
    same = replace(four, stages=[four.stages[0], replace(four.stages[0], name="another")])
    assert conclusion(same) == (
        "Both rows end with the same weights, bit for bit. A rank sends 2 P (N−1)/N in 18 messages a step.")


def test_the_conclusion_tells_weights_apart(four):
    three = replace(four, stages=four.stages[:3])
    assert conclusion(changed(three, 1, weights_sha256="0")).startswith(
        "DDP and Stage II end with the same weights, bit for bit; Stage I with other ones. ")
    assert conclusion(changed(changed(three, 1, weights_sha256="0"), 2, weights_sha256="1")).startswith(
        "Each row ends with other weights. ")


def test_the_conclusion_names_every_group_of_equal_weights(four):
    two_groups = changed(changed(four, 2, weights_sha256="0"), 3, weights_sha256="0")
    assert conclusion(two_groups).startswith(
        "DDP and Stage I end with the same weights, bit for bit; Stage II and Stage III end with the same weights, "
        "bit for bit. A rank sends ")


def test_the_conclusion_stands_before_the_verdict_of_several_rows(four):
    assert shown(four, width=2_000)[-2] == conclusion(four)
    alone = shown(replace(four, stages=four.stages[:1]))
    assert not any(line.startswith("A rank sends") for line in alone)


def test_without_steps_only_weights_are_compared():
    assert conclusion(run(steps=0)) == "All 4 rows end with the same weights, bit for bit."


FOUND = Divergence(
    step=2, layer=1, parameter="weight", index=(0, 2), ours=0.5, reference=0.25, ours_bits="3f000000",
    reference_bits="3e800000", ulps=8388608, rank=1, state=None, differing_elements=3, chunk=0,
)


def divergence_lines(four, order, **changes):
    broken = changed(four, 3, equal=False, first_divergence=replace(FOUND, **changes), order=order)
    return [line for line in shown(broken, width=300) if line.startswith("Stage III: after") or " adds " in line]


def test_a_divergence_is_one_line_where_both_add_alike(four):
    same = {"ours": "g[0] + g[1]", "reference": "g[0] + g[1]"}
    assert divergence_lines(four, same) == [
        "Stage III: after step 2, rank 1 holds layers.1.weight[0, 2] = 0.5, one process 0.25 "
        "(8388608 ULP apart; chunk 0)"]


def test_two_orders_of_addition_are_shown(four):
    orders = {"ours": "g[1] + g[0]", "reference": "g[0] + g[1]"}
    assert divergence_lines(four, orders)[1:] == [
        "    ours adds       g[1] + g[0]", "    reference adds  g[0] + g[1]"]


@pytest.mark.parametrize(("ours", "bits", "words"), [
    (float("nan"), "7fc00001", "= nan (0x7fc00001), one process 0.25 ("),
    (-0.0, "80000000", "= -0.0 (0x80000000), one process 0.25 ("),
    (0.0, "00000000", "= 0.0 (0x00000000), one process 0.25 ("),
    (float(np.float32(1e-40)), "000116c2", "= 9.99994610111476e-41, one process 0.25 ("),
])
def test_bits_are_shown_where_the_number_does_not_tell_them(four, ours, bits, words):
    (line,) = divergence_lines(four, {}, ours=ours, ours_bits=bits)
    assert words in line


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


def test_the_readme_has_every_key_of_a_scenario():
    default = Scenario()
    sections = {each.name: type(getattr(default, each.name)) for each in fields(Scenario)} | {"variant": Variant}
    keys = {
        f"{name}.{key.name}"
        for name, section in sections.items() if is_dataclass(section) and name != "origin"
        for key in fields(section)
    }
    assert documented(ROOT / "README.md")["Use it"] == {"title", "caption", *keys} - {"model.tied"}


def test_every_key_of_the_document_is_documented(four):
    broken = changed(four, first_divergence=FOUND, order={"ours": "a", "reference": "b"})
    config, other = four.rows[0].config, OtherRanks(2, four.stages[0])
    broken = replace(broken, rows=[
        replace(broken.rows[0], on_other_ranks=(other,)), RowOutcome(config, None, Shortage(2, 1, ["zero3"]))])
    written = document(broken, {})
    stage = written["stages"][0]
    assert {heading: set(keys) for heading, keys in documented(ROOT / "docs" / "outcome.md").items()} == {
        "The JSON document of `zerosim run`": set(written),
        "Each of `stages`": set(stage),
        "Each of `traffic`": set(stage["traffic"][0]),
        "Each of `memory`": set(stage["memory"][0]),
        "`first_divergence`": set(stage["first_divergence"]),
        "Each of `did_not_fit`": set(written["did_not_fit"][0]),
        "Each of `on_other_ranks`": set(written["on_other_ranks"][0]),
    }
