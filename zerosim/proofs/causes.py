"""Why a collective leaves something else than it should: causes, looked for in what was recorded.

Each of `CAUSES` reads one kind of mistake off a run and says in words what was done and what to do instead, or None.
The first that speaks is the cause. What speaks of a chunk's number goes by memory where a function works in place, and
by the contributions that a message carries where it has buffers of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from zerosim.instruments.record import Message
from zerosim.payloads.terms import Symbol, Term, leaves
from zerosim.proofs.case import Case, listed, terms

Cause = Callable[[Case], str | None]


def adds_elements_up(case: Case) -> str | None:
    """All elements of a chunk of one rank's are in one place."""
    for rank, element in case.wrong:
        found = {(leaf.rank, leaf.element) for leaf in terms(case.last(rank)[element])}
        chunk = {each for each in case.chunk_of if case.chunk_of[each] == case.chunk_of[element]}
        if len(chunk) > 1 and any({(source, each) for each in chunk} <= found for source in range(case.size)):
            return ("all elements of a chunk are added up together: reduce= is given two arrays and adds them element "
                    "by element, as np.add does, and neither Python's sum nor np.sum")
    return None


def cuts_evenly(case: Case) -> str | None:
    """It is right with one element in each chunk, which is tried first."""
    if case.count == case.size:
        return None
    lengths = Counter(case.chunk_of.values())
    cut = ", ".join(str(lengths[chunk]) for chunk in range(min(case.size, 8))) + ", …" * (case.size > 8)
    return (
        f"right with one element in each chunk, wrong where chunks have {cut}: a chunk has ceil(count / size) "
        "elements, the last may have fewer or none. Take lengths from chunks[c] itself, or cut with "
        "zerosim.sharding.split, not by count // size or np.array_split"
    )


def sends_what_it_lacks(case: Case) -> str | None:
    """A message carries a place that nobody has filled."""
    for message in case.messages:
        empty = [symbol for symbol in message.carried if not isinstance(symbol, Term) and blank(symbol)]
        if empty:
            if came_to_other_memory(case, message):
                return None
            what = case.words(message.outgoing) if message.outgoing else "memory"
            has = [
                case.chunk_of[element] for element, symbol in enumerate(before(case, message.source, message.round))
                if not blank(symbol)
            ]
            advice = "receive first, then send on" if case.subject.kind.rooted else (
                "begin with chunks[comm.rank], its own, and then send what it has just received"
            )
            return (
                f"in round {message.round} rank {message.source} sends {what} to rank {message.to} before it has got "
                f"it: it then has {listed('chunk', sorted(set(has)))}. {advice[:1].upper()}{advice[1:]}"
            )
    return None


def came_to_other_memory(case: Case, message: Message) -> bool:
    """Whether its source had received what it should send, and not into its vector."""
    return any(
        m.to == message.source and not m.into and m.round < message.round
        and any(leaf.element in message.outgoing for symbol in m.landed for leaf in terms(symbol))
        for m in case.messages
    )


def blank(symbol: Symbol) -> bool:
    return any(not isinstance(leaf, Term) for leaf in leaves(symbol))


def before(case: Case, rank: int, round_: int) -> Sequence[Symbol]:
    """What the vector of `rank` held when a round began."""
    return case.recording.holds(rank, after=round_ - 1)


def adds_in_the_gather(case: Case) -> str | None:
    """A full sum is added to something, where it should replace it."""
    for message in case.messages:
        full = [case.complete(symbol) for symbol in message.carried]
        if message.reduced and full and None not in full:
            if not case.subject.kind.agreeing and (rounds := ring_rounds(case) or 0) > case.size:
                return (f"it makes {rounds} rounds, and after {case.size - 1} every sum is complete: from round "
                        f"{message.round} on full sums are added again; let the loop run over range(comm.size − 1)")
            return (
                f"in round {message.round} the full sum of {case.cargo(message.carried)}, which rank {message.source} "
                f"sends, is added to what rank {message.to} has of it: from there on a sum is complete, and must "
                "replace what is there, without reduce="
            )
    return adds_anew(case)


