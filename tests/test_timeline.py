"""The timeline in the terminal: every column is what the spans say, at its moment, on one scale for all rows."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.pages import read
from tests.training import run
from zerosim.commands.cli import main
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, IN, OUT, WAITING, ClockOffset, RankStep, Span, Trace
from zerosim.show import timeline
from zerosim.show.timeline import LABEL, LETTERS, Scale, duration, show_timeline, typical_step

LANES = {"computes": (COMPUTATION,), "sends": (OUT,), "receives": (IN,)}
MS = 1_000_000


def shown(outcome, width=80, **console):
    file = io.StringIO()
    show_timeline(Console(file=file, width=width, emoji=False, highlight=False, **console), read(outcome))
    return file.getvalue().splitlines()


def blocks(lines):
    """Each row's lines below its heading: the axis, and the lanes by rank and name."""
    found = []
    for line in lines:
        label, drawn = line[: LABEL - 1].split(), line[LABEL:]
        if label == ["ms"]:
            found.append((drawn, {}))
        elif label and label[-1] in LANES and found:
            rank = int(label[1]) if len(label) == 3 else max(rank for rank, _ in found[-1][1])
            found[-1][1][rank, label[-1]] = drawn
    return found


def faults(lines, traces, width):
    """Where what is drawn is not what was recorded: `traces` of each row, of one step."""
    columns, whole = width - LABEL, max(duration(trace) for trace in traces)
    for (axis, lanes), trace in zip(blocks(lines), traces, strict=True):
        began = min(step.begin_ns for step in trace.steps)
        for number in re.finditer(r"[\d.]+", axis):
            if int(float(number[0]) * MS * columns / whole) != number.start():
                yield f"{number[0]} ms is at {number.start()}"
        for step in trace.steps:
            for lane, kinds in LANES.items():
                if (step.rank, lane) not in lanes:
                    continue
                drawn = lanes[step.rank, lane].ljust(columns)
                yield from (f"rank {step.rank} {lane}: {fault}" for fault in lane_faults(
                    drawn, [span for span in step.spans if span.lane in kinds], began, whole / columns))
                end = (step.end_ns - began) * columns / whole
                marks = [at for at, letter in enumerate(drawn) if letter == "|"]
                if any(not end <= at < end + 1 for at in marks) or (not marks and end < columns - 1):
                    yield f"rank {step.rank} ends at {marks}, not {end:.1f}"


def lane_faults(drawn, spans, began, column_ns):
    """What is drawn is there; what fills a column is drawn in it; of what is in one at all, something is."""
    ends = [(LETTERS[span.what].letter, (span.begin_ns + span.waited_ns - began) / column_ns,
             (span.end_ns - began) / column_ns) for span in spans if span.ns > span.waited_ns]
    least = 1 / column_ns
    for at, letter in enumerate(drawn):
        touched = {what for what, begin, end in ends if begin < at + 1 and end > at}
        there = {what for what, begin, end in ends if begin + least < at + 1 and end - least > at}
        filling = {what for what, begin, end in ends if begin <= at and end >= at + 1}
        if letter.isalpha() and letter.upper() not in touched:
            yield f"{letter} at {at} was not recorded"
        if filling - {letter}:
            yield f"{filling} fills {at}, where {letter!r} is drawn"
        if there and not letter.isalpha() and letter != "|":
            yield f"{there} is missing at {at}"


def step(rank, end, *spans):
    """From 0 to `end` ms."""
    return RankStep(rank, 7, 0, end * MS, [
        Span(rank, lane, channel, what, "u", begin * MS, stop * MS, waited_ns=waited * MS)
        for lane, channel, what, begin, stop, waited in spans])


def trace(*steps):
    return Trace([ClockOffset(each.rank, "here") for each in steps], list(steps))


ONE = trace(
    step(0, 60, (COMPUTATION, 1, "forward", 0, 17, 0), (COMPUTATION, 1, "backward", 17, 40, 0),
         (COLLECTIVES, 1, "reduce_scatter", 40, 52, 0), (OUT, 1, "reduce_scatter", 40, 52, 0),
         (IN, 1, "reduce_scatter", 40, 52, 9), (COMPUTATION, 1, "update", 55, 60, 0)),
    step(1, 48, (COMPUTATION, 1, "forward", 2, 30, 0), (OUT, 2, "all_gather", 10, 20, 0),
         (WAITING, 1, "wait", 30, 44, 0)))
OTHER = trace(step(0, 20, (COMPUTATION, 1, "recompute", 1, 9, 0)), step(1, 18, (COMPUTATION, 1, "loss", 8, 17, 0)))


@pytest.fixture(scope="module")
def traced():
    return run(ranks=2, micro_batches=4, traced=range(2, 4))


def drawing(traced, *traces):
    """An outcome in which rows have these traces."""
    pairs = zip(traced.rows, traces, strict=False)
    return replace(traced, rows=[
        replace(row, measured=replace(row.measured, trace=found))
        for row, found in pairs])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_column_is_what_was_recorded(traced, width):
    lines = shown(drawing(traced, ONE, OTHER), width)
    assert list(faults(lines, [ONE, OTHER], width)) == []
    assert [line for line in lines if len(line) > width] == []
    real = [typical_step(stage.measured.trace) for stage in traced.trained]
    assert list(faults(shown(traced, width), real, width)) == []


