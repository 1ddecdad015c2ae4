"""Proofs on symbols: the result of a collective on every rank, for all values that the numbers could have.

After a run, an element holds a tree of terms. The claims of a collective say which terms, each exactly once; the
declared order says in which tree. Since receives name their sources, one run stands for all schedules; it is made
twice, with buffered sends and with sends that wait for their receivers.

The chunks that a collective sends, those of all messages of all ranks in a run whose chunks have one element each, are
counted beside the least that any algorithm for it can send. Fewer are a fault: something else than messages moved data.

For a user's function two orders are equal if they differ only by `a + b` and `b + a`: IEEE addition commutes. Our own
algorithms are compared with the declared tree including its operands, because of NaN payloads.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isclose
from random import Random
from typing import Any, NamedTuple

import numpy as np

from zerosim.collectives.kinds import COLLECTIVES
from zerosim.core import orders
from zerosim.core.comm import Communicator
from zerosim.core.errors import Deadlock, UsageError, error_line
from zerosim.core.sharding import bounds
from zerosim.core.terms import Blank, Sum, Symbol, Term, commuted, leaves, symbols
from zerosim.core.words import joined, plural
from zerosim.observe.record import Recording, elements, record
from zerosim.proofs.case import Case
from zerosim.proofs.clock import LATER_SECONDS, clock_moved
from zerosim.proofs.ended import in_file, raised
from zerosim.proofs.subject import Subject
from zerosim.worlds.local import Sends, StillRunning


class SentChunks(NamedTuple):
    """The messages, the rounds and the chunks of a run, and the least chunks for this collective."""

    ranks: int
    messages: int
    rounds: int
    chunks: int
    least: int

    def __str__(self) -> str:
        """
        >>> str(SentChunks(4, messages=24, rounds=3, chunks=24, least=12))
        '24 chunks in 24 messages and 3 rounds; 12 chunks is the least, so it sends 2 times as many'
        """
        often = self.chunks / self.least if self.least else 0
        more = f", so it sends {often:.3g} times as many" if often > 1 else ""
        least = f"; {plural(self.least, 'chunk')} is the least{more}" if self.ranks > 1 else ""
        return (f"{plural(self.chunks, 'chunk')} in {plural(self.messages, 'message')} and "
                f"{plural(self.rounds, 'round')}{least}")


def sent_in(case: Case) -> SentChunks:
    """The messages and chunks of a run with one element in each chunk.

    >>> from zerosim.proofs.subject import named_subject
    >>> for name in ("ring.all_reduce", "naive.all_reduce", "tree.broadcast"):
    ...     subject = named_subject(name)
    ...     print(sent_in(Case(subject, run(subject, 4, 4), count=4)))
    24 chunks in 24 messages and 6 rounds; 24 chunks is the least
    24 chunks in 6 messages and 6 rounds; 24 chunks is the least
    12 chunks in 3 messages and 2 rounds; 12 chunks is the least
    """
    chunks, least = sum(len(message.carried) for message in case.messages), case.subject.kind.least_chunks(case.size)
    return SentChunks(case.size, len(case.messages), case.recording.rounds, chunks, least)


SMALL = 16
"""The most ranks for which a proof also tries vectors that do not divide evenly."""

FEW = 8
"""The most ranks for which a proof of a user's function also tries long vectors."""

LONG, LONGER = (33, 129, 1025), 2
"""The least lengths of the drawn vectors, and the factor up to which they are drawn."""

WHOLE_BUCKETS = 256
"""The elements of each chunk of a vector which buckets of a power of two divide."""

LIMIT_SECONDS = 60.0
"""The limit of one run of a user's function, which need not end."""

MOST_PROVED_RANKS = 256
"""The most ranks of a proof, for which the ring takes half a minute and 0.8 GB; both grow with the cube."""

WAITING = "sends that wait for their receivers, as MPI sends may"

KNOWN_ORDERS: dict[str, orders.AddingOrder] = {
    "ring": orders.ring, "rank order": orders.rank_order, "near tree": orders.near_tree,
    "folded tree": orders.folded_tree}


@dataclass(frozen=True)
class ProofFault:
    """One fault: its place, and a line that says what is wrong."""

    what: str
    rank: int | None = None
    chunk: int | None = None
    round: int | None = None


@dataclass
class Proof:
    """The findings about a subject on `size` ranks; it holds if there are no faults."""

    subject: Subject
    size: int
    held: list[list[Symbol]] = field(default_factory=list)
    """The final vector of each rank in the run with one element in each chunk."""
    faults: list[ProofFault] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    order: str | None = None
    """The name of the order of addition found: the declared one, or a known one."""
    sent: SentChunks | None = None
    """The messages of the first run with one element in each chunk."""
    case: Case | None = None
    """The run that fails or, if none does, the first."""

    @property
    def holds(self) -> bool:
        return not self.faults


