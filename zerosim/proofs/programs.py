"""A scenario of collectives in a world: runs its programs, and checks its claims.

`run_collectives` is the program of every rank, in the local world and under MPI.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerosim.collectives import ALGORITHMS, find
from zerosim.collectives.kinds import COLLECTIVES
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.errors import ZerosimError
from zerosim.core.sharding import bounds
from zerosim.observe.observed import Observed
from zerosim.observe.traffic import Traffic
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import Subject, named_subject
from zerosim.scenario import CollectiveScenario
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.objects import gather_objects


@dataclass(frozen=True)
class PreparedProgram:
    """The collectives that each rank runs in sequence, on all tensors at once or on each by itself."""

    name: str
    calls: tuple[Subject, ...]
    bucket: str


@dataclass(frozen=True)
class ProgramOutcome:
    """A program's result on every rank (None for a rank without one), and the messages that it sent."""

    program: PreparedProgram
    results: list[Array | None]
    sent_bytes: list[int]
    messages: list[int]


@dataclass(frozen=True)
class Finding:
    """A claim of the scenario, whether it holds, and the observation, in a sentence."""

    claim: str
    holds: bool
    seen: str


@dataclass(frozen=True)
class CollectivesOutcome:
    """The results of a scenario of collectives, on rank 0."""

    scenario: CollectiveScenario
    programs: list[ProgramOutcome]
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        return all(finding.holds for finding in self.findings)


def programs_of(scenario: CollectiveScenario) -> list[PreparedProgram]:
    """The scenario's programs, every call looked up; raises `ScenarioError` for an unknown call."""
    return [
        PreparedProgram(
            each.name or " + ".join(each.calls),
            tuple(
                fitting(look_up(scenario, call, ("program", p, "calls", c)), scenario, each.bucket)
                for c, call in enumerate(each.calls)
            ),
            each.bucket,
        )
        for p, each in enumerate(scenario.program)
    ]


def fitting(subject: Subject, scenario: CollectiveScenario, bucket: str) -> Subject:
    """`subject`; raises `ScenarioError` if it needs equal chunks and the ranks do not divide a vector."""
    values, ranks = scenario.values, scenario.world.ranks
    tensors = (len(values.given[0]),) if values.given else values.lengths
    uneven = [length for length in ((sum(tensors),) if bucket == "all" else tensors) if length % ranks]
    if subject.even and uneven:
        raise scenario.origin.error(
            f"{subject.name} exchanges equal chunks, and {ranks} ranks do not divide a vector of {uneven[0]} elements; "
            "give lengths that world.ranks divides", ("values", "given" if values.given else "lengths"),
        )
    return subject


def look_up(scenario: CollectiveScenario, call: str, path: tuple[str | int, ...]) -> Subject:
    try:
        if call in COLLECTIVES:
            chosen = find(call, "ring" if f"ring.{call}" in ALGORITHMS else "auto", scenario.world.ranks)
            return named_subject(f"{chosen.name}.{call}")
        found = named_subject(call, loader=scenario.origin.loader, folder=scenario.origin.folder(path))
    except ZerosimError as error:
        raise scenario.origin.error(str(error), path) from error
    if not found.serves(scenario.world.ranks) and found.algorithm is not None:
        raise scenario.origin.error(
            f"{found.name} serves {found.algorithm.limit}, not {scenario.world.ranks}", path, ("world", "ranks")
        )
    return found


def collectives_world(scenario: CollectiveScenario) -> LocalWorld:
    """A local world whose sends wait for their receivers, if the scenario says so."""
    sends: Any = scenario.world.sends
    return LocalWorld(scenario.world.ranks, sends=sends)


