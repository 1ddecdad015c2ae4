"""Fit the shares in `zerosim/plan/machines.toml` to published runs: `python -m tests.oracles.fit_devices [DEVICE]`.

A step is rehearsed once, with what it computes and communicates noted in order; its time is then found again for every
trial of the three numbers. What is fitted is the mean absolute relative error of MFU, of runs in 16 bits.

Then it is fitted again without some of the runs, those of a size of model, of a number of devices, of a random half,
and these are predicted: `held out` has the errors of what the fit has not seen.
"""

import sys
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

import numpy as np

from zerosim.commands.benches.published import errors, task_of
from zerosim.commands.benches.run_lines import MPT
from zerosim.plan import rehearsal
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import NS, cluster_of
from zerosim.plan.costs import Costs, Time, is_attention, moved_bytes
from zerosim.training.config import configured

FITTED = ("product_share", "attention_share", "memory_share")
START = {"product_share": 0.7, "attention_share": 0.5, "memory_share": 0.7}
HALVES = 6


class Noting(Costs):
    """Instead of times the numbers of what takes them: bytes, operations of products, operations of attention."""

    features: ClassVar[list] = []

    def _of_operation(self, step, way, operations):
        moved = moved_bytes(step, way, self.itemsize) + self.cast_bytes(step, way)
        attention = is_attention(step)
        return Time(self._note(moved, operations * (not attention), operations * attention), "memory")

    def moved_ns(self, moved_bytes):
        return self._note(moved_bytes, 0, 0)

    def update_ns(self, moved_bytes, *, on_host=False):
        return self._note(moved_bytes, 0, 0)

    def loss_ns(self, outputs):
        device = self.cluster.device
        moved_ns = Costs(self.cluster, self.ranks, self.itemsize).loss_ns(outputs)
        return self._note(moved_ns * device.memory_bandwidth * device.memory_share / NS, 0, 0)

    def _note(self, *feature):
        self.features.append(feature)
        return len(self.features) - 1


class Notes(VirtualClock):
    """What happens, in order: computation by its number, collectives by their time, waiting by how many have begun."""

    def __init__(self, taken_by_collectives):
        super().__init__(taken_by_collectives)
        self.events = []
        self.repeated = 0, 0, 0

    def compute(self, what, ns, bound="memory"):
        self.events.append(("compute", ns))

    def communicate(self, what, ns, unit="", sent_bytes=0):
        self.stream_ns += 1
        self.events.append(("beside" if self._beside else "communicate", ns))
        return self.stream_ns

    def wait(self, until_ns):
        self.events.append(("wait", until_ns))


@dataclass
class Noted:
    """A run's step, what is computed between two collectives or waits put together, and the operations of its model."""

    run: object
    events: list
    repeated: tuple
    taken: float
    operations: int

    @classmethod
    def of(cls, run):
        (row,) = run.scenario.rows
        config = configured(row, task_of(run.scenario))
        cluster = cluster_of(run.scenario.cluster, run.scenario.origin, run.scenario.world.ranks)
        Noting.features = []
        kept = rehearsal.Costs, rehearsal.VirtualClock
        rehearsal.Costs, rehearsal.VirtualClock = Noting, Notes
        try:
            clock = rehearsal.rehearsed_at_once(config, cluster).clock
        finally:
            rehearsal.Costs, rehearsal.VirtualClock = kept
        shape, tokens = run.scenario.model, config.samples // config.ranks * run.scenario.model.sequence
        operations = (6 * config.model.count + 12 * shape.layers * shape.width * shape.sequence) * tokens
        events, repeated = compressed(clock.events, clock.repeated, np.array(Noting.features, float))
        return cls(run, events, repeated, cluster.device.taken_by_collectives, operations)

    def mfu(self, device):
        return self.operations / (device.flops * self.step_ns(device) / NS)

    def step_ns(self, device):
        """As `Clock` reckons it."""
        moved = 1 / (device.memory_bandwidth * device.memory_share)
        each = np.array([moved, 1 / (device.flops * device.product_share), 1 / (device.flops * device.attention_share)])
        now, stream, ready, mark = 0.0, 0.0, [0.0], {}
        times, first, last = self.repeated
        for number, (what, value) in enumerate(self.events):
            if times and number in (first, last):
                mark[number] = now
            if what == "compute":
                ns = float(value @ each) * NS
                now += ns + self.taken * min(ns / (1 - self.taken), max(stream - now, 0))
            elif what == "wait":
                now = max(now, ready[value])
            elif what != "end":
                stream = max(now, stream) + value
                ready.append(stream)
                now = stream if what == "communicate" else now
        return now + (times * (mark[last] - mark[first]) if times else 0)


def compressed(events, repeated, features):
    marks = set(repeated[1:]) if repeated[0] else set()
    found, positions, total = [], {}, np.zeros(3)
    for index, (what, value) in enumerate([*events, ("end", 0)]):
        if (what != "compute" or index in marks) and total.any():
            found.append(("compute", total))
            total = np.zeros(3)
        if index in marks:
            positions[index] = len(found)
        if what == "compute":
            total = total + features[value]
        else:
            found.append((what, value))
    times, first, last = repeated
    return found, (times, positions.get(first, 0), positions.get(last, 0))


def off(runs, device):
    """The error of each, as a share of what was measured."""
    return [each.mfu(device) / each.run.measured - 1 for each in runs]


def fit(runs, device):
    """The device with the three numbers of the least mean error: steps up and down in each, ever smaller ones."""
    best, step = replace(device, **START), 1.25
    cost = errors(off(runs, best)).mean
    while step > 1.002:
        better = False
        for name in FITTED:
            for factor in (step, 1 / step):
                trial = replace(best, **{name: getattr(best, name) * factor})
                tried = errors(off(runs, trial)).mean
                if tried < cost:
                    best, cost, better = trial, tried, True
        if not better:
            step = step**0.5
    return best


def parts(runs):
    """What is left out in turn, by what it is."""
    sizes = sorted({each.run.name.split()[0] for each in runs})
    yield "a size of model", [[each for each in runs if each.run.name.split()[0] == size] for size in sizes]
    ranks = sorted({each.run.scenario.world.ranks for each in runs})
    if len(ranks) > 1:
        yield "a number of devices", [[each for each in runs if each.run.scenario.world.ranks == n] for n in ranks]
    halves = [Random(seed).sample(runs, len(runs) // 2) for seed in range(HALVES)]
    yield "a random half", halves


def held_out(runs, device, left_out):
    """Errors of runs by numbers that were fitted without them."""
    found = []
    for part in left_out:
        rest = [each for each in runs if each not in part]
        found += off(part, fit(rest, device))
    return found


def said(found):
    return f"mean error {found.mean:.1%}, within 12%: {found.near:.0%} of {found.count}"


def main(names):
    for name in names or ("a100_40gb", "a100_80gb", "h100_80gb"):
        mine = [Noted.of(run) for run in MPT.read() if run.groups == [name]]
        scenario = mine[0].run.scenario
        device = cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks).device
        best = fit(mine, device)
        print(name, {each: round(getattr(best, each), 3) for each in FITTED})
        print(f"  fitted to all: {said(errors(off(mine, best)))}")
        for what, left_out in parts(mine):
            print(f"  held out, {what}: {said(errors(held_out(mine, device, left_out)))}")


if __name__ == "__main__":
    main(sys.argv[1:])
