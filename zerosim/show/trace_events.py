"""Traces as Chrome trace events, which Perfetto (https://ui.perfetto.dev) and chrome://tracing show.

    process    one rank of one row; all rows begin at 0, on one time scale
    thread     one of its lanes, in one channel: there no event begins before the previous one has ended
    flow       from the event of a sent message to the event in which it is received
    counter    the bytes of each kind that are alive

The format is "Trace Event Format" (Google, 2016). Times are microseconds, with three digits for nanoseconds.
Perfetto's own format would be smaller, but this one is readable and needs no dependency. `make
oracles` passes documents to Perfetto's parser and compares every span, flow and counter that it found.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from zerosim.observe.trace import COLLECTIVES, COMPUTATION, IN, OFFLOAD, OUT, WAITING, Lane, Trace

Event = dict[str, Any]
LANES: tuple[Lane, ...] = (COMPUTATION, WAITING, COLLECTIVES, OUT, IN)
"""The lanes of a channel from the top; copies between tiers of memory are below those of all channels."""


def trace_events(rows: Sequence[tuple[str, Trace]], about_times: str = "") -> dict[str, Any]:
    """The document of trace events for named rows, with a sentence on their times, in JSON's own types."""
    events: list[Event] = []
    pid = messages = 0
    for name, trace in rows:
        spans = [(step.step, span) for step in trace.steps for span in step.spans]
        ends = message_ends((span.lane, span.rank, span.peer, span.channel, step) for step, span in spans)
        numbered = {end: messages + number for number, both in enumerate(ends, 1) for end in both}
        messages += len(ends)
        pids = {clock.rank: pid + number for number, clock in enumerate(trace.clocks, 1)}
        pid += len(pids)
        for rank, process in pids.items():
            named = {("process", 0, f"{name}, rank {rank}", process)} | {
                ("thread", tid, f"{span.lane}{', beside the step' * (span.channel > 1)}", tid)
                for _, span in spans if span.rank == rank for tid in [thread_of(span.lane, span.channel)]}
            events += [{"ph": "M", "pid": process, "tid": tid, "name": f"{what}_{key}", "args": {key: value}}
                       for what, tid, words, number in sorted(named)
                       for key, value in (("name", words), ("sort_index", number))]
        for number, (step_number, span) in enumerate(spans):
            at = {"pid": pids[span.rank], "tid": thread_of(span.lane, span.channel)}
            carried: dict[str, Any] = {"step": step_number, "unit": span.unit}
            if span.lane in (COLLECTIVES, OFFLOAD, OUT, IN):
                carried |= {"bytes": span.bytes}
            if span.lane in (OUT, IN):
                carried |= {"peer": span.peer, "waited_us": span.waited_ns / 1000}
            events.append(at | {"ph": "X", "name": f"{span.what} {span.unit}".strip(), "cat": span.lane,
                                "ts": span.begin_ns / 1000, "dur": span.ns / 1000, "args": carried})
            if number in numbered:
                events.append(at | ({"ph": "s"} if span.lane == OUT else {"ph": "f", "bp": "e"}) | {
                    "name": "message", "cat": "message", "id": numbered[number],
                    "ts": (span.begin_ns + span.waited_ns) / 1000})
        events += [{"ph": "C", "pid": pids[step.rank], "name": "bytes", "ts": ns / 1000, "args": held}
                   for step in trace.steps for ns, held in step.memory]
    clocks = {name: [vars(clock) for clock in trace.clocks] for name, trace in rows}
    about = {"clocks": clocks} | ({"times": about_times} if about_times else {})
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def thread_of(lane: Lane, channel: int) -> int:
    """The thread that stands for a lane in a channel.

    >>> thread_of(COMPUTATION, 1), thread_of(COLLECTIVES, 1), thread_of(IN, 2)
    (1, 3, 15)
    """
    return 1000 + channel if lane == OFFLOAD else 10 * (channel - 1) + LANES.index(lane) + 1


def message_ends(spans: Iterable[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """Each message as the numbers of its two spans, at its sender and at its receiver; a span is given as its lane,
    rank, peer, channel, and whatever else distinguishes streams of messages.

    Messages of one channel between two ranks arrive in the order in which they were sent.

    >>> message_ends([(OUT, 0, 1, 1), (IN, 1, 0, 1), (OUT, 0, 1, 2), (OUT, 0, 1, 1), (IN, 1, 0, 1)])
    [(0, 1), (3, 4)]
    """
    ends: dict[tuple[Any, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, (lane, rank, peer, *stream) in enumerate(spans):
        if lane == OUT:
            ends[rank, peer, *stream][0].append(number)
        elif lane == IN:
            ends[peer, rank, *stream][1].append(number)
    return [pair for left, came in ends.values() for pair in zip(left, came, strict=False)]
