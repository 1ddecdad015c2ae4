"""The reason why a run ended early: unreceived messages, unanswered receives, or an exception."""

import re
from collections import Counter
from collections.abc import Sequence

from zerosim.errors import CollectiveError, Deadlock, Runaway
from zerosim.instruments.record import Sent
from zerosim.payloads.terms import LIKE
from zerosim.teach.proofs.case import Case, Observation, listed
from zerosim.teach.proofs.hints import CUT, hint, places_in, why_it_never_ends
from zerosim.worlds.local import StillRunning

SHOWN = 4
"""The most messages that are drawn."""

FITTING = "A message sent to right(comm) is received from left(comm) by that neighbour: to= and source= must match"


def why_it_ended(case: Case) -> str | None:
    """Why a run ended early, in words; None if the exception's message says all."""
    failure = case.recording.failure
    if "comm" in case.subject.parameters[1:]:
        return (f"its parameters are ({', '.join(case.subject.parameters)}), but it is called with the communicator "
                "first: make comm the first parameter")
    if isinstance(failure, StillRunning | Runaway):
        return why_it_never_ends(places_in(failure), case.subject.file)
    if isinstance(failure, Deadlock):
        said = why_it_waits(case)
        return said if case.sends == "rendezvous" else Observation(said)
    if isinstance(failure, CollectiveError):
        return unequal(case) or left_over(case) or returned_otherwise(case) or hint(failure)
    return None if failure is None else called_otherwise(case, failure) or hint(failure)


def why_it_waits(case: Case) -> str:
    """The cause of a deadlock."""
    if case.sends == "rendezvous":
        return only_buffered(case)
    awaited, unasked = case.recording.awaited, case.recording.unasked
    alone = [rank for rank, receive in awaited.items() if receive.source == rank]
    if alone:
        return (f"rank {alone[0]} waits for a message from rank {alone[0]}, itself, which it has not sent: source= "
                "is its own number there; skip the rank itself in a loop over all ranks, or check how the partner is "
                "computed")
    stray = [sent for sent in unasked if sent.to in awaited and awaited[sent.to].source != sent.source]
    if stray:
        first = stray[0]
        return (
            f"no rank receives {drawn(case, stray)}: rank {first.to} waits for a message from rank "
            f"{awaited[first.to].source} instead. {FITTING if around(case, stray) else PAIRED}"
        )
    ended = [rank for rank, receive in awaited.items() if receive.source not in awaited]
    if ended:
        return too_few_sent(case, ended[0])
    if not case.messages and not unasked:
        return ("all waiting ranks receive before they send: use comm.exchange, which does both at once, or have one "
                "rank of each pair send first")
    waits = ", ".join(f"rank {rank} for rank {receive.source}" for rank, receive in sorted(awaited.items())[:SHOWN])
    return (f"ranks wait for each other, {waits}: which of them should send first, in the round in which the others "
            "receive?")


PAIRED = "to= of the sender and source= of the receiver must name each other: which rank sends to which in each round?"


def around(case: Case, stray: Sequence[Sent]) -> bool:
    """Whether all these messages go to ring neighbours."""
    return all((sent.to - sent.source) % case.size in (1, case.size - 1) for sent in stray)


def only_buffered(case: Case) -> str:
    return (
        "it works only as long as a send does not wait for its receiver; an MPI send may wait if its message is large: "
        f"here {listed('rank', sorted({sent.source for sent in case.recording.unasked}))} sent first, and no rank "
        "had received yet. Use comm.exchange, which does both at once, or have one rank of each pair receive first"
    )


def too_few_sent(case: Case, rank: int) -> str:
    source = case.recording.awaited[rank].source
    got = sum(message.source == source and message.to == rank for message in case.messages)
    sent = Counter(message.source for message in case.messages)
    lists = f"; ranks have sent {', '.join(str(sent[each]) for each in range(case.size))} messages" * (case.size <= 8)
    return (
        f"rank {source} has sent rank {rank} {count(got)} and ended, but rank {rank} receives once more{lists}. Does "
        f"rank {source} skip a round, or does rank {rank} run one too many? Every receive needs its send"
    )