def run_collectives(
    comm: Communicator, scenario: CollectiveScenario, programs: Sequence[PreparedProgram]
) -> CollectivesOutcome | None:
    """Run programs as one of the ranks of `comm`: the outcome on rank 0, None on the others."""
    outcomes = []
    for program in programs:
        tensors = tensors_of(scenario, comm.rank)
        traffic = Traffic()
        result = perform(Observed(comm, traffic), program, tensors)
        gathered = gather_objects(comm, (result, traffic.sent_bytes, traffic.messages))
        if gathered is not None:
            results, sent_bytes, messages = map(list, zip(*gathered, strict=True))
            outcomes.append(ProgramOutcome(program, results, sent_bytes, messages))
    if comm.rank != 0:
        return None
    return CollectivesOutcome(scenario, outcomes, [explained(scenario, each) for each in findings(scenario, outcomes)])


def explained(scenario: CollectiveScenario, finding: Finding) -> Finding:
    """A failed claim with its cause, if a function that is not in the table of algorithms is wrong."""
    calls = [] if finding.holds else [call for program in programs_of(scenario) for call in program.calls]
    said = [diagnosis(prove(call, scenario.world.ranks)) for call in calls if call.algorithm is None]
    causes = "".join(f"; {call.cause} ({call.command})" for call in said if call is not None)
    return replace(finding, seen=finding.seen + causes)


def tensors_of(scenario: CollectiveScenario, rank: int) -> list[Array]:
    """The input of `rank`: the given row, or normally distributed numbers (integers: from −100 to 100)."""
    values = scenario.values
    if values.given:
        return [np.array(values.given[rank], values.dtype)]
    random = np.random.default_rng([values.seed, rank])
    if np.dtype(values.dtype).kind == "i":
        return [random.integers(-100, 101, length).astype(values.dtype) for length in values.lengths]
    return [random.standard_normal(length).astype(values.dtype) for length in values.lengths]


def perform(comm: Communicator, program: PreparedProgram, tensors: Sequence[Array]) -> Array | None:
    """Run all calls of the program; this rank's part of the last one's result, flat."""
    buckets = [np.concatenate(tensors)] if program.bucket == "all" else [tensor.copy() for tensor in tensors]
    for bucket in buckets:
        for call in program.calls:
            call(comm, bucket)
    last = program.calls[-1].kind
    left = [last.left(bucket, comm.rank, comm.size, root=0) for bucket in buckets]
    return None if last.leaves(comm.rank, 0) is None else np.concatenate(left)


def findings(scenario: CollectiveScenario, outcomes: Sequence[ProgramOutcome]) -> Iterator[Finding]:
    """One finding for each claim of the scenario."""
    expect = scenario.expect
    if expect.same_results is not None:
        differ = different_results(scenario, outcomes)
        names = " and ".join(outcome.program.name for outcome in outcomes)
        yield Finding(
            f"the programs leave {'the same' if expect.same_results else 'different'} bytes",
            (differ is None) == expect.same_results, differ or f"{names} left the same bytes on every rank")
    for outcome in outcomes if expect.ranks_agree is not None else ():
        after, differ = f"after {outcome.program.name}", different_ranks(outcome)
        yield Finding(
            f"{after} the ranks hold {'the same' if expect.ranks_agree else 'different'} bytes",
            (differ is None) == expect.ranks_agree, f"{after} {differ or 'all ranks hold the same bytes'}")
    if expect.same_bytes_sent is not None:
        yield same_counts("bytes", outcomes, [o.sent_bytes for o in outcomes], claimed=expect.same_bytes_sent)
    if expect.same_messages is not None:
        yield same_counts("messages", outcomes, [o.messages for o in outcomes], claimed=expect.same_messages)
    if expect.results:
        for outcome in outcomes:
            yield due_results(scenario, outcome)


