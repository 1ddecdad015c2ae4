"""The advice for each difference of a learner's step from the library's, and tests of equality."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.teach.grading.trained import Figures
from zerosim.teach.grading.verb_calls import StageCase
from zerosim.words import plural

KEPT_TOO_MUCH = {
    "parameters": "something still references full weights, or the buffer of which the shard is a view: keep a copy "
                  "of the shard, and free gathered weights (del weights) after use; a cache, a global or an attribute "
                  "of the replica also holds them",
    "gradients": "keep keeps a full gradient, keep_shard this rank's chunk alone; a view of a chunk, as replica.own "
                 "gives it, keeps the full buffer alive",
    "optimizer": "the stage manages the optimizer's state: put nothing into replica.state.optimizer",
    "activations": "activations are still referenced after the step: keep them in no global, default argument or "
                   "attribute",
    "buffers": "a buffer is still referenced after the step: keep it in no global, default argument or attribute",
}
HELD_TOO_LONG = {
    "parameters": "gathered weights of one unit are still referenced while the next one's are gathered: del weights "
                  "after forward and after backward, and keep them in no list",
    "gradients": "a full gradient is still referenced while the next one is computed: del gradient once its shard is "
                 "kept",
    "activations": "activations that backward no longer needs are still referenced: assign the results of forward and "
                   "backward to the same name",
}
HELD = "something that is no longer used is still referenced"
LET_GO = ("the full weights of units whose backward is done are still referenced: free them right after that "
          "backward, with weights = full.pop(unit) and del weights, not all of them after the last unit")
SCALED = (
    "tape.loss has divided by the samples of all ranks already, so losses and gradients are only added, never divided "
    "or multiplied"
)

ADVICE = {
    ("late", "zero_grad"): "the gradients kept before are lost; call it first, once per step and not once per part",
    ("late", "keep"): "unscale_and_clip computes the norm of all kept gradients: call it once they are all kept",
    ("late", "unscale_and_clip"): "replica.update does nothing before it: call it once per step, when all gradients "
                                  "are kept, then update",
    ("late", "forward"): "update after the loop, when all parts have run backward",
    ("late", "backward"): "update after the loop, when all parts have run backward",
    ("late", "update"): "it was published too early, before its owner had updated it",
    ("no", "zero_grad"): "the last step's gradients are still kept, and this step's are added to them; call it first",
    ("no", "forward"): "forward goes through all of replica.units, first to last",
    ("no", "loss"): "run each of the micro-batches once; loop over all of replica.parts(batch) or of batch.inputs",
    ("no", "backward"): "run all of replica.backward_units backward, last to first",
    ("no", "keep"): "reduce and keep the gradient of every part right after its backward, with replica.keep or "
                    "replica.keep_shard, within the loop over replica.backward_units",
    ("no", "unscale_and_clip"): "replica.update does nothing before it: call it once, before the first update",
    ("more", "zero_grad"): "each call discards the gradients kept before: call it first, once per step",
    ("more", "reduce_scatter"): "it already returns the sum over all ranks",
    ("more", "keep"): "kept gradients are added up: keep each one once",
    ("more", "update"): "call replica.update once for each unit",
    ("more", "unscale_and_clip"): "it counts the steps; call it once per step",
    ("more", "loss"): "run each part of replica.parts(batch) once",
    ("more", "publish"): "publish once, after the update; a stage that keeps shards publishes nothing, since it "
                         "gathers them before their use",
    ("more", "gather"): "it gathers again what it had: keep the gathered weights until their last use",
    ("more", "all_gather"): "it gathers again what it had: each rank needs all chunks of updated weights once",
    ("other", "forward"): "forward goes through all of replica.units, first to last",
    ("other", "backward"): "backward goes through replica.backward_units, last to first",
    ("ahead", "backward"): "the tape runs the last part backward first, so gradients use the activations of another "
                           "part; run each part forward and backward before the next, within the loop over "
                           "replica.parts(batch)",
    ("copy", "update"): "it works in place, so pass it the kept weights themselves, replica.own(weights[unit]) or the "
                        "shard",
    ("gets", "activations"): "pass each unit the result of the unit before it, and the first one part.inputs",
    ("gets", "the upstream gradient"): "pass the last unit the second result of tape.loss, and each other unit the "
                                       "first result of backward of the next unit",
    ("gets", "outputs"): "pass tape.loss the result of the last unit",
    ("gets", "targets"): "pass part.targets of the part that ran forward",
    ("gets", "samples"): "pass it batch.samples, the samples of all ranks, by which it divides",
    ("gets", "the loss's name"): "pass replica.loss_name",
    ("gets", "the loss so far"): "begin with None, and pass it on from part to part",
    ("gets", "its gradient"): "pass each unit its own gradient, as backward returned it",
    ("gets", "an upstream gradient"): "tape.backward returns the upstream gradient first, then the unit's own gradient",
    ("gets", "an early gradient"): "pass the gradient to replica.at_boundary(part, unit, gradient) first, which "
                                   "accumulates it until the last part",
    ("gets", "one part"): "pass replica.unreduced, which holds the sum of earlier parts, to tape.backward as its last "
                          "argument",
    ("gets", "one array"): "a list with one array for each micro-batch",
    ("gets", "all parts"): "micro-batches that run together add their gradients in a different order; run each part "
                           "forward and backward and reduce its gradients before the next, in a loop over "
                           "replica.parts(batch), or over batch.inputs and batch.targets",
    ("gets", "several parts"): "replica.parts(batch) has one: gradients are then added over the ranks first, which is "
                               "a different order of addition",
    ("gets", "few samples"): "run each of the micro-batches once; loop over all of replica.parts(batch)",
    ("gets", "a different dtype"): "create buffers with the dtype of their contents, shard.dtype, not a fixed one",
    ("gets", "a scaled value"): SCALED,
    ("after", "slot"): "the optimizer's state must persist between steps; leave replica.state.optimizer to "
                       "replica.update",
    ("after", "loss"): "return the first result of the last tape.loss",
    ("after", "own"): "the updated values were overwritten afterwards",
    ("after", "no update"): "it was never updated; call replica.update for every unit, on this rank's chunk",
    ("after", "own update"): "it was changed without replica.update: call it; it runs the optimizer and keeps its "
                             "state",
    ("after", "no publish"): "nothing published it; call replica.publish(unit, weights[unit]) after the update of each "
                             "unit",
    ("after", "publish"): "publish got weights that are not the updated ones: pass it the kept weights, weights[unit]",
    ("after", "copy"): "all-gather the updated weights with replica.publish(unit, weights[unit]), and do not compute "
                       "other ranks' chunks",
}
"""The advice for each kind of difference and its subject: a verb, an argument, or an array."""


def sent_in(mine: Figures, due: Figures, variant: Mapping[str, Any]) -> str | None:
    """The replica's collective that sent a different number of bytes; None if none did."""
    for name in dict.fromkeys([*mine.by_collective, *due.by_collective]):
        (calls, sent), (due_calls, enough) = (each.by_collective.get(name, (0, 0)) for each in (mine, due))
        own = mine.sent_bytes - sum(sent for _, sent in mine.by_collective.values())
        if sent == enough or (own and sent < enough):
            continue
        told = (f"{name} sends {sent} bytes in {plural(calls, 'call')}; expected {enough} bytes in "
                f"{plural(due_calls, 'call')}")
        if name == "all_gather" and sent > enough and variant.get("reshard_after_forward") is False:
            return f"{told}: backward gathers again; keep the weights gathered by forward until then, for each unit"
        return told
    return None


