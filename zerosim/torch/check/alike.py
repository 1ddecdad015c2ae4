"""What must be alike on ranks, and what must not: weights, batches, settings, optimizer state, shared activations.

Each function judges one update of ranks that train one model: `steps` and `previous` have an entry for each.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from zerosim.torch.check.book import EQUAL, NOT_JUDGED, Book
from zerosim.torch.check.gradients import said
from zerosim.torch.check.record import Record, Step


def first_apart(values: list[Any]) -> int | None:
    """The first place of a value that differs from the first one."""
    return next((place for place, each in enumerate(values) if each != values[0]), None)


def differences(steps: list[Step], experts: Iterable[str] = ()) -> Iterator[tuple[str, int, int]]:
    """The parameters whose bits differ between two ranks that hold the same part, with the two ranks; no `experts`."""
    for name in (name for name in steps[0].weights if name not in experts):
        of_place: dict[Any, tuple[int, int]] = {}
        for rank, each in enumerate(steps):
            if name in each.weights:
                mine = each.weights[name]
                other, due = of_place.setdefault(mine.key, (rank, mine.bits))
                if mine.bits != due:
                    yield name, other, rank


def weights(book: Book, records: list[Record], steps: list[Step], previous: list[Step] | None) -> bool:
    """Whether all ranks hold the same weights; else it makes no sense to compare what they compute with them."""
    first = previous is None
    what = "initial weights" if first and steps[0].number == 1 else "replicas"
    apart = next(differences(steps, records[0].facts.experts), None)
    if apart is not None:
        name, other, rank = apart
        if first and not records[0].facts.trainer and not reduces(steps):
            for each in (what, "gradient"):
                book.judge(each, NOT_JUDGED, "each rank has a model of its own, without a trainer")
            return False
        if not book.findings:
            cause = "other initial weights" if what == "initial weights" else "replicas have drifted apart"
            book.find(what, steps[rank], records[rank].facts.rank, cause,
                      f"{name} has different bits than on rank {records[other].facts.rank}", name)
        book.apart = book.apart or steps[0].number
        return first
    if book.apart and steps[0].number > book.apart and not records[0].facts.wrapped_again:
        book.joined = True
    for kind in ("buffers", "wrapped") if first else ():
        for name in getattr(records[0].facts, kind):
            values = [getattr(each.facts, kind).get(name) for each in records]
            place = first_apart([each[0] if kind == "wrapped" and each else each for each in values])
            if place is None or (kind == "wrapped" and not all(each and each[1] for each in values)):
                continue
            text = f"the buffer {name} has different bits than on rank 0" if kind == "buffers" else (
                f"{name} was initialised with other values than on rank 0, and sharding does not broadcast: the "
                f"model is a patchwork of {len(values)} initialisations")
            book.find(what, steps[0], records[place].facts.rank, "other initial weights", text, name,
                      line=records[0].facts.wrapping_line if kind == "wrapped" else "")
            return True
    book.judge(what, EQUAL, "all ranks hold the same bits")
    return True


def reduces(steps: list[Step]) -> bool:
    """Whether the optimizers see the same gradient on all ranks."""
    name = next(iter(steps[0].found), "")
    found = [each.found.get(name) for each in steps]
    return all(each is not None and found[0] is not None and len(each.sums) == len(found[0].sums)
               and not (each.sums != found[0].sums).any() for each in found)


def inputs(book: Book, records: list[Record], steps: list[Step]) -> bool:
    """Compare the batches; false if ranks that must share them do not."""
    counts = [len({term.backward for terms in each.terms.values() for term in terms}) for each in steps]
    place = first_apart(counts)
    if place is not None:
        few = counts.index(min(counts))
        book.find("inputs", steps[place], records[few].facts.rank, "a rank with fewer micro-batches",
                  f"the ranks have {counts} micro-batches")
    alone = bool(records[0].facts.trainer) or not records[0].facts.communicates
    for number, row in enumerate(zip(*(each.batches for each in steps), strict=False), 1):
        heads: dict[int, int] = {}
        samplers(book, records, steps, number - 1)
        for rank, batch in enumerate(row):
            facts = records[rank].facts
            of_row = [place for place, each in enumerate(records) if each.facts.rank in facts.row]
            if of_row and batch.given != row[of_row[0]].given and not facts.takes_shards:
                book.find("inputs", steps[rank], facts.rank, "different samples in a tensor-parallel group",
                          f"ranks {said(facts.row)} hold parts of the same layers and were given different batches "
                          f"(micro-batch {number})", line=batch.line)
                return False
            if of_row and batch.returned != row[of_row[0]].returned and facts.returns_partial:
                book.find("weights of the forward", steps[rank], facts.rank, "another model in parts",
                          f"the outputs differ on the tensor-parallel ranks {said(facts.row)}: parts were not added",
                          line=batch.line)
                return False
            head = of_row[0] if of_row and not facts.takes_shards else rank
            other = heads.setdefault(batch.given, head)
            if batch.given and other != head and alone:
                pair = records[other].facts.rank, facts.rank
                book.find("inputs", steps[rank], facts.rank, "the same samples",
                          f"ranks {said([*pair])} were given the same batch (micro-batch {number}): is "
                          "there a DistributedSampler, or a seed that depends on the rank?", line=batch.line)
                return True
    book.judge("inputs", EQUAL, "all batches of all ranks differ" if alone else "the ranks communicate in the forward")
    return True


def samplers(book: Book, records: list[Record], steps: list[Step], number: int) -> None:
    """Compare the samplers that have begun an epoch with a micro-batch."""
    row = [each.batches[number] for each in steps]
    first = row[0].epoch
    for rank, batch in enumerate(row if all(each.epoch for each in row) else ()):
        each = batch.epoch
        key = next((key for key in ("num_replicas", "seed", "epoch") if each[key] != first[key]), "")
        if key and each["samples"] == first["samples"]:
            book.find("inputs", steps[rank], records[rank].facts.rank, "the same samples",
                      f"the DistributedSampler has {key}={each[key]}, and {first[key]} on rank 0: the ranks "
                      "draw shares of different orders, which overlap", line=batch.epoch_line)
    if first and str(first) in book.epochs:
        book.find("inputs", steps[0], records[0].facts.rank, "the same samples every epoch", "a DistributedSampler "
                  "gives the samples of an earlier epoch again: call sampler.set_epoch(epoch)", line=row[0].epoch_line)
    book.epochs.add(str(first) if first else "")


def overlaps(book: Book, records: list[Record]) -> None:
    """Find ranks whose batches are, step after step, those that another rank has had a constant number of steps before.

    New batches must come in each of these steps, too: a loader that begins again may give a rank another's batches.
    """
    rows = [[(step, each.given, each.line) for step in record.steps for each in step.batches] for record in records]
    seen: dict[int, tuple[int, int]] = {}
    runs: dict[tuple[int, int, int], int] = {}
    for number in range(min(map(len, rows), default=0)):
        row = [of_rank[number][1] for of_rank in rows]
        old = {rank: seen[given] for rank, given in enumerate(row) if given in seen}
        shifted = {(rank, other, number - at) for rank, (other, at) in old.items() if other != rank}
        runs = {each: runs.get(each, 0) + 1 for each in shifted if len(old) < len(row)}
        for (rank, other, lag), count in runs.items():
            if count == 3:
                step, _, line = rows[rank][number]
                book.find("inputs", step, records[rank].facts.rank, "batches overlap",
                          f"its batches are those that rank {records[other].facts.rank} has had {lag} before: the "
                          f"loader advances by less than the batches of {len(rows)} ranks", line=line)
        for rank, given in enumerate(row):
            if given:
                seen.setdefault(given, (rank, number))


def settings(book: Book, records: list[Record], steps: list[Step]) -> None:
    """Compare the settings of the optimizers, what is frozen, and what is not registered."""
    first = steps[0]
    for rank, each in enumerate(steps):
        number = records[rank].facts.rank
        for mine, theirs in zip(each.settings, first.settings, strict=False):
            key = next((key for key in theirs if mine.get(key) != theirs[key]), None)
            if key is not None:
                named = "learning rate" if key == "lr" else key
                book.find("update", each, number, f"another {named} on a rank",
                          f"{key} is {mine.get(key)}, and {theirs[key]} on rank 0")
        name = next((name for name, one in each.weights.items()
                     if name in first.weights and first.weights[name].trains != one.trains), None)
        if name is not None:
            book.find("parameters", each, number, "a parameter is frozen on one rank",
                      f"{name} has requires_grad={each.weights[name].trains}, and {not each.weights[name].trains} on "
                      "rank 0", name)
    book.judge("update", EQUAL, "settings and optimizer state are alike on all ranks")
    unknown = records[0].facts.unknown
    if unknown:
        book.find("parameters", first, records[0].facts.rank, "an unregistered parameter",
                  f"the loss uses a parameter {unknown[0]} that belongs to no module of the model and to no "
                  "optimizer (a list instead of nn.ModuleList?)")


def states(book: Book, records: list[Record], steps: list[Step], previous: list[Step] | None) -> None:
    """Find ranks that have lost optimizer state, or that count other updates than ranks with the same parameters."""
    if previous is not None:
        lost = [before.states_after > 0 and not step.states for before, step in zip(previous, steps, strict=True)]
        if any(lost) and any(step.states for step in steps):
            rank = lost.index(True)
            return book.find("update", steps[rank], records[rank].facts.rank, "optimizer state is lost",
                             f"{previous[rank].states_after} parameters had state here after the last update, and have "
                             "none now")
    for rank, step in enumerate(steps):
        for name, count in step.states.items():
            of_first = steps[0].states.get(name, count)
            if count != of_first and -1 not in (count, of_first):
                return book.find("update", step, records[rank].facts.rank, "optimizer state is lost",
                                 f"the state of {name} counts {count:g} updates, and {of_first:g} on rank 0", name)
    return None


def forwards(book: Book, records: list[Record], steps: list[Step], previous: list[Step] | None) -> None:
    """Gathered weights are those of the shards, whose digests add up."""
    def whole(of_steps: list[Step], name: str) -> int:
        shards = {each.weights[name].key: each.weights[name].used for each in of_steps if name in each.weights}
        return sum(shards.values())

    for rank, each in enumerate(steps):
        for name, gathered in each.gathered.items():
            if all(name in step.weights for step in steps) and (whole(steps, name) - gathered.bits) % 2**64:
                stale = previous and (whole(previous, name) - gathered.bits) % 2**64 == 0
                cause = "stale gathered weights" if stale else "weights changed between gather and use"
                return book.find("weights of the forward", each, records[rank].facts.rank, cause,
                                 f"the forward used values of {name} that are not those of its shards", name,
                                 line=gathered.line)
    return book.judge("weights of the forward", EQUAL, "gathered weights are those of the shards")


def activations(book: Book, records: list[Record], steps: list[Step]) -> None:
    """The law of what is alike: ranks that compute one batch together, outside of a trainer's group, and hold an
    activation with the same bits at the same call, must have the same gradient there.

    Of modules that return the same bits, only the first counts: Megatron's f returns what it is given, and the gradient
    behind it is partial. The gradients of the finding differ by more than the root of a rounding error.
    """
    for rank, step in enumerate(steps):
        facts = records[rank].facts
        for other in range(rank):
            if (records[other].facts.rank in facts.group and facts.trainer) or not step.batches or (
                    [each.given for each in step.batches] != [each.given for each in steps[other].batches]):
                continue
            seen, unlike = set[int](), None
            for mine, theirs in zip(step.activations, steps[other].activations, strict=False):
                if (mine.module, mine.bits) != (theirs.module, theirs.bits) or mine.bits in seen or not (
                        len(mine.sums) == len(theirs.sums) > 0):
                    continue
                seen.add(mine.bits)
                size = np.sqrt(mine.squares.sum() + theirs.squares.sum())
                if np.linalg.norm(mine.sums - theirs.sums) > np.sqrt(mine.roundoff) * 64 * size:
                    unlike = mine
            if unlike is not None:
                return book.find("gradient", step, facts.rank, "a sum is missing in backward",
                                 f"ranks {records[other].facts.rank} and {facts.rank} hold the same output of "
                                 f"{unlike.module}, and not the same gradient of it: what uses it in parts must add "
                                 "the parts of its gradient over these ranks", line=unlike.line)
    return None