def different_results(scenario: CollectiveScenario, outcomes: Sequence[ProgramOutcome]) -> str | None:
    """The first difference between the results of two programs."""
    first = outcomes[0]
    for other in outcomes[1:]:
        names = f"{first.program.name} and {other.program.name}"
        for rank, (mine, theirs) in enumerate(zip(first.results, other.results, strict=True)):
            if mine is None or theirs is None:
                if mine is theirs:
                    continue
                some, none = (other, first) if mine is None else (first, other)
                return f"{some.program.name} leaves a vector on rank {rank}, {none.program.name} leaves nothing there"
            if len(mine) != len(theirs) and mine.tobytes() != theirs.tobytes():
                return f"{names} leave vectors of {len(mine)} and {len(theirs)} elements on rank {rank}"
            if mine.tobytes() != theirs.tobytes():
                return (f"{names} differ in {share(mine, theirs)} on rank {rank}"
                        f"{moved_chunks(scenario, first, other, mine, theirs)}")
    return None


def share(mine: Array, theirs: Array) -> str:
    differing = int(np.count_nonzero(differs(mine, theirs)))
    return f"{differing:,} of {len(mine):,} elements ({differing / len(mine):.1%})"


def differs(mine: Array, theirs: Array) -> Array:
    bits = f"u{mine.dtype.itemsize}"
    found: Array = mine.view(bits) != theirs.view(bits)
    return found


def moved_chunks(
    scenario: CollectiveScenario, first: ProgramOutcome, other: ProgramOutcome, mine: Array, theirs: Array
) -> str:
    """The reason for a difference of whole vectors: the differing elements that lie in different chunks in two
    programs."""
    ranks, lengths = scenario.world.ranks, scenario.values.lengths
    if first.program.bucket == other.program.bucket or scenario.values.given or len(mine) != sum(lengths):
        return ""
    moved = chunk_numbers(first.program, lengths, ranks) != chunk_numbers(other.program, lengths, ranks)
    inside = int(np.count_nonzero(differs(mine, theirs) & moved))
    outside = int(np.count_nonzero(differs(mine, theirs) & ~moved))
    return (
        f": {np.count_nonzero(moved):,} elements lie in another chunk there and are added in a different order; "
        f"{inside:,} of those differ, {outside:,} of the rest"
    )


def chunk_numbers(program: PreparedProgram, lengths: Sequence[int], ranks: int) -> Array:
    """The number of the chunk in which each element is added."""
    buckets = [sum(lengths)] if program.bucket == "all" else lengths
    return np.concatenate([
        np.repeat(np.arange(ranks), [stop - start for start, stop in bounds(length, ranks)]) for length in buckets
    ])


def different_ranks(outcome: ProgramOutcome) -> str | None:
    """The first rank whose result differs from that of the first rank with one."""
    held = [(rank, result) for rank, result in enumerate(outcome.results) if result is not None]
    _, first = held[0]
    for rank, result in held[1:]:
        if len(result) != len(first):
            return f"rank {rank} holds {len(result)} elements and rank 0 {len(first)}"
        if result.tobytes() != first.tobytes():
            return f"ranks {rank} and 0 differ in {share(first, result)}"
    return None


def same_counts(
    what: str, outcomes: Sequence[ProgramOutcome], counts: Sequence[list[int]], *, claimed: bool
) -> Finding:
    same = all(each == counts[0] for each in counts)
    seen = "; ".join(
        f"{outcome.program.name} sent {spread(each)} {what} per rank"
        for outcome, each in zip(outcomes, counts, strict=True)
    )
    claim = f"the programs send {'as many' if claimed else 'different numbers of'} {what}"
    return Finding(claim, same == claimed, seen)


def spread(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def due_results(scenario: CollectiveScenario, outcome: ProgramOutcome) -> Finding:
    claim = f"{outcome.program.name} leaves the expected numbers"
    for rank, (found, due) in enumerate(zip(outcome.results, scenario.expect.results, strict=True)):
        if found is None or found.tolist() != list(due):
            return Finding(claim, False, f"rank {rank} holds {vector_text(found)}; expected {list(due)}")
    all_found = "; ".join(f"rank {rank} {vector_text(result)}" for rank, result in enumerate(outcome.results))
    return Finding(claim, True, f"{outcome.program.name} left {all_found}")


def vector_text(result: Array | None) -> str:
    return "nothing" if result is None else f"[{', '.join(f'{each:g}' for each in result.tolist())}]"