def adds_anew(case: Case) -> str | None:
    """Something is added when every full sum is somewhere already."""
    if not case.subject.kind.reducing or case.size == 1:
        return None
    there = reduced_after(case)
    late = None if there is None else next((m for m in case.messages if m.reduced and m.round > there), None)
    if late is None:
        return None
    return (
        f"after round {there} every full sum is there, and round {late.round} adds again, on rank {late.to}: reduce "
        "once, in comm.size − 1 rounds; what comes after that passes full sums on, without reduce="
    )


def reduced_after(case: Case) -> int | None:
    """The first round after which the full sum of every element is somewhere."""
    elements = {element for _, element in case.due}
    return next((r for r in range(case.recording.rounds) if elements <= full_sums(case, r)), None)


def gathers_no_full_sum(case: Case) -> str | None:
    """The second half of an all-reduce passes on what is no full sum."""
    there = reduced_after(case) if case.subject.kind.reducing and case.subject.kind.agreeing else None
    for message in case.messages:
        partial = [symbol for symbol in message.carried if case.complete(symbol) is None]
        if there is None or message.reduced or message.round <= there or not partial:
            continue
        held = before(case, message.source, message.round)
        full = sorted({case.chunk_of[e] for e, symbol in enumerate(held) if case.complete(symbol) is not None})
        return (
            f"in round {message.round} rank {message.source} sends {case.cargo(message.carried)} to rank {message.to} "
            f"as {partial[0]}, which is no full sum; the full sum that it has by then is that of "
            f"{listed('chunk', full)}: begin the second half, the all-gather, with chunks[comm.rank] where "
            "reduce-scatter leaves chunk r on rank r"
        )
    return None


def full_sums(case: Case, round_: int) -> set[int | None]:
    """The elements of which some rank has the full sum after a round."""
    return {case.complete(symbol) for rank in range(case.size) for symbol in case.recording.holds(rank, after=round_)}


def same_chunk(case: Case) -> str | None:
    """In one exchange the same stretch is sent and received into."""
    if any(message.into != message.beside for message in case.messages if message.into and message.beside):
        return None
    for message in case.messages:
        if message.into and message.into == message.beside and case.size > 1:
            return (
                f"in round {message.round} rank {message.to} receives into {case.words(message.into)}, the very one "
                "that it sends: the chunk that comes from its neighbour has another number, on a ring one less than "
                "the one it sends"
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
                f"rank {source} sends {what} in each of its {len(found)} rounds: after the "
                "first, send the chunk that has just arrived, one number less in every round (… − step)"
            )
    return None


def unlike_numbers(case: Case) -> str | None:
    """What leaves one rank as one chunk is received as another."""
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
        return f"{told}: outgoing and incoming are swapped: send the chunk that is now received into, and the reverse"
    if all(against(paired, m, case.size) for m in moved):
        return (f"{told}: its numbers are those of a ring that runs the other way: swap left(comm) and right(comm), in "
                "to= and in source=, or count chunks up instead of down")
    apart = {(chunk(case, m.into) - chunk(case, m.outgoing)) % case.size for m in moved} - {0}
    off = f", {smaller(apart.pop(), case.size)} by number" if len(apart) == 1 else ""
    around = ring_rounds(case) is not None
    return (f"{told}{off}: what one rank calls outgoing, its neighbour must call incoming in the same round"
            + "; with outgoing = (comm.rank − step − 1) % comm.size, incoming is one less" * around)


Pairs = dict[tuple[int, int], Message]
"""Exchanges, by round and by the rank that makes them."""


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
    """Whether source and receiver would agree if each swapped what it sends and what it receives into.

    What a rank receives into in one round it must then send in the next.
    """
    mine, theirs = paired.get((message.round, message.source)), paired.get((message.round, message.to))
    following = paired.get((message.round + 1, message.to))
    agreed = mine is not None and theirs is not None and mine.into == theirs.beside
    return agreed and (following is None or theirs is None or following.into == theirs.beside)


