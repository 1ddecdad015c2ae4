"""Why a collective is wrong: the first message in which its run differs from the algorithm that it resembles.

    likeness   the share of messages that two runs have in common, by round, ranks and length
    path       the messages that carry a contribution; named where a run resembles no algorithm of the table

A run that ends early is compared up to there. Proofs, grades, drawings and laws use these words.
"""

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np

from zerosim.collectives import ALGORITHMS
from zerosim.core.comm import Communicator
from zerosim.core.errors import Deadlock, Runaway
from zerosim.core.terms import Term, commuted
from zerosim.observe.record import Message, Recording
from zerosim.proofs.case import Case, terms
from zerosim.proofs.ended import endless_loop
from zerosim.proofs.proof import SMALL, Proof, prove, run
from zerosim.proofs.subject import Subject, collective_in, named_subject
from zerosim.worlds.local import StillRunning

TELLING = 4
"""The ranks on which a fault is examined, if it occurs there too; on fewer, left and right nearly coincide."""
ALIKE = 0.5
"""The least likeness of a run to the algorithm that it is compared with."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a function is wrong, None if no cause was found, and the command that shows it."""

    cause: str | None
    command: str

    def __str__(self) -> str:
        return f"why: {self.cause}\nsee: {self.command}" if self.cause else f"see: {self.command}"


def diagnosis(proof: Proof) -> Diagnosis | None:
    """The diagnosis of a proof that fails, on a few more ranks if it fails there in the same way; None if it holds.

    >>> from zerosim.collectives import ring
    >>> from zerosim.proofs.proof import prove
    >>> from zerosim.proofs.subject import subject
    >>> def my_all_reduce(comm, chunks):
    ...     ring.reduce_scatter(comm, chunks)
    >>> diagnosis(prove(subject(my_all_reduce), 4)).cause
    'in round 4 rank 0 sends nothing to rank 1, where ring.all_reduce sends chunk 0 as (((g1 + g2) + g3) + g0)'
    """
    case = proof.case
    if case is None or proof.holds:
        return None
    if (case.size < TELLING and case.subject.serves(TELLING) and case.count <= 2 * case.size + 1
            and not isinstance(case.recording.failure, StillRunning)):
        proof = prove(case.subject, TELLING)
        more = None if proof.holds else proof.case
        if more and (type(more.recording.failure), more.sends) == (type(case.recording.failure), case.sends) and (
                why := cause(more)):
            return Diagnosis(f"on {TELLING} ranks, {why}", command(more))
    return Diagnosis(cause(case), command(case))


def of_run(subject: Subject, size: int, root: int = 0) -> Diagnosis:
    """The diagnosis of a function that is right on symbols and wrong in its order, its messages or its time."""
    case = Case(subject, run(subject, size, size, root), size, root)
    return Diagnosis(first_difference(case), command(case))


def cause(case: Case) -> str | None:
    """Why a run is wrong, in words; None if its failure says all that is known."""
    failure = case.recording.failure
    if case.sends == "rendezvous" and failure is None:
        return "two calls with the same arguments add in two orders: it reads a clock, or what an earlier call left"
    if case.sends == "rendezvous":
        return ("a send may wait for its receiver, and here all of them send first: use comm.exchange, which does both "
                "at once, or let one rank of each pair receive first")
    if failure is not None and (loop := endless_loop(failure, case.subject.file)):
        return loop
    if (shared := changed_between_calls(case)) is not None:
        return shared
    if failure is None:
        # There are many right trees: the path of a contribution tells more than the difference from one of them.
        tree = resembled(case) if case.subject.collective in TREES else None
        another = tree is not None and bool(by_round(case.recording).keys() - tree[1].keys())
        return (in_another_place(case) or (lost_or_doubled(case) if another else None)
                or first_difference(case) or same_messages(case) or lost_or_doubled(case))
    return with_itself(case) or first_difference(case) or (waiting(case) if isinstance(failure, Deadlock) else None)


def same_messages(case: Case) -> str | None:
    """The algorithm whose messages all are the same, and whether they come into memory outside of the vector or, if
    not, the rank that is wrong without a message."""
    name, _ = resembled(case) or ("", {})
    if name in ("", case.subject.name):
        return None
    outside = next((m for m in case.messages if m.carried and not m.into), None)
    if outside is not None and case.subject.manner == "in place":
        where = f", received outside of the vector{in_line(outside, outside.received_in)}"
    else:
        where = "".join(f"; {wrong_by_itself(case, *place)}" for place in case.wrong[:1])
    return f"its messages are those of {name}{where}"


