"""What must hold of any trace: checkers that say in words what does not."""

from collections import Counter, defaultdict
from itertools import pairwise

from zerosim.observe.trace import COLLECTIVES, COMPUTATION, IN, OUT, WAITING, ClockOffset, RankStep, Span, Trace


def read_trace(found):
    """The trace of a row of a JSON document."""
    return Trace([ClockOffset(**clock) for clock in found["clocks"]], [
        RankStep(step["rank"], step["step"], step["begin_ns"], step["end_ns"], [Span(**span) for span in step["spans"]],
                 [(at["ns"], {kind: count for kind, count in at.items() if kind != "ns"}) for at in step["memory"]])
        for step in found["steps"]])


def span_faults(trace):
    """What is wrong with the spans of a trace."""
    return [fault for step in trace.steps for fault in step_faults(step)] + list(end_faults(trace))


def step_faults(step):
    whose = f"rank {step.rank}, step {step.step}"
    lanes = defaultdict(list)
    for span in step.spans:
        lanes[span.lane, span.channel].append(span)
        if span.lane in (COMPUTATION, WAITING) or (span.lane == COLLECTIVES and span.channel == 1):
            lanes["the step's thread", 1].append(span)
        if span.rank != step.rank:
            yield f"{whose}: a span of rank {span.rank}"
        if not step.begin_ns <= span.begin_ns <= span.end_ns <= step.end_ns:
            yield f"{whose}: {span.what} is not within the step"
        if not 0 <= span.waited_ns <= span.ns:
            yield f"{whose}: {span.what} waits longer than it takes"
    for (lane, channel), spans in lanes.items():
        for one, other in pairwise(sorted(spans, key=lambda span: (span.begin_ns, span.end_ns))):
            if other.begin_ns < one.end_ns:
                yield f"{whose}: {one.what} and {other.what} overlap in {lane}, channel {channel}"
    yield from (f"{whose}: {fault}" for fault in collective_faults(step.spans))
    times = step.times
    parts = times.computation_ns + times.waiting_ns + times.waiting_for_memory_ns + times.idle_ns
    if parts != step.ns or times.idle_ns < 0:
        yield f"{whose}: computation, waiting and idle are not the step"
    if not 0 <= times.hidden_ns <= min(times.communication_ns, times.computation_ns):
        yield f"{whose}: more is hidden than there is"
    ahead = [at for at, _ in step.memory if not step.begin_ns <= at <= step.end_ns]
    if not step.memory or ahead or [at for at, _ in step.memory] != sorted(at for at, _ in step.memory):
        yield f"{whose}: memory is not told in the order of time, within the step"


def collective_faults(spans):
    """Every message lies in one collective of its name, unit and channel, which sent as much as its messages."""
    for collective in (span for span in spans if span.lane == COLLECTIVES):
        sent = sum(span.bytes for span in spans if span.lane == OUT and within(span, collective))
        if sent != collective.bytes:
            yield f"{collective.what} sent {collective.bytes} bytes and its messages {sent}"
    for message in (span for span in spans if span.lane in (IN, OUT)):
        around = [span for span in spans if span.lane == COLLECTIVES and within(message, span)]
        if [(span.what, span.unit) for span in around] != [(message.what, message.unit)]:
            yield f"a message of {message.what} for {message.unit} lies in {[span.what for span in around]}"


def within(message, collective):
    return (message.channel == collective.channel and collective.begin_ns <= message.begin_ns
            and message.end_ns <= collective.end_ns)


def end_faults(trace):
    """What is sent is received: message by message, in the order of each pair of ranks; `send_x` by `recv_x`."""
    sent, received = defaultdict(list), defaultdict(list)
    for step in trace.steps:
        for span in step.spans:
            if span.lane == OUT:
                sent[span.rank, span.peer, span.channel].append((span.what, span.unit, span.bytes))
            if span.lane == IN:
                received[span.peer, span.rank, span.channel].append(
                    (span.what.replace("recv_", "send_"), span.unit, span.bytes))
    for pair in {**sent, **received}:
        if sent[pair] != received[pair]:
            yield f"what rank {pair[0]} sent is not what rank {pair[1]} received, in channel {pair[2]}"


def traffic_faults(trace, counts):
    """Where spans of all steps are not the ledgers' counts: `counts` of each rank as in the JSON document."""
    for rank in counts:
        spans = [span for step in trace.steps if step.rank == rank["rank"] for span in step.spans]
        out = [span for span in spans if span.lane == OUT]
        found = {
            "sent_bytes": sum(span.bytes for span in out), "messages": len(out),
            "received_bytes": sum(span.bytes for span in spans if span.lane == IN),
        }
        for what, count in found.items():
            if count != rank[what]:
                yield f"rank {rank['rank']}: {what} {count}, {rank[what]} by the ledger"
        calls = Counter(span.what for span in spans if span.lane == COLLECTIVES)
        for name in {*calls, *rank["by_collective"]}:
            messages = [span for span in out if span.what == name]
            mine = {"calls": calls[name], "sent_bytes": sum(span.bytes for span in messages), "messages": len(messages)}
            if mine != rank["by_collective"].get(name):
                yield f"rank {rank['rank']}: {name} {mine}, {rank['by_collective'].get(name)} by the ledger"