def prove(subject: Subject, size: int, lengths: Sequence[int] | None = None) -> Proof:
    """The proof that every contribution is there once, in its place, in the declared order, the same on every rank.

    It holds for all values, and for the lengths that it tries: one element for each rank and those of `tried_lengths`,
    or `lengths` instead; every root (beyond `SMALL`, three of them); buffered sends and rendezvous.

    >>> from zerosim.proofs.subject import named_subject
    >>> proof = prove(named_subject("ring.all_reduce"), 3)
    >>> proof.holds, proof.order, proof.held[2][0]
    (True, 'declared', ((g1 + g2) + g0))
    """
    more = tried_lengths(subject, size) if lengths is None else lengths
    proof = Proof(subject, size, lengths=[*dict.fromkeys((size, *more))])
    for count in proof.lengths:
        for root in roots(subject, size):
            examine(proof, count, root, "buffered")
            if proof.faults:
                return proof
    for root in roots(subject, size):
        examine(proof, size, root, "rendezvous")
    return proof


def tried_lengths(subject: Subject, size: int) -> list[int]:
    """The lengths of a proof, besides one element for each rank: none, one, and one that `size` does not divide.

    A user's function also gets four longer vectors, the same ones in each proof on `size` ranks: code is often wrong
    beyond the length of a buffer, or where a piece is not a multiple of one, or is one. Ours has no such lengths.
    """
    short = [2 * size] if subject.even else [] if size > SMALL else [0, 1, 2 * size + 1]
    if subject.shipped or size > FEW:
        return short
    chance = Random(size)
    drawn = [*(chance.randrange(least, least * LONGER) for least in LONG), WHOLE_BUCKETS * size]
    return short + ([-(-count // size) * size for count in drawn] if subject.even else drawn)


def proofs_of(subject: Subject, ranks: Sequence[int], elements: Sequence[int] | None = None) -> list[Proof]:
    """A proof for each supported number of ranks, until one does not end; with vectors of so many `elements`.

    Raises `UsageError` if there is none, or if a number of ranks does not divide `elements` of blocks of equal length.
    """
    if subject.collective not in COLLECTIVES:
        raise UsageError(f"a {subject.collective} moves no data, so there is nothing to prove on symbols; zerosim show "
                         "draws its messages")
    if max(ranks) > MOST_PROVED_RANKS:
        raise UsageError(f"a proof is on at most {MOST_PROVED_RANKS} ranks, not {max(ranks)}, since it keeps every "
                         "rank's vector after every message; give fewer ranks")
    served = [size for size in ranks if subject.serves(size)]
    row = subject.algorithm or subject.declared
    if not served and row is not None:
        raise UsageError(f"{subject.name} serves {row.limit}, not {', '.join(map(str, ranks))}; give different numbers "
                         "of ranks")
    uneven = [f"{count} on {size} ranks" for size in served for count in elements or () if count % size]
    if subject.kind.displacing and uneven:
        raise UsageError(f"{subject.name} has blocks of equal length, and is asked for {uneven[0]}; give a multiple")
    proofs: list[Proof] = []
    for size in served:
        proofs.append(prove(subject, size, elements))
        if (case := proofs[-1].case) and isinstance(case.recording.failure, StillRunning):
            break
    return proofs


def roots(subject: Subject, size: int) -> Sequence[int]:
    if not subject.kind.rooted:
        return [0]
    return range(size) if size <= SMALL else sorted({0, 1, size - 1})


def examine(proof: Proof, count: int, root: int, sends: Sends) -> None:
    """One recorded run; its faults are added to the proof."""
    subject, size = proof.subject, proof.size
    with clock_moved(inspect.unwrap(subject.function), LATER_SECONDS * (sends == "rendezvous")):
        recording = run(subject, size, count, root, sends)
    case = Case(subject, recording, count, root, sends)
    proof.case = proof.case or case
    setting = [f"{count} element{'s' * (count != 1)}"] if count != size else []
    setting += [f"root {root}"] if root else []
    setting += [WAITING] if sends == "rendezvous" else []
    for fault in faults(case) if sends == "buffered" or isinstance(recording.failure, Deadlock) else ():
        what = f"with {', '.join(setting)}: {fault.what}" if setting else fault.what
        proof.faults.append(replace(fault, what=what))
    if not proof.faults and recording.results is not None:
        if not proof.held and count == size:
            proof.held = [list(result) for result in recording.results]
            proof.sent = sent_in(case)
            check_sent(proof, proof.sent)
        if subject.kind.reducing and sends == "buffered" and count:
            check_order(proof, case)
        for rank, element in case.expected if root == roots(subject, size)[0] and sends == "rendezvous" else ():
            before, now = proof.held[rank][element], case.last(rank)[element]
            if not same_sum(before, now):
                proof.faults.append(fault_at(
                    case, rank, element, f"it holds {before} in one call, {now} in another; an order of addition may "
                    "not depend on the time"))
                break
    if proof.faults:
        proof.case = case


def run(subject: Subject, size: int, count: int, root: int = 0, sends: Sends = "buffered") -> Recording:
    """The recorded run of `subject` on symbols; each rank's result is its final vector."""

    def program(comm: Communicator, vector: Any) -> tuple[Any, ...]:
        subject(comm, vector, root)
        return elements(vector)

    vectors = [symbols(rank, count, Blank) for rank in range(size)]
    for rank, vector in enumerate(vectors):  # a rank's terms where it contributes
        brought = subject.kind.brought(vector, rank, size, root)
        if brought is not None:
            brought[:] = subject.kind.brought(symbols(rank, count), rank, size, root)
    if subject.shipped:
        return record(program, vectors, sends=sends)
    return record(program, vectors, sends=sends, limit_seconds=LIMIT_SECONDS, file=subject.file)


def faults(case: Case) -> Iterator[ProofFault]:
    """The faults of a recorded run: why it ended early, or the first wrong place on each rank."""
    if case.recording.results is None:
        yield ProofFault(failure_line(case), round=case.recording.rounds)
        return
    for rank, element in sorted({place[0]: place for place in reversed(case.wrong)}.values()):
        symbol, (round_, origin) = case.last(rank)[element], last_change(case, rank, element)
        wrong = difference(symbol, case.expected[rank, element])
        yield fault_at(case, rank, element, f"{wrong}; it holds {symbol}, {origin}", round_)


def fault_at(case: Case, rank: int, element: int, what: str, round_: int | None = None) -> ProofFault:
    chunk = case.chunk_of[element]
    return ProofFault(f"rank {rank}, chunk {chunk}: {what}", rank, chunk, round_)


def failure_line(case: Case) -> str:
    """Why a run ended early, in one line, with the line of the code if it is known."""
    failure, file = case.recording.failure, case.subject.file
    assert failure is not None
    reason, lines = raised(failure, file), list[int]()
    if isinstance(failure, Deadlock) and not isinstance(failure, StillRunning):
        reason, lines = str(failure), [awaited.line for awaited in case.recording.awaited.values()]
    elif not in_file(failure, file) and not isinstance(failure, StillRunning):
        lines = [sent.line for sent in case.recording.unreceived]
    known = [str(line) for line in sorted({*lines} - {0})]
    return f"{reason}, in line {joined(known)}" if known else reason


def difference(symbol: Symbol, expected: Sequence[Term]) -> str:
    """The difference between the terms in a symbol and those expected, once each; empty if there is none."""
    counts, element = Counter(leaves(symbol)), expected[0].element
    lost = [term for term in expected if not counts[term]]
    doubled = [term for term in expected if counts[term] > 1]
    foreign = [leaf for leaf in counts if leaf not in expected]
    complaints = [f"{names(lost)} missing"] if lost else []
    complaints += [f"{names(doubled)} added {max(map(counts.__getitem__, doubled))} times"] if doubled else []
    if any(not isinstance(leaf, Term) for leaf in foreign):
        complaints.append("a place that was never filled")
    strays = [f"{leaf} of element {leaf.element}" for leaf in foreign
              if isinstance(leaf, Term) and leaf.element != element]
    complaints += [f"misplaced: {', '.join(strays)}, where element {element} belongs"] if strays else []
    uninvited = [leaf for leaf in foreign if isinstance(leaf, Term) and leaf.element == element]
    return ", ".join([*complaints, *([f"{names(uninvited)} not expected here"] if uninvited else [])])


def names(terms: Sequence[Any]) -> str:
    return f"{', '.join(map(str, terms))} {'is' if len(terms) == 1 else 'are'}"


def last_change(case: Case, rank: int, element: int) -> tuple[int | None, str]:
    """The round in which an element of a rank was last written, and by whose message, in words."""
    history = case.recording.vectors[rank]
    for (_, before), (round_, after) in zip(reversed(history[:-1]), reversed(history[1:]), strict=True):
        if after[element] is not case.last(rank)[element]:
            break
        if before[element] is not after[element]:
            sources = [m.source for m in case.messages if m.to == rank and m.round == round_]
            return round_, f"since round {round_}, with a message from rank {sources[-1]}"
    return None, "and no message changed it"


def check_sent(proof: Proof, sent: SentChunks) -> None:
    """Check that a collective sends no fewer chunks than any can, and a user's the chunks that it declares, if it does,
    in no more rounds."""
    row, ranks = proof.subject.declared, sent.ranks
    if sent.chunks < sent.least:
        proof.faults.append(ProofFault(f"the ranks send {plural(sent.chunks, 'chunk')}, and {sent.least} is the least: "
                                       "data passes outside of messages, which processes cannot do"))
    if row is not None and row.chunks_sent is not None and not isclose(
            sent.chunks, (declared := row.chunks_sent(ranks)) * ranks, rel_tol=1e-9):
        proof.faults.append(ProofFault(f"a rank sends {sent.chunks / ranks:.6g} chunks on average, and chunks_sent "
                                       f"declares {declared:.6g} on {plural(ranks, 'rank')}"))
    if row is not None and row.rounds is not None and sent.rounds > row.rounds(ranks):
        proof.faults.append(ProofFault(f"it takes {sent.rounds} rounds; {row.rounds(ranks)} are declared"))


def check_order(proof: Proof, case: Case) -> None:
    """Check that all ranks add in the same order, and in the declared one if there is a declaration."""
    row = case.subject.algorithm or case.subject.declared
    if row is not None and row.order is not None:
        proof.order = "declared"
        proof.faults += order_faults(case, row.order, row.users)
        return
    first: dict[int, int] = {}
    for rank, element in case.expected:
        symbol, other = case.last(rank)[element], first.setdefault(element, rank)
        if not same_sum(symbol, before := case.last(other)[element]):
            proof.faults.append(fault_at(
                case, rank, element, f"the ranks disagree: it holds {symbol}, rank {other} holds {before}; added in a "
                "different order, bits differ"))
            return
    if case.count == case.size:
        sums = {case.expected[rank, element]: commuted(case.last(rank)[element]) for element, rank in first.items()}
        proof.order = known_order(sums, case.chunk_of)


def order_faults(case: Case, order: orders.AddingOrder, users: bool) -> Iterator[ProofFault]:
    """The first sum in another order than the declared one, which gets each rank's part of a chunk as a vector."""
    terms_of = {element: terms for (_, element), terms in case.expected.items()}
    declared: dict[int, Symbol] = {}
    try:
        for chunk, (start, stop) in enumerate(bounds(case.count, case.size)):
            elements = [element for element in range(start, stop) if element in terms_of]
            contributions = zip(*(terms_of[element] for element in elements), strict=True)
            vectors = [np.array(contribution, object) for contribution in contributions]
            declared.update(zip(elements, order(vectors, chunk) if vectors else (), strict=True))
    except Exception as error:
        what = f"the declared order of addition fails: {error_line(error, order)}"
        yield fault_at(case, *next(iter(case.expected)), what)
        return

    def as_declared(symbol: Symbol, element: int, expected: Sequence[Term]) -> bool:
        return same_sum(symbol, declared[element]) if users else symbol == declared[element]

    for rank, element in islice(case.unlike(as_declared), 1):
        yield fault_at(case, rank, element, f"added as {case.last(rank)[element]}; declared is {declared[element]}")


def same_sum(one: Any, other: Any) -> bool:
    """Whether two sums are equal up to a + b = b + a."""
    return one == other or (isinstance(one, Sum) and isinstance(other, Sum) and commuted(one) == commuted(other))


def known_order(sums: dict[tuple[Term, ...], Symbol], chunk_of: dict[int, int]) -> str | None:
    """The name of the known order in which all these terms are added, or None."""
    for name, order in KNOWN_ORDERS.items():
        if all(commuted(order(terms, chunk_of[terms[0].element])) == symbol for terms, symbol in sums.items()):
            return name
    return None


def summed(reduce_scatter: Callable[..., Any], ranks: int) -> list[Symbol]:
    """The sum that chunk c holds on rank c after `reduce_scatter(comm, chunks)`, for every c in order.

    >>> from zerosim.collectives import ring
    >>> summed(ring.reduce_scatter, ranks=3)
    [((g1 + g2) + g0), ((g2 + g0) + g1), ((g0 + g1) + g2)]
    """
    under_test = Subject("reduce_scatter", "reduce_scatter", reduce_scatter, "in place")
    recording = run(under_test, ranks, ranks)
    assert recording.results is not None, recording.failure
    return [recording.results[rank][rank] for rank in range(ranks)]