def wrong_by_itself(case: Case, rank: int, element: int) -> str:
    """What a rank does to an element that is wrong there, though all messages are right."""
    again = doubled(case.last(rank)[element])
    return (f"rank {rank} adds {again} again, without a message" if again else
            f"rank {rank} itself fills chunk {case.chunk_of[element]} wrongly")


def changed_between_calls(case: Case) -> str | None:
    """A global or a default argument that a run changes: all ranks share it, and the next call finds it changed."""
    function = inspect.unwrap(case.subject.function)
    if not inspect.isfunction(function) or isinstance(case.recording.failure, StillRunning | Runaway):
        return None

    def state() -> dict[str, str]:
        values = {f"the global {name}": value for name, value in inspect.getclosurevars(function).globals.items()}
        values |= {f"the default of {name}": of.default for name, of in inspect.signature(function).parameters.items()}
        return {where: repr(value) for where, value in values.items()
                if isinstance(value, list | dict | set | int | np.ndarray)}

    before = state()
    run(case.subject, case.size, case.count, case.root, case.sends)
    after = state()
    return next((f"each call changes {where}, which all ranks share: give each call its own"
                 for where in before if after.get(where) != before[where]), None)


def with_itself(case: Case) -> str | None:
    """The first rank that waits for itself, or that sends to itself and does not receive it; not where it does both."""
    sent = {message.source: message for message in case.recording.unreceived if message.source == message.to}
    awaited = {rank: awaited for rank, awaited in sorted(case.recording.awaited.items()) if awaited.source == rank}
    waits = (f"rank {rank} waits for a message from itself{in_line(None, awaited[rank].line)}"
             for rank in awaited if rank not in sent)
    sends = (f"rank {rank} sends to itself{in_line(sent[rank])}" for rank in sent if rank not in awaited)
    return next(chain(waits, sends), None)


def waiting(case: Case) -> str | None:
    """Why ranks of a deadlock wait: all receive first, or one waits for another rank than the one that has sent to it,
    or for a message that the algorithm which the run resembles does not have."""
    recording, (name, expected) = case.recording, resembled(case) or ("", {})
    if len(recording.awaited) == case.size and not recording.messages and not recording.unreceived:
        return (f"all ranks receive before any has sent{in_line(None, recording.awaited[0].line)}: use comm.exchange, "
                "which does both at once, or let one rank of each pair send first")
    for rank, awaited in sorted(recording.awaited.items()):
        line = f" in line {awaited.line}" if awaited.line else ""
        waits = f"rank {rank} waits{line} for a message from rank {awaited.source}"
        sources = {sent.source: sent for sent in recording.unreceived if sent.to == rank}
        if sources and awaited.source not in sources:
            first = sources[min(sources)]
            return f"{waits}, and the one on its way there is from rank {first.source}{in_line(first)}"
        arrived, due = (sum((message.source, message.to) == (awaited.source, rank) for message in messages)
                        for messages in (case.messages, expected.values()))
        if name and arrived >= due:
            return f"{waits}; in {name} it receives {'no more' if arrived else 'none'} from there"
    return None


def in_another_place(case: Case) -> str | None:
    """The complete chunk, or element, returned in the place of another; None if the first wrong one is incomplete."""
    if case.subject.manner != "array" or not case.wrong:
        return None
    rank, due = case.wrong[0]
    returned = Counter(terms(case.last(rank)[due]))
    element = next((at for (_, at), expected in case.expected.items() if at != due and Counter(expected) == returned),
                   None)
    if element is None:
        return None
    has, wants = (f"{f'element {at} of ' * (case.count > case.size)}chunk {case.chunk_of[at]}" for at in (element, due))
    return f"rank {rank} returns {has}, complete, where {wants} is due"


# The first message that differs.


ByRound = dict[tuple[int, int, int], Message]
"""The messages of a run, by round, source and destination."""


def by_round(recording: Recording) -> ByRound:
    messages: list[Message] = [*recording.unreceived, *recording.messages]
    return {(message.round, message.source, message.to): message for message in messages}


@cache
def known_run(name: str, collective: str, size: int, count: int, root: int) -> Recording:
    """The run of an algorithm of the table, or of one of `TREES`."""
    tree = TREES.get(collective, {}).get(name)
    return run(named_subject(name) if tree is None else Subject(name, collective, tree, "in place"), size, count, root)


