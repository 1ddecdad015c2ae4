"""Claims about a collective: proved on symbols, which locate a mistake, and timed on a virtual machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.collectives import Algorithm
from zerosim.comm import Communicator, Reduction
from zerosim.instruments.record import Recording
from zerosim.numerics.orders import AddingOrder
from zerosim.payloads.terms import commuted
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.fluid import FluidProgram, ReceiveFrom, Transfer, last_end_ns
from zerosim.plan.network import NotedSends, links
from zerosim.sharding import bounds, split
from zerosim.teach.grading.exercises import Claim
from zerosim.teach.proofs.case import Case, chunks_by_element, expected_terms
from zerosim.teach.proofs.diagnosis import (
    ONLY_ADDS,
    Diagnosis,
    command,
    diagnosis,
    of_case,
    of_its_order,
    of_what_is_sent,
)
from zerosim.teach.proofs.proof import failure_line, faults, prove, roots, run
from zerosim.teach.proofs.rounds import idle_in_a_tree, through_one_rank, why_so_slow
from zerosim.teach.proofs.subject import Subject
from zerosim.words import joined, plural, short
from zerosim.worlds.local import StillRunning, spawn

ELEMENTS = 64
"""The length of each chunk while messages are recorded; their bytes are scaled afterwards."""

Collective = Callable[..., None]
"""`collective(comm, chunks, reduce)`"""


@dataclass(frozen=True)
class TimedMachine:
    """Hosts of equal devices, and the length of a vector."""

    ranks: int
    per_host: int
    inside: Link
    between: Link
    vector_bytes: int

    def __str__(self) -> str:
        hosts, vector = self.ranks // self.per_host, f"a vector of {self.vector_bytes // 10**6} MB"
        if hosts == 1:
            return f"{self.ranks} ranks over links of {self.inside.title}, {vector}"
        links = f"{self.inside.title} inside and {self.between.title} between"
        return f"{hosts} hosts of {self.per_host} ranks, {links}, {vector}"

    def ns(self, collective: Collective) -> int:
        """The end of the last rank; all ranks begin at 0."""
        programs = spawn(lambda comm: noted(collective, comm), self.ranks)
        cluster = Cluster(Device("", 1, 1, 1), self.per_host, self.inside, self.between, pipelined=False, fused=False)
        scale = self.vector_bytes // (self.ranks * ELEMENTS * 4)
        return last_end_ns([list(map(longer(scale), each)) for each in programs], links(cluster, self.ranks))

    def too_slow(self, took_ns: int, limit_ns: int) -> str | None:
        """The error if a collective took longer than `limit_ns`."""
        if took_ns <= limit_ns:
            return None
        return f"on {self} it takes {short(took_ns / 1e6)} ms; {short(limit_ns / 1e6)} are enough"


def noted(collective: Collective, comm: Any) -> FluidProgram:
    """The sends and receives of this rank."""
    noting = NotedSends(comm.rank, comm.size)
    collective(noting, split(np.zeros(comm.size * ELEMENTS, np.float32), comm.size), np.add)
    return noting.program


def longer(scale: int) -> Callable[[Any], Transfer | ReceiveFrom]:
    """Messages with `scale` times their bytes.

    >>> longer(3)(Transfer(1, 8)), longer(3)(ReceiveFrom(0))
    (Transfer(to=1, bytes=24, port=0), ReceiveFrom(source=0))
    """
    return lambda step: step._replace(bytes=step.bytes * scale) if isinstance(step, Transfer) else step


ONE_HOST = TimedMachine(8, 8, Link("10 GB/s and 5 µs", 5_000, 10e9), Link("", 5_000, 10e9), 64 * 10**6)
TWO_HOSTS = TimedMachine(8, 4, Link("100 GB/s", 2_000, 100e9), Link("10 GB/s", 10_000, 10e9), 64 * 10**6)


RANKS = range(1, 9)
"""Numbers of ranks for all checks."""
PER_CHUNK = 9
"""The elements of a chunk whose order of addition is checked: on numbers, different orders may have the same sum."""
PLAIN, OTHERS = (1, 2, 4, 8), (3, 5, 6, 7)
"""Powers of two, on which most mistakes do not show, and the other numbers."""


def everything_arrives(examined: Subject) -> list[Claim]:
    """The proofs of delivery, the plain cases first; no other claim is checked before they hold."""
    reducing = examined.kind.reducing
    found = [
        Claim(f"every contribution arrives at its place, once, on {joined([*map(str, PLAIN)])} ranks",
              lambda: unproved(examined, PLAIN), 3 - reducing, first=True),
        Claim(f"also on {joined([*map(str, OTHERS)])} ranks", lambda: unproved(examined, OTHERS)),
        Claim("also where the ranks do not divide the vector", lambda: unproved(examined, RANKS, divided=False)),
    ]
    if reducing:
        found.append(Claim("it reduces with the given function, reduce=", lambda: reduces_otherwise(examined)))
    return found


def first_tried(examined: Subject, sizes: Sequence[int]) -> str | None:
    """The complaint if the function does not end, on the second fewest ranks or on the fewest.

    Raises the function's own `NotImplementedError`.
    """
    for size in (*sizes[1:2], sizes[0]):
        recording = run(examined, size, size)
        if isinstance(recording.failure, NotImplementedError):
            raise recording.failure
        if isinstance(recording.failure, StillRunning):
            why = of_case(Case(examined, recording, size))
            return f"on {plural(size, 'rank')}: {failure_line(examined, recording.failure)}\n{why}"
    return None


def unproved(examined: Subject, sizes: Sequence[int] = RANKS, *, divided: bool = True) -> str | None:
    """The first fault on the fewest ranks, and its cause; with one element per chunk, or with different lengths."""
    if endless := first_tried(examined, sizes):
        return endless
    for number, size in enumerate(sizes):
        proof = prove(examined, size, [size] if divided else [2 * size + 1, 1, 0])
        if proof.faults:
            what = proof.faults[0].what
            right = f"right on {plural(sizes[number - 1], 'rank')}, but " if number else ""
            legend = "\n(g1: contribution of rank 1; ·: never written)" if "holds" in what else ""
            return f"{right}on {plural(size, 'rank')}: {what}{legend}\n{diagnosis(proof)}"
    return None


def reduces_otherwise(examined: Subject) -> str | None:
    """The complaint if the function ignores `reduce`."""
    if "reduce" not in examined.parameters:
        named = ", ".join(examined.parameters)
        return (f"it takes ({named}): give it a last parameter reduce=np.add, and pass that on to comm.exchange and "
                "comm.recv, since the reduction may be a maximum")
    for size in (2, 3):
        vectors = [np.array([(7 * rank + 3 * element) % 5 for element in range(size)]) for rank in range(size)]
        left = spawn(partial(reduced_by, examined, vectors, np.maximum), size)
        for (rank, element), due in expected_terms(examined.kind, size, size, 0).items():
            most = max(vectors[term.rank][term.element] for term in due)
            if left[rank][element] != most:
                return (f"on {plural(size, 'rank')} with reduce=np.maximum: rank {rank} has {left[rank][element]} in "
                        f"element {element}; the maximum of all is {most}\nwhy: {ONLY_ADDS}")
    return None


def reduced_by(examined: Subject, vectors: Sequence[Array], reduce: Reduction, comm: Communicator) -> Array:
    """The result of one rank."""
    vector = vectors[comm.rank].copy()
    examined(comm, vector, 0, reduce)
    return vector


def arrives(examined: Subject, size: int, count: int) -> bool:
    """Whether all contributions arrive at their places."""
    return not any(faults(examined, run(examined, size, count), count))


def added_in(examined: Subject, order: AddingOrder, sizes: Sequence[int] = RANKS) -> str | None:
    """The first chunk that is added in a different order, on the fewest ranks on which all data arrive."""
    for size in sizes:
        recording, count = run(examined, size, PER_CHUNK * size), PER_CHUNK * size
        if recording.results is None or not arrives(examined, size, count):
            continue
        chunk_of = chunks_by_element(count, size)
        for (rank, element), terms in expected_terms(examined.kind, size, count, 0).items():
            held, due = recording.results[rank][element], order(terms, chunk_of[element])
            if commuted(held) != commuted(due):
                return (f"on {plural(size, 'rank')}: rank {rank}, chunk {chunk_of[element]}: added as {held}; expected "
                        f"{due}\n{of_its_order(examined, size)}")
    return None


def sent_as(examined: Subject, row: Algorithm, *, divided: bool = False) -> str | None:
    """The first rank that does not send as much as the library's algorithm, where all data arrive."""
    for size in RANKS:
        for count in (each for each in [size, 2 * size + 1][: 2 - divided] if arrives(examined, size, each)):
            recording = run(examined, size, count)
            lengths = [stop - start for start, stop in bounds(count, size)]
            for rank in range(size):
                have = sent_by(rank, recording)
                due = row.messages(rank, size), row.sent_bytes(lengths, rank)
                if have != due:
                    return (f"on {plural(size, 'rank')} with {plural(count, 'element')} rank {rank} sends "
                            f"{in_messages(*have)}; expected {in_messages(*due)}\n"
                            f"{of_what_is_sent(examined, size)}")
    return None


