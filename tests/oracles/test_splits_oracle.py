"""Models that ranks split, two in each direction, against what PyTorch and Megatron-Core answered, in float64."""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracles import splits
from tests.oracles.our_functions import model_of, shape_of_case, weights_of
from tests.stages.schedules import without_flush
from zerosim.autograd import ring_attention
from zerosim.autograd.operations.elementwise import scale
from zerosim.autograd.operations.losses import counted
from zerosim.autograd.operations.shapes import reshape
from zerosim.autograd.tape_collectives import Direction, all_to_all, copy_to, gather_from, join_from
from zerosim.core.sharding import Directions
from zerosim.models import mixture as module_of_mixture
from zerosim.models import parallel
from zerosim.models import transformer as module_of_transformer
from zerosim.models.mixture import MixtureShape, mixture
from zerosim.models.parallel import ModelParallel
from zerosim.models.places import side_by_side
from zerosim.models.units import Task
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train
from zerosim.stages.replica import Batch
from zerosim.training import build
from zerosim.training.config import configured
from zerosim.training.one_function import computed, in_float64, step_of_rank
from zerosim.worlds.local import spawn

OURS = {
    "context": ("context", {"context_by": "ring"}), "mixture": ("expert", {}),
    **dict.fromkeys(("DTensor", "Megatron", "DeepSeek"), ("tensor", {})),
    "joined": ("tensor context expert", {"context_by": "all_to_all"}),
}
"""The directions over which zerosim splits what others answered, and what more it is told."""


def models_of(split, **more):
    """zerosim's model in one piece, and the split one."""
    directions, said = OURS[split.by]
    parallel = ModelParallel(**{each: Direction(each, splits.RANKS) for each in directions.split()},
                             sequence=split.sequence, **(said | more))
    if split.by not in splits.EXPERTS:
        return model_of(split.model), model_of(split.model, parallel)
    (experts, together, capacity), of_case = splits.EXPERTS[split.by], shape_of_case(split.model)
    factor = capacity * experts / together
    shape = MixtureShape(of_case, experts, factor) if split.by == "mixture" else MixtureShape(
        replace(of_case, **splits.LATENTS), experts, factor / splits.CHOSEN, splits.CHOSEN, together,
        shared_inner=splits.SHARED, dense_layers=1, dense_inner=splits.DENSE)
    return mixture(shape), mixture(replace(shape, transformer=replace(shape.transformer, parallel=parallel)))


def in_whole(split, directions, model, whole, found):
    """The loss and the joined gradients, in numbers, of what each place found."""
    answers = {"loss": found[0][0]} | {each.name: np.empty(each.parameter.whole_shape) for each in whole.places}
    for place, (_, gradients) in enumerate(found):
        for each in model.places:
            each.parameter.join(answers[each.name], gradients[each.name], directions.coordinates(place))
    return splits.in_numbers(split, answers)


def ours(split, **more):
    """The loss and the joined gradients of zerosim's model, in numbers."""
    case, (whole, model) = split.model, models_of(split, **more)
    directions = Directions(**dict.fromkeys(OURS[split.by][0].split(), splits.RANKS))

    def of_place(place, groups):
        at = directions.coordinates(place)
        pieces = {unit: np.concatenate([
            each.parameter.piece(case.parameter(each.name, each.parameter.whole_shape), at).ravel()
            for each in unit.places]).astype(np.float64) for unit in model.units}
        x, targets = case.batch()
        yield computed(model, pieces, (x.astype(np.float64) if x.dtype.kind == "f" else x, targets), groups=groups)

    (found,) = side_by_side(directions, of_place)
    return in_whole(split, directions, model, whole, found)