def resembled(case: Case) -> tuple[str, ByRound] | None:
    """The algorithm of the same collective whose messages are most like these, by its name; first those that keep the
    declarations.

    A message that goes another way is like that of an algorithm that keeps a declared order or declared rounds.
    """
    kind, sent = case.subject.collective, by_round(case.recording)
    if not case.count:
        return None
    rows = [f"{row.name}.{kind}" for row in ALGORITHMS.values()
            if row.collective == kind and row.serves(case.size) and not row.per_host
            and (case.size <= SMALL or row.name in ("ring", "tree"))] + [*TREES.get(kind, {})]
    rows.sort(key=lambda name: name.startswith("naive"))
    known = {name: by_round(known_run(name, kind, case.size, case.count, case.root)) for name in rows}

    def likeness(name: str, directed: bool) -> float:
        expected = known[name]
        if not directed:
            has, wants = {key[:2] for key in sent}, {key[:2] for key in expected}
            return len(has & wants) / (len(has | wants) or 1)
        alike = sum(len(sent[key].carried) == len(expected[key].carried) for key in sent.keys() & expected.keys())
        return alike / (len(sent.keys() | expected.keys()) or 1)

    row = case.subject.declared
    keeping = [name for name in rows if row is not None and (
        row.order is None or (name in ALGORITHMS and ALGORITHMS[name].order is row.order)) and (
        row.rounds is None or max((key[0] for key in known[name]), default=0) <= row.rounds(case.size))]
    certain = keeping if row is not None and (row.order or row.rounds) else []
    for names, directed in ((keeping, True), (certain, False), (rows, True)):
        best = max(names, key=lambda name: likeness(name, directed), default=None)
        if best is not None and likeness(best, directed) >= ALIKE:
            return best, known[best]
    return None


def first_difference(case: Case) -> str | None:
    """The first message that differs from those of the algorithm that the run resembles; None if there is none."""
    sent, failure, (name, expected) = by_round(case.recording), case.recording.failure, resembled(case) or ("", {})
    ended_early = failure is not None and not isinstance(failure, Deadlock)
    for key in sorted(sent.keys() if ended_early else sent.keys() | expected.keys()) if name else ():
        if (words := difference(case, sent, expected, key, name)) is not None:
            return f"in round {key[0]} rank {key[1]} {words}"
    return None


def difference(case: Case, sent: ByRound, expected: ByRound, key: tuple[int, int, int], name: str) -> str | None:
    """The difference of one message, with its line in the examined file."""
    has = sent.get(key) or elsewhere(sent, expected, key)
    wants = expected.get(key) or elsewhere(expected, sent, key)
    if has is not None and wants is not None and has.to != wants.to:
        return (f"sends {contents(case, has)} to rank {has.to}, where {name} sends {contents(case, wants)} to rank "
                f"{wants.to}{in_line(has)}")
    if has is None or wants is None or [*map(commuted, has.carried)] != [*map(commuted, wants.carried)]:
        return f"sends {contents(case, has)} to rank {key[2]}, where {name} sends {contents(case, wants)}{in_line(has)}"
    if not has.into or not wants.into:
        return None
    difference = ""
    if has.into != wants.into:
        difference = f"which receives it into {case.words(has.into)}; with {name} into {case.words(wants.into)}"
    elif [*map(commuted, has.landed)] != [*map(commuted, wants.landed)]:
        place = case.words(has.into).removeprefix("the ")
        difference = f"whose {place} is then {has.landed[0]}; with {name} it is {wants.landed[0]}"
    line = in_line(has, has.received_in)
    return f"sends {contents(case, has)} to rank {key[2]}, {difference}{line}" if difference else None


def elsewhere(messages: ByRound, others: ByRound, key: tuple[int, int, int]) -> Message | None:
    """The message that a rank sends in the same round to another rank, if the other run has none there."""
    return next((messages[other] for other in sorted(messages) if other[:2] == key[:2] and other not in others), None)


def in_line(message: Message | None, line: int = 0) -> str:
    """The line that sent a message, or the given one, in brackets; empty if it is not known."""
    line = line or (message.line if message is not None else 0)
    return f" (line {line})" if line else ""


def contents(case: Case, message: Message | None) -> str:
    """The chunks in a message and the first symbol, in words."""
    if message is None:
        return "nothing"
    elements = [leaf.element for symbol in message.carried for leaf in terms(symbol)]
    chunks = case.words(message.outgoing) if message.outgoing else case.words(elements, whole="")
    return f"{chunks} as {message.carried[0]}" if message.carried else "an empty message"


# The trees that students write, beside the table's.