def sent_by(rank: int, recording: Recording) -> tuple[int, int]:
    """The number of messages from a rank, and of elements in them."""
    lengths = [len(message.carried) for message in recording.messages if message.source == rank]
    return len(lengths), sum(lengths)


def in_messages(messages: int, elements: int) -> str:
    return f"{plural(elements, 'element')} in {plural(messages, 'message')}"


def rounds_at_most(examined: Subject, enough: Callable[[int], int]) -> str | None:
    """The first number of ranks on which the function takes more than `enough` rounds."""
    for size in RANKS:
        for root in roots(examined, size):
            rounds = run(examined, size, size, root).rounds
            if rounds > enough(size):
                case = Case(examined, run(examined, size, size, root), size, root)
                why = idle_in_a_tree(case) or through_one_rank(case.recording)
                return (f"on {plural(size, 'rank')} from root {root} it takes {rounds} rounds; "
                        f"{enough(size)} are enough\n{Diagnosis(why, command(case))}")
    return None


def in_time(machine: TimedMachine, examined: Subject, collective: Collective, ours: Collective) -> Claim:
    """The claim that a collective is at most as slow as the library's on a virtual machine."""

    def complaint() -> str | None:
        slow, size = machine.too_slow(machine.ns(collective), machine.ns(ours)), machine.ranks
        if slow is None:
            return None
        library = replace(examined, function=lambda comm, chunks, reduce=np.add: ours(comm, chunks, reduce))
        case = Case(examined, run(examined, size, size), size)
        return f"{slow}\n{Diagnosis(why_so_slow(case.recording, run(library, size, size)), command(case))}"

    return Claim(f"it is as fast as the library on a virtual machine: {machine}", complaint, 2)
