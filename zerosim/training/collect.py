"""Collection of a trained model on rank 0, unit by unit, for digests, the test, storage, and a sample of language."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from zerosim.autograd.tape import Policy, Tape, as_written
from zerosim.core.allocation import Array
from zerosim.core.bits import little_endian
from zerosim.core.comm import Communicator
from zerosim.core.sharding import Layout, full, split
from zerosim.models.places import joined
from zerosim.models.units import Model, Unit
from zerosim.scenario.data import Dataset
from zerosim.stages.replica import Replica
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment, typed


def collected(comm: Communicator, experiment: Experiment, config: Config, replica: Replica) -> dict[str, Any]:
    """Collect the model on rank 0, one unit at a time; digest it, test it and, if the experiment asks for it, keep it.

    The results, on rank 0, are fields of `Measurement`.
    """
    dataset, keep_weights = experiment.dataset, experiment.keep_weights
    weights_digest, optimizer_digest = hashlib.sha256(), hashlib.sha256()
    kept, used = dict[Unit, Array](), dict[Unit, Array]()
    outputs = [] if dataset.x_test is None or comm.rank else [
        typed(dataset.x_test, config.arithmetic.compute)]
    speaks = bool(outputs) and dataset.kind == "tokens" and config.train.steps > 0
    tape = Tape(lowest=len(config.model.layers), policy=config.arithmetic.policy)
    for (unit, segment), (piece, _) in zip(config.in_one_piece.segments, config.model.segments, strict=True):
        weights = gathered(comm, config, replica, unit, piece, "weights", config.precision.weights)
        computed_with = weights.astype(config.arithmetic.compute, copy=False)
        outputs = tape.forward(unit, computed_with, outputs)
        if speaks:
            used[unit] = computed_with.copy()
        if keep_weights:
            kept[unit] = weights.copy()
        slots = [gathered(comm, config, replica, unit, piece, name, config.precision.state)
                 for name in (() if piece.frozen else config.rule.slots)]
        for start, stop in map(unit.bounds, segment.numbers):
            weights_digest.update(little_endian(weights[start:stop]))
            for slot in slots:
                optimizer_digest.update(little_endian(slot[start:stop]))
    return {
        "weights_sha256": weights_digest.hexdigest(),
        "optimizer_sha256": optimizer_digest.hexdigest(),
        "test": experiment.test(config, outputs[0]) if outputs else None,
        "sample": continued(config.in_one_piece, used, dataset, config.train.seed, config.arithmetic.policy)
        if speaks else None,
        "weights": kept if keep_weights else None,
    }


def gathered(
    comm: Communicator, config: Config, replica: Replica, unit: Unit, piece: Unit, what: str, dtype: Any
) -> Array:
    """The weights, or a slot of the optimizer, of a `unit` of the model in one piece, on rank 0; the first rank of
    every place that has it passes its `piece`."""
    flat, here = np.empty(0, dtype), [unit for unit in replica.units if unit.numbers == piece.numbers]
    for name, layout, kept in replica.state.states_of(here[0]) if here else ():
        if name == what:
            flat = whole(replica.mesh.within(config.directions.data_ranks(comm)), piece, kept, layout)
    directions = config.directions
    if directions.places == 1:
        return flat
    has = next(number for number, rank_config in enumerate(config.of_pipeline)
               if any(unit.numbers == piece.numbers for unit in rank_config.model.units))
    first = has * directions.side_by_side
    ranks = [directions.rank(place) for place in range(first, first + directions.side_by_side)]
    if comm.rank:
        if comm.rank in ranks:
            comm.send(flat, to=0)
        return flat
    pieces = [np.empty(piece.count, flat.dtype) if rank else flat for rank in ranks]
    for rank, into in zip(ranks, pieces, strict=True):
        if rank:
            comm.recv(into=into, source=rank)
    return joined(unit, piece, pieces, directions)


def whole(comm: Communicator, unit: Unit, buffer: Array, layout: Layout) -> Array:
    """The unpadded contents of `unit` on rank 0; every rank of a group passes its buffer.

    Each rank waits until its buffer has arrived; otherwise copies of messages under way could be as large as the
    model.
    """
    everything, came = full(unit.count, layout.size), np.zeros(1, np.uint8)
    if layout == everything:
        return buffer[: unit.count]
    if comm.rank != 0:
        comm.send(buffer, to=0)
        comm.recv(into=came, source=0)
        return buffer[:0]
    gathered = np.empty(everything.length, buffer.dtype)
    chunks = split(gathered, comm.size)
    chunks[0][:] = buffer
    for source in range(1, comm.size):
        comm.recv(into=chunks[source], source=source)
        comm.send(came, to=source)
    return gathered[: unit.count]


LONGEST = 256
"""The greatest number of tokens used of a text; each generated token takes a forward pass over all of them."""


def continued(
    model: Model, weights: Mapping[Unit, Array], dataset: Dataset, seed: int, policy: Policy = as_written
) -> str:
    """The beginning of the first test sequence, then `|`, then the model's continuation.

    For a task the continuation is the answer, each token the likeliest one. For a text it begins after a quarter of
    the sequence, or of its first 256 tokens, and each token is drawn with the model's probabilities. The same weights
    and seed give the same sample.
    """
    assert dataset.x_test is not None
    assert dataset.y_test is not None
    answers = dataset.measure == "exact sequences"
    tokens = np.append(dataset.x_test[0] if answers else dataset.x_test[0, :LONGEST], 0)
    counted = np.flatnonzero(dataset.y_test[0] >= 0)
    first, last = (int(counted[0]), int(counted[-1])) if answers else (len(tokens) // 4, len(tokens) - 2)
    random = np.random.default_rng(seed)
    for place in range(first, last + 1):
        tape, activations = Tape(lowest=len(model.layers), policy=policy), [tokens[np.newaxis, :-1]]
        for unit in model.forward_units:
            activations = tape.forward(unit, weights[unit], activations)
        scores = activations[0][0, place].astype(np.float64)
        sums = np.cumsum(np.exp(scores - scores.max()))
        tokens[place + 1] = scores.argmax() if answers else np.searchsorted(sums, random.random() * sums[-1], "right")
    texts = [dataset.decode(part) for part in (tokens[: first + 1], tokens[first + 1 : last + 2])]
    return "|".join(texts)