def pairs(size: int, falling: bool) -> list[tuple[int, int]]:
    """The sender and the receiver of each message of a broadcast by a tree as students write it, in order.

    Ranks are counted from the root on, so every root has the same tree; the table's keeps the order of the ranks. With
    distances 1, 2, 4, … each rank that has the vector sends it on in every round; if they are `falling`, the tree is
    the table's for root 0.

    >>> pairs(5, falling=False), pairs(5, falling=True)
    ([(0, 1), (0, 2), (1, 3), (0, 4)], [(0, 4), (0, 2), (0, 1), (2, 3)])
    """
    distances = [1 << number for number in range((size - 1).bit_length())]
    return [(place, place + distance) for distance in (distances[::-1] if falling else distances)
            for place in range(0, size - distance, 2 * distance if falling else 1) if falling or place < distance]


def tree(falling: bool, step: int, comm: Communicator, vector: Any, root: int, reduce: Any = None) -> None:
    """The messages of a broadcast, or with step −1 those of a reduce: the same ones backwards."""
    for pair in pairs(comm.size, falling)[::step]:
        sender, receiver = ((place + root) % comm.size for place in pair[::step])
        if comm.rank == sender:
            comm.send(vector, to=receiver)
        elif comm.rank == receiver:
            comm.recv(into=vector, source=sender, reduce=reduce)


TREES: dict[str, dict[str, Callable[..., None]]] = {
    collective: {f"a tree of distances {words}": partial(tree, falling == (step == 1), step)
                 for words, falling in (("1, 2, 4", False), ("4, 2, 1", True))}
    for collective, step in (("broadcast", 1), ("reduce", -1))}
"""The trees by collective and by their names in a diagnosis."""


# The life of a contribution.


def lost_or_doubled(case: Case) -> str | None:
    """Where the first contribution that is missing or doubled was lost or added again."""
    for message in case.messages:
        for symbol in (*message.carried, *message.landed):
            if again := doubled(symbol):
                event = f"sent by rank {message.source}" if symbol in message.carried else f"added on rank {message.to}"
                return f"in round {message.round} {symbol} is {event}, and contains {again} twice{in_line(message)}"
    for rank, element in case.wrong:
        symbol = case.last(rank)[element]
        if doubled(symbol):
            return wrong_by_itself(case, rank, element)
        for term in case.expected[rank, element]:
            if term not in set(terms(symbol)):
                where = f"{term} of chunk {case.chunk_of[element]} is missing on rank {rank}"
                return f"{where}: {' '.join(filter(None, path(case, term)))}"
    return None


def path(case: Case, term: Term) -> Iterator[str]:
    """The messages that carry a contribution, and what the last rank with it sends."""
    carrying = [m for m in case.messages if any(term in terms(symbol) for symbol in m.carried)]
    holder = carrying[-1].to if carrying else term.rank
    if not carrying:
        yield f"no message carries it from rank {term.rank}"
    else:
        last = carrying[-1]
        yield f"it goes {', '.join(f'{m.source} → {m.to} in round {m.round}' for m in carrying)}"
        if not last.into:
            yield "into memory outside of the vector"
        elif term not in terms(case.recording.holds(last.to, after=last.round)[last.into.start]):
            yield f"into {case.words(last.into)}"
        yield in_line(last, last.received_in).strip()
    sent = [m for m in case.messages if m.source == holder
            and any(leaf.element == term.element for symbol in m.carried for leaf in terms(symbol))]
    if sent:
        yield f"and rank {holder} sends {contents(case, sent[-1])} in round {sent[-1].round}{in_line(sent[-1])}"


def doubled(symbol: object) -> str:
    """The contributions that are in a symbol more than once."""
    return ", ".join(str(leaf) for leaf, times in Counter(terms(symbol)).items() if times > 1)


# The command that shows it.


def command(case: Case) -> str:
    """The command that shows a run; for a function without a file, the call that does."""
    subject, where = case.subject, address(case.subject)
    if where is None:
        return f"zs.show({subject.name}, ranks={case.size})"
    drawn = "show" if case.count == case.size else "prove"
    options = [f"--ranks {case.size}"]
    options += [f"--elements {case.count}"] * (case.count > 2 * case.size + 1)
    options += [f"--root {case.root}"] * (drawn == "show" and subject.kind.rooted)
    options += [f"--as {subject.collective}"] * (subject.algorithm is None and collective_in(subject.name) is None)
    return " ".join(["zerosim", drawn, where, *options])


def address(subject: Subject) -> str | None:
    """The name of a subject on the command line: `ring.all_reduce`, `mine.py:my_all_reduce`."""
    if subject.algorithm is not None:
        return subject.name
    qualified = getattr(subject.function, "__qualname__", "<")
    if "<" in qualified or not os.path.isfile(subject.file):
        return None
    path = os.path.relpath(subject.file)
    return f"{subject.file if path.startswith('..') else path}:{qualified}"
