"""Causes of a right result that takes too many rounds, messages or bytes, as the recorded messages show them."""

from collections import Counter
from collections.abc import Sequence

from zerosim.instruments.record import Message, Recording
from zerosim.teach.proofs.case import Case, Observation, listed
from zerosim.words import plural


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
                       "vector in place of a chunk, or an empty message?")


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
