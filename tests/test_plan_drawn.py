"""Plans of drawn scenarios against real runs of them: memory by kind, bytes and operations, to the last one.

`PLANS_DRAWN=400` compares as many; the suite a few.
"""

import dataclasses
import os

import pytest

from tests.hunt.draw import draw
from zerosim.data import load_dataset
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import load
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally

LINK = Link("", 1000, 10**9)
CLUSTER = Cluster(Device("", 1e12, 1e9, 1e11), 64, LINK, LINK, pipelined=False, fused=False)
FIRST = 2000
NUMBERS = [
    number for number in range(FIRST, FIRST + int(os.environ.get("PLANS_DRAWN", "16")))
    if draw(number).document.get("kind") != "collective"
]


def measured(number, folder, monkeypatch):
    """The rows of a drawn scenario after one step, without those that order exact or a split leaves without a plan."""
    drawn = draw(number)
    document = {name: value for name, value in drawn.document.items() if name not in ("checkpoint", "fault")}
    train = document.get("train", {}) | {"steps": 1, "warmup_steps": 0}
    drawn = drawn.saying(document | {"check": {"reference": False}, "train": train})
    path = drawn.write(folder)
    monkeypatch.chdir(folder)
    scenario = load(path)
    rows = run_locally(prepare(scenario, load_dataset(scenario)), Silent()).trained
    return [row for row in rows if row.config.addition.collective is not None and row.config.directions.places == 1]


def compared(row):
    """A row's figures by its plan, and as they were measured; of every rank what it sends, if no step was skipped."""
    found, steps = rehearse(row.config, CLUSTER), row.config.steps
    peaks = row.memory[0].figures.peak_bytes
    planned = {kind: found.peak[kind] for kind in peaks if kind != "total"} | {"total": found.peak_total}
    ours = [planned, {what: found.operations[what] * steps for what in row.measured.operations[0]}]
    theirs = [peaks, row.measured.operations[0]]
    if row.measured.updates == steps:
        for rank, traffic in enumerate(row.traffic):
            sent = {what: count * steps for what, count in found.sent(rank).items()}
            ours.append({"bytes": 0, "messages": 0} | sent)  # nothing is sent if all is frozen
            theirs.append({"bytes": traffic.counts.sent_bytes, "messages": traffic.counts.messages})
    return ours, theirs


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.filterwarnings("ignore")
def test_a_drawn_scenario_has_what_its_plan_says(number, tmp_path, monkeypatch):
    for row in measured(number, tmp_path, monkeypatch):
        ours, theirs = compared(row)
        assert ours == theirs, row.name


def test_a_plan_of_another_row_is_seen(tmp_path, monkeypatch):
    row, *_ = measured(NUMBERS[0], tmp_path, monkeypatch)
    train = dataclasses.replace(row.config.row.train, micro_batch=row.config.row.train.micro_batch + 1)
    other = dataclasses.replace(row.config, row=dataclasses.replace(row.config.row, train=train))
    ours, theirs = compared(dataclasses.replace(row, measured=dataclasses.replace(row.measured, config=other)))
    assert ours != theirs
