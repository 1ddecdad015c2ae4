"""The trace: what each rank does when adds up, is what the ledgers say, and is written as other programs want it."""

import json
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.mpi.launch import ROOT, mpirun
from tests.observe.tracing import read_trace, span_faults, traffic_faults
from tests.pages import read
from tests.training import labelled, scenario
from zerosim.commands.cli import main
from zerosim.observe.observed import Observed
from zerosim.observe.trace import (
    COLLECTIVES,
    COMPUTATION,
    IN,
    OUT,
    WAITING,
    ClockOffset,
    RankStep,
    Span,
    Trace,
    Tracer,
    offsets,
)
from zerosim.scenario.sections import Variant
from zerosim.show.document import document, written
from zerosim.show.shown import printed
from zerosim.show.table import show_times
from zerosim.show.trace_events import trace_events
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally
from zerosim.worlds.local import spawn

ROWS = (
    Variant(stage="ddp"), Variant(stage="zero1", publish="broadcasts"), Variant(stage="zero1", publish="updates"),
    Variant(stage="zero2", accumulation="micro_batch", gradients="all_reduce", overlap=True),
    Variant(stage="zero3"), Variant(stage="zero3", prefetch=True, overlap=True),
)


def traced(steps=range(1, 3), **changes):
    base = scenario(steps=2, **changes)
    built = replace(base, variant=ROWS, train=replace(base.train, clip_norm=0.5))
    return run_locally(prepare(built, labelled(), traced=steps))


@pytest.fixture(scope="module")
def outcome():
    return traced()


# What a trace says.


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_spans_add_up_and_are_what_the_ledgers_counted(ranks):
    found = traced(ranks=ranks)
    assert found.failures == []
    for row in written(document(found, {}))["rows"]:
        trace = read_trace(row["trace"])
        assert [(step.step, step.rank) for step in trace.steps] == [(s, r) for r in range(ranks) for s in (1, 2)]
        assert list(span_faults(trace)) == []
        assert list(traffic_faults(trace, row["traffic"])) == []


def test_an_order_free_sum_is_traced_like_any_other():
    base = scenario(steps=1, order="exact", stages=("zero3",))
    (row,) = run_locally(prepare(base, labelled(), traced=range(1, 2))).trained
    assert span_faults(row.measured.trace) == []


def test_what_a_rank_does_stands_in_the_order_of_its_stage(outcome):
    first = next(step for step in outcome.trained[4].measured.trace.steps if (step.rank, step.step) == (1, 1))
    told = [(span.what, span.unit) for span in first.spans if span.lane in (COMPUTATION, COLLECTIVES)]
    units = [f"layers.{index}" for index in range(3)]
    forward = [(what, unit) for unit in units for what in ("all_gather", "forward")]
    backward, reduced = (
        [(what, unit) for unit in reversed(units) for what in ("all_gather", "backward", *more)]
        for more in ((), ("reduce_scatter",)))
    assert told == [
        *forward, ("loss", ""), *backward, *forward, ("loss", ""), *reduced,         # two micro-batches
        ("gather_norms", "norms"), *(("update", unit) for unit in units)]


def test_waiting_for_what_goes_on_beside_the_step_is_told_apart(outcome):
    plain, beside = (row.measured.trace.steps[0].spans for row in outcome.trained[4:])
    assert not [span for span in plain if span.lane == WAITING]
    assert [span.unit for span in beside if span.lane == WAITING] == [
        *(f"layers.{index}" for index in (0, 1, 2, 2, 1, 0)),                   # gathered
        *(f"layers.{index}" for index in (0, 1, 2, 2, 1, 2, 0, 1, 0))]          # from 2 on also reduced


def test_no_trace_is_in_the_document_unless_one_was_asked_for(outcome):
    assert [row["trace"] for row in written(document(traced(range(0)), {}))["rows"]] == [None] * len(ROWS)
    assert all(row["trace"]["steps"] for row in written(document(outcome, {}))["rows"])


def test_memory_is_told_beside_the_spans(outcome):
    for row in outcome.trained:
        for step in row.measured.trace.steps:
            peaks = row.memory[step.rank][0].peak_bytes
            most = {kind: max(held.get(kind, 0) for _, held in step.memory) for kind in peaks}
            assert all(most[kind] <= peaks[kind] for kind in most)
            assert most["gradients"] == peaks["gradients"]


def test_a_tracer_notes_nothing_before_it_begins_and_after_it_has_ended():
    def program(comm):
        tracer = Tracer(comm.rank)
        observed = Observed(comm, tracer)
        work = observed.named("work", lambda: observed.exchange(np.ones(1), to=0, into=np.ones(1), source=0))
        work("before")
        tracer.begin()
        work("within")
        step = tracer.end(1)
        work("after")
        tracer.begin()
        return step, tracer.end(2)

    ((first, second),) = spawn(program, 1)
    assert [(span.lane, span.unit) for span in first.spans] == [(lane, "within") for lane in (IN, OUT, COLLECTIVES)]
    assert second.spans == []


