"""What must be alike on ranks, and what must not: weights, batches, settings, optimizer state.

Each function judges one update of ranks that train one model: `steps` and `previous` have an entry for each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from zerosim.torch.check.book import EQUAL, NOT_JUDGED, Book
from zerosim.torch.check.gradients import listed
from zerosim.torch.check.record import KEPT, Record, Step


def unlike_first(of_ranks: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[int, Any]]:
    """The ranks, and the names there, of values that are not those of the first rank under these names."""
    return ((rank, name) for rank, values in enumerate(of_ranks) for name in of_ranks[0]
            if name in values and values[name] != of_ranks[0][name])


def differences(steps: list[Step], experts: Iterable[str] = ()) -> Iterator[tuple[str, int, int]]:
    """The parameters whose bits differ between two ranks that hold the same part, with the two ranks; no `experts`."""
    for name in (name for name in steps[0].weights if name not in experts):
        first: dict[Any, tuple[int, int]] = {}
        for rank, step in enumerate(steps):
            if name in step.weights:
                weight = step.weights[name]
                other, bits = first.setdefault(weight.key, (rank, weight.bits))
                if weight.bits != bits:
                    yield name, other, rank


def together(records: list[Record], steps: list[Step]) -> bool:
    """Whether the ranks train one model: a trainer reduces over them, or their optimizers see the same gradients."""
    sums = [step.gradients[name].sums for name in [*steps[0].gradients][:1] for step in steps if name in step.gradients]
    return bool(records[0].facts.trainer) or (
        len(sums) == len(steps) and all(np.array_equal(numbers, sums[0]) for numbers in sums))


def weights(book: Book, records: list[Record], steps: list[Step], previous: list[Step] | None) -> bool:
    """Whether all ranks hold the same weights; else it makes no sense to compare what they compute with them."""
    first, facts = previous is None, records[0].facts
    what = "initial weights" if first and steps[0].number == 1 else "replicas"
    difference = next(differences(steps, facts.experts), None)
    if difference is not None:
        name, other, rank = difference
        if first and not together(records, steps):
            for subject in (what, "gradient"):
                book.judge(subject, NOT_JUDGED, "each rank has a model of its own, without a trainer")
            return False
        if not book.findings:
            cause = "other initial weights" if what == "initial weights" else "replicas have drifted apart"
            book.find(steps[rank], cause, f"{name} has different bits than on rank {steps[other].rank}", name)
        book.diverged = book.diverged or steps[0].number
        return first
    if book.diverged and steps[0].number > book.diverged:
        book.rejoined = True
    for rank, name in unlike_first([record.facts.buffers for record in records]) if first else ():
        book.find(steps[rank], "other initial weights", f"the buffer {name} has different bits than on rank 0", name,
                  proved=False)
    wrapped = [{name: bits for name, bits in record.facts.wrapped.items() if bits} for record in records]
    for rank, name in unlike_first(wrapped) if first else ():
        book.find(steps[rank], "other initial weights", f"{name} was initialised with other values than on rank 0, and "
                  f"sharding does not broadcast: the model is a patchwork of {len(records)} initialisations", name,
                  line=facts.wrapping_line)
        return True
    verdict = (EQUAL, "all ranks hold the same bits") if len(steps) > 1 else (NOT_JUDGED, "there is one rank")
    book.judge(what, *verdict)
    return True


def others(book: Book, every: list[list[Step]]) -> None:
    """Compare weights that no optimizer has, such as averages of weights: replicas, and shards that change.

    A sharded tensor that is in no module may be anything, such as a gradient that is kept, until it has changed.
    """
    first = dict[str, dict[int, tuple[object, int]]]()
    for steps, name in [(row, name) for row in every if all(step.others for step in row) for name in row[0].others]:
        now = {rank: (step.others[name].key, step.others[name].bits) for rank, step in enumerate(steps)
               if name in step.others and all(stop > start for start, stop in step.others[name].key)}
        then = first.setdefault(name, dict(now))
        moved, still = ([rank for rank in now if rank in then and (then[rank] != now[rank]) is changed]
                        for changed in (True, False))
        places = dict[object, tuple[int, int]]()
        for rank, (key, bits) in now.items():
            other, of_other = places.setdefault(key, (rank, bits))
            if of_other != bits and (moved or not name.startswith(KEPT)):
                book.find(steps[rank], "a model without an optimizer differs",
                          f"{name} has different bits than on rank {steps[other].rank}", name, proved=False)
        if len(places) == len(now) > 1 and moved and still:
            alike = all(then_of.get(rank) == (steps[rank].others[other].key, steps[rank].others[other].bits)
                        for other, then_of in first.items() for rank in still if other in steps[rank].others)
            book.find(steps[still[0]], "a model without an optimizer differs",
                      f"the shard of {name} has never changed here, and has on rank {steps[moved[0]].rank}", name,
                      proved=alike)


def inputs(book: Book, records: list[Record], steps: list[Step]) -> bool:
    """Compare the batches; false if ranks that must share them do not."""
    counts = [len({term.backward for terms in step.terms.values() for term in terms}) for step in steps]
    if len(set(counts)) > 1:
        book.find(steps[counts.index(min(counts))], "a rank with fewer micro-batches",
                  f"the ranks have {counts} micro-batches")
    trainer, seen = records[0].facts.trainer, False
    alone = bool(trainer) or not records[0].facts.communicates
    for number, row in enumerate(zip(*(step.batches for step in steps), strict=False), 1):
        sizes = [batch.samples for batch in row]
        if trainer and len(set(sizes)) > 1:
            book.find(steps[sizes.index(min(sizes))], "batches of unequal size",
                      f"the ranks were given {sizes} samples (micro-batch {number}), and the mean over ranks gives "
                      "each rank the same weight", line=row[sizes.index(min(sizes))].line)
        for rank, batch in enumerate(row):
            facts, seen = records[rank].facts, seen or bool(batch.given)
            of_row = [other for other, record in enumerate(records) if record.facts.rank in facts.row]
            if of_row and batch.given != row[of_row[0]].given and not facts.takes_shards:
                book.find(steps[rank], "different samples in a tensor-parallel group",
                          f"ranks {listed(facts.row)} hold parts of the same layers and were given different batches "
                          f"(micro-batch {number})", line=batch.line)
                return False
            if of_row and batch.returned != row[of_row[0]].returned and facts.returns_partial:
                book.find(steps[rank], "another model in parts", "the outputs differ on the tensor-parallel ranks "
                          f"{listed(facts.row)}: parts were not added", line=batch.line, proved=not facts.sent)
                return False
    if seen and len(steps) > 1:
        book.judge("inputs", EQUAL, "no two ranks were given the same batches" if alone else
                   "the ranks communicate in the forward")
    elif any(step.batches for step in steps):
        book.judge("inputs", NOT_JUDGED, "there is one rank" if seen else
                   "the models were given no tensors, or constants")
    return True


def same_terms(step: Step, other: Step) -> bool:
    """Whether two ranks have computed the same bits of each gradient, and some that are not 0."""
    return step.terms.keys() == other.terms.keys() and all(
        len(step.terms[name]) == len(other.terms[name]) and all(
            (term.part.sums == there.part.sums).all()
            for term, there in zip(step.terms[name], other.terms[name], strict=True)) for name in step.terms) and any(
                term.part.sums.any() for terms in step.terms.values() for term in terms)


def same_samples(book: Book, records: list[Record], every: list[list[Step]]) -> None:
    """Say which ranks were given the same batch: a finding, if they have computed nothing else.

    What a rank is given in each step, beside what the other one is not given, is no batch: a classifier's prompts.
    """
    facts = records[0].facts
    for other, rank in combinations(range(len(records)), 2) if facts.trainer or not facts.communicates else ():
        if other in records[rank].facts.row and not records[rank].facts.takes_shards:
            continue
        here, there = ([{batch.given for batch in steps[one].batches} for steps in every if steps[one].batches]
                       for one in (rank, other))
        always = set.intersection(*here) if len(here) > 1 and not set().union(*here) <= set().union(*there) else set()
        proved = len(every) > 1 and all(same_terms(steps[rank], steps[other]) for steps in every)
        step, number, batch = next((
            (steps[rank], number, batch) for steps in every
            for number, (batch, theirs) in enumerate(zip(steps[rank].batches, steps[other].batches, strict=False), 1)
            if batch.given and batch.given == theirs.given and (proved or batch.given not in always)), (None, 0, None))
        if step is not None and batch is not None:
            book.find(step, "the same samples", f"ranks {other}, {rank} were given the same batch (micro-batch "
                      f"{number})" + (", and computed the same gradients in each step" if proved else "")
                      + ": is there a DistributedSampler, or a seed that depends on the rank?", line=batch.line,
                      proved=proved)


def passes(book: Book, steps: list[Step]) -> None:
    """In a pipeline every forward of a stage has its backward before the update, and all stages have as many."""
    counts = [step.passes[0] for step in steps]
    short = next((step for step in steps if 0 < step.passes[1] < step.passes[0]), None)
    if short is not None:
        book.find(short, "a micro-batch without a backward", f"the stage made {short.passes[0]} forwards and "
                  f"{short.passes[1]} backwards before the update")
    elif len({*counts}) > 1 and all(step.passes[1] for step in steps):
        book.find(steps[counts.index(min(counts))], "a rank with fewer micro-batches",
                  f"the stages made {counts} forwards before the update")


def samplers(book: Book, records: list[Record]) -> None:
    """Compare the samplers with which epochs of training have begun, also beyond the observed steps."""
    seen = set[str]()
    for row in zip(*(record.facts.epochs for record in records), strict=False):
        first = row[0]
        for rank, key in unlike_first([epoch.settings for epoch in row]):
            if row[rank].samples == first.samples:
                book.find(Step(0, row[rank].step, rank=records[rank].facts.rank), "samplers of other orders",
                          f"the DistributedSampler has {key}={row[rank].settings[key]}, and {first.settings[key]} on "
                          "rank 0: the ranks draw shares of different orders, which overlap", line=row[rank].line)
        begun = f"{first.samples} {first.settings}"
        if begun in seen:
            book.find(Step(0, first.step), "the same samples every epoch", "a DistributedSampler gives the samples of "
                      "an earlier epoch again: call sampler.set_epoch(epoch)", line=first.line)
        seen.add(begun)


def overlaps(book: Book, records: list[Record]) -> None:
    """Find ranks whose batches are, step after step, those that another rank has had a constant number of steps before.

    New batches must come in each of these steps, too: a loader that begins again may give a rank another's batches.
    """
    columns = [[(step, batch) for step in record.steps for batch in step.batches] for record in records]
    seen: dict[int, tuple[int, int]] = {}
    runs: dict[tuple[int, int, int], int] = {}
    for number, row in enumerate(zip(*columns, strict=False)):
        old = {rank: seen[batch.given] for rank, (_, batch) in enumerate(row) if batch.given in seen}
        shifted = {(rank, other, number - at) for rank, (other, at) in old.items() if other != rank}
        runs = {shift: runs.get(shift, 0) + 1 for shift in shifted if len(old) < len(row)}
        for (rank, other, lag), count in runs.items():
            if count == 3:
                step, batch = row[rank]
                book.find(step, "batches overlap",
                          f"its batches are those that rank {row[other][0].rank} has had {lag} before: the "
                          f"loader advances by less than the batches of {len(row)} ranks", line=batch.line,
                          proved=lag < len(row))
        for rank, (_, batch) in enumerate(row):
            if batch.given:
                seen.setdefault(batch.given, (rank, number))


def settings(book: Book, records: list[Record], steps: list[Step]) -> None:
    """Compare the settings of the optimizers, what is frozen, and what is not registered."""
    first, unknown, one = steps[0], records[0].facts.unknown, together(records, steps)
    groups = [{(number, key): group.get(key) for number, (group, of_first) in enumerate(zip(
        step.settings, first.settings, strict=False)) for key in of_first} for step in steps]
    for rank, key in unlike_first(groups):
        book.find(steps[rank], "another learning rate on a rank",
                  f"{key[1]} is {groups[rank][key]}, and {groups[0][key]} on rank 0",
                  proved=one and key[1].rstrip("01") in ("lr", "weight_decay", "momentum", "betas", "eps"))
    trains = [{name: weight.trains for name, weight in step.weights.items()} for step in steps]
    for rank, name in unlike_first(trains):
        book.find(steps[rank], "a parameter is frozen on one rank", f"{name} has requires_grad={trains[rank][name]}, "
                  f"and {trains[0][name]} on rank 0", name, proved=one)
    if len(steps) > 1:
        book.judge("update", EQUAL, "settings and optimizer state are alike on all ranks")
    if unknown:
        book.find(first, "an unregistered parameter",
                  f"the loss uses a parameter {unknown[0]} that belongs to no module of the model and to no "
                  "optimizer (a list instead of nn.ModuleList?)")


def states(book: Book, steps: list[Step], previous: list[Step] | None) -> None:
    """Find ranks that have lost optimizer state, or that count other updates than ranks with the same parameters."""
    for before, step in zip(previous or (), steps, strict=False):
        if before.states_after and not step.states and any(other.states for other in steps):
            return book.find(step, "optimizer state is lost", f"{before.states_after} parameters had state "
                             "here after the last update, and have none now")
    counts = [{name: count for name, count in step.states.items() if count != -1} for step in steps]
    for rank, name in unlike_first(counts):
        return book.find(steps[rank], "optimizer state is lost", f"the state of {name} counts {counts[rank][name]:g} "
                         f"updates, and {counts[0][name]:g} on rank 0", name)
    return None
