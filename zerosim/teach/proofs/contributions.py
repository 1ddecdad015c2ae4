"""Causes about contributions: lost, doubled or passed on too early."""

from collections import Counter
from collections.abc import Sequence

from zerosim.instruments.record import Message
from zerosim.payloads.terms import Symbol, Term, leaves
from zerosim.teach.proofs.case import Case, Observation, before, listed, terms
from zerosim.teach.proofs.rounds import ring_rounds


def adds_elements_up(case: Case) -> str | None:
    """All elements of a chunk of one rank are added up in one place."""
    for rank, element in case.wrong:
        found = {(leaf.rank, leaf.element) for leaf in terms(case.last(rank)[element])}
        chunk = {each for each in case.chunk_of if case.chunk_of[each] == case.chunk_of[element]}
        if len(chunk) > 1 and any({(source, each) for each in chunk} <= found for source in range(case.size)):
            return ("all elements of a chunk are added up together: reduce= takes two arrays and adds them element by "
                    "element; np.add does this, Python's sum and np.sum do not")
    return None


def sends_what_it_lacks(case: Case) -> str | None:
    """A message contains a place that was never filled."""
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
                "begin with chunks[comm.rank], the rank's own chunk, then send the chunk received in the round before"
            )
            return (
                f"in round {message.round} rank {message.source} sends {what} to rank {message.to} before it has got "
                f"it: it holds {listed('chunk', sorted(set(has)))}. {advice[:1].upper()}{advice[1:]}"
            )
    return None


def came_to_other_memory(case: Case, message: Message) -> bool:
    """Whether the source of a message received the data to send, but not into its vector."""
    return any(
        m.to == message.source and not m.into and m.round < message.round
        and any(leaf.element in message.outgoing for symbol in m.landed for leaf in terms(symbol))
        for m in case.messages
    )


def blank(symbol: Symbol) -> bool:
    return any(not isinstance(leaf, Term) for leaf in leaves(symbol))


def replaces(case: Case) -> str | None:
    """An arriving message replaces a contribution instead of being added to it, or overwrites data that are still
    needed."""
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
                    f"from round {message.round} on, messages replace values as in an all-gather, and contributions "
                    f"are lost ({old} from {where}); change the order: first the half that adds, with reduce=reduce, "
                    "then the half that sends full sums on"
                )
            if case.subject.kind.reducing:
                sums = any(len(terms(symbol)) > 1 for symbol in (old, *message.carried))
                return (Observation if sums else str)(
                    f"in round {message.round} the value from rank {message.source}, {new}, replaces {where}, {old}, "
                    "and is not added" + (", so that the old value is lost" if sums else
                                            ": pass reduce=reduce to comm.exchange or comm.recv")
                )
            return (f"in round {message.round} the value from rank {message.source} overwrites {where}, {old}, which "
                    f"is still needed: receive into another chunk")
        held[message.to] = vector
    return None


def full(case: Case, symbol: Symbol) -> bool:
    return case.subject.kind.reducing and case.complete(symbol) is not None


def wanted(case: Case, rank: int, element: int, lost: set[Term]) -> bool:
    """Whether the terms lost there are missing in some place at the end."""
    if not case.subject.kind.reducing:
        return any((rank, element) == place and lost & set(case.due[place]) for place in case.wrong)
    return any(lost & (set(case.due[place]) - set(terms(case.last(place[0])[place[1]]))) for place in case.wrong)


def drops_what_arrived(case: Case) -> str | None:
    """A missing contribution arrived in a buffer of the function's own and never left it."""
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
                    f"{told}which round {later[0].round} overwrites: one buffer serves every receive, so earlier "
                    "references to it change too. Keep a copy (buffer.copy()), or use it before the next receive"
                )
            if case.subject.kind.reducing:
                return (
                    f"{told}and is not added to the result: total += arrived adds, total = arrived replaces, and "
                    "np.add(total, arrived) gives a new array, so write np.add(total, arrived, out=total)"
                    f"{never_written_back(case)}"
                )
            return f"{told}and does not reach the result: copy it to its place, chunks[c][:] = arrived"
    return None


def never_written_back(case: Case) -> str:
    """The advice for a function that works in place and left its vector unchanged; else empty."""
    if case.subject.manner != "in place" or any(
            symbol != Term(rank, element)
            for rank in range(case.size) for element, symbol in enumerate(case.last(rank))):
        return ""
    return (". Nothing is ever written into chunks: if the sum is in a copy or in a new array, write it back, "
            "chunks[c][:] = …, or work on chunks directly")


def holds_later(case: Case, rank: int, later: Sequence[Message]) -> bool:
    """Whether the data that overwrote the buffer are in the result more often than expected, or were overwritten again.
    """
    last = Counter(leaf for symbol in case.last(rank) for leaf in terms(symbol))
    came = {leaf for symbol in later[-1].landed for leaf in terms(symbol)}
    return any(last[leaf] > 1 for leaf in came) or len(later) > 1