def held_too_long(case: StageCase, kind: str) -> str:
    """The explanation of memory that is held too long: gradients until the last one, or arrays until the next unit."""
    backward = [number for number, call in enumerate(case.mine(0).calls) if call.verb == "backward"]
    reduced = [number for number, call in enumerate(case.mine(0).calls) if call.verb in ("reduce_scatter", "reduce")]
    if kind == "gradients" and len(backward) > 1 and reduced and reduced[0] > backward[1]:
        return (f"{len([each for each in backward if each < reduced[0]])} units have run backward before the first "
                "gradient is reduced, so their full gradients are in memory together: reduce each gradient, keep the "
                "shard and free the rest right after backward")
    return HELD_TOO_LONG.get(kind, HELD)


def like(mine: Array, due: Array) -> bool:
    """Equal up to rounding, and not all zero."""
    return mine.shape == due.shape and bool(np.any(due)) and np.allclose(
        mine.astype(np.float64), due.astype(np.float64), rtol=1e-3, atol=1e-6)


def same(mine: Array, due: Array) -> bool:
    return mine.tobytes() == due.tobytes()


def factor(mine: Array, due: Array) -> float | None:
    """The factor between `due` and `mine`; None if there is none, or if it is 1."""
    large = np.abs(due) > 1e-3 * np.max(np.abs(due), initial=1e-12)
    if mine.shape != due.shape or not large.any():
        return None
    found = float(np.median(mine[large] / due[large]))
    alike = np.allclose(mine, found * due, rtol=1e-2, atol=1e-5 * float(np.max(np.abs(due))))
    return found if alike and abs(found - 1) > 1e-2 and abs(found) > 1e-6 else None


def times_of(mine: Array, due: Array) -> str | None:
    """The factor between `due` and `mine`, in words."""
    found = factor(mine, due)
    return None if found is None else times(found)


def times(number: float) -> str:
    """
    >>> times(2.0), times(0.25), times(-1.0)
    ('2 times', '1/4 of', '-1 times')
    """
    inverse = 1 / number
    return f"1/{inverse:.3g} of" if inverse > 1 and abs(inverse - round(inverse)) < 0.05 else f"{number:.3g} times"


def often(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
