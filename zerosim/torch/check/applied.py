"""Judges what came after the backward: calls that clip, by the norm of exactly these gradients, and the updates."""

from typing import Any

import numpy as np

from zerosim.core.words import plural
from zerosim.torch.check.book import EQUAL, NOT_JUDGED, WITHIN, Book
from zerosim.torch.check.gradients import SURE, multiple
from zerosim.torch.check.record import Clip, Record, Step, Weights


def clipping(book: Book, records: list[Record], steps: list[Step]) -> None:
    """Judge the calls before one update."""
    counts = [len(step.clips) for step in steps]
    if not any(counts):
        return book.judge("clipping", NOT_JUDGED, "clip_grad_norm_ was not called")
    if len(set(counts)) > 1:
        clipped = steps[counts.index(max(counts))]
        others = [step for step, count in zip(steps, counts, strict=True) if count < max(counts)]
        proved = any(name in step.gradients and len(step.gradients[name].sums) == len(part.sums)
                     and (step.gradients[name].sums == part.sums).all() and changed(clip, name)
                     for clip in clipped.clips for name, part in clip.before.items() for step in others)
        if any(changed(clip, name) for clip in clipped.clips for name in clip.before):
            return book.find(clipped, "clipping on one rank", f"the ranks have clipped {counts} times",
                             line=clipped.clips[0].line, proved=proved)
        return book.judge("clipping", NOT_JUDGED, "calls on some ranks only, which changed nothing")
    if all(call_is_right(book, records, steps, [step.clips[number] for step in steps]) for number in range(counts[0])):
        book.judge("clipping", WITHIN, "by the norm of exactly the gradients that were clipped")
    return None


def call_is_right(book: Book, records: list[Record], steps: list[Step], clips: list[Clip]) -> bool:
    """Judge one call on all ranks; whether it is right."""
    step, first = steps[0], clips[0]
    if step.scale != 1 and (step.unscaled or step.scaler) and not all(clip.unscaled for clip in clips) and any(
            changed(first, name) for name in first.before):
        book.find(step, "clipping before unscaling",
                  f"clip_grad_norm_ saw gradients that GradScaler had multiplied by {step.scale:g}; call "
                  "scaler.unscale_(optimizer) before it", line=first.line,
                  proved=step.scaler and first.most * 1024 < step.scale)
        return False
    if first.order != 2 or records[0].facts.experts or any(
            part.partial for clip in clips for part in clip.before.values()):
        book.judge("clipping", NOT_JUDGED, "gradients are clipped in another way than by their 2-norm")
        return False
    squares = [{(name, part.key): part.squares.sum() for name, part in clip.before.items()} for clip in clips]
    right = False
    for step, clip, own in zip(steps, clips, squares, strict=True):
        everywhere: dict[Any, float] = {key: square for of_rank in squares for key, square in of_rank.items()}
        whole, local = (float(np.sqrt(sum(of.values()))) for of in ({**everywhere, **own}, own))
        if not whole or not np.isfinite(whole) or clip.before.keys() != clip.after.keys():
            continue
        factor, slack, scaled = scaling(clip)
        allowed = {norm: slack + norm_error(clip) * factor_due(clip, norm) for norm in (whole, local)}
        if not scaled:
            book.judge("clipping", NOT_JUDGED, "gradients were multiplied by different factors")
        elif abs(factor - factor_due(clip, whole)) <= allowed[whole]:
            right = True
            continue
        elif abs(factor - factor_due(clip, local)) <= allowed[local]:
            book.find(step, "clipping by the local norm",
                      f"gradients were clipped by {local:.6g}, the norm of this rank's part; the whole gradient's is "
                      f"{whole:.6g}", line=clip.line, bound=True)
        else:
            book.find(step, "another norm",
                      f"gradients were multiplied by {factor:.6g}; their norm is {whole:.6g}", line=clip.line,
                      proved=not clip.given)
        return False
    if not right:
        book.judge("clipping", NOT_JUDGED, "the gradients are 0, NaN or infinite")
    return right


def factor_due(clip: Clip, norm: float) -> float:
    """By what gradients of this norm are multiplied."""
    return min(1.0, clip.most / (norm + 1e-6))


def changed(clip: Clip, name: str) -> bool:
    """Whether a call has changed the gradient of a parameter."""
    return name in clip.after and bool((clip.before[name].sums != clip.after[name].sums).any())


def norm_error(clip: Clip) -> float:
    """The largest relative error of PyTorch's norm, which adds squares in float32.

    A square passes at most `additions` roundings of sums of positive numbers, whatever the blocks, and three more; the
    root halves the relative error, and what is stored and multiplied afterwards is rounded to the gradients' dtype.
    """
    unit = max(part.roundoff for part in clip.before.values())
    rounds = (clip.additions + 3) * max(2.0**-53, min(unit, 2.0**-24))
    return rounds / (1 - rounds) / 2 + 6 * unit if rounds < 0.5 else np.inf


