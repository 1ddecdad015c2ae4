"""Causes about rounds and messages: too many, too few, or work in the wrong half."""

from collections import Counter
from collections.abc import Iterator, Sequence

from zerosim.instruments.record import Message, Recording
from zerosim.teach.proofs.case import Case, Observation, before, listed
from zerosim.words import plural


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


def hub(recording: Recording) -> int | None:
    """The rank that sends or receives every message among at least 3 ranks; None if there is none."""
    found = [rank for rank in range(recording.size) if all(rank in (m.source, m.to) for m in recording.messages)]
    return found[0] if recording.size > 2 and recording.messages and found else None


def through_one_rank(recording: Recording) -> str | None:
    """The cause if all messages go to or come from one rank."""
    rank = hub(recording)
    if rank is None:
        return None
    return (f"all {plural(len(recording.messages), 'message')} go to or come from rank {rank}, one after another: let "
            "the other ranks send to each other as well")


def idle_in_a_tree(case: Case) -> str | None:
    """A rank that takes part twice, or the first round of a broadcast in which a rank with the data sends nothing.

    A reduce is a broadcast backwards, and its rounds are counted from the end. A tree takes ⌈log2 N⌉ rounds
    only if the number of ranks with the data doubles in each.
    """
    reducing, last = case.subject.kind.reducing, case.recording.rounds
    for rank in range(case.size):
        rounds = [m.round for m in case.messages if rank == (m.source if reducing else m.to)]
        if len(rounds) > 1:
            what = "sends its sum" if reducing else "receives the data"
            return (f"rank {rank} {what} {len(rounds)} times, in rounds {' and '.join(map(str, rounds))}; once is "
                    "enough, if the distance between partners doubles from round to round")
    has = {case.root}
    for number in range(1, last + 1):
        now = [m for m in case.messages if m.round == (last + 1 - number if reducing else number)]
        sending = {m.to if reducing else m.source for m in now}
        idle = sorted(has - sending)
        more = has | {m.source if reducing else m.to for m in now}
        if len(more) < min(case.size, 2 * len(has)):
            return in_that_round(case, now, idle or sorted(has))
        has = more
    return None


def in_that_round(case: Case, now: Sequence[Message], idle: Sequence[int]) -> str:
    """The messages of one round of a tree, and the ranks that could take part."""
    round_ = now[0].round if now else 1
    if case.subject.kind.reducing:
        sent = " and ".join(f"rank {m.source} to rank {m.to}" for m in now) or "no rank"
        return (f"in round {round_} only {sent} sends, and nothing is sent to {listed('rank', idle)}: let every second "
                "rank that still has a sum send it in each round, so that their number halves")
    sources = sorted({m.source for m in now})
    return (f"in round {round_} {listed('rank', sources)} send{'s' * (len(sources) < 2)}, but not "
            f"{listed('rank', idle)}, which ha{'s' if len(idle) < 2 else 've'} the data already: let all ranks that "
            "have received send on, so that their number doubles in each round")


def why_so_much_is_sent(case: Case) -> str:
    """The cause of superfluous messages or bytes; an `Observation` if the messages show none."""
    if said := through_one_rank(case.recording):
        return said
    seen: dict[tuple[int, int, tuple[int, ...]], Message] = {}
    for message in case.messages:
        where = f"in round {message.round} rank {message.source} sends"
        if not message.carried and case.count >= case.size:
            return f"{where} an empty message to rank {message.to}: skip it"
        key = message.source, message.to, tuple(map(id, message.carried))
        earlier = seen.setdefault(key, message)
        if earlier is not message:
            return (f"{where} {case.cargo(message.carried)} to rank {message.to}, as in round {earlier.round} already: "
                    "send each value once")
        if len(message.carried) == case.count > 1 and not case.subject.kind.rooted:
            return f"{where} the whole vector to rank {message.to}: send it a chunk at a time"
    return Observation("the result is right, but more or less is sent than it needs: is a chunk sent twice, a whole "
                       "vector instead of a chunk, or an empty message?")


def why_so_slow(mine: Recording, ours: Recording) -> str:
    """The cause of a longer time than that of the library's messages; an `Observation` if the messages show none."""
    if said := through_one_rank(mine):
        return said
    for verb, ways in (("sends", "source"), ("receives", "to")):
        found, enough = (Counter[int](), Counter[int]())
        for recording, count in ((mine, found), (ours, enough)):
            for message in recording.messages:
                count[getattr(message, ways)] += len(message.carried)
        rank, most = found.most_common(1)[0] if found else (0, 0)
        if most > max(enough.values(), default=0):
            return (f"rank {rank} {verb} {plural(most, 'chunk')}, where no rank need {verb.rstrip('s')} more than "
                    f"{max(enough.values(), default=0)}: share the work among all ranks, and send each value once")
    if mine.rounds > ours.rounds:
        return (f"its messages take {mine.rounds} rounds, one after another, where {ours.rounds} suffice: which ranks "
                "wait while others send?")
    return Observation("no rank sends more, and there are no more rounds than needed: which ranks wait for a message "
                       "that could be sent earlier, and which messages leave a host?")
