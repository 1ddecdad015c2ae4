"""Confirmation of points by this process, which never imports a submission.

The examination looks for causes in the submission's process, so its answer may be forged. Before the answer counts,
the exercise runs once more on ranks in separate processes, on values drawn here, with messages routed through here.
The expected results are computed here.

Not confirmed are laws beyond these runs and the time of a training step; they count only if all else is confirmed. The
bytes that a rank keeps and holds are its own report. Values that ranks exchange through files instead of messages are
not detected.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.collectives import ALGORITHMS, ring
from zerosim.collectives.kinds import COLLECTIVE_KINDS, CollectiveKind
from zerosim.comm import Communicator
from zerosim.numerics.orders import AddingOrder
from zerosim.sharding import bounds, split
from zerosim.teach.grading.claims import CLAIMS, STAGE_TRIALS
from zerosim.teach.grading.contained import MARKER, Learner
from zerosim.teach.grading.exercises import EXERCISES, Grade, Item, cleaned
from zerosim.teach.grading.machine import ELEMENTS, ONE_HOST, TWO_HOSTS, Collective, TimedMachine
from zerosim.teach.grading.proved import OTHERS, PLAIN, RANKS
from zerosim.teach.grading.rank_apart import packed, unpacked
from zerosim.teach.grading.routed import Astray, RankProcesses, RoutedRun
from zerosim.teach.grading.trained_apart import of_a_stage
from zerosim.teach.grading.variants import ELSEWHERE, HOSTS, from_the_right, sketch
from zerosim.teach.grading.variants import on_hosts as across_hosts
from zerosim.words import plural

Confirming = Callable[[RankProcesses], str | None]
"""The error, None if there is none."""

REFUTED = "it works only while ranks share a process; with separate ranks: "
FORGED = "the check's answer is malformed: leave the process in which the function runs as it is"


def confirmed(grade: Grade, file: str, learner: Learner = MARKER) -> Grade:
    """The grade, without the points of items that fail on separate ranks.

    After a claim marked `first` that fails, no item counts. Laws, and claims without a check, count only if all items
    with a check hold.
    """
    claims = [claim for claim in CLAIMS[grade.function](stand_in) if not (claim.law or claim.needs)]
    found = [item for item in grade.items if not (item.law or item.state == "cannot be asked")]
    if not possible(grade, [(claim.says, claim.points) for claim in claims]):
        return Grade(grade.function, "does not hold yet", complaint=FORGED)
    if not grade.earned:
        return grade
    confirming = dict(zip((item.says for item in found), checks(grade.function), strict=False))
    first = {claim.says for claim in claims if claim.first}
    items = list[Item]()
    with RankProcesses(file, grade.function, max(RANKS), learner) as ranks:
        for item in grade.items:
            void = any(each.says in first and each.state != "holds" for each in items)
            items.append(replace(item, state="not asked") if void else again(item, confirming.get(item.says), ranks))
    refuted = next((item for item, was in zip(items, grade.items, strict=True) if item is not was), None)
    own = tuple(sorted(map(cleaned, ranks.used)))
    if refuted is None:
        return replace(grade, own=own)
    items = [item if confirming.get(item.says) else replace(item, state="not asked") for item in items]
    return replace(grade, state="does not hold yet", items=items, own=own,
                   complaint=f"not so: {refuted.says}\n{refuted.complaint}")


def stand_in(comm: Communicator, chunks: Any, root: int = 0, reduce: Any = np.add) -> None:
    """A function in place of the submission's, for reading claims."""


def possible(grade: Grade, due: Sequence[tuple[str, int]]) -> bool:
    """Whether an examination can give this answer: all claims with their points, laws only after the first."""
    if not grade.items:
        return grade.state in ("not yet written", "does not hold yet")
    if grade.state in ("not yet written", "does not end"):
        return False
    plain = [item for item in grade.items if not (item.law or item.state == "cannot be asked")]
    laws = [item for item in grade.items if item.law]
    if [(item.says, item.points) for item in plain] != [*due] or grade.earned > EXERCISES[grade.function]:
        return False
    if any(item.points != 1 for item in laws) or len({item.law for item in laws}) < len(laws):
        return False
    holding = [item.state in ("holds", "cannot be asked") for item in grade.items]
    return (grade.state in ("holds", "holds so far")) == all(holding) and (
        plain[0].state == "holds" or not any(item.earned for item in grade.items))