# Figures.


def step(*spans, end=100, rank=0):
    return RankStep(rank, 1, 0, end, [Span(rank, lane, channel, "", "", *when) for lane, channel, *when in spans])


def test_what_is_hidden_waited_for_and_idle_by_hand():
    found = step(
        (COMPUTATION, 1, 0, 30), (COLLECTIVES, 1, 30, 40), (COLLECTIVES, 2, 20, 60), (WAITING, 1, 45, 60),
        (COMPUTATION, 1, 60, 90),
    )
    times = found.times
    figures = (times.computation_ns, times.waiting_ns, times.idle_ns, times.communication_ns, times.hidden_ns)
    assert figures == (60, 25, 15, 40, 10)
    other = step((COLLECTIVES, 1, 0, 40))
    assert Trace([ClockOffset(0, "")], [found, other]).hidden == 10 / 80
    assert Trace([ClockOffset(0, "")], [step((COMPUTATION, 1, 0, 3))]).hidden is None


# Planted faults: the checker of spans must see each.


def changed(trace, lane, change, rank=1):
    """The trace in which `change` has been made to the last span of that lane of a rank; None takes it away."""
    target = next(each for each in trace.steps if each.rank == rank)
    index = max(at for at, span in enumerate(target.spans) if span.lane == lane)
    spans = [*target.spans]
    spans[index : index + 1] = [msgspec.structs.replace(spans[index], **change(spans[index]))] if change else []
    return replace(trace, steps=[replace(each, spans=spans) if each is target else each for each in trace.steps])


@pytest.mark.parametrize(("lane", "change", "words"), [
    (COMPUTATION, lambda span: {"begin_ns": span.begin_ns - 10**10}, "is not within the step"),
    (COLLECTIVES, lambda span: {"end_ns": span.end_ns + 10**9}, "overlap in the step's thread"),
    (COMPUTATION, lambda span: {"rank": 0}, "a span of rank 0"),
    (OUT, lambda span: {"bytes": span.bytes + 4}, "bytes and its messages"),
    (OUT, lambda span: {"peer": 1}, "sent is not what rank"),
    (IN, lambda span: {"unit": "layers.9"}, "a message of all_gather for layers.9"),
    (IN, lambda span: {"what": "broadcast"}, "a message of broadcast for"),
    (IN, lambda span: {"waited_ns": span.ns + 1}, "waits longer than it takes"),
    (COLLECTIVES, None, "lies in []"),
])
def test_a_fault_in_a_trace_is_seen(outcome, lane, change, words):
    trace = outcome.trained[0].measured.trace
    assert span_faults(trace) == []
    assert any(words in fault for fault in span_faults(changed(trace, lane, change)))


@pytest.mark.parametrize(("lane", "change"), [
    (OUT, None), (IN, None), (COLLECTIVES, lambda span: {"what": "scatter"}),
])
def test_a_message_that_the_ledger_does_not_have_is_seen(outcome, lane, change):
    row = written(document(outcome, {}))["rows"][0]
    trace = read_trace(row["trace"])
    assert list(traffic_faults(trace, row["traffic"])) == []
    assert list(traffic_faults(changed(trace, lane, change), row["traffic"])) != []


def test_memory_out_of_order_is_seen(outcome):
    trace = outcome.trained[0].measured.trace
    first = trace.steps[0]
    for memory in ([], first.memory[::-1], [(first.begin_ns - 1, {}), *first.memory]):
        assert span_faults(replace(trace, steps=[replace(first, memory=memory), *trace.steps[1:]]))


# Clocks.


@pytest.mark.parametrize("ahead", [0, 10**12, -(10**12)])
def test_another_hosts_clock_is_found_within_what_is_said(ahead):
    """The local world has one clock, so what is found must be what was added to it on one rank, but for so much."""
    def program(comm):
        skew = ahead if comm.rank == 1 else 0
        return offsets(comm, f"host {comm.rank % 2}", lambda: time.monotonic_ns() + skew)

    found, *others = spawn(program, 3)
    assert others == [[], []]
    assert (found[0], found[2]) == (ClockOffset(0, "host 0"), ClockOffset(2, "host 0"))
    assert 0 < found[1].uncertainty_ns < 10**9
    assert abs(found[1].offset_ns - ahead) <= found[1].uncertainty_ns


# Trace events.


@pytest.fixture(scope="module")
def events(outcome):
    return trace_events([(row.name, row.measured.trace) for row in outcome.trained])