def by_schedule(split):
    """The same by zerosim's code of a schedule, on two ranks."""
    case, chunks = split.model, 2 if split.how == "interleaved_1f1b" else 1
    parallel = Parallel(stages=("ddp",), pipeline_ranks=splits.RANKS, schedule=split.how, model_chunks=chunks)
    inputs, *hidden, outputs = case.widths
    keys = ModelKeys(hidden=tuple(hidden), activation=case.activation)
    (row,) = Scenario(model=keys, parallel=parallel, train=Train(micro_batches=splits.MICRO_BATCHES)).rows
    config = in_float64(configured(row, Task(inputs, outputs, case.loss)))
    whole = {unit: weights_of(case, unit, np.float64) for unit in config.in_one_piece.units}
    x, targets = case.batch()
    inputs = np.split(x.astype(np.float64), config.block)
    batch = Batch(1, inputs, np.split(targets, config.block), counted(targets), first=0)
    found = spawn(lambda comm: step_of_rank(comm, config, whole, batch), ranks=splits.RANKS)
    loss, gradients = next(each for each, *_ in found if each is not None), {}
    for *_, each in found:
        gradients |= each
    return splits.in_numbers(split, {"loss": loss} | gradients)


@pytest.mark.parametrize("split", splits.SPLITS, ids=lambda split: split.name)
def test_zerosim_has_the_loss_and_the_gradients_of_others(split):
    found, due = (by_schedule if split.how else ours)(split), splits.read()
    assert found.keys() == {name for name in due if name.startswith(f"{split.name}|")}
    assert splits.disagreements(found, due) == []


@pytest.mark.parametrize(("split", "more"), [
    (splits.Split("Megatron", splits.LLAMA), {"vocabulary": True}),
    (splits.Split("Megatron", splits.LLAMA, sequence=True), {"vocabulary": True}),
    (splits.Split("context", splits.LLAMA), {"context_by": "all_to_all"}),
], ids=["vocabulary", "vocabulary and sequence", "all-to-all"])
def test_what_others_answered_is_that_of_our_other_splits(split, more):
    """Megatron-Core's embedding, outputs and loss have pieces of the vocabulary."""
    assert splits.disagreements(ours(split, **more), splits.read()) == []


DEEPSEEK = splits.Split("DeepSeek", splits.DEEPSEEK)
JOINED = splits.Split("joined", splits.JOINED, sequence=True)


def copied(upstream, into, *, empty, group):
    into["x"][...] = upstream


def hidden_too_late(tokens, dtype):
    return np.triu(np.full((tokens, tokens), -np.inf, dtype), 2)


def in_the_order_of_experts(served, m):
    experts, length, d = served.shape
    return all_to_all(reshape(served, shape=(experts * length, d)), group=m.over)


@pytest.mark.parametrize(("module", "name", "split", "wrong"), [
    (parallel, "copy_to", splits.Split("DTensor", splits.LLAMA), replace(copy_to, backward=copied)),
    (parallel, "copy_to", splits.Split("DTensor", splits.LLAMA, sequence=True),
     replace(copy_to, backward=copied)),
    (parallel, "gather_from", splits.Split("DTensor", splits.LLAMA, sequence=True),
     replace(gather_from, backward=join_from.backward)),
    (ring_attention, "hidden", splits.Split("context", splits.LLAMA), hidden_too_late),
    (module_of_mixture, "EXPERTS", splits.Split("mixture", splits.GPT2), ()),
    (module_of_transformer, "turned", DEEPSEEK, lambda x, size, s: x),
    (module_of_transformer, "column_input", DEEPSEEK, lambda x, parallel: x),
    (module_of_mixture, "routed", DEEPSEEK, lambda w, x, m: scale(x, factor=0.0)),
    (module_of_mixture, "used_on_pieces", JOINED, lambda w, m: w),
    (module_of_mixture, "of_pieces", JOINED, lambda w, parallel: w),
    (module_of_mixture, "from_experts", JOINED, in_the_order_of_experts),
    (MixtureShape, "capacity", JOINED, property(lambda m: m.served_together)),
    (MixtureShape, "over", JOINED, property(lambda m: m.transformer.parallel.expert)),
])
def test_a_fault_disagrees(module, name, split, wrong, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    assert splits.disagreements(ours(split), splits.read()) != []


def test_a_schedule_that_leaves_a_micro_batch_out_disagrees(monkeypatch):
    monkeypatch.setitem(build.SCHEDULES, "1f1b", without_flush)
    assert splits.disagreements(by_schedule(splits.Split("pipelining", splits.STAGED, how="1f1b")), splits.read()) != []