def count(messages: int) -> str:
    return {0: "nothing", 1: "one message"}.get(messages, f"{messages} messages")


def unequal(case: Case) -> str | None:
    """The reason why a receive fails: the message has a different length or dtype than its destination."""
    if "both sides must name the same" not in f"{case.recording.failure}":
        return None
    for rank, receive in case.recording.awaited.items():
        sent = next((sent for sent in case.recording.unasked if (sent.source, sent.to) == (receive.source, rank)), None)
        if sent is None or (len(sent.carried) == receive.count and receive.dtype == object):
            continue
        if len(sent.carried) == receive.count:
            return (f"rank {rank} receives into a buffer of {receive.dtype}, but the message has the dtype of "
                    f"the vector: {LIKE}")
        if sent.outgoing and receive.into:
            return (
                f"rank {sent.source} sends {case.words(sent.outgoing)}, and rank {rank} receives it into "
                f"{case.words(receive.into)}, which has a different length: the outgoing chunk of a rank must be the "
                "incoming chunk of its neighbour"
            )
        return (f"rank {sent.source} sends {len(sent.carried)} elements, but rank {rank} receives into "
                f"{receive.count}: {CUT}")
    return None


def returned_otherwise(case: Case) -> str | None:
    """The reason why a result is refused: it has a different length or dtype than expected."""
    found = re.search(r"returned (\d+) × (\S+) on rank \d+; expected (\d+) × (\S+)", f"{case.recording.failure}")
    if found is None:
        return None
    count, dtype, due, due_dtype = found.groups()
    if dtype != due_dtype:
        return f"the result must have the dtype of the input, {due_dtype}: {LIKE}"
    if case.subject.collective == "reduce_scatter" and count == str(case.count):
        return "it returns the whole vector: return this rank's own chunk alone, split(x, comm.size)[comm.rank]"
    if case.subject.collective == "all_gather" and int(count) < int(due):
        return "it returns too few elements: join the chunks of all ranks in the order of ranks, as np.concatenate does"
    return CUT


def left_over(case: Case) -> str | None:
    """The reason why messages are left over: no rank had received them when all ranks had ended."""
    if "ended without receiving" not in f"{case.recording.failure}":
        return None
    return (f"no rank receives {drawn(case, case.recording.unasked)}: a send too many, or a receive too few; "
            "do sends and receives run for the same number of rounds, and on the same ranks?")


def drawn(case: Case, unasked: Sequence[Sent]) -> str:
    """Messages as arrows.

    >>> from zerosim.instruments.record import Recording
    >>> from zerosim.teach.proofs.subject import named_subject
    >>> case = Case(named_subject("ring.all_gather"), Recording(3), 3)
    >>> drawn(case, [Sent(1, 0, 2, (), range(1, 2))])
    '0 ─chunk 1─▶ 2 (round 1)'
    """
    arrows = [
        f"{sent.source} ─{case.words(sent.outgoing) if sent.outgoing else case.cargo(sent.carried)}─▶ {sent.to} "
        f"(round {sent.round})"
        for sent in unasked[:SHOWN]
    ]
    more = f" and {len(unasked) - SHOWN} more" if len(unasked) > SHOWN else ""
    return ", ".join(arrows) + more


def called_otherwise(case: Case, failure: Exception) -> str | None:
    """The reason why a call fails: the function takes other arguments than it is called with."""
    name, said = getattr(case.subject.function, "__name__", ""), f"{failure}"
    if not (isinstance(failure, TypeError) and said.startswith(f"{name}() ")):
        return None
    root = ["root"] * case.subject.kind.rooted
    inside = case.subject.manner == "in place"
    given = ", ".join(["comm", *(case.subject.kind.parameters if inside else ["x"]), *root])
    return (f"it is called as {name}({given}), and reduce= if it has a parameter of that name: declare these "
            "parameters")
