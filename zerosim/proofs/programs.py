"""A scenario of collectives in a world: runs its programs, and checks its claims.

`run_collectives` is the program of every rank, in the local world and under MPI.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
        PreparedProgram(program.name or " + ".join(program.calls), tuple(
            look_up(scenario, call, ("program", p, "calls", c), program.bucket)
            for c, call in enumerate(program.calls)), program.bucket)
        for p, program in enumerate(scenario.program)]


def look_up(scenario: CollectiveScenario, call: str, path: tuple[str | int, ...], bucket: str) -> Subject:
    """The subject of a call; raises `ScenarioError` for an unknown one, and for one that these ranks cannot run."""
    values, ranks = scenario.values, scenario.world.ranks
    try:
        if call in COLLECTIVES:
            chosen = find(call, "ring" if f"ring.{call}" in ALGORITHMS else "auto", ranks)
            subject = named_subject(f"{chosen.name}.{call}")
        else:
            subject = named_subject(call, loader=scenario.origin.loader, folder=scenario.origin.folder(path))
    except ZerosimError as error:
        raise scenario.origin.error(str(error), path) from error
    if not subject.serves(ranks) and subject.algorithm is not None:
        raise scenario.origin.error(
            f"{subject.name} serves {subject.algorithm.limit}, not {ranks}", path, ("world", "ranks"))
    tensors = (len(values.given[0]),) if values.given else values.lengths
    uneven = [length for length in ((sum(tensors),) if bucket == "all" else tensors) if length % ranks]
    if subject.even and uneven:
        raise scenario.origin.error(
            f"{subject.name} exchanges equal chunks, and {ranks} ranks do not divide a vector of {uneven[0]} elements; "
            "give lengths that world.ranks divides", ("values", "given" if values.given else "lengths"))
    return subject


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
    return CollectivesOutcome(
        scenario, outcomes, [explained(programs, comm.size, finding) for finding in findings(scenario, outcomes)])


def explained(programs: Sequence[PreparedProgram], ranks: int, finding: Finding) -> Finding:
    """A failed claim with its cause, if a function that is not in the table of algorithms is wrong."""
    calls = [] if finding.holds else [call for program in programs for call in program.calls]
    diagnoses = [diagnosis(prove(call, ranks)) for call in calls if call.algorithm is None]
    causes = "".join(f"; {diagnosed.cause} ({diagnosed.command})" for diagnosed in diagnoses if diagnosed is not None)
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
    for what, claimed, counts in (("bytes", expect.same_bytes_sent, [outcome.sent_bytes for outcome in outcomes]),
                                  ("messages", expect.same_messages, [outcome.messages for outcome in outcomes])):
        if claimed is not None:
            yield Finding(
                f"the programs send {'as many' if claimed else 'different numbers of'} {what}",
                all(of_ranks == counts[0] for of_ranks in counts) == claimed,
                "; ".join(f"{outcome.program.name} sent {spread(of_ranks)} {what} per rank"
                          for outcome, of_ranks in zip(outcomes, counts, strict=True)))
    for outcome in outcomes if expect.results else ():
        yield expected_results(scenario, outcome)


def different_results(scenario: CollectiveScenario, outcomes: Sequence[ProgramOutcome]) -> str | None:
    """The first difference between the results of two programs."""
    first = outcomes[0]
    for other in outcomes[1:]:
        names = f"{first.program.name} and {other.program.name}"
        for rank, (result, others) in enumerate(zip(first.results, other.results, strict=True)):
            if result is None or others is None:
                if result is not others:
                    some, none = (other, first) if result is None else (first, other)
                    return (f"{some.program.name} leaves a vector on rank {rank}, {none.program.name} leaves nothing "
                            "there")
            elif len(result) != len(others):
                return f"{names} leave vectors of {len(result)} and {len(others)} elements on rank {rank}"
            elif result.tobytes() != others.tobytes():
                elsewhere = in_other_chunks(scenario, first.program, other.program, differs(result, others))
                return f"{names} differ in {share(result, others)} on rank {rank}{elsewhere}"
    return None


def share(result: Array, others: Array) -> str:
    count, size = int(np.count_nonzero(differs(result, others))), len(result)
    return f"{count:,} of {size:,} elements ({count / size:.1%})"


def differs(result: Array, others: Array) -> Array:
    bits = f"u{result.dtype.itemsize}"
    differing: Array = result.view(bits) != others.view(bits)
    return differing


def in_other_chunks(
    scenario: CollectiveScenario, first: PreparedProgram, other: PreparedProgram, differing: Array
) -> str:
    """How many differing elements of whole vectors lie in different chunks in two programs, which explains them."""
    ranks, lengths = scenario.world.ranks, scenario.values.lengths
    if first.bucket == other.bucket or scenario.values.given or len(differing) != sum(lengths):
        return ""

    def chunk_numbers(program: PreparedProgram) -> Array:
        buckets = [sum(lengths)] if program.bucket == "all" else lengths
        sizes = [[stop - start for start, stop in bounds(length, ranks)] for length in buckets]
        return np.concatenate([np.repeat(np.arange(ranks), of_bucket) for of_bucket in sizes])

    elsewhere = chunk_numbers(first) != chunk_numbers(other)
    return (f": {np.count_nonzero(elsewhere):,} elements lie in another chunk there and are added in a different "
            f"order; {np.count_nonzero(differing & elsewhere):,} of those differ, "
            f"{np.count_nonzero(differing & ~elsewhere):,} of the rest")


def different_ranks(outcome: ProgramOutcome) -> str | None:
    """The first rank whose result differs from that of the first rank with one."""
    (_, first), *others = [(rank, result) for rank, result in enumerate(outcome.results) if result is not None]
    for rank, result in others:
        if len(result) != len(first):
            return f"rank {rank} holds {len(result)} elements and rank 0 {len(first)}"
        if result.tobytes() != first.tobytes():
            return f"ranks {rank} and 0 differ in {share(first, result)}"
    return None


def spread(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def expected_results(scenario: CollectiveScenario, outcome: ProgramOutcome) -> Finding:
    claim = f"{outcome.program.name} leaves the expected numbers"
    for rank, (result, expected) in enumerate(zip(outcome.results, scenario.expect.results, strict=True)):
        if result is None or result.tolist() != list(expected):
            return Finding(claim, False, f"rank {rank} holds {vector_text(result)}; expected {list(expected)}")
    results = "; ".join(f"rank {rank} {vector_text(result)}" for rank, result in enumerate(outcome.results))
    return Finding(claim, True, f"{outcome.program.name} left {results}")


def vector_text(result: Array | None) -> str:
    return "nothing" if result is None else f"[{', '.join(f'{number:g}' for number in result.tolist())}]"
