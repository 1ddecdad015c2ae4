"""The claims of each exercise, in a learner's words, the most basic first.

Proofs and trainings need only zerosim; laws need Hypothesis and are checked where it is installed. Beyond exercise 1
there are another ring, other owners, two levels, and other variants of a step.

    left        every message goes to the left neighbour
    elsewhere   rank r keeps the sum of chunk r − 1, so rank c + 1 owns chunk c
    two levels  within hosts, then between hosts, then within hosts again
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from zerosim.collectives import ALGORITHMS, ring
from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.stages.accumulating import Layered
from zerosim.stages.gathering import Filled, WhenUsed
from zerosim.teach.grading.exercises import EXERCISES, Claim, ClaimsOf
from zerosim.teach.grading.pairs import OnVectors, on_vectors, pair_claims
from zerosim.teach.grading.proved import (
    ONE_HOST,
    RANKS,
    TWO_HOSTS,
    TimedMachine,
    added_in,
    arrives,
    everything_arrives,
    in_time,
    rounds_at_most,
    sent_as,
    unproved,
)
from zerosim.teach.grading.schedules import on_numbers, schedule_claims
from zerosim.teach.grading.stages import StageTrial, bits_claims
from zerosim.teach.grading.trained import Figures, Tiny
from zerosim.teach.grading.verb_calls import LearnersStep
from zerosim.teach.proofs.case import Case, Observation, listed, terms
from zerosim.teach.proofs.diagnosis import Diagnosis, command
from zerosim.teach.proofs.proof import run
from zerosim.teach.proofs.subject import Subject, subject
from zerosim.words import plural

if TYPE_CHECKING:
    from zerosim.testing.law import Examined, Law

ELSEWHERE = replace(
    COLLECTIVE_KINDS["reduce_scatter"], says="every rank gets the chunk before its own of the sum of all vectors",
    leaves=lambda rank, root: slice(rank - 1, rank or None))


def left_claims(function: Callable[..., Any]) -> list[Claim]:
    """The claims about a reduce-scatter in the other direction around the ring."""
    examined = subject(function, "reduce_scatter")
    return [
        *everything_arrives(examined),
        Claim("chunk c is added as ((g[c−1] + g[c−2]) + …) + g[c]", lambda: added_in(examined, from_the_right), 1),
        Claim("every message goes to the left, N − 1 of them from every rank", lambda: sent_left(examined), 2),
    ]


def from_the_right(contributions: Sequence[Any], chunk: int) -> Any:
    """((g[c−1] + g[c−2]) + …) + g[c], indices modulo the number of ranks.

    >>> from_the_right(["a", "b", "c"], 0)
    'cba'
    """
    size = len(contributions)
    total = contributions[(chunk - 1) % size]
    for distance in range(2, size + 1):
        total = total + contributions[(chunk - distance) % size]
    return total


def sent_left(examined: Subject) -> str | None:
    for size in (size for size in RANKS if arrives(examined, size, size)):
        for message in run(examined, size, size).messages:
            if message.to != (message.source - 1) % size:
                return f"on {plural(size, 'rank')}: rank {message.source} sends to rank {message.to}"
    return sent_once_around(examined)


def sent_once_around(examined: Subject) -> str | None:
    """The error if a rank does not send N − 1 messages of one chunk, and its cause."""
    return sent_as(examined, ALGORITHMS["ring.reduce_scatter"], divided=True)


def elsewhere_claims(function: Callable[..., Any]) -> list[Claim]:
    """The claims about a reduce-scatter with another owner of each chunk."""
    examined = replace(subject(function, "reduce_scatter"), promise=ELSEWHERE)
    return [
        *everything_arrives(examined),
        Claim("every rank sends N − 1 messages of one chunk", lambda: sent_once_around(examined), 1),
        in_time(ONE_HOST, examined, function, ring.reduce_scatter),
    ]


@dataclass(frozen=True)
class Hosts:
    """The number of ranks, and of ranks per host."""

    ranks: int
    per_host: int

    def subject(self, function: Callable[..., Any]) -> Subject:
        """The function on these hosts, as an all-reduce."""
        return as_exercise("all_reduce_two_level", subject(function, "all_reduce"), self.per_host)


def as_exercise(name: str, found: Subject, per_host: int | None = None) -> Subject:
    """An exercise's function with the calling convention of the exercise.

    With two levels, a host has `per_host` ranks; without, two or the least number that divides the ranks.
    """
    if name == "reduce_scatter_elsewhere":
        return replace(found, promise=ELSEWHERE)
    if name != "all_reduce_two_level":
        return found
    function = found.function

    @wraps(function)
    def on_two_levels(comm: Any, chunks: Any, reduce: Any = np.add) -> None:
        least = next((few for few in range(2, comm.size) if comm.size % few == 0), comm.size)
        function(comm, chunks, per_host or least, reduce)

    return replace(found, function=on_two_levels, manner="in place")


def by_contract(found: Subject) -> Subject:
    """A function with the name and parameters of an exercise as that exercise; other functions are returned unchanged.
    """
    name = getattr(found.function, "__name__", "")
    unlike = name == "all_reduce_two_level" and "per_host" not in found.parameters
    return found if unlike else as_exercise(name, found)


HOSTS = (Hosts(1, 1), Hosts(2, 2), Hosts(2, 1), Hosts(4, 2), Hosts(6, 2), Hosts(6, 3), Hosts(8, 4))


def two_levels(function: Callable[..., Any]) -> list[Claim]:
    """The claims about an all-reduce with little traffic between hosts."""
    return [
        Claim("every contribution arrives at its place, once, on 1 to 4 hosts of 1 to 4 ranks",
              lambda: wrong_on_hosts(function), 5, first=True),
        Claim("a rank sends no more to other hosts than 2 (H − 1)/H of 1/P of the vector, on H hosts of P ranks",
              lambda: sent_between(function), 3),
        in_time(TWO_HOSTS, Hosts(TWO_HOSTS.ranks, TWO_HOSTS.per_host).subject(function),
                on_hosts(function, TWO_HOSTS), on_hosts(sketch, TWO_HOSTS)),
    ]


def on_hosts(function: Callable[..., Any], machine: TimedMachine) -> Callable[..., None]:
    """The function on the hosts of a machine."""
    return lambda comm, chunks, reduce: function(comm, chunks, machine.per_host, reduce)


def wrong_on_hosts(function: Callable[..., Any]) -> str | None:
    """The first fault on the fewest ranks, and its cause."""
    for hosts in HOSTS:
        complaint = unproved(hosts.subject(function), [hosts.ranks])
        if complaint:
            said = between_hosts(function, TELLING) or between_hosts(function, hosts)
            what, *lines = complaint.split("\n")
            lines = [each for each in lines if not (said and each.startswith(("why: ", "seen: ")))]
            return "\n".join([f"{hosts.per_host} a host, {what}", *([f"why: {said}"] if said else []), *lines])
    return None


def between_hosts(function: Callable[..., Any], hosts: Hosts) -> str | None:
    """The cause between hosts: ranks that send nothing to other hosts, if sums lack the other hosts' values."""
    examined = hosts.subject(function)
    case = Case(examined, run(examined, hosts.ranks, hosts.ranks), hosts.ranks)
    if case.recording.results is None or not case.wrong or hosts.ranks == hosts.per_host:
        return None
    if said := pieces_of_another_size(case, hosts):
        return said
    lacking = {term.rank // hosts.per_host != rank // hosts.per_host for rank, element in case.wrong
               for term in {*case.due[rank, element]} - {*terms(case.last(rank)[element])}}
    if lacking != {True}:
        return None
    crossing = {message.source for message in case.messages
                if message.to // hosts.per_host != message.source // hosts.per_host}
    where = f"on {hosts.ranks} ranks, {hosts.per_host} a host,"
    if not crossing:
        return (f"{where} no message passes from one host to another, so a sum has the contributions of one host only: "
                "between the two halves inside the hosts, all-reduce each rank's piece with the ranks of the same "
                "number on the other hosts")
    silent = [rank for rank in range(hosts.ranks) if rank not in crossing]
    if silent:
        return (f"{where} {listed('rank', sorted(crossing))} alone send{'s' * (len(crossing) == 1)} to other hosts, "
                f"and the pieces of {listed('rank', silent)} are never added over the hosts: "
                "every rank must all-reduce its own piece with the ranks of the same number on the other hosts")
    return None


def pieces_of_another_size(case: Case, hosts: Hosts) -> str | None:
    """The cause if the first messages inside the hosts have as many chunks as a host has ranks."""
    count, per_host = hosts.ranks // hosts.per_host, hosts.per_host
    inside = [message for message in case.messages
              if message.round == 1 and message.to // per_host == message.source // per_host]
    if count == per_host or not inside or {len(message.carried) for message in inside} != {per_host}:
        return None
    return (f"with {count} hosts of {per_host} ranks, rank {inside[0].source} sends {plural(per_host, 'chunk')} to "
            f"rank {inside[0].to} of its host in round 1: inside a host the vector is cut into one piece for each of "
            "its ranks, and a piece has as many chunks as there are hosts, chunks[k * hosts : (k + 1) * hosts]")


TELLING = Hosts(4, 2)
"""The fewest ranks with several hosts and several ranks per host."""


def sent_between(function: Callable[..., Any]) -> str | None:
    """The first rank that sends too much to other hosts, and the message with which it exceeds the limit."""
    for hosts in HOSTS:
        examined = hosts.subject(function)
        case = Case(examined, run(examined, hosts.ranks, hosts.ranks), hosts.ranks)
        enough = 2 * (hosts.ranks // hosts.per_host - 1)
        for rank in range(hosts.ranks):
            crossing = [message for message in case.messages if message.source == rank
                        and message.to // hosts.per_host != rank // hosts.per_host]
            sums = list(accumulate(len(message.carried) for message in crossing))
            if sums and sums[-1] > enough:
                first = next(message for message, sent in zip(crossing, sums, strict=True) if sent > enough)
                seen = Observation(
                    f"in round {first.round} rank {rank} sends {case.cargo(first.carried)} to rank {first.to} on "
                    "another host: all-reduce between hosts only each rank's own piece, after it is reduced within the "
                    "host")
                return (f"on {plural(hosts.ranks, 'rank')}, {hosts.per_host} a host: rank {rank} sends "
                        f"{plural(sums[-1], 'chunk')} to other hosts; {enough} are enough\n"
                        f"{Diagnosis(seen, command(case))}")
    return None


def sketch(comm: Any, chunks: Any, per_host: int, reduce: Any) -> None:
    """The messages of a two-level all-reduce with no results, for its time."""
    hosts = comm.size // per_host
    host, place = divmod(comm.rank, per_host)
    within = [(host * per_host + (place + way) % per_host) for way in (1, -1)]
    between = [((host + way) % hosts * per_host + place) for way in (1, -1)]
    for (to, source), steps, sent in ((within, per_host - 1, chunks[:hosts]), (between, hosts - 1, chunks[0])):
        for _ in range(2 * steps):
            comm.exchange(sent, to=to, into=sent.copy(), source=source)


def parts_claims(step: Callable[..., Any]) -> list[Claim]:
    """The claims about a Stage II that reduces every micro-batch, on a replica that would take them all at once."""
    return trial_claims(parts_trial(step), IN_THIS_ORDER, sent=3, kept=1)


def parts_trial(step: LearnersStep) -> StageTrial:
    return StageTrial("zero2", step, {"accumulation": "micro_batch"}, partial(replace, accumulation=Layered()))


IN_THIS_ORDER = "one process that adds in this order"


def trial_claims(training: StageTrial, what: str = "one process", *, sent: int, kept: int) -> list[Claim]:
    """The bits of one process, and the bytes sent and kept by the library's step."""
    return [
        *bits_claims(training, 4, what),
        Claim("every rank sends the bytes of the formula", training.sent_otherwise, sent),
        Claim("every rank keeps between steps what the stage says, and no more", training.kept_otherwise, kept),
        Claim("nothing is held longer than it is used", training.held_too_much, 2),
    ]


def kept_claims(step: Callable[..., Any]) -> list[Claim]:
    """The claims about a Stage III that keeps gathered weights until backward, on a replica that would not."""
    training = kept_trial(step)
    return [*trial_claims(training, IN_THIS_ORDER, sent=3, kept=1), Claim(
        "a step on a virtual machine takes no longer than the library's", training.too_slow, 2,
        separable=False)]


def kept_trial(step: LearnersStep) -> StageTrial:
    return StageTrial("zero3", step, {"reshard_after_forward": False}, partial(replace, gathering=WhenUsed(Filled())))


def fsdp_claims(step: Callable[..., Any]) -> list[Claim]:
    """The claims about a Stage III that gathers two layers in one message."""
    training = StageTrial("zero3", step)
    return [
        *bits_claims(training, 4),
        Claim("every rank sends as many bytes as Stage III", training.sent_otherwise, 2),
        Claim("weights travel two layers at a time: half as many messages gather them",
              lambda: gathered_in_pairs(training), 4),
        Claim("every rank keeps between steps what the stage says, and no more", training.kept_otherwise, 2),
    ]


def gathered_in_pairs(training: StageTrial) -> str | None:
    """The first rank that does not send N − 1 messages per step for each pair of layers, forward and backward."""

    def complaint(tiny: Tiny, rank: int, mine: Figures, due: Figures) -> str | None:
        layers, clipped = len(tiny.hidden) + 1, "clip_norm" in dict(tiny.train)
        enough = (tiny.ranks - 1) * tiny.steps * (2 * -(-layers // 2) + layers + clipped)
        if mine.messages == enough:
            return None
        return (f"{tiny}: rank {rank} sends {plural(mine.messages, 'message')}; expected {enough}: {tiny.ranks - 1} a "
                f"step for each pair of {plural(layers, 'layer')} forward, for each pair backward, for each gradient")

    return training.first_of_ranks(complaint)


EXAMPLES = 40


def law_claims(examined: Subject, points: int) -> Iterator[Claim]:
    """Each law that applies, checked on numbers; they have `points` points in total, one each."""
    try:
        from zerosim.testing import LAWS  # noqa: PLC0415 - needs Hypothesis
        from zerosim.testing.law import under_examination  # noqa: PLC0415
    except ImportError:
        yield Claim(
            "its laws hold, on numbers", lambda: None, points,
            needs=f"Hypothesis: {sys.executable} -m pip install 'hypothesis>=6.100'")
        return
    asked: Any = under_examination(examined)
    for law in LAWS:
        if law.applies(asked):
            yield Claim(law.says, partial(broken, law, asked), law=law.name)


def broken(law: "Law", examined: "Examined") -> str | None:
    """The smallest example that breaks the law."""
    from zerosim.testing import LawBroken  # noqa: PLC0415 - it is there, since `law` is

    try:
        law.hold(examined, EXAMPLES)
    except LawBroken as found:
        return str(found)
    return None


def ring_claims(name: str, function: Callable[..., Any]) -> list[Claim]:
    """The claims of a ring: correct, with its order of addition, messages, bytes and time."""
    row, examined = ALGORITHMS[f"ring.{name}"], subject(function, name)
    found = everything_arrives(examined)
    if row.order is not None:
        order = row.order
        found.append(Claim(
            "every chunk is added in the declared order", lambda: added_in(examined, order), 2))
    found.append(Claim(
        "every rank sends the messages and the bytes of the ring", lambda: sent_as(examined, row), 2))
    return with_laws(name, examined, found)


def tree_claims(name: str, function: Callable[..., Any]) -> list[Claim]:
    """The claims of a tree: correct, in the least number of rounds."""
    examined = subject(function, name)
    quick = Claim("it takes ⌈log2 N⌉ rounds from every root",
                  lambda: rounds_at_most(examined, lambda size: (size - 1).bit_length()), 2)
    return with_laws(name, examined, [*everything_arrives(examined), quick])


def with_laws(name: str, examined: Subject, found: Sequence[Claim]) -> list[Claim]:
    """The claims in `found`, and laws for the remaining points."""
    return [*found, *law_claims(examined, EXERCISES[name] - sum(claim.points for claim in found))]


def stage_claims(stage: str, step: Callable[..., Any]) -> list[Claim]:
    """The claims of a stage: the bits of one process, and the bytes sent and kept that the formulas state."""
    return trial_claims(StageTrial(stage, step, in_parts=True), sent=2, kept=2)


CLAIMS: dict[str, ClaimsOf] = {
    "reduce_scatter": partial(ring_claims, "reduce_scatter"),
    "all_gather": partial(ring_claims, "all_gather"),
    "all_reduce": partial(ring_claims, "all_reduce"),
    "broadcast": partial(tree_claims, "broadcast"),
    "reduce": partial(tree_claims, "reduce"),
    "zero1_step": partial(stage_claims, "zero1"),
    "zero2_step": partial(stage_claims, "zero2"),
    "zero3_step": partial(stage_claims, "zero3"),
    "reduce_scatter_left": left_claims,
    "reduce_scatter_elsewhere": elsewhere_claims,
    "all_reduce_two_level": two_levels,
    "zero2_each_part_step": parts_claims,
    "zero3_kept_step": kept_claims,
    "fsdp_step": fsdp_claims,
    "split_pair": pair_claims,
    "one_f_one_b_step": schedule_claims,
}

STAGE_TRIALS: dict[str, Callable[[LearnersStep], StageTrial]] = {
    "zero1_step": partial(StageTrial, "zero1"),
    "zero2_step": partial(StageTrial, "zero2"),
    "zero3_step": partial(StageTrial, "zero3"),
    "zero2_each_part_step": parts_trial,
    "zero3_kept_step": kept_trial,
    "fsdp_step": partial(StageTrial, "zero3"),
}
"""The training of each exercise that is a step of a stage."""

ON_VECTORS: dict[str, Callable[[Callable[..., Any]], OnVectors]] = {
    "split_pair": on_vectors, "one_f_one_b_step": on_numbers}
"""The exercises whose arrays lie in a vector, one after the other."""
