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
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from zerosim.observe.trace import COLLECTIVES, COMPUTATION, IN, OFFLOAD, OUT, WAITING, Lane, Span, Trace

Event = dict[str, Any]
AT_THE_TOP: tuple[Lane, ...] = (COMPUTATION, WAITING)
OF_A_CHANNEL: tuple[Lane, ...] = (COLLECTIVES, OUT, IN)
"""The lanes of a rank from the top: those of the step first, then those of each channel."""
LAST = 90
"""The thread number of copies between tiers of memory, below all other lanes."""


def trace_events(rows: Sequence[tuple[str, Trace]], about_times: str = "") -> dict[str, Any]:
    """The document of trace events for named rows, with a sentence on their times, in JSON's own types."""
    events: list[Event] = []
    for name, trace in rows:
        ranks = [clock.rank for clock in trace.clocks]
        first = max((event["pid"] for event in events), default=0) + 1
        pids = {rank: first + index for index, rank in enumerate(ranks)}
        for rank in ranks:
            events += names(pids[rank], f"{name}, rank {rank}", trace, rank)
        numbered = flows(trace, first_id=1 + sum(event["ph"] == "s" for event in events))
        for step in trace.steps:
            pid = pids[step.rank]
            for span in step.spans:
                events += span_events(pid, step.step, span, numbered)
            events += [counter(pid, at, held) for at, held in step.memory]
    clocks = {name: [vars(clock) for clock in trace.clocks] for name, trace in rows}
    about = {"clocks": clocks} | ({"times": about_times} if about_times else {})
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def names(pid: int, name: str, trace: Trace, rank: int) -> Iterator[Event]:
    """The names of a rank and of its used lanes."""
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
    used = {(span.lane, span.channel) for step in trace.steps if step.rank == rank for span in step.spans}
    for tid, lane, channel in sorted((thread_of(lane, channel), lane, channel) for lane, channel in used):
        beside = ", beside the step" if channel > 1 else ""
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": f"{lane}{beside}"}}
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def thread_of(lane: Lane, channel: int) -> int:
    """The thread that stands for a lane in a channel.

    >>> thread_of(COMPUTATION, 1), thread_of(COLLECTIVES, 1), thread_of(IN, 2)
    (1, 3, 8)
    """
    if lane == OFFLOAD:
        return LAST + channel
    if lane in AT_THE_TOP:
        return AT_THE_TOP.index(lane) + 1
    return len(AT_THE_TOP) + len(OF_A_CHANNEL) * (channel - 1) + OF_A_CHANNEL.index(lane) + 1


def flows(trace: Trace, first_id: int) -> dict[Span, int]:
    """A number for each message recorded at both ends, by either span."""
    everything = [(step.step, span) for step in trace.steps for span in step.spans]
    ends = message_ends((span.lane, span.rank, span.peer, span.channel, step) for step, span in everything)
    in_order = sorted(ends, key=itemgetter(1))
    return {everything[at][1]: number for number, pair in enumerate(in_order, first_id) for at in pair}


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


def span_events(pid: int, step: int, span: Span, numbered: dict[Span, int]) -> Iterator[Event]:
    """The event of a span and, if it is one end of a message, that of its flow."""
    tid = thread_of(span.lane, span.channel)
    about = {"bytes": span.bytes, "peer": span.peer, "waited_us": span.waited_ns / 1000}
    carried = about if span.lane in (OUT, IN) else {"bytes": span.bytes} if span.lane in (COLLECTIVES, OFFLOAD) else {}
    yield {
        "ph": "X", "pid": pid, "tid": tid, "name": f"{span.what} {span.unit}".strip(), "cat": span.lane,
        "ts": span.begin_ns / 1000, "dur": span.ns / 1000, "args": {"step": step, "unit": span.unit, **carried},
    }
    if span in numbered:
        begins = span.lane == OUT
        yield {
            "ph": "s" if begins else "f", "pid": pid, "tid": tid, "name": "message", "cat": "message",
            "id": numbered[span], "ts": (span.begin_ns + span.waited_ns) / 1000, **({} if begins else {"bp": "e"}),
        }


def counter(pid: int, at_ns: int, held: dict[str, int]) -> Event:
    return {"ph": "C", "pid": pid, "name": "bytes", "ts": at_ns / 1000, "args": held}
