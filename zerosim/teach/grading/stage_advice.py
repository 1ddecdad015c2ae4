"""The advice for each difference of a learner's step from the library's."""

from zerosim.teach.grading.stage_words import SCALED

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
    ("gets", "all parts"): "micro-batches that run together add their gradients in another order; run each part "
                           "forward and backward and reduce its gradients before the next, in a loop over "
                           "replica.parts(batch), or over batch.inputs and batch.targets",
    ("gets", "several parts"): "replica.parts(batch) has one: gradients are then added over the ranks first, which is "
                               "another order of addition",
    ("gets", "few samples"): "run each of the micro-batches once; loop over all of replica.parts(batch)",
    ("gets", "another dtype"): "create buffers with the dtype of their contents, shard.dtype, not a fixed one",
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