def against(paired: Pairs, message: Message, size: int) -> bool:
    """Whether the neighbour on the other side expects what is sent here, and sends it in the next round."""
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
        alone = all(len(ranks) == 1 for ranks in where.values())
        if alone and len({ranks[0] for ranks in where.values()}) == 1 < case.size:
            return (f"all full sums are on rank {where[element][0]} alone, and nobody sends them on: what is missing "
                    "is to broadcast them from there")
        return (
            f"the full sum of each chunk is on one rank alone (that of chunk {number} on rank {where[element][0]}): "
            "what is missing is the second half, the all-gather, which passes full sums on"
        ) if alone else None
    if kind.rooted:
        return f"the full sum is on {listed('rank', where[element])}, and the root is rank {case.root}"
    if rank in where[element]:
        return f"rank {rank} has the full sum of chunk {number}, and not in its place: {returned(case, rank, element)}"
    shifts = {(ranks[0] - owner) % case.size for owner, _, each in owners for ranks in [where[each]]}
    if len(shifts) != 1 or any(len(ranks) > 1 for ranks in where.values()):
        return f"{told}: chunk c must end on rank c"
    (shift,) = shifts
    return f"{told}: every chunk ends {past(shift, case.size)}, chunks are off by {advice(case, shift)}"


def has_full_sum(case: Case, element: int) -> set[int]:
    """The ranks that end with the full sum of an element, wherever they keep it."""
    found = {
        rank for rank in range(case.size) if any(case.complete(symbol) == element for symbol in case.last(rank))
    }
    landed = {m.to for m in case.messages for symbol in m.landed if case.complete(symbol) == element}
    return found | (landed if case.subject.manner == "array" else set())


def returned(case: Case, rank: int, element: int) -> str:
    held = case.complete(case.last(rank)[element])
    if held is None:
        return "put it into chunks[comm.rank]"
    return f"what stands there is that of chunk {case.chunk_of[held]}; chunk comm.rank is its own"


def past(shift: int, size: int) -> str:
    """
    >>> past(3, 4), past(1, 4)
    ('one rank before its owner', 'one rank behind its owner')
    """
    distance, side = min((shift, "behind"), (size - shift, "before"))
    return f"{NUMBERS.get(distance, distance)} rank{'s' * (distance > 1)} {side} its owner"


def advice(case: Case, shift: int) -> str:
    """By how much, and with which chunk to begin, where every rank begins at the same distance from its own number."""
    begun = {
        (case.chunk_of[leaf.element] - m.source) % case.size
        for m in case.messages if m.round == 1 for leaf in terms(m.carried[0])[:1]
    }
    apart = min(shift, case.size - shift)
    named = f"{NUMBERS.get(apart, apart)}"
    if len(begun) != 1:
        return f"{named}: chunk c must end on rank c"
    now = next(iter(begun))
    return (f"{named}: in step 0 send chunk {offset(now + shift, case.size)}, where it sends "
            f"{offset(now, case.size)}, and count on from there")


def offset(distance: int, size: int) -> str:
    """
    >>> offset(0, 4), offset(3, 4), offset(1, 4)
    ('comm.rank', '(comm.rank − 1) % comm.size', '(comm.rank + 1) % comm.size')
    """
    distance %= size
    if not distance:
        return "comm.rank"
    words = f"+ {distance}" if distance <= size - distance else f"− {size - distance}"
    return f"(comm.rank {words}) % comm.size"