def scaling(clip: Clip) -> tuple[float, float, bool]:
    """The factor of a call, how far rounding may move it, and whether all gradients have it.

    Buckets have fewer than 2²⁰ elements.
    """
    before, after = (np.concatenate([part.sums for part in parts.values()]) for parts in (clip.before, clip.after))
    sizes = np.sqrt(np.concatenate([part.squares for part in clip.before.values()]))
    unit = max(part.roundoff for part in clip.before.values())
    return multiple(before, after, SURE * 2 * unit * sizes, max(part.smallest for part in clip.before.values()) * 2**20)


def updates_of(book: Book, records: list[Record]) -> None:
    """What the updates did with each parameter, and what they could not do."""
    every = [step for record in records for step in record.steps if not step.skipped]
    steps, first = records[0].steps, records[0].steps[0]
    reached(book, steps, every)
    calls = [step.schedules for step in every if step.number > 1]
    if len(calls) >= 3 and len(records) > 1 and set(calls) == {len(records)}:
        book.find(first, "the scheduler steps once per rank", f"it has stepped {len(records)} times for each update")
    if idle(book, steps):
        return
    trained = dict[str, dict[int, list[Weights]]]()
    """The parameters in 32 bits that had gradients, by step."""
    for step in every:
        for name, weights in step.weights.items():
            if weights.due and not weights.narrow and not any(group.get("lr") == 0.0 for group in step.settings):
                trained.setdefault(name, {}).setdefault(step.number, []).append(weights)
    stuck = [name for name, updates in trained.items() if len(updates) > 1 and not any(
        weights.moved for of_ranks in updates.values() for weights in of_ranks)]
    if 0 < len(stuck) < len(trained):
        due, _ = rounded(every, stuck[0])
        book.find(first, "a parameter is never changed", f"{stuck[0]} gets gradients, an optimizer has it, and none of "
                  f"{plural(len(trained[stuck[0]]), 'update')} has changed one of {due} sampled elements ({len(stuck)} "
                  "such)", stuck[0])
    due, moved = rounded(every, *{name for step in every for name, weight in step.weights.items() if weight.narrow})
    if 2 * moved < due:
        book.find(first, "updates are rounded away",
                  f"{due - moved} of {due} sampled elements of 16 bits that had a gradient were the same after the "
                  "update: keep weights in float32, or round stochastically")


def reached(book: Book, steps: list[Step], every: list[Step]) -> None:
    """Whether gradients reach what is optimized, and optimizers what gets gradients: `steps` are those of rank 0."""
    first, updated = steps[0], {name for step in every for name in step.parameters}
    lonely = [name for name in first.orphans if name not in updated and (len(steps) == 1 or name in steps[1].orphans)
              and len({source[name].bits for step in steps for source in (step.weights, step.others)
                       if name in source}) <= 1]
    if lonely and not (first.ahead and len(lonely) >= len(updated)):  # else a head is trained alone
        book.find(first, "a parameter that no optimizer has",
                  f"{lonely[0]} gets gradients and is never updated ({len(lonely)} such): is it frozen on purpose?",
                  lonely[0])
    trains = {name for step in every for name, weight in step.weights.items() if weight.trains and name in updated}
    got = trains & {name for step in every for name in (*step.terms, *step.gradients)}
    never = sorted(trains - got)
    frozen = [name for name, weight in first.weights.items() if not weight.trains]
    if 0 < len(frozen) < len(trains) and frozen != [*first.weights][: len(frozen)]:  # else a backbone, or adapters
        book.find(first, "a parameter never gets a gradient", f"{frozen[0]} has an optimizer and no requires_grad, "
                  f"between parameters that train; {len(frozen)} of {len(first.weights)} parameters have none",
                  frozen[0])
    if never and got and not any("sparse gradients" in step.reasons for step in every):
        book.find(first, "a parameter never gets a gradient",
                  f"{never[0]} has requires_grad and an optimizer, and got no gradient in "
                  f"{plural(len(steps), 'step')}; {len(never)} of {len(trains)} parameters did not: "
                  "detached, or below a reentrant checkpoint whose input needs no gradient?", never[0])
    elif got:
        book.judge("parameters", EQUAL, f"all {plural(len(trains), 'parameter')} that an optimizer has and that train "
                   "got gradients; an optimizer has each parameter with a gradient")


def idle(book: Book, steps: list[Step]) -> bool:
    """Whether the learning rate of an optimizer is 0 in several steps, up to the last one."""
    for number in {step.optimizer for step in steps}:
        own = [step for step in steps if step.optimizer == number and not step.skipped]
        zeros = [{group.get("lr") for group in step.settings} == {0.0} for step in own]
        first = max((at for at, zero in enumerate(zeros, 1) if not zero), default=0)
        if len(own) - first > 1:
            book.find(own[first], "the learning rate is 0",
                      f"in the last {len(own) - first} of {plural(len(own), 'step')}: nothing is updated")
            return True
    return False


def rounded(steps: list[Step], *names: str) -> tuple[int, int]:
    """Of the sampled elements of these parameters, how many had a gradient, and how many of them an update changed."""
    weights = [step.weights[name] for step in steps for name in names if name in step.weights]
    return sum(weight.due for weight in weights), sum(weight.moved for weight in weights)
