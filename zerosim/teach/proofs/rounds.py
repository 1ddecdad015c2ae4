"""Causes about rounds: too many, too few, or work in the wrong half."""

from collections import Counter
from collections.abc import Iterator

from zerosim.teach.proofs.case import Case, Observation, before, listed


def adds_in_the_gather(case: Case) -> str | None:
    """A full sum is added to a value that it should replace."""
    for message in case.messages:
        full = [case.complete(symbol) for symbol in message.carried]
        if message.reduced and full and None not in full:
            if not case.subject.kind.agreeing and (rounds := ring_rounds(case) or 0) > case.size:
                return (f"it makes {rounds} rounds, and after {case.size - 1} every sum is complete: round "
                        f"{message.round} and later ones add full sums again; loop over range(comm.size − 1)")
            told = (f"in round {message.round} the full sum of {case.cargo(message.carried)} from rank "
                    f"{message.source} is added to the value on rank {message.to}")
            if not case.subject.kind.agreeing:
                return Observation(f"{told}, so its contributions count twice: is this message one too many?")
            return f"{told}: the sum is complete and must replace that value, so receive it without reduce="
    return adds_anew(case)


def adds_anew(case: Case) -> str | None:
    """A message is added although every full sum exists already."""
    if not case.subject.kind.reducing or case.size == 1:
        return None
    there = reduced_after(case)
    late = None if there is None else next((m for m in case.messages if m.reduced and m.round > there), None)
    if late is None:
        return None
    return (
        f"after round {there} every full sum is there, and round {late.round} adds again, on rank {late.to}: a sum "
        "takes comm.size − 1 additions, so reduce once; later rounds send full sums on, without reduce="
    )


def reduced_after(case: Case) -> int | None:
    """The first round after which the full sum of every element exists on some rank."""
    elements = {element for _, element in case.due}
    return next((r for r in range(case.recording.rounds) if elements <= full_sums(case, r)), None)


def gathers_no_full_sum(case: Case) -> str | None:
    """The second half of an all-reduce sends a value that is no full sum."""
    there = reduced_after(case) if case.subject.kind.reducing and case.subject.kind.agreeing else None
    for message in case.messages:
        partial = [symbol for symbol in message.carried if case.complete(symbol) is None]
        if there is None or message.reduced or message.round <= there or not partial:
            continue
        held = before(case, message.source, message.round)
        full = sorted({case.chunk_of[e] for e, symbol in enumerate(held) if case.complete(symbol) is not None})
        return (
            f"in round {message.round} rank {message.source} sends {case.cargo(message.carried)} to rank {message.to} "
            f"as {partial[0]}, which is not a full sum; it has the full sum of {listed('chunk', full)}: begin the "
            "second half, the all-gather, with that chunk; it is chunks[comm.rank] if reduce-scatter leaves chunk r on "
            "rank r"
        )
    return None


def full_sums(case: Case, round_: int) -> set[int | None]:
    """The elements whose full sum some rank has after a round."""
    return {case.complete(symbol) for rank in range(case.size) for symbol in case.recording.holds(rank, after=round_)}


def ring_rounds(case: Case) -> int | None:
    """The number of rounds if every rank sends one message per round to the same neighbour on a ring; else None."""
    steps = {(message.to - message.source) % case.size for message in case.messages}
    each = Counter((message.source, message.round) for message in case.messages)
    whole = len(each) == case.size * case.recording.rounds
    if len(steps) != 1 or not whole or steps & {0}:
        return None
    return case.recording.rounds if steps <= {1, case.size - 1} else None


def ends_too_early(case: Case) -> str | None:
    """A ring makes fewer rounds than a contribution needs to reach all ranks."""
    rounds = ring_rounds(case)
    if not case.messages and case.size > 1:
        return "no rank sends anything: does the loop run zero times, or does the function return before it?"
    if rounds is None:
        return None
    needed = case.size - 1
    chunkwise = case.subject.collective == "all_reduce" and any(len(m.carried) < case.count for m in case.messages)
    halves = ", and the full sums need as many again" if chunkwise else ""
    if rounds < needed * (1 + chunkwise):
        return (
            f"it ends after {rounds} round{'s' * (rounds != 1)}: a contribution needs comm.size − 1 rounds, here "
            f"{needed}, to reach all ranks{halves}; loop over range(comm.size − 1)"
        )
    return None


def superfluous(case: Case) -> str | None:
    """The reason why a run with the right result sends too much: some rounds change nothing."""
    rounds = case.recording.rounds
    enough = next((r for r in range(rounds) if all(kept(case, r))), rounds)
    around = ring_rounds(case)
    if case.subject.manner == "array" and around is not None and case.subject.collective != "all_reduce":
        enough = min(rounds, case.size - 1)
    if enough == rounds or case.recording.results is None or not case.count:
        return None
    if case.size == 1:
        return "on one rank it sends itself a message; none is needed"
    words = {2 * case.size - 2: "2 (N − 1)", 2 * case.size - 1: "2 N − 1", case.size: "N", case.size - 1: "N − 1"}
    named = f" ({words[rounds]} where {words[enough]} suffice)" if {rounds, enough} <= set(words) else ""
    return (f"it takes {rounds} rounds on {case.size} ranks where {enough} suffice{named}: after round {enough} "
            "every rank has its result, so end the loop there")


def kept(case: Case, round_: int) -> Iterator[bool]:
    """For each place of the result, whether it holds its final value after a round."""
    last = {rank: case.last(rank) for rank in range(case.size)}
    for rank, element in case.due:
        yield case.recording.holds(rank, after=round_)[element] is last[rank][element]
