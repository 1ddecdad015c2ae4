"""Why a collective is wrong: the first message in which its run differs from the algorithm that it resembles.

    likeness   the share of messages that two runs have in common, by round, ranks and length
    life       the messages that carry a contribution; told where a run resembles no algorithm of the table

A run that ends early is compared up to there. Proofs, grades, drawings and laws use these words.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from zerosim.collectives import ALGORITHMS
from zerosim.core.errors import Deadlock
from zerosim.core.terms import Term, commuted
from zerosim.observe.record import Message, Recording, Sent
from zerosim.proofs.case import Case, before, terms
from zerosim.proofs.ended import endless_loop
from zerosim.proofs.proof import SMALL, Proof, again, run
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
    """The diagnosis of a proof that fails; None for one that holds.

    >>> from zerosim.collectives import ring
    >>> from zerosim.proofs.proof import prove
    >>> from zerosim.proofs.subject import subject
    >>> def my_all_reduce(comm, chunks):
    ...     ring.reduce_scatter(comm, chunks)
    >>> diagnosis(prove(subject(my_all_reduce), 4)).cause
    'in round 4 rank 0 sends nothing to rank 1, where ring.all_reduce sends chunk 0 as (((g1 + g2) + g3) + g0)'
    """
    return None if proof.case is None or proof.holds else of_case(proof.case)


def of_case(case: Case) -> Diagnosis:
    """The diagnosis of one wrong run, on a few more ranks if it is wrong there in the same way."""
    telling = case
    if case.size < TELLING and case.subject.serves(TELLING) and not isinstance(case.recording.failure, StillRunning):
        more = again(case, TELLING)
        if type(more.recording.failure) is type(case.recording.failure):
            telling = more
    said = cause(telling)
    if telling is not case and said:
        said = f"on {telling.size} ranks, {said}"
    elif telling is not case:
        telling, said = case, cause(case)
    return Diagnosis(said, command(telling))


def of_run(subject: Subject, size: int, root: int = 0) -> Diagnosis:
    """The diagnosis of a function that is right on symbols and wrong in its order, its messages or its time."""
    case = Case(subject, run(subject, size, size, root), size, root)
    return Diagnosis(unlike(case), command(case))


def cause(case: Case) -> str | None:
    """Why a run is wrong, in words; None if its failure says all that is known."""
    failure = case.recording.failure
    if case.sends == "rendezvous":
        return ("a send may wait for its receiver, and here all of them send first: use comm.exchange, which does both "
                "at once, or let one rank of each pair receive first")
    if failure is not None and (loop := endless_loop(failure, case.subject.file)):
        return loop
    if failure is not None and not isinstance(failure, Deadlock) and not case.recording.unasked:
        return None
    return unlike(case) or life(case)


# The first message that differs.


Posts = dict[tuple[int, int, int], Message | Sent]
"""The messages of a run, by round, source and destination."""


def posts(recording: Recording) -> Posts:
    found: list[Message | Sent] = [*recording.unasked, *recording.messages]
    return {(m.round, m.source, m.to): m for m in found}


@cache
def ours(name: str, size: int, count: int, root: int) -> Recording:
    return run(named_subject(name), size, count, root)


def resembled(case: Case) -> str | None:
    """The algorithm of the same collective whose run is most like this one."""
    kind, mine = case.subject.collective, posts(case.recording)
    rows = [f"{row.name}.{kind}" for row in ALGORITHMS.values()
            if row.collective == kind and row.serves(case.size) and not row.per_host
            and (case.size <= SMALL or row.name in ("ring", "tree"))]

    def likeness(name: str) -> float:
        theirs = posts(ours(name, case.size, case.count, case.root))
        alike = sum(key in mine and len(mine[key].carried) == len(m.carried) for key, m in theirs.items())
        return alike / (len(theirs.keys() | mine.keys()) or 1)

    best = max(rows, key=likeness, default=None)
    return best if best is not None and likeness(best) >= ALIKE else None


def unlike(case: Case) -> str | None:
    """The first message that differs from those of the algorithm that the run resembles; None if there is none."""
    name = resembled(case)
    if name is None or not case.count:
        return None
    mine, due = posts(case.recording), posts(ours(name, case.size, case.count, case.root))
    for key in sorted(mine.keys() | due.keys()):
        round_, source, to = key
        if (said := differing(case, mine.get(key), due.get(key), to, name)) is not None:
            return f"in round {round_} rank {source} {said}"
    return None


def differing(case: Case, mine: Message | Sent | None, due: Message | Sent | None, to: int, name: str) -> str | None:
    if mine is None or due is None:
        has, wants = ("nothing" if each is None else cargo(case, each) for each in (mine, due))
        return f"sends {has} to rank {to}, where {name} sends {wants}"
    if [*map(commuted, mine.carried)] != [*map(commuted, due.carried)]:
        return f"sends {cargo(case, mine)} to rank {to}, where {name} sends {cargo(case, due)}"
    if not isinstance(mine, Message) or not isinstance(due, Message) or not mine.into or not due.into:
        return None
    if mine.into != due.into:
        return (f"sends {cargo(case, mine)} to rank {to}, which receives it into {case.words(mine.into)}; with {name} "
                f"into {case.words(due.into)}")
    if [*map(commuted, mine.landed)] != [*map(commuted, due.landed)]:
        return (f"sends {cargo(case, mine)} to rank {to}, whose {case.words(mine.into)} is then {mine.landed[0]}; with "
                f"{name} it is {due.landed[0]}")
    return None


def cargo(case: Case, message: Message | Sent) -> str:
    """The chunks in a message and the first symbol, in words."""
    chunks = case.words(message.outgoing) if message.outgoing else case.cargo(message.carried)
    return f"{chunks} as {message.carried[0]}" if message.carried else "an empty message"


# The life of a contribution.


def life(case: Case) -> str | None:
    """Where the first contribution that is missing or doubled was lost or added again."""
    for message in case.messages:
        for symbol in (*message.carried, *message.landed):
            if again := twice(symbol):
                return (f"in round {message.round} {symbol} is {'sent' if symbol in message.carried else 'added'} "
                        f"{'by' if symbol in message.carried else 'on'} rank "
                        f"{message.source if symbol in message.carried else message.to}, and contains {again} twice")
    for rank, element in case.wrong:
        held = case.last(rank)[element]
        if again := twice(held):
            return f"rank {rank} adds {again} again, without a message"
        for term in case.due[rank, element]:
            if term not in set(terms(held)):
                where = f"{term} of chunk {case.chunk_of[element]} is missing on rank {rank}"
                return f"{where}: {' '.join(way(case, term))}"
    return None


def way(case: Case, term: Term) -> Iterator[str]:
    """The messages that carry a contribution, and what the last rank with it sends."""
    carrying = [m for m in case.messages if any(term in terms(symbol) for symbol in m.carried)]
    if not carrying:
        yield f"no message carries it from rank {term.rank}"
        return
    yield f"it goes {', '.join(f'{m.source} → {m.to} in round {m.round}' for m in carrying)}"
    last = carrying[-1]
    if not last.into:
        yield "into memory outside of the vector"
    elif term not in terms(before(case, last.to, last.round + 1)[last.into.start]):
        yield f"into {case.words(last.into)}"
    sent = [m for m in case.messages if m.source == last.to
            and any(leaf.element == term.element for symbol in m.carried for leaf in terms(symbol))]
    if sent:
        yield f"(rank {last.to} sends {cargo(case, sent[-1])} in round {sent[-1].round})"


def twice(symbol: object) -> str:
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
    return f"{near(subject.file)}:{qualified}"


def near(file: str) -> str:
    """The path of a file relative to the current folder, if it is in there."""
    found = os.path.relpath(file)
    return file if found.startswith("..") else found
