"""Fit the shares in `zerosim/plan/machines.toml` to published runs: `python -m tests.oracles.fit_devices [DEVICE]`.

A step is rehearsed once, with what it computes and communicates noted in order; its time is then found again for every
trial of the four numbers. What is fitted is the mean absolute relative error of MFU.
"""

import pickle
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.published_runs import published_runs
from zerosim.plan import rehearsal
from zerosim.plan.clock import Clock
from zerosim.plan.cluster import NS, cluster_of, device_of
from zerosim.plan.costs import Costs, Time
from zerosim.plan.planning import task_in_words
from zerosim.scenario.origin import Origin
from zerosim.training.config import configured

FITTED = ("product_share", "half_width", "attention_share", "memory_share")


class Noted(Costs):
    """In place of times the numbers of what takes them."""

    features: ClassVar[list] = []

    def _of_operation(self, step, way, operations):
        weight = step.input_shapes.get("weight")
        feature = (self.moved_bytes(step, way), operations, min(weight) if weight else 0)
        self.features.append(feature)
        return Time(len(self.features) - 1, "memory")

    def loss_ns(self, outputs):
        return self._note(2 * self.bytes_of(outputs))

    def moved_ns(self, moved_bytes):
        return self._note(moved_bytes)

    def _note(self, moved_bytes):
        self.features.append((moved_bytes, 0, 0))
        return len(self.features) - 1


class Notes(Clock):
    """What happens, in order: computation by its number, collectives by their time, waiting by how many have begun."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.marks = []

    def compute(self, what, ns, bound="memory"):
        self.events.append(("compute", ns))

    def communicate(self, what, ns, unit="", sent_bytes=0):
        self.stream_ns += 1
        self.events.append(("beside" if self._beside else "communicate", ns))
        return self.stream_ns

    def wait(self, until_ns):
        self.events.append(("wait", until_ns))

    def reading(self):
        self.marks.append(len(self.events))
        return Counter()

    def repeat(self, times, before, after):
        begun, ended = self.marks[-2:]
        self.repeated = times, begun, ended


def noted(run):
    """The events of a step, and the features that they name."""
    scenario = run.scenario
    (row,) = scenario.rows
    config = configured(row, task_in_words(scenario))
    cluster = cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks)
    Noted.features = []
    kept = rehearsal.Costs, rehearsal.Clock
    rehearsal.Costs, rehearsal.Clock = Noted, Notes
    try:
        found = rehearsal.rehearse(config, cluster)
    finally:
        rehearsal.Costs, rehearsal.Clock = kept
    clock = found.clock
    return clock.events, getattr(clock, "repeated", (0, 0, 0)), np.array(Noted.features, float)


def compressed(events, repeated, features):
    """The same, what is computed between two collectives or waits put together as the numbers of equal features."""
    unique, number = np.unique(features, axis=0, return_inverse=True)
    marks = set(repeated[1:])
    found, counts, positions = [], Counter(), {}
    for index, (what, value) in enumerate([*events, ("end", 0)]):
        if what != "compute" or index in marks:
            numbers = np.array(list(counts), int), np.array(list(counts.values()), int)
            found.append(("compute", numbers) if counts else ("none", 0))
            counts = Counter()
        if index in marks:
            positions[index] = len(found)
        if what == "compute":
            counts[number.ravel()[value]] += 1
        else:
            found.append((what, value))
    times, first, last = repeated
    return found, (times, positions.get(first, 0), positions.get(last, 0)), unique


def step_ns(events, repeated, features, device):
    moved, operations, width = features.T
    rate = np.where(
        width > 0, device.product_share * width / (width + device.half_width), device.attention_share) * device.flops
    ns = np.maximum(moved / (device.memory_bandwidth * device.memory_share), operations / rate) * NS
    now, stream, ready, mark = 0.0, 0.0, [0.0], {}
    times, first, last = repeated
    for number, (what, value) in enumerate(events):
        if times and number in (first, last):
            mark[number] = now
        if what == "compute":
            now += ns[value[0]] @ value[1]
        elif what == "wait":
            now = max(now, ready[value])
        elif what in ("beside", "communicate"):
            stream = max(now, stream) + value
            ready.append(stream)
            now = stream if what == "communicate" else now
    return now + (times * (mark[last] - mark[first]) if times else 0)


def predicted(run, found, device):
    config = configured(run.scenario.rows[0], task_in_words(run.scenario))
    shape, tokens = run.scenario.model, config.samples // config.ranks * run.scenario.model.sequence
    operations = (6 * config.model.count + 12 * shape.layers * shape.width * shape.sequence) * tokens
    return operations / (device.flops * step_ns(*found, device) / NS)


def errors(runs, found, device):
    return np.array([predicted(run, each, device) / run.mfu - 1 for run, each in zip(runs, found, strict=True)])


def fit(name, runs, found):
    """Try steps up and down in each of the four numbers, ever smaller ones, from several beginnings."""
    device, _ = device_of(name, Origin())
    best = None
    for width in (200.0, 800.0):
        trial = replace(device, half_width=width)
        cost, step = np.abs(errors(runs, found, trial)).mean(), 1.25
        while step > 1.004:
            better = False
            for each in FITTED:
                for factor in (step, 1 / step):
                    changed = replace(trial, **{each: getattr(trial, each) * factor})
                    tried = np.abs(errors(runs, found, changed)).mean()
                    if tried < cost:
                        trial, cost, better = changed, tried, True
            if not better:
                step = step**0.5
        if best is None or cost < best[0]:
            best = cost, trial
    cost, device = best
    left = errors(runs, found, device)
    print(name, {each: round(getattr(device, each), 4) for each in FITTED})
    print(f"  {len(runs)} runs, mean error {cost:.1%}, within 12%: {(np.abs(left) <= 0.12).mean():.0%}")
    for run, error in zip(runs, left, strict=True):
        print(f"  {error:+7.1%}  {run.mfu:.1%}  {run.name}")


def main(names):
    store = Path("/tmp/noted_runs.pickle")
    runs = [run for run in published_runs() if run.precision != "amp_fp8"]
    noted_runs = pickle.loads(store.read_bytes()) if store.exists() else {}
    for run in runs:
        if run.name + run.precision not in noted_runs:
            noted_runs[run.name + run.precision] = noted(run)
            store.write_bytes(pickle.dumps(noted_runs))
    noted_runs = {name: compressed(*found) for name, found in noted_runs.items()}
    for name in names or ("a100_40gb", "a100_80gb", "h100_80gb"):
        mine = [run for run in runs if run.device == name]
        fit(name, mine, [noted_runs[run.name + run.precision] for run in mine])


if __name__ == "__main__":
    main(sys.argv[1:])