def test_two_ranks_drawn_by_hand(traced):
    lines = shown(drawing(traced, ONE, OTHER), LABEL + 30)
    assert [line.rstrip() for line in lines if re.search("[|] *$|UUU$", line) and "waiting" not in line] == [
        "rank 0 computes FFFFFFFFFBBBBBBBBBBB...... UUU",
        "rank 1 computes  FFFFFFFFFFFFFF.......  |",
        "       sends         GGGGG              |",
        "       receives                         |",
        "rank 0 computes RRRRR     |",
        "       sends              |",
        "       receives           |",
        "rank 1 computes     LLLLL|",
        "       sends             |",
        "       receives          |",
    ]
    assert lines[3].rstrip() == "             ms 0         20        40"
    assert [line.rstrip() for line in lines[5:7]] == [
        "       sends                        SSSSSS", "       receives                     ....SS"]


def test_a_wrong_scale_is_caught(traced, monkeypatch):
    honest = Scale.column
    monkeypatch.setattr(Scale, "column", lambda scale, ns: honest(scale, ns * 11 // 10))
    assert list(faults(shown(drawing(traced, ONE, OTHER)), [ONE, OTHER], 80))


def test_a_scale_for_each_row_and_a_lane_of_another_rank_are_caught(traced):
    apart = [*shown(drawing(traced, ONE)), *shown(drawing(traced, OTHER))]
    assert list(faults(apart, [ONE, OTHER], 80))
    swapped = trace(*(replace(each, rank=1 - each.rank) for each in ONE.steps))
    assert list(faults(shown(drawing(traced, ONE)), [swapped], 80))


@pytest.mark.parametrize("lane", [COMPUTATION, OUT, IN])
def test_two_spans_of_a_lane_that_overlap_are_caught(traced, monkeypatch, lane):
    both = trace(step(0, 60, (lane, 1, "forward", 0, 40, 0), (lane, 1, "backward", 20, 60, 0)))
    with pytest.raises(AssertionError, match="overlap"):
        shown(drawing(traced, both))
    monkeypatch.setattr(timeline, "overlapping", lambda found: False)
    assert list(faults(shown(drawing(traced, both)), [both], 80))


def test_what_is_beside_the_step_may_overlap_it(traced):
    beside = trace(step(0, 60, (OUT, 1, "all_gather", 0, 40, 0), (OUT, 2, "all_gather", 20, 60, 0)))
    assert "G" * 64 in "".join(shown(drawing(traced, beside)))


def test_how_much_was_hidden_is_said(traced):
    hidden = trace(step(0, 40, (COMPUTATION, 1, "forward", 0, 30, 0), (COLLECTIVES, 2, "all_gather", 20, 40, 0)))
    assert "DDP, step 7: 40.0 ms, 50% of communication hidden behind computation" in shown(drawing(traced, hidden))
    assert "DDP, step 7: 20.0 ms, no communication" in shown(drawing(traced, OTHER))


def test_of_many_ranks_the_first_are_drawn(traced):
    many = trace(*(replace(OTHER.steps[0], rank=rank) for rank in range(8)))
    lines = shown(drawing(traced, many))
    assert {rank for rank, _ in blocks(lines)[0][1]} == {0, 1, 2}
    assert "and 5 more ranks, 3 to 7: --trace FILE has all" in lines
    four = shown(drawing(traced, trace(*many.steps[:4])))
    assert {rank for rank, _ in blocks(four)[0][1]} == {0, 1, 2, 3}
    assert not any("more ranks" in line for line in four)


def test_the_step_of_median_length_is_drawn():
    steps = [replace(OTHER.steps[0], step=number, end_ns=end * MS) for number, end in [(1, 90), (2, 20), (3, 30)]]
    assert typical_step(trace(*steps)).steps == [steps[2]]


def test_letters_are_explained_and_no_others_and_colour_only_colours(traced, monkeypatch):
    lines = shown(drawing(traced, ONE))
    assert "F=forward  B=backward  U=update  S=reduce-scatter  G=all-gather" in lines
    assert "R=recomputation" in "".join(shown(drawing(traced, OTHER)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = "\n".join(shown(drawing(traced, ONE), force_terminal=True, color_system="standard"))
    assert "\x1b[94mF" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines() == lines


def test_the_command_line(tmp_path, capsys):
    scenario = tmp_path / "short.toml"
    scenario.write_text("world.ranks = 2\ntrain.steps = 7\nparallel.stages = ['ddp', 'zero3']\n")
    assert main(["run", str(scenario), "--timeline", "--json", str(tmp_path / "found.json")]) == 0
    said = capsys.readouterr().out
    assert said.count("rank 1 computes ") == 2
    steps = set(re.findall(r'"step": (\d+)', (tmp_path / "found.json").read_text()))
    assert steps == {"3", "4", "5", "6", "7"}
    assert main(["run", str(scenario), "--timeline", "--set", "train.steps=0"]) == 0
    assert "No step ran, so there is no timeline." in capsys.readouterr().out
    scenario.write_text("kind = 'collective'\n[[program]]\ncalls = ['ring.all_reduce']\n")
    assert main(["run", str(scenario), "--timeline"]) == 2
    assert "remove --trace, --trace-steps and --timeline" in capsys.readouterr().err


@pytest.mark.parametrize(("schedule", "ranks", "said"), [
    ("zb_h1", 2, "DDP: micro-batches forward and (backward of the input) and [of the weights], in turn"),
    ("1f1b", 2, "DDP: micro-batches forward and (backward), in turn"),
    ("zb_h1", 1, "parallel.schedule does nothing in DDP: it has no pipeline"),
])
def test_passes_of_a_schedule_are_explained(schedule, ranks, said, tmp_path, capsys):
    (tmp_path / "s.toml").write_text("world.ranks = 2\ntrain.steps = 1\nparallel.stages = ['ddp']\n"
                                     f"parallel.pipeline_ranks = {ranks}\nparallel.schedule = '{schedule}'\n")
    assert main(["run", str(tmp_path / "s.toml"), "--timeline"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
