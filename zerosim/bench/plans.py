"""The time of plans, by ranks and layers; it does not grow with bytes."""

from functools import partial

from zerosim.bench.samples import Sample
from zerosim.bench.timings import duration
from zerosim.collectives import ring
from zerosim.models.units import Task
from zerosim.planner.cluster import cluster_of
from zerosim.planner.network import written_ns
from zerosim.planner.rehearsal import rehearse
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys
from zerosim.training.config import configured

RING_RANKS = (64, 256, 1024)
STEPS = (
    (1024, 128, 25600, 1), (16384, 128, 25600, 1), (1024, 32, 4096, 1), (1024, 1000, 4096, 1), (1024, 32, 4096, 32),
)
"""Ranks, layers, width, and sequences per micro-batch."""
SEQUENCE, VOCABULARY, HEAD_SIZE = 2048, 51200, 128


def time_plans() -> list[Sample]:
    """The seconds to plan a ring message by message, and to plan steps of Stage III of transformers."""
    cluster = cluster_of(ClusterKeys(), Scenario().origin, max(RING_RANKS))
    rings = [
        duration(
            f"ring all-reduce on {ranks:,} ranks, message by message",
            partial(written_ns, ring.all_reduce, ranks * 10**6, 2, cluster, ranks),
        )
        for ranks in RING_RANKS
    ]
    return rings + [timed_step(*each) for each in STEPS]


def timed_step(ranks: int, layers: int, width: int, samples: int) -> Sample:
    """The seconds to plan one step; its model is built before."""
    scenario = Scenario(
        world=WorldKeys(ranks),
        model=ModelKeys(
            kind="transformer", layers=layers, width=width, heads=width // HEAD_SIZE, vocabulary=VOCABULARY,
            sequence=SEQUENCE,
        ),
        train=Train(micro_batch=samples, micro_batches=ranks, precision="bf16"),
        parallel=Parallel(stages=("zero3",), prefetch=True, overlap=True, recompute=True),
    )
    (row,) = scenario.rows
    config = configured(row, Task(SEQUENCE, VOCABULARY, "cross_entropy", tokens=True))
    cluster = cluster_of(scenario.cluster, scenario.origin, ranks)
    size = f"{config.model.count / 1e9:,.0f} billion parameters in {layers:,} layers"
    words = f"Stage III, {size} on {ranks:,} ranks, micro-batches of {samples}"
    return duration(words, lambda: rehearse(config, cluster))