def replaces(case: Case) -> str | None:
    """What arrives replaces a contribution instead of being added to it, or overwrites what is still wanted."""
    held = {rank: history[0][1] for rank, history in enumerate(case.recording.vectors)}
    following = {rank: iter(history[1:]) for rank, history in enumerate(case.recording.vectors)}
    for message in case.messages:
        vector = next(following[message.to])[1]
        for element in message.into:
            old, new = held[message.to][element], vector[element]
            lost = {term for term in set(terms(old)) - set(terms(new)) if isinstance(term, Term)}
            if message.reduced or not lost or not wanted(case, message.to, element, lost) or full(case, new):
                continue
            where = f"chunk {case.chunk_of[element]} of rank {message.to}"
            if case.subject.kind.reducing and any(m.reduced and m.round > message.round for m in case.messages):
                return (
                    f"from round {message.round} on what arrives replaces, as in an all-gather, and contributions are "
                    f"lost ({old} from {where}); what adds comes later: first the half that adds, with reduce=reduce, "
                    "then the half that passes full sums on"
                )
            if case.subject.kind.reducing:
                return (
                    f"in round {message.round} what comes from rank {message.source} replaces {where}, {old}, and is "
                    "not added to it: give comm.exchange or comm.recv reduce=reduce"
                )
            return (f"in round {message.round} what comes from rank {message.source} overwrites {where}, {old}, which "
                    "is still wanted there: receive into another chunk")
        held[message.to] = vector
    return None


def full(case: Case, symbol: Symbol) -> bool:
    return case.subject.kind.reducing and case.complete(symbol) is not None


def wanted(case: Case, rank: int, element: int, lost: set[Term]) -> bool:
    """Whether what was lost there is missing in some place in the end."""
    if not case.subject.kind.reducing:
        return any((rank, element) == place and lost & set(case.due[place]) for place in case.wrong)
    return any(lost & (set(case.due[place]) - set(terms(case.last(place[0])[place[1]]))) for place in case.wrong)


def mixes_up_places(case: Case) -> str | None:
    """All that is due to a rank is there, in places of other chunks."""
    if case.subject.kind.reducing or not case.wrong:
        return None
    rank, element = case.wrong[0]
    places = {held: place for place, held in enumerate(case.last(rank))}
    due = [case.due[at] for at in case.wrong if at[0] == rank]
    if not all(term in places for terms_due in due for term in terms_due):
        return None
    (term,) = case.due[rank, element]
    return (f"rank {rank} has all that is due to it, in other places: {term} of chunk {case.chunk_of[term.element]} "
            f"stands in chunk {case.chunk_of[places[term]]}, and belongs to chunk {case.chunk_of[element]}")


def drops_what_arrived(case: Case) -> str | None:
    """A missing contribution reached its rank in memory of the function's own, and went no further."""
    for rank, element in case.wrong:
        absent = set(case.due[rank, element]) - set(terms(case.last(rank)[element]))
        for message in case.messages:
            arrived = {leaf for symbol in message.landed for leaf in terms(symbol)} & absent
            if message.to != rank or message.into or not arrived:
                continue
            later = [m for m in case.messages if (m.to, m.memory) == (rank, message.memory) and m.round > message.round]
            what = ", ".join(map(str, sorted(arrived, key=repr)))
            told = f"{what} reaches rank {rank} in round {message.round}, in a buffer of its own, "
            if later and not later[0].reduced and holds_later(case, rank, later):
                return (
                    f"{told}which round {later[0].round} overwrites: one buffer serves every receive, and what refers "
                    "to it changes with it. Keep a copy (buffer.copy()), or use it before the next receive"
                )
            if case.subject.kind.reducing:
                return (
                    f"{told}and is not added to the result: total += arrived adds, total = arrived replaces, and "
                    "np.add(total, arrived) gives a new array, so write np.add(total, arrived, out=total)"
                    f"{never_written_back(case)}"
                )
            return f"{told}and does not get into the result: copy it to its place, chunks[c][:] = arrived"
    return None