def passes_its_sum_on(case: Case) -> str | None:
    """A contribution is added twice; names the first place."""
    if not case.subject.kind.reducing:
        return None
    for message in case.messages:
        for element, symbol in zip(message.outgoing or [None] * len(message.carried), message.carried, strict=False):
            if again := twice(symbol):
                return added_by_itself(case, message, element, symbol, again)
        for carried, landed in zip(message.carried, message.landed, strict=False):
            if again := twice(landed):
                late = ring_rounds(case) is not None and message.round >= case.size
                advice = (
                    f"this is round {message.round}, and {case.size - 1} rounds bring every contribution to every "
                    "rank: loop over range(comm.size − 1)"
                ) if late else (
                    "each contribution must reach a rank once: does the forwarded sum already contain the receiver's "
                    "own contribution?"
                )
                return (f"in round {message.round} rank {message.to} adds {carried} from rank {message.source} "
                        f"to a value that already contains {again}: {advice}")
    for rank, element in case.wrong:
        again = twice(case.last(rank)[element])
        if again == str(Term(rank)):
            return (f"rank {rank} adds its own contribution a second time, without a message: the sum already "
                    "contains it, so add it once")
        if again:
            return f"rank {rank} adds {again} more than once, without a message: which loop adds it again?"
    return None


def added_by_itself(case: Case, message: Message, element: int | None, symbol: Symbol, again: str) -> str:
    """The reason why a rank sends a sum with a contribution twice, if no message carried it so."""
    told = f"the message of rank {message.source} in round {message.round}, {symbol}, contains {again} twice"
    had = None if element is None else before(case, message.source, message.round)[element]
    if again == str(Term(message.source)) and had is not None and not twice(had):
        return (f"{told}, and the value that it had received, {had}, contains it once: rank {message.source} adds its "
                "own contribution once more, which chunks hold already; remove the addition made without reduce=")
    if message.outgoing:
        return f"{told}, although no received message does: which code adds it again, without reduce=?"
    return f"{told}: send on what arrived in the round before, and keep the sum in a separate array"


def twice(symbol: Symbol) -> str:
    """The contributions that are in a symbol more than once."""
    return ", ".join(str(leaf) for leaf, times in Counter(terms(symbol)).items() if times > 1)


def goes_no_further(case: Case) -> str | None:
    """The last place that a missing contribution reached."""
    for rank, element in case.wrong:
        absent = [t for t in case.due[rank, element] if t not in set(terms(case.last(rank)[element]))]
        for term in absent:
            return f"{told_of(case, term)} {where_it_stops(case, term, rank)}"
    return None


def told_of(case: Case, term: Term) -> str:
    return f"rank {term.rank}'s contribution to chunk {case.chunk_of[term.element]}, {term},"


def where_it_stops(case: Case, term: Term, rank: int) -> str:
    """The last message with a contribution, and where the contribution was lost."""
    carrying = [m for m in case.messages if any(term in terms(symbol) for symbol in m.carried)]
    if not carrying and term.rank == rank:
        return "is overwritten on its own rank before it is added: work on chunks, or begin with a copy of them"
    if not carrying:
        return f"never leaves rank {term.rank}: no message carries it. Which rank should send it, in which round?"
    if said := kept_back(case, term, rank):
        return said
    last = carrying[-1]
    if last.to == rank:
        return (f"reaches rank {rank} in round {last.round} but is not in the result: it is received into "
                f"{case.words(last.into) if last.into else 'a buffer of its own'} and lost there")
    return f"goes as far as rank {last.to}, in round {last.round}{sent_without(case, last, term)}"


def sent_without(case: Case, last: Message, term: Term) -> str:
    """The words for a later message of that chunk without the contribution."""
    chunk = case.chunk_of[term.element]
    sent = [(m, symbol) for m in case.messages if m.source == last.to
            for symbol in m.carried if any(leaf.element == term.element for leaf in terms(symbol))]
    later = next(((m, symbol) for m, symbol in sent if m.round > last.round), None)
    if later is not None:
        message, symbol = later
        memory = "" if message.outgoing else ", from memory outside chunks: is it an earlier copy?"
        return (f"; in round {message.round} rank {last.to} sends chunk {chunk} to rank {message.to} as {symbol}, "
                f"without {term}{memory}")
    if sent and case.subject.kind.rooted and case.subject.kind.reducing:
        message, _ = sent[-1]
        return (f"; rank {last.to} already sent its sum up, in round {message.round}, to rank {message.to}: a rank "
                "must receive from all below it before it sends up, as in the rounds of a broadcast in reverse order")
    if sent:
        message, _ = sent[-1]
        return (f"; rank {last.to} sent chunk {chunk} in round {message.round}, to rank {message.to}, and does not "
                "send it again")
    return f", which never sends chunk {chunk} on"


def kept_back(case: Case, term: Term, rank: int) -> str | None:
    """The rank that has the missing term already and sends something else."""
    for message in case.messages:
        if case.subject.kind.reducing or message.to != rank or message.source == term.rank:
            continue
        if term in before(case, message.source, message.round) and term not in message.carried:
            return (f"is on rank {message.source} when rank {message.source} sends to rank {rank} in round "
                    f"{message.round}, but the message has only {case.cargo(message.carried)}: send all that "
                    "has arrived by then")
    return None
