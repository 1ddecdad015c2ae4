"""All ranks at once, in the lockstep world, against each by itself, in the local one, where messages are counted."""

from itertools import product

import numpy as np
import pytest

from zerosim.core.errors import Unlike
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.models.units import Task
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Check, ModelKeys, Parallel, Train, WorldKeys
from zerosim.training.config import configured
from zerosim.worlds.lockstep import ranks

LINK = Link("slow", 1000, 10**9)
CLUSTER = Cluster(Device("a device", 1e12, 1e9, 1e11), 2, LINK, Link("slower", 3000, 10**8), True, False)

SHARED = {
    "accumulate_dtype": ("weights", "fp32"), "reduce_dtype": ("weights", "fp32"), "overlap": (False, True),
    "bucket_mb": (0.0, 0.0001), "recompute": (False, True), "offload_activations": (False, True),
    "accumulation": ("boundary", "layered"),
}
OWN = {
    "ddp": {},
    "zero1": {"gradients": ("reduce_scatter", "all_reduce"), "publish": ("weights", "broadcasts", "updates")},
    "zero2": {"gradients": ("reduce_scatter", "all_reduce"), "publish": ("weights", "broadcasts", "updates"),
              "accumulation": ("boundary", "micro_batch", "layered")},
    "zero3": {"accumulation": ("boundary", "micro_batch", "layered"), "prefetch": (False, True),
              "reshard_after_forward": (True, False)},
}
MODELS = (
    (ModelKeys(hidden=(5, 4)), Task(7, 3, "cross_entropy")),
    (ModelKeys(kind="transformer", layers=2, width=6, heads=2, vocabulary=11, sequence=5, tied_embeddings=True),
     Task(5, 11, "cross_entropy", tokens=True)),
)
"""Units of 40, 24 and 15 elements, and of 108, 510 and 510: most have padding."""
SIZES = (2, 3, 4, 5, 7)


def variants(stage):
    """All that a scenario may say of a stage."""
    values = SHARED | OWN[stage]
    said = [dict(zip(values, each, strict=True)) for each in product(*values.values())]
    return [
        keys for keys in said
        if (keys["recompute"] or not keys["offload_activations"])
        and (keys.get("reshard_after_forward", True) or not keys.get("prefetch"))
    ]


def config(stage, keys, size=3, number=0):
    """A row; what else there is to vary goes by its number."""
    model, task = MODELS[number % 2]
    order = ("ring", "rank", "tree" if size in (2, 4, 8) and "micro_batch" not in keys.values() else "ring")[number % 3]
    each = 4 if order == "tree" else 3                      # so few that all of them are run
    precision, clip_norm = (("fp16", 1.0), ("fp32", 0.0), ("bf16", 0.5), ("fp16", 0.0))[number // 2 % 4]
    scenario = Scenario(
        world=WorldKeys(size), model=model, check=Check(reference=False),
        train=Train(steps=1, micro_batch=2, micro_batches=each * size, precision=precision, clip_norm=clip_norm),
        parallel=Parallel(stages=(stage,), order=order, **keys),
    )
    (row,) = scenario.rows
    return configured(row, task)


def difference(at_once, alone, rank):
    """What a rehearsal of all does not say of this rank as its own does; empty if nothing."""
    same_bytes = not isinstance(at_once.clock.sent_counts["bytes"], np.ndarray) or rank == 0
    found = {
        each: (getattr(at_once, each), getattr(alone, each))
        for each in ("resting", "peak", "peak_total", "operations")
    }
    found["sent"] = at_once.sent(rank), alone.sent(0)
    found["times"] = times(at_once), times(alone)
    found["spans"] = spans(at_once, same_bytes), spans(alone, same_bytes)
    return [name for name, (mine, its_own) in found.items() if mine != its_own]


def times(found):
    counts = {key: n for key, n in found.clock.counts.items() if not key.startswith("sent")}
    return found.clock.now_ns, found.clock.exposed_ns, counts


def spans(found, with_bytes):
    return [span if with_bytes else span._replace(bytes=0) for span in found.clock.spans]



def test_extents_are_cut_by_vectors_where_pieces_are_equally_long():
    padded = split(Extent(12, np.float32), 4)
    assert padded[ranks(4)].shape == (3,)
    assert padded[(ranks(4) + 1) % 4].shape == (3,)
    with pytest.raises(Unlike, match="not equally long"):
        split(Extent(10, np.float32), 4)[ranks(4)]