def never_written_back(case: Case) -> str:
    """What to do where a function works in place and has left everything as it was."""
    if case.subject.manner != "in place" or any(
            symbol != Term(rank, element)
            for rank in range(case.size) for element, symbol in enumerate(case.last(rank))):
        return ""
    return (". Nothing at all is ever written into chunks: if the sum is in a copy or in a new array, write it back, "
            "chunks[c][:] = …, or work on chunks themselves")


def holds_later(case: Case, rank: int, later: Sequence[Message]) -> bool:
    """Whether what overwrote it is in the result, more often than it is due, or in its place."""
    last = Counter(leaf for symbol in case.last(rank) for leaf in terms(symbol))
    came = {leaf for symbol in later[-1].landed for leaf in terms(symbol)}
    return any(last[leaf] > 1 for leaf in came) or len(later) > 1


def passes_its_sum_on(case: Case) -> str | None:
    """A contribution is added a second time: where that happens first."""
    if not case.subject.kind.reducing:
        return None
    for message in case.messages:
        for symbol in message.carried:
            again = twice(symbol)
            if again:
                return (
                    f"{again} is already twice in what rank {message.source} sends in round {message.round}, {symbol}: "
                    "send on what arrived in the round before, and keep the sum beside it"
                )
        for carried, landed in zip(message.carried, message.landed, strict=False):
            again = twice(landed)
            if again:
                late = ring_rounds(case) is not None and message.round >= case.size
                advice = (
                    f"that is round {message.round}, and {case.size - 1} bring every contribution around: "
                    "range(comm.size − 1)"
                ) if late else (
                    "each contribution must come to a rank once: does what is sent on hold the receiver's own already?"
                )
                return (f"in round {message.round} rank {message.to} adds {carried}, which comes from rank "
                        f"{message.source}, to what has {again} in it already: {advice}")
    for rank, element in case.wrong:
        again = twice(case.last(rank)[element])
        if again == str(Term(rank)):
            return (f"rank {rank} adds its own contribution a second time: begin the sum with a copy of it, or add it "
                    "in the end, not both")
        if again:
            return f"rank {rank} adds {again} more than once, beside what messages bring: which loop adds it again?"
    return None


def twice(symbol: Symbol) -> str:
    """The contributions that are in a symbol more than once."""
    return ", ".join(str(leaf) for leaf, times in Counter(terms(symbol)).items() if times > 1)


def ring_rounds(case: Case) -> int | None:
    """How many rounds a ring made, on which every rank sends one message to the same neighbour in each; else None."""
    steps = {(message.to - message.source) % case.size for message in case.messages}
    each = Counter((message.source, message.round) for message in case.messages)
    whole = len(each) == case.size * case.recording.rounds
    if len(steps) != 1 or not whole or steps & {0}:
        return None
    return case.recording.rounds if steps <= {1, case.size - 1} else None


def ends_too_early(case: Case) -> str | None:
    """A ring that makes fewer rounds than bring a contribution around."""
    rounds = ring_rounds(case)
    if not case.messages and case.size > 1:
        return "no rank sends anything: does the loop run no rounds, or does it return before it?"
    if rounds is None:
        return None
    needed = case.size - 1
    chunkwise = case.subject.collective == "all_reduce" and any(len(m.carried) < case.count for m in case.messages)
    halves = ", and as many again pass the sums on" if chunkwise else ""
    if rounds < needed * (1 + chunkwise):
        return (
            f"it ends after {rounds} round{'s' * (rounds != 1)}: comm.size − 1, here {needed}, bring a contribution "
            f"around{halves}, as range(comm.size − 1) counts them"
        )
    return None


def adds_in_another_order(case: Case) -> str | None:
    """All is there, and ranks add it in orders of their own."""
    if case.wrong or not case.subject.kind.agreeing or not case.subject.kind.reducing:
        return None
    return (
        "each rank adds in the order in which contributions reach it, which gives other bits: "
        "add each chunk on one rank and send the sum around, or keep all that comes and add it in the order of ranks"
    )


