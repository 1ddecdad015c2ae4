"""Plans of drawn scenarios against real runs of them: memory by kind, bytes and operations, to the last one.

`PLANS_DRAWN=400` compares as many; the suite a few.
"""

import dataclasses
import os

import pytest

from tests.laws.running import prepared
from tests.laws.scenarios import drawn
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.rehearsal import rehearse
from zerosim.verdict.judged_run import run_locally

LINK = Link("", 1000, 10**9)
CLUSTER = Cluster(Device("", 1e12, 1e9, 1e11), 64, LINK, LINK, pipelined=False, fused=False)
NUMBERS = range(2000, 2000 + int(os.environ.get("PLANS_DRAWN", "16")))


def measured(number):
    """The rows of a drawn scenario after one step, without those that order exact leaves without a plan."""
    settings = drawn(number) | {"check.reference": False, "train.steps": 1, "train.warmup_steps": 0}
    rows = run_locally(prepared(settings)).trained
    return [row for row in rows if row.config.addition.collective is not None]


def compared(row):
    """The figures of each planned rank by its plan, and as they were measured; what is sent, if no step was skipped.

    A plan has the ranks that are first in tensor, context and expert direction; of equal data ranks it has the peaks,
    and of the first what it sends.
    """
    found, steps, ours, theirs = rehearse(row.config, CLUSTER), row.config.steps, [], []
    directions = row.config.directions
    for rank in range(0, row.config.all_ranks, directions.side_by_side):
        stage = found.stages[directions.pipeline_rank(directions.place(rank))]
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


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.filterwarnings("ignore")
def test_a_drawn_scenario_has_what_its_plan_says(number):
    for row in measured(number):
        ours, theirs = compared(row)
        assert ours == theirs, row.name


def test_a_plan_of_another_row_is_seen():
    row, *_ = measured(NUMBERS[0])
    train = dataclasses.replace(row.config.train, micro_batch=2 * row.config.train.micro_batch)
    other = dataclasses.replace(row.config, train=train)
    ours, theirs = compared(dataclasses.replace(row, measured=dataclasses.replace(row.measured, config=other)))
    assert ours != theirs
