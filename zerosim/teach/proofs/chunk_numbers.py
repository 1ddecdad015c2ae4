"""Causes about chunk numbers: a chunk that is sent, received or left under a wrong number."""

from collections import defaultdict

from zerosim.instruments.record import Message
from zerosim.teach.proofs.case import Case, listed, terms
from zerosim.teach.proofs.proof import again
from zerosim.teach.proofs.rounds import ring_rounds


def slice_ends(case: Case) -> str | None:
    """A slice of chunks that extends past the last one has fewer chunks than intended."""
    for size, rank, start, stop in case.subject.cut_short:
        if size == case.size and start < size < stop < 2 * size:
            return (f"chunks[{start}:{stop}] on rank {rank} of {size} has only "
                    f"{listed('chunk', range(start, size))}: a slice ends at the last chunk and does not wrap around "
                    "to chunk 0; send the two parts separately, or receive into a separate buffer and copy from it at "
                    "the end")
    return None


def same_chunk(case: Case) -> str | None:
    """One exchange sends and receives the same stretch."""
    if any(message.into != message.beside for message in case.messages if message.into and message.beside):
        return None
    for message in case.messages:
        if message.into and message.into == message.beside and case.size > 1:
            return (
                f"in round {message.round} rank {message.to} receives into {case.words(message.into)}, the very one "
                "that it sends: the chunk from its neighbour has a different number; on a ring, one less than the "
                "sent one"
            )
    return None


def stays_on_one_chunk(case: Case) -> str | None:
    """A rank sends the same chunk in every round, to the same neighbour."""
    sent: defaultdict[int, list[Message]] = defaultdict(list)
    for message in case.messages:
        sent[message.source].append(message)
    for source, found in sorted(sent.items()):
        same = {message.outgoing or message.carried for message in found}
        if len(found) > 1 and len({message.to for message in found}) == 1 and len(same) == 1 and found[0].carried:
            what = case.words(found[0].outgoing) if found[0].outgoing else case.cargo(found[0].carried)
            return (
                f"rank {source} sends {what} in each of its {len(found)} rounds: after the first, send the chunk that "
                "has just arrived; its number falls by one in every round (… − step)"
            )
    return None


def unlike_numbers(case: Case) -> str | None:
    """A chunk is received under a different number than it was sent."""
    kind = case.subject.kind
    moved = [m for m in case.messages if m.outgoing and m.into and m.outgoing != m.into]
    if kind.displacing or not moved or case.subject.manner != "in place":
        return None
    first = moved[0]
    told = (
        f"in round {first.round} rank {first.source} sends {case.words(first.outgoing)} to rank {first.to}, which "
        f"receives it into {case.words(first.into)}"
    )
    paired = {(m.round, m.to): m for m in case.messages if m.into and m.beside}
    if all(crossed(paired, m) for m in moved):
        return f"{told}: outgoing and incoming are swapped: exchange the two"
    around = ring_rounds(case) is not None
    if around and all(against(paired, m, case.size) for m in moved):
        return (f"{told}: its chunk numbers belong to a ring that runs the other way: swap left(comm) and right(comm) "
                "in to= and source=, or count chunks up instead of down")
    apart = {(chunk(case, m.into) - chunk(case, m.outgoing)) % case.size for m in moved} - {0}
    off = f", a number {smaller(apart.pop(), case.size)}" if len(apart) == 1 else ""
    return (f"{told}{off}: the outgoing chunk of a rank must be the incoming chunk of its neighbour in the same round"
            + "; with outgoing = (comm.rank − step − 1) % comm.size, incoming is one less" * around)


Pairs = dict[tuple[int, int], Message]
"""Exchanges, by round and by rank."""


def chunk(case: Case, stretch: range) -> int:
    return case.chunk_of[stretch.start]


NUMBERS = {1: "one", 2: "two", 3: "three"}


def smaller(distance: int, size: int) -> str:
    """
    >>> smaller(1, 4), smaller(3, 4)
    ('one too high', 'one too low')
    """
    apart, side = min((distance, "high"), (size - distance, "low"))
    return f"{NUMBERS.get(apart, apart)} too {side}"


def crossed(paired: Pairs, message: Message) -> bool:
    """Whether source and receiver would agree if each swapped its sent stretch and its `into`.

    A rank must then send in the next round the stretch into which it received.
    """
    mine, theirs = paired.get((message.round, message.source)), paired.get((message.round, message.to))
    following = paired.get((message.round + 1, message.to))
    agreed = mine is not None and theirs is not None and mine.into == theirs.beside
    return agreed and (following is None or theirs is None or following.into == theirs.beside)


def against(paired: Pairs, message: Message, size: int) -> bool:
    """Whether the neighbour on the other side expects the sent stretch, and sends it in the next round."""
    other = paired.get((message.round, (2 * message.source - message.to) % size))
    following = other and paired.get((message.round + 1, other.to))
    agreed = other is not None and other.into == message.outgoing
    return agreed and (following is None or following.beside == message.outgoing)