def again(item: Item, confirm: Confirming | None, ranks: RankProcesses) -> Item:
    """The item with the result on separate ranks."""
    if item.state != "holds" or confirm is None:
        return item
    try:
        complaint = confirm(ranks)
    except Astray as error:
        complaint = str(error)
    except Exception:
        complaint = "a rank's result is not a record of a run"
    return replace(item, state="does not hold", complaint=cleaned(f"{REFUTED}{complaint}")) if complaint else item


def checks(name: str) -> list[Confirming | None]:
    """The check of each claim except laws, in order; None for a claim that is not confirmed."""
    if name in STAGE_TRIALS:
        return of_a_stage(name)
    if name == "all_reduce_two_level":
        return [on_hosts, between_hosts, partial(in_time, TWO_HOSTS, across_hosts(sketch, TWO_HOSTS))]
    kind = {"reduce_scatter_left": COLLECTIVE_KINDS["reduce_scatter"], "reduce_scatter_elsewhere": ELSEWHERE}.get(name)
    found: list[Confirming | None] = [*arriving(kind or COLLECTIVE_KINDS[name])]
    match name:
        case "reduce_scatter_left":
            return [*found, partial(added, COLLECTIVE_KINDS["reduce_scatter"], from_the_right), sent_left]
        case "reduce_scatter_elsewhere":
            return [*found, sent_once, partial(in_time, ONE_HOST, ring.reduce_scatter)]
        case "broadcast" | "reduce":
            return [*found, partial(quick, COLLECTIVE_KINDS[name])]
    order = ALGORITHMS[f"ring.{name}"].order
    return [*found, *([partial(added, COLLECTIVE_KINDS[name], order)] if order else []), partial(sent, name)]


def arriving(kind: CollectiveKind) -> Iterator[Confirming]:
    """The checks that all data arrive."""
    yield partial(arrives, kind, [(size, size) for size in PLAIN], "")
    yield partial(arrives, kind, [(size, size) for size in OTHERS], "")
    yield partial(arrives, kind, [(size, count) for size in RANKS for count in (2 * size + 1, 1, 0)], "")
    if kind.reducing:
        yield partial(arrives, kind, [(2, 2), (3, 3)], "maximum")


@dataclass(frozen=True)
class Drawn:
    """The values of each rank, drawn here."""

    kind: CollectiveKind
    vectors: Sequence[Array]
    root: int = 0
    per_host: int = 1

    def run(self, ranks: RankProcesses, reduce: str = "") -> RoutedRun:
        return ranks.run([{"vector": packed(vector), "root": self.root, "reduce": reduce, "per_host": self.per_host}
                          for vector in self.vectors])

    def wrong(self, run: RoutedRun, total: Callable[[Sequence[Any], int], Any]) -> str | None:
        """The first chunk that differs from the `total` of its contributions in any bit."""
        size = len(self.vectors)
        for rank, said in enumerate(run.gave):
            vector, was = unpacked(said), self.vectors[rank]
            if vector.shape != was.shape or vector.dtype != was.dtype:
                return f"on {plural(size, 'rank')}: rank {rank} is left with {vector.size} × {vector.dtype}"
            for chunk in self.kind.filled(rank, size, self.root):
                due = total(self.kind.contributions(self.vectors, rank, chunk, self.root), chunk)
                held = split(vector, size)[chunk]
                if held.tobytes() != due.tobytes():
                    return (f"on {plural(size, 'rank')} with {plural(was.size, 'element')}: rank {rank}, chunk {chunk} "
                            f"has {held.tolist()}; expected {due.tolist()}")
        return None


def drawn(kind: CollectiveKind, size: int, count: int, root: int = 0) -> Drawn:
    """Random integers, whose sum identifies its terms."""
    random = np.random.default_rng()
    return Drawn(kind, [random.integers(-1 << 40, 1 << 40, count) for _ in range(size)], root)


def roots(kind: CollectiveKind, size: int) -> Sequence[int]:
    return range(size) if kind.rooted else [0]


def arrives(kind: CollectiveKind, sizes: Sequence[tuple[int, int]], reduce: str, ranks: RankProcesses) -> str | None:
    """The error on these numbers of ranks and elements."""
    for size, count in sizes:
        for root in roots(kind, size):
            values = drawn(kind, size, count, root)
            wrong = values.wrong(values.run(ranks, reduce), TOTALS[reduce])
            if wrong:
                return wrong
    return None


