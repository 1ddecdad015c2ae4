"""Plans against real runs: memory by kind, bytes and operations, to the last one; and passes that stand for others.

`PLANS_DRAWN=400` compares as many drawn scenarios; the suite has one of each corner, a sixth of them in `make test`.
"""

import dataclasses
import os

import pytest

from tests.laws.runs import prepared
from tests.laws.scenarios import CORNERS, GPT, SPLIT, drawn, in_sections
from tests.sampling import one_in
from zerosim.models.units import Task
from zerosim.plan import directions, passes, rehearsal
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys
from zerosim.training.config import configured
from zerosim.verdict.judged_run import run_locally

LINK = Link("", 1000, 10**9)
CLUSTER = Cluster(Device("", 1e12, 1e9, 1e11), 64, LINK, LINK, pipelined=False, fused=False)
TOGETHER = SPLIT | {"ranks": 8, "layers": 2, "micro_batches": 8, "tensor_ranks": 2, "stages": ["zero1"]}
SEVERAL = [
    *(GPT | {"recompute": True, "recompute_keeps": keeps} for keeps in ("products", "all_but_attention")),
    GPT | {"recompute": True, "recompute_keeps": "half_products", "offload_activations": True, "prefetch": True},
    TOGETHER | {"pipeline_ranks": 2, "sequence_parallel": True},
    TOGETHER | {"kind": "mixture", "experts": 8, "queue_tokens": 1, "expert_ranks": 2, "context_ranks": 2,
                "sequence_parallel": True},
]
"""Keys that no corner has together."""
COUNT = int(os.environ.get("PLANS_DRAWN", "0"))
SETTINGS = [*map(drawn, range(2000, 2000 + COUNT))] if COUNT else [*map(in_sections, [*CORNERS, *SEVERAL])]


def measured(settings):
    """The rows of a scenario after one step, without those that order exact leaves without a plan."""
    rows = run_locally(prepared(
        settings | {"check.reference": False, "train.steps": 1, "train.warmup_steps": 0})).trained
    return [row for row in rows if row.config.addition.collective is not None]