def goes_no_further(case: Case) -> str | None:
    """How far a missing contribution came."""
    for rank, element in case.wrong:
        absent = [t for t in case.due[rank, element] if t not in set(terms(case.last(rank)[element]))]
        for term in absent:
            return f"{told_of(case, term)} {where_it_stops(case, term, rank)}"
    return None


def told_of(case: Case, term: Term) -> str:
    return f"what rank {term.rank} brings of chunk {case.chunk_of[term.element]}, {term},"


def where_it_stops(case: Case, term: Term, rank: int) -> str:
    """The last message that carried a contribution, and what became of it."""
    carrying = [m for m in case.messages if any(term in terms(symbol) for symbol in m.carried)]
    if not carrying and term.rank == rank:
        return "is overwritten on its own rank before it is added: work on chunks, or begin with a copy of them"
    if not carrying:
        return f"never leaves rank {term.rank}: no message carries it. Who should send it, in which round?"
    if said := kept_back(case, term, rank):
        return said
    last = carrying[-1]
    on = [m.round for m in case.messages if m.source == last.to and m.round <= last.round]
    if last.to == rank:
        return (f"reaches rank {rank} in round {last.round} and is not in the result: it lands in "
                f"{case.words(last.into) if last.into else 'a buffer of its own'}, and is lost there")
    early = f", which has sent on before, in round {on[-1]}: receive first, then send" if on else (
        ", which sends it no further")
    return f"goes as far as rank {last.to}, in round {last.round}{early}"


def kept_back(case: Case, term: Term, rank: int) -> str | None:
    """Of what somebody has already who sends the rank something else."""
    for message in case.messages:
        if case.subject.kind.reducing or message.to != rank or message.source == term.rank:
            continue
        if term in before(case, message.source, message.round) and term not in message.carried:
            return (f"is on rank {message.source} when that sends to rank {rank} in round {message.round}, and it "
                    f"sends {case.cargo(message.carried)} alone: send all that has come by then")
    return None


CAUSES: tuple[Cause, ...] = (
    adds_elements_up,
    cuts_evenly,
    sends_what_it_lacks,
    adds_in_the_gather,
    gathers_no_full_sum,
    same_chunk,
    stays_on_one_chunk,
    unlike_numbers,
    ends_elsewhere,
    replaces,
    mixes_up_places,
    drops_what_arrived,
    passes_its_sum_on,
    ends_too_early,
    adds_in_another_order,
    goes_no_further,
)
"""The most telling first."""


def why_it_is_wrong(case: Case) -> str | None:
    """The first cause that is found."""
    return next(filter(None, (cause(case) for cause in CAUSES)), None)


def superfluous(case: Case) -> str | None:
    """Of a run that leaves what it should: that it makes rounds which bring nothing."""
    rounds = case.recording.rounds
    enough = next((r for r in range(rounds) if all(kept(case, r))), rounds)
    around = ring_rounds(case)
    if case.subject.manner == "array" and around is not None and case.subject.collective != "all_reduce":
        enough = min(rounds, case.size - 1)
    if enough == rounds or case.recording.results is None or not case.count:
        return None
    if case.size == 1:
        return "on one rank it sends itself a message, where none is needed"
    words = {2 * case.size - 2: "2 (N − 1)", 2 * case.size - 1: "2 N − 1", case.size: "N", case.size - 1: "N − 1"}
    named = f" ({words[rounds]} where {words[enough]} do)" if {rounds, enough} <= set(words) else ""
    return (f"it takes {rounds} rounds on {case.size} ranks where {enough} do{named}: after round {enough} every "
            "rank has what is due to it, so let the loop end there")


def kept(case: Case, round_: int) -> Iterator[bool]:
    """For each place that counts, whether it holds after a round what it holds in the end."""
    last = {rank: case.last(rank) for rank in range(case.size)}
    for rank, element in case.due:
        yield case.recording.holds(rank, after=round_)[element] is last[rank][element]
