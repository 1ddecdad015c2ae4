"""The diagnosis of a collective: why its proof fails, a remark on one that holds, and the command that shows the run.

Grades, proofs, drawings and laws all use these words. Each of `CAUSES` detects one kind of error in a recorded run and
says what the function did and what to do instead; the first that returns words is the cause. Causes about chunk numbers
identify a chunk by its memory if the function works in place, and by the contributions in a message if it has buffers
of its own.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from zerosim.errors import Deadlock, Runaway
from zerosim.teach.proofs.case import Case, Observation, listed, terms
from zerosim.teach.proofs.chunk_numbers import (
    ends_elsewhere,
    mixes_up_places,
    same_chunk,
    slice_ends,
    stays_on_one_chunk,
    unlike_numbers,
)
from zerosim.teach.proofs.contributions import (
    adds_elements_up,
    drops_what_arrived,
    goes_no_further,
    passes_its_sum_on,
    replaces,
    sends_what_it_lacks,
)
from zerosim.teach.proofs.hints import places_in, while_that_never_ends, why_it_ended
from zerosim.teach.proofs.proof import Proof, again, faults, prove, run
from zerosim.teach.proofs.rounds import (
    adds_anew,
    adds_in_the_gather,
    ends_too_early,
    gathers_no_full_sum,
    superfluous,
    through_one_rank,
    why_so_much_is_sent,
)
from zerosim.teach.proofs.subject import Subject, collective_in
from zerosim.worlds.local import StillRunning

Cause = Callable[[Case], str | None]


def cuts_evenly(case: Case) -> str | None:
    """The result is right with one element in each chunk, which is tried first."""
    if case.count == case.size:
        return None
    lengths = Counter(case.chunk_of.values())
    cut = ", ".join(str(lengths[chunk]) for chunk in range(min(case.size, 8))) + ", …" * (case.size > 8)
    return (
        f"right with one element in each chunk, wrong where chunks have {cut} elements: a chunk has ceil(count / size) "
        "elements, the last may have fewer or none. Take lengths from chunks[c] itself, or cut with "
        "zerosim.sharding.split, not by count // size or np.array_split"
    )


def adds_in_another_order(case: Case) -> str | None:
    """All terms are there, but ranks add them in different orders."""
    if case.wrong or not case.subject.kind.agreeing or not case.subject.kind.reducing:
        return None
    return (
        "each rank adds in the order in which contributions reach it, so bits differ: add each chunk on one rank "
        "and send the sum to the others, or keep all contributions and add them in the order of ranks"
    )


CAUSES: tuple[Cause, ...] = (
    adds_elements_up,
    cuts_evenly,
    slice_ends,
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
"""The most specific first."""


OBSERVATIONS: tuple[Cause, ...] = (drops_what_arrived, passes_its_sum_on, goes_no_further)
"""The causes that tell where a contribution was lost or doubled, and not always why."""


def why_it_is_wrong(case: Case) -> str | None:
    """The first cause that is found; an `Observation` if it is not certain."""
    for cause in CAUSES:
        if said := cause(case):
            return Observation(said) if cause in OBSERVATIONS else said
    return None


ONLY_ADDS = "right with reduce=np.add only: pass reduce on to comm.exchange and comm.recv, and add only with it"
TELLING = 4
"""The number of ranks on which a fault is examined, if it occurs there too; on fewer, left and right nearly coincide.
"""


@dataclass(frozen=True)
class Diagnosis:
    """Why a function is wrong, None if no cause was found, and the command that shows it."""

    cause: str | None
    command: str

    def __str__(self) -> str:
        return "\n".join([*because(self.cause), f"see: {self.command}"])


def because(cause: str | None) -> list[str]:
    """A line with the cause, or with an observation if the cause is not certain; none if there is neither.

    >>> because("it ends too early"), because(Observation("rank 0 waits")), because(None)
    (['why: it ends too early'], ['seen: rank 0 waits'], [])
    """
    return [f"{'seen' if isinstance(cause, Observation) else 'why'}: {cause}"] if cause else []


def diagnosis(proof: Proof) -> Diagnosis | None:
    """The diagnosis of a proof that fails; None for one that holds.

    >>> from zerosim.collectives import ring
    >>> from zerosim.teach.proofs.subject import subject
    >>> def my_all_reduce(comm, chunks):
    ...     ring.reduce_scatter(comm, chunks)
    >>> diagnosis(prove(subject(my_all_reduce), 4)).cause[:54]
    'the full sum of each chunk is on one rank alone (that '
    """
    case = proof.case
    return None if case is None or proof.holds else of_case(case)


def of_case(case: Case) -> Diagnosis:
    """The diagnosis of one wrong run."""
    if isinstance(case.recording.failure, StillRunning):
        return Diagnosis(cause(case), command(case))
    telling = on_more_ranks(case)
    seen = roots(telling) or only_on_some(case)
    if seen is None and (more := cause(telling)) and telling.size != case.size:
        seen = type(more)(f"on {telling.size} ranks, where the pattern is clearer: {more}")
    return Diagnosis(seen or cause(case), command(telling if cause(telling) else case))


def why(subject: Subject, size: int, root: int = 0) -> Diagnosis | None:
    """The diagnosis on symbols of a function that failed with numbers on `size` ranks; None if it is right on symbols.

    If symbols show no cause, it is the fault that they show.
    """
    case = Case(subject, run(subject, size, size, root), size, root)
    found = list(faults(subject, case.recording, size, root))
    proof = Proof(subject, size, faults=found, case=case) if found else prove(subject, size)
    said = diagnosis(proof)
    return said if said is None or said.cause else replace(said, cause=f"on symbols, {proof.faults[0].what}")


def cause(case: Case) -> str | None:
    """Why a run is wrong, in words."""
    if isinstance(case.recording.failure, Runaway):
        endless = while_that_never_ends(places_in(case.recording.failure), case.subject.file)
        return endless or adds_anew(case) or passes_its_sum_on(case) or why_it_ended(case)
    return why_it_ended(case) if case.recording.results is None else why_it_is_wrong(case)


def of_what_is_sent(subject: Subject, size: int) -> Diagnosis:
    """The diagnosis of a function whose sums are right but which sends more or less than is declared."""
    case = Case(subject, run(subject, size, size), size)
    telling = again(case, TELLING) if size < TELLING and subject.serves(TELLING) else case
    return Diagnosis(superfluous(case) or why_so_much_is_sent(telling), command(case))


def of_its_order(subject: Subject, size: int) -> Diagnosis:
    """The diagnosis of a function whose sums are right but are added in a different order than is declared."""
    proof = prove(subject, size)
    assert proof.case is not None
    named = proof.order if proof.order != "declared" else None
    via = through_one_rank(proof.case.recording)
    return Diagnosis(
        f"each sum is complete, but is added in {named or 'an order of its own'}, not in the declared order: "
        + (via or "which rank sends a chunk first, and in which direction does it travel?"),
        command(proof.case),
    )


def remark(proof: Proof) -> str | None:
    """A remark about superfluous rounds of a proof that holds."""
    if not proof.holds or proof.case is None or proof.subject.algorithm is not None:
        return None
    return superfluous(proof.case)


def on_more_ranks(case: Case) -> Case:
    """The case on a few more ranks, if it is wrong there in the same way; otherwise the case itself."""
    failure = case.recording.failure
    named = not (failure is None or isinstance(failure, Deadlock | Runaway) or "without receiving" in f"{failure}")
    if case.size >= TELLING or named or not case.subject.serves(TELLING):
        return case
    more = again(case, TELLING)
    same = type(more.recording.failure) is type(failure)
    return more if same and (more.wrong_somewhere or more.sends == "rendezvous") else case


def roots(case: Case) -> str | None:
    """The cause of a result that is wrong from this root, and right from root 0."""
    if not case.root or Case(case.subject, run(case.subject, case.size, case.count, 0), case.count).wrong_somewhere:
        return None
    said = cause(case) if case.recording.results is None else None
    zero = case.recording.results is not None and all(
        {leaf.rank for leaf in terms(case.last(rank)[element])} == {0} for rank, element in case.wrong
    )
    return (
        f"right from root 0, wrong from root {case.root}: "
        + "the data of rank 0 arrive everywhere, as if rank 0 were the root: " * zero
        + "count ranks from the root, position = (comm.rank − root) % comm.size; the rank at a position is "
        "(position + root) % comm.size" + (f"; here, {said}" if said else "")
    )


SIZES = range(1, 9)


def only_on_some(case: Case) -> str | None:
    """The cause of a result that is wrong on one rank only, on odd numbers of ranks only, or off powers of two only."""
    if case.subject.algorithm is not None or case.count != case.size or case.root or case.size not in SIZES:
        return None
    right = {size for size in SIZES if not again(case, size).wrong_somewhere}
    if right == {*SIZES} - {1}:
        more = again(case, TELLING)
        said = superfluous(more) or cause(case)
        return (
            "right on 2 ranks, wrong on one, which has no other rank to send to and whose own vector is the result"
            + (f": {said}" if said else ""))
    family = next((each for each in FAMILIES if right - {1} == each[0] and case.size not in right), None)
    if family is None:
        return None
    sizes, shown, words = family
    told = (f"right on {listed('rank', sorted(right)).removeprefix('ranks ')} ranks, wrong on "
            f"{listed('rank', sorted({*SIZES} - right)).removeprefix('ranks ').removeprefix('rank ')}")
    said = cause(case)
    if shown(again(case, max(sizes))):
        return f"{told}: {words}" + (f". Here, {said}" if said and not isinstance(said, Observation) else "")
    return Observation(told + (f". Here, {said}" if said else ""))


def partners_differ_in_a_bit(case: Case) -> bool:
    """Whether the two ranks of every message differ in one bit, counted from the root."""
    places = [((m.source - case.root) % case.size, (m.to - case.root) % case.size) for m in case.messages]
    return bool(places) and all((one ^ other).bit_count() == 1 for one, other in places)


def partners_exchange(case: Case) -> bool:
    """Whether in some round every rank sends to another and receives from that one."""
    rounds = [{(m.source, m.to) for m in case.messages if m.round == each}
              for each in range(1, case.recording.rounds + 1)]
    return any(len(pairs) == case.size and all((to, source) in pairs for source, to in pairs) for pairs in rounds)


FAMILIES: tuple[tuple[set[int], Callable[[Case], bool], str], ...] = (
    ({2, 4, 8}, partners_differ_in_a_bit,
     "it needs a power of two, since partners differ in one bit of their numbers. Where a partner's number would be "
     "comm.size or more, leave the exchange out, or first send the data of ranks beyond the power of two to others"),
    ({2, 4, 6, 8}, partners_exchange,
     "it needs an even number of ranks, since in a round all of them exchange in pairs: with an odd number the last "
     "rank has no partner"),
)
"""Numbers of ranks, what the messages must show, and the cause."""


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