def compared(row):
    """The figures of each planned rank by its plan, and as they were measured; what is sent, if no step was skipped.

    A plan has the ranks that are first in tensor, context and expert direction; of equal data ranks it has the peaks,
    and of the first what it sends.
    """
    plan, steps, ours, theirs = rehearse(row.config, CLUSTER), row.config.train.steps, [], []
    directions = row.config.directions
    for rank in range(0, row.config.directions.ranks, directions.side_by_side):
        stage = plan.stages[directions.place(rank) // directions.side_by_side]
        peaks, operations = row.measured.memory[rank].peak_bytes, row.measured.operations[rank]
        ours.append({kind: stage.peak[kind] for kind in peaks if kind != "total"} | {"total": stage.peak_total})
        ours.append({what: stage.operations[what] * steps for what in operations})
        theirs += [peaks, operations]
        if row.measured.updates == steps and directions.data_rank(rank) == 0:
            sent = {what: count * steps for what, count in stage.clock.sent_counts.items()}
            ours.append({"bytes": 0, "messages": 0} | sent)  # nothing is sent if all is frozen
            counts = row.measured.traffic[rank]
            theirs.append({"bytes": counts.sent_bytes, "messages": counts.messages})
    return ours, theirs


@pytest.mark.parametrize("number", one_in(6, range(len(SETTINGS))))
@pytest.mark.filterwarnings("ignore")
def test_a_run_has_what_its_plan_says(number):
    for row in measured(SETTINGS[number]):
        ours, theirs = compared(row)
        assert ours == theirs, row.name


def test_a_plan_of_another_row_and_a_message_that_a_plan_forgets_are_seen(monkeypatch):
    row, *_ = measured(in_sections(SPLIT | {"tensor_ranks": 2}))
    train = dataclasses.replace(row.config.train, micro_batch=2 * row.config.train.micro_batch)
    other = dataclasses.replace(row.config, train=train)
    ours, theirs = compared(dataclasses.replace(row, measured=dataclasses.replace(row.measured, config=other)))
    assert ours != theirs
    assert compared(row)[0] == compared(row)[1]
    monkeypatch.setattr(directions.TimedCalls, "add", lambda self, calls: None)
    assert compared(row)[0] != compared(row)[1]


# Passes that stand for others.


def planned_row(micro_batches=16, layers=2, **keys):
    """A row of a small transformer on two data ranks."""
    parallel = Parallel(**keys)
    row, *_ = Scenario(
        world=WorldKeys(2 * parallel.directions.places), parallel=parallel,
        model=ModelKeys(kind="transformer", layers=layers, width=8, heads=2, vocabulary=11, sequence=4),
        train=Train(micro_batch=2, micro_batches=micro_batches, precision="bf16", clip_norm=1.0)).rows
    return configured(row, Task(4, 11, "cross_entropy", tokens=True))


def figures_of(rehearsed):
    """All that a plan says of each rank of a pipeline."""
    return [(each.peak, each.peak_total, each.resting, each.operations, each.clock.idle_ns, each.clock.now_ns,
             each.clock.exposed_ns, each.clock.counts) for each in rehearsed.stages]


@pytest.mark.parametrize("keys", one_in(2, [
    {"stages": ("zero3",), "accumulation": "micro_batch", "overlap": True, "prefetch": True},
    {"stages": ("zero3",), "reshard_after_forward": False, "overlap": True, "recompute": True},
    {"stages": ("zero2",), "accumulation": "micro_batch", "recompute": True, "offload_activations": True},
    {"stages": ("zero3",), "accumulation": "micro_batch", "recompute": True, "recompute_keeps": "products"},
    {"stages": ("zero2",), "accumulate_dtype": "fp32"}, {"stages": ("zero1",), "overlap": True}, {"stages": ("ddp",)},
]), ids=str)
def test_micro_batches_that_are_not_run_count_as_if_they_were(keys):
    """To the nanosecond, whether communication is hidden, exposed, or longer than all computation; a trace has all."""
    device = dataclasses.replace(CLUSTER.device, flops=1e9, multiprocessors=10, channels=2)
    for speed, block in ((10**4, 6), (10**6, 2), (10**6, 3), (10**6, 6), (10**9, 6)):
        machine = dataclasses.replace(CLUSTER, device=device, inside=Link("", 1000, speed))
        row = planned_row(micro_batches=2 * block, **keys)
        assert figures_of(rehearse(row, machine)) == figures_of(rehearse(row, machine, traced=True))


@pytest.mark.parametrize("keys", one_in(2, [
    {"stages": ("zero2",), "schedule": "gpipe"}, {"stages": ("zero2",), "schedule": "zb_h1"},
    {"stages": ("zero2",), "schedule": "interleaved_1f1b", "model_chunks": 2},
    {"stages": ("ddp",), "overlap": True, "tensor_ranks": 2, "sequence_parallel": True},
    {"stages": ("zero2",), "accumulation": "micro_batch", "overlap": True, "recompute": True},
]), ids=str)
def test_a_pass_of_a_pipeline_stands_for_all_that_are_like_it(keys, monkeypatch):
    row = planned_row(layers=4, pipeline_ranks=2, **keys)
    figures = figures_of(rehearse(row, CLUSTER))
    assert figures == figures_of(rehearse(row, CLUSTER, traced=True))
    for few in (4, 16):
        monkeypatch.setattr(rehearsal, "REHEARSED", few)
        assert figures == figures_of(rehearse(row, CLUSTER))


def test_a_skipped_micro_batch_that_is_forgotten_is_seen_and_many_take_no_more_memory_than_few(monkeypatch):
    few, many = (rehearse(planned_row(stages=("zero3",), micro_batches=2 * block), CLUSTER) for block in (3, 10**4))
    assert many.peak == few.peak
    assert many.clock.now_ns > 10**3 * few.clock.now_ns
    row, repeat = planned_row(stages=("zero3",)), passes.RepeatingReplica.repeat
    monkeypatch.setattr(passes.RepeatingReplica, "repeat", lambda self, value, times: repeat(self, value, times - 1))
    assert figures_of(rehearse(row, CLUSTER)) != figures_of(rehearse(row, CLUSTER, traced=True))
