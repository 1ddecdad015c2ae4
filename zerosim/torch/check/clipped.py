"""Judges the calls that clip gradients: on all ranks, by the norm of exactly these gradients, after unscaling."""

from typing import Any

import numpy as np

from zerosim.torch.check.book import NOT_JUDGED, WITHIN, Book
from zerosim.torch.check.gradients import SURE
from zerosim.torch.check.record import Clip, Record, Step


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
    if all(one(book, records, steps, [step.clips[number] for step in steps]) for number in range(counts[0])):
        book.judge("clipping", WITHIN, "by the norm of exactly the gradients that were clipped")
    return None


def one(book: Book, records: list[Record], steps: list[Step], clips: list[Clip]) -> bool:
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
    if not before.any():
        return 1.0, 0.0, False
    factor = float(before @ after / (before @ before))
    error = SURE * 2 * unit * abs(factor) * sizes + max(part.smallest for part in clip.before.values()) * 2**20
    slack = float(np.abs(before) @ error / (before @ before))
    return factor, slack, bool((np.abs(after - factor * before) <= error + slack * np.abs(before)).all())