def test_trace_events_are_well_formed_and_complete(events, outcome):
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    spans = [span for row in outcome.trained for step in row.measured.trace.steps for span in step.spans]
    messages = sum(span.lane == OUT for span in spans)
    kinds = [event["ph"] for event in events["traceEvents"]]
    assert {kind: kinds.count(kind) for kind in "Xsf"} == {"X": len(spans), "s": messages, "f": messages}
    names = [event["args"]["name"] for event in events["traceEvents"] if event["name"] == "process_name"]
    assert names == [f"{row.name}, rank {rank}" for row in outcome.trained for rank in range(3)]
    carried = [event["args"]["bytes"] for event in events["traceEvents"] if event.get("cat") == OUT]
    assert sum(carried) == sum(rank.sent_bytes for row in outcome.trained for rank in row.measured.traffic)


# The terminal.


def test_the_time_of_a_traced_step_is_shown(outcome):
    by_hand = step((COMPUTATION, 1, 0, 4 * 10**6), (COLLECTIVES, 2, 10**6, 9 * 10**6), end=10**7)
    trace = Trace([ClockOffset(0, "")], [by_hand])
    rows = [replace(row, measured=replace(row.measured, trace=trace))
            for row in outcome.rows]
    for kind in ("mpi", "local"):
        run = read(replace(outcome, rows=rows[:2]), kind=kind)
        lines = printed(lambda console, run=run: show_times(console, run), 80).splitlines()
        shown = [line.split()[-6:] for line in lines if "10.0" in line]
        assert shown
        assert all(words == ["10.0", "4.0", "0.0", "6.0", "8.0", "38%"] for words in shown)
        assert ("ranks take turns" in " ".join(lines)) is (kind == "local")
    assert printed(lambda console: show_times(console, read(traced(range(0))))) == ""


# The command line.


SMALL = ["--set", "train.steps=3", "--set", "check.test_accuracy=0", "--set", "world.ranks=2", "--progress", "none"]


def test_a_trace_is_written_of_the_last_step_or_of_those_named(tmp_path, capsys):
    path, out = tmp_path / "trace.json", tmp_path / "out.json"
    for flags, due in (([], {3}), (["--trace-steps", "1..2"], {1, 2})):
        arguments = ["run", str(ROOT / "scenarios" / "zero3.toml"), *SMALL, "--trace", str(path), "--json", str(out)]
        assert main([*arguments, *flags]) == 0
        written = json.loads(path.read_text())
        steps = {event["args"]["step"] for event in written["traceEvents"] if event["ph"] == "X"}
        assert steps == {step["step"] for step in json.loads(out.read_text())["rows"][0]["trace"]["steps"]} == due
    capsys.readouterr()


# Under MPI.


BESIDE = """
[world]
ranks = 2
[model]
hidden = [1024, 1024, 1024]
[train]
steps = 2
micro_batch = 32
micro_batches = 2
[check]
reference = false
[[variant]]
name = "in turn"
[[variant]]
name = "prefetch"
prefetch = true
[[variant]]
name = "overlap"
stage = "zero2"
overlap = true
"""


def beside_computation(trace, what):
    """How many collectives of that name began before a computation of their rank ended, and ended after it began."""
    return sum(
        any(span.begin_ns < other.end_ns and other.begin_ns < span.end_ns
            for other in step.spans if other.lane == COMPUTATION and other.what in ("forward", "backward"))
        for step in trace.steps for span in step.spans if span.lane == COLLECTIVES and span.what == what
    )


@pytest.mark.mpi
def test_what_is_asked_to_go_on_beside_computation_does_and_nothing_else(tmp_path):
    """On 64-1024-1024-1024-10, where it takes long enough to be seen."""
    path, out, events = tmp_path / "beside.toml", tmp_path / "out.json", tmp_path / "trace.json"
    path.write_text(BESIDE)
    done = mpirun(2, ["-m", "zerosim", "run", str(path), "--trace", str(events), "--trace-steps", "1..2",
                      "--json", str(out), "--progress", "none"])
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    in_turn, prefetch, overlap = traces = [read_trace(row["trace"]) for row in rows]
    for row, trace in zip(rows, traces, strict=True):
        assert list(span_faults(trace)) == []
        assert list(traffic_faults(trace, row["traffic"])) == []
        assert [clock.uncertainty_ns for clock in trace.clocks] == [0, 0]
    assert (beside_computation(in_turn, "all_gather"), in_turn.hidden) == (0, 0)
    assert beside_computation(in_turn, "reduce_scatter") == beside_computation(prefetch, "reduce_scatter") == 0
    assert beside_computation(prefetch, "all_gather") > 0 < prefetch.hidden
    assert beside_computation(overlap, "reduce_scatter") > 0 < overlap.hidden
