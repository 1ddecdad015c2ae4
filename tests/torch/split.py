"""DTensor's tensor parallelism, and PyTorch's schedules, over our collectives: the recorded answers, and our bytes."""

from collections import Counter

import torch
import torch.distributed as dist

import zerosim.torch  # noqa: F401 - registers the backend
from tests.oracles import functions, splits, torch_parallel, torch_splits
from zerosim.figures.traffic import due
from zerosim.models.units import Task
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.torch.watching import WATCH
from zerosim.training.config import configured
from zerosim.worlds.mpi import connect

KEYS = ("layers", "width", "heads", "key_value_heads", "inner", "vocabulary", "sequence", "tied_embeddings")


def formula(split):
    """The bytes of each of our collectives on the tape in a step."""
    model, count = split.model, splits.MICRO_BATCHES if split.how else 1
    train = Train(steps=1, micro_batch=split.model.samples // count, micro_batches=count, precision="fp64")
    if isinstance(model, functions.Perceptron):
        inputs, *hidden, outputs = model.widths
        keys, task = ModelKeys(hidden=tuple(hidden), activation=model.activation), Task(inputs, outputs, model.loss)
    else:
        keys = ModelKeys(kind="transformer", architecture=model.family, **{key: getattr(model, key) for key in KEYS})
        task = Task(model.sequence, model.vocabulary, model.loss, tokens=True)
    parallel = Parallel(("ddp",), tensor_ranks=splits.RANKS, sequence_parallel=split.sequence) if not split.how else (
        Parallel(("ddp",), pipeline_ranks=splits.RANKS, schedule=split.how, model_chunks=1 + (split.how[0] == "i")))
    (row,) = Scenario(world=WorldKeys(splits.RANKS), model=keys, train=train, parallel=parallel).rows
    calls = due(configured(row, task), dist.get_rank(), 1)
    if split.how:
        return {"send": sum(each.sent_bytes for name, each in calls.items() if name.startswith("send_"))}
    return {name.removeprefix("tensor_"): each.sent_bytes for name, each in calls.items() if name.startswith("tensor_")}


def sent():
    return Counter({name: each.sent_bytes for name, each in WATCH.traffic.by_collective.items()})


torch.set_num_threads(1)
WATCH.begin(connect().rank)
dist.init_process_group("zerosim")
for split in [each for each in splits.SPLITS if each.by == "DTensor"]:
    before = sent()
    tensors = torch_splits.of_dtensor(split)
    step = sent() - before
    found = splits.in_numbers(split, {name: torch_splits.whole(each) for name, each in tensors.items()})
    step["all_reduce"] = (sent() - before)["all_reduce"]  # with norms' gradients, which DTensor adds when they are read
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    assert splits.disagreements(found, splits.read()) == []
    assert {kind: step[kind] for kind in kinds} == dict.fromkeys(kinds, 0) | formula(split), split.name
    print(f"{split.name}: {sum(step[kind] for kind in kinds):,} bytes, as due")
for split in [each for each in splits.SPLITS if each.by == "pipelining"]:
    marks = []
    answers = torch_parallel.of_pipeline(split, second=lambda: marks.append(sent()))
    found = splits.in_numbers(split, {name: torch_splits.whole(each) for name, each in answers.items()})
    step = sent() - marks[0]
    assert splits.disagreements(found, splits.read()) == []
    assert {"send": step["send"]} == formula(split), split.name
    print(f"{split.name}: {step['send']:,} bytes, as due")
dist.destroy_process_group()