TOTALS: dict[str, AddingOrder] = {
    "": lambda given, chunk: np.add.reduce(given), "maximum": lambda given, chunk: np.maximum.reduce(given)}


def added(kind: CollectiveKind, order: AddingOrder, ranks: RankProcesses) -> str | None:
    """The first chunk that was added in another order."""
    random = np.random.default_rng()
    for size in RANKS:
        values = Drawn(kind, [random.standard_normal(9 * size).astype(np.float32) for _ in range(size)])
        if wrong := values.wrong(values.run(ranks), order):
            return wrong
    return None


def sent(name: str, ranks: RankProcesses) -> str | None:
    """The first rank that does not send what the ring sends."""
    row = ALGORITHMS[f"ring.{name}"]
    for size in RANKS:
        for count in (size, 2 * size + 1):
            run = drawn(COLLECTIVE_KINDS[name], size, count).run(ranks)
            lengths = [stop - start for start, stop in bounds(count, size)]
            for rank in range(size):
                have, due = run.sent_by(rank), (row.messages(rank, size), row.sent_bytes(lengths, rank))
                if have != due:
                    return many(size, rank, have, due)
    return None


def many(size: int, rank: int, have: tuple[int, int], due: tuple[int, int]) -> str:
    said = [f"{plural(elements, 'element')} in {plural(messages, 'message')}" for messages, elements in (have, due)]
    return f"on {plural(size, 'rank')}: rank {rank} sends {said[0]}; expected {said[1]}"


def sent_once(ranks: RankProcesses) -> str | None:
    """The first rank that does not send N − 1 messages of one chunk."""
    for size in RANKS:
        run = drawn(ELSEWHERE, size, size).run(ranks)
        for rank in range(size):
            if run.sent_by(rank) != (size - 1, size - 1):
                return many(size, rank, run.sent_by(rank), (size - 1, size - 1))
    return None


def sent_left(ranks: RankProcesses) -> str | None:
    """The first message to another rank than the left neighbour, or the first rank with another count of messages."""
    for size in RANKS:
        run = drawn(COLLECTIVE_KINDS["reduce_scatter"], size, size).run(ranks)
        for message in run.messages:
            if message.to != (message.source - 1) % size:
                return f"on {plural(size, 'rank')}: rank {message.source} sends to rank {message.to}"
        for rank in range(size):
            if run.sent_by(rank) != (size - 1, size - 1):
                return many(size, rank, run.sent_by(rank), (size - 1, size - 1))
    return None


def in_time(machine: TimedMachine, ours: Collective, ranks: RankProcesses) -> str | None:
    """The error if the messages carried here take longer on a virtual machine than those of `ours`."""
    vectors = [np.zeros(machine.ranks * ELEMENTS, np.float32)] * machine.ranks
    run = Drawn(COLLECTIVE_KINDS["all_reduce"], vectors, per_host=machine.per_host).run(ranks, "add")
    return machine.too_slow(machine.ns_of(run.programs), machine.ns(ours))


def quick(kind: CollectiveKind, ranks: RankProcesses) -> str | None:
    """The first number of ranks with too many rounds."""
    for size in RANKS:
        for root in range(size):
            rounds, enough = drawn(kind, size, size, root).run(ranks).rounds, (size - 1).bit_length()
            if rounds > enough:
                return f"on {plural(size, 'rank')} from root {root} it takes {rounds} rounds; {enough} are enough"
    return None


def on_hosts(ranks: RankProcesses) -> str | None:
    for hosts in HOSTS:
        for count in (hosts.ranks, 2 * hosts.ranks):
            values = replace(drawn(COLLECTIVE_KINDS["all_reduce"], hosts.ranks, count), per_host=hosts.per_host)
            if wrong := values.wrong(values.run(ranks, "add"), TOTALS[""]):
                return wrong
    return None


def between_hosts(ranks: RankProcesses) -> str | None:
    for hosts in HOSTS:
        values = replace(drawn(COLLECTIVE_KINDS["all_reduce"], hosts.ranks, hosts.ranks), per_host=hosts.per_host)
        run, enough = values.run(ranks, "add"), 2 * (hosts.ranks // hosts.per_host - 1)
        for rank in range(hosts.ranks):
            away = sum(message.elements for message in run.messages if message.source == rank
                       and message.to // hosts.per_host != rank // hosts.per_host)
            if away > enough:
                return f"rank {rank} sends {plural(away, 'chunk')} to other hosts; {enough} are enough"
    return None