def ends_elsewhere(case: Case) -> str | None:
    """The full sums are there, each on another rank than its owner, or in another place."""
    kind = case.subject.kind
    if not kind.reducing or not case.wrong:
        return None
    owners = [(rank, case.chunk_of[element], element) for rank, element in case.wrong]
    where = {element: sorted(has_full_sum(case, element)) for _, _, element in owners}
    if not all(where.values()):
        return None
    rank, number, element = owners[0]
    told = f"the full sum of chunk {number} is on {listed('rank', where[element])}, its owner is rank {rank}"
    if kind.agreeing:
        return stays_where_it_is(case, where, number, element)
    if kind.rooted:
        return f"the full sum is on {listed('rank', where[element])}, but the root is rank {case.root}"
    if rank in where[element]:
        return f"rank {rank} has the full sum of chunk {number}, but not in its place: {returned(case, rank, element)}"
    shifts = {(ranks[0] - owner) % case.size for owner, _, each in owners for ranks in [where[each]]}
    if len(shifts) != 1 or any(len(ranks) > 1 for ranks in where.values()):
        return f"{told}: each chunk must end on its owner"
    (shift,) = shifts
    return f"{told}: every chunk ends {past(shift, case.size)}, so chunk numbers are off by {advice(case, shift)}"


def stays_where_it_is(case: Case, where: dict[int, list[int]], number: int, element: int) -> str:
    """The reason why the full sums of an all-reduce do not reach all ranks."""
    alone = all(len(ranks) == 1 for ranks in where.values())
    if alone and len({ranks[0] for ranks in where.values()}) == 1 < case.size:
        return (f"all full sums are on rank {where[element][0]} alone, and no rank sends them on: broadcast "
                "them")
    if alone:
        return (
            f"the full sum of each chunk is on one rank alone (that of chunk {number} on rank {where[element][0]}): "
            f"the second half, the all-gather, is missing"
        )
    lacking = sorted({rank for rank, each in case.wrong if each == element})
    return (f"the full sum of chunk {number} ends on {listed('rank', where[element])} and never reaches "
            f"{listed('rank', lacking)}: send it there once it is complete")


def has_full_sum(case: Case, element: int) -> set[int]:
    """The ranks that end with the full sum of an element, in any place."""
    found = {
        rank for rank in range(case.size) if any(case.complete(symbol) == element for symbol in case.last(rank))
    }
    landed = {m.to for m in case.messages for symbol in m.landed if case.complete(symbol) == element}
    return found | (landed if case.subject.manner == "array" else set())


def returned(case: Case, rank: int, element: int) -> str:
    held = case.complete(case.last(rank)[element])
    if held is None:
        return "put it into chunks[comm.rank]"
    return f"that place has the full sum of chunk {case.chunk_of[held]}; chunk comm.rank is its own"


def past(shift: int, size: int) -> str:
    """
    >>> past(3, 4), past(1, 4)
    ('one rank before its owner', 'one rank behind its owner')
    """
    distance, side = min((shift, "behind"), (size - shift, "before"))
    return f"{NUMBERS.get(distance, distance)} rank{'s' * (distance > 1)} {side} its owner"


def advice(case: Case, shift: int) -> str:
    """The shift of the chunk numbers in words, and the first chunk to send if 5 and 7 ranks agree on it."""
    apart = min(shift, case.size - shift)
    named = f"{NUMBERS.get(apart, apart)}"
    begun = {begins_and_ends(again(case, size)) for size in SURE}
    if None in begun or len(begun) != 1:
        return f"{named}: chunk c must end on its owner"
    begins, ends = next(filter(None, begun))
    return (f"{named}: in step 0 send chunk {signed(begins + ends)}, where it sends {signed(begins)}, and shift "
            "all later steps by the same amount")


SURE = (5, 7)
"""Numbers of ranks on which shifts by one or two up are distinct from shifts by one or two down."""


def begins_and_ends(case: Case) -> tuple[int, int] | None:
    """The distance of the chunk that every rank sends first from the rank's number, and of a sum's end from its owner.
    """
    begun = {(case.chunk_of[leaf.element] - m.source) % case.size
             for m in case.messages if m.round == 1 for leaf in terms(m.carried[0])[:1]}
    ends = {(rank - owner) % case.size
            for owner, element in case.wrong for rank in sorted(has_full_sum(case, element))[:1]}
    if len(begun) != 1 or len(ends) != 1 or case.recording.results is None:
        return None
    near = [each - case.size * (each > case.size // 2) for each in (*begun, *ends)]
    return near[0], near[1]


def signed(distance: int) -> str:
    """
    >>> signed(0), signed(-1), signed(2)
    ('comm.rank', '(comm.rank − 1) % comm.size', '(comm.rank + 2) % comm.size')
    """
    return f"(comm.rank {'+' if distance > 0 else '−'} {abs(distance)}) % comm.size" if distance else "comm.rank"


def mixes_up_places(case: Case) -> str | None:
    """A rank has all its terms, but in places of other chunks."""
    if case.subject.kind.reducing or not case.wrong:
        return None
    rank, element = case.wrong[0]
    places = {held: place for place, held in enumerate(case.last(rank))}
    due = [case.due[at] for at in case.wrong if at[0] == rank]
    if not all(term in places for terms_due in due for term in terms_due):
        return None
    (term,) = case.due[rank, element]
    return (f"rank {rank} has all expected contributions, but in wrong places: {term} of chunk "
            f"{case.chunk_of[term.element]} is in chunk {case.chunk_of[places[term]]} and belongs in chunk "
            f"{case.chunk_of[element]}")
