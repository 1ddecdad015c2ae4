"""What is kept on the host: the same bits, the formulas' bytes, less on the device, faults caught."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.training import labelled, scenario
from tests.training.variants import BOTH, UPDATES
from tests.verdict.outcomes import fails, outcome_of
from zerosim.autograd.shelf import in_memory, offloaded
from zerosim.commands.cli import main
from zerosim.models.units import Task
from zerosim.observe.trace import OFFLOAD
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario.machine import ClusterKeys, LinkKeys
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train
from zerosim.stages.storage import Storage
from zerosim.training.config import configured
from zerosim.training.experiment import prepare
from zerosim.verdict.shapes import StepsOnShapes, expected

INPUTS = {"recompute": True, "offload_activations": True, "hidden": (5, 4, 7)}
def memory(outcome, number=0):
    return outcome.trained[number].measured.memory[0]


def test_by_hand():
    """One layer of 6 · 3 + 3 = 21 numbers on one rank, Adam: 84 bytes of weights, 84 of gradients, 168 of state."""
    one = {"ranks": 1, "hidden": (), "stages": ("zero3",), "steps": 2, "micro_batches": 1}
    near = memory(outcome_of(**one))
    assert (near.resting_bytes, near.moved_bytes) == ({"parameters": 84, "gradients": 84, "optimizer": 168}, {})
    updated = memory(outcome_of(**one, **UPDATES))
    assert updated.resting_bytes == {"parameters": 84, "gradients": 0, "optimizer": 0}
    assert updated.host_resting_bytes == {"gradients": 84, "optimizer": 168}
    assert updated.moved_bytes == {
        "gradients, device to host": 2 * 84, "parameters, device to host": 2 * 84, "parameters, host to device": 2 * 84}
    both = memory(outcome_of(**one, **BOTH))
    assert both.resting_bytes == {"parameters": 0, "gradients": 0, "optimizer": 0}
    assert both.host_resting_bytes == both.host_peak_bytes == {"parameters": 84, "gradients": 84, "optimizer": 168}
    assert both.moved_bytes == {"gradients, device to host": 2 * 84, "parameters, host to device": 2 * 2 * 84}


def test_what_the_host_has_of_inputs_by_hand():
    """Inputs of layers 1 to 3, of a micro-batch of 2 samples; of both of a rank where they go together."""
    for accumulation, together in (("boundary", 1), ("micro_batch", 1), ("layered", 2)):
        found = outcome_of(**INPUTS, accumulation=accumulation)
        there = {rank.host_peak_bytes["activations"] for stage in found.trained for rank in stage.measured.memory}
        assert there == {together * 2 * (5 + 4 + 7) * 4}


def test_on_the_device_inputs_grow_with_the_blocks_and_on_the_host_they_do_not():
    """One more block is one more input of 3 sequences of 7 tokens of 8 numbers."""
    def transformer(count, **keys):
        (row,) = Scenario(
            model=ModelKeys(kind="transformer", layers=count, width=8, heads=2),
            train=Train(micro_batch=3, micro_batches=8),
            parallel=Parallel(stages=("zero3",), recompute=True, **keys)).rows
        return expected(configured(row, Task(7, 11, "cross_entropy", tokens=True)))

    one_input, layers = 3 * 7 * 8 * 4, 4
    held = [transformer(count).peak_bytes["activations"] for count in (layers, layers + 1)]
    assert held[1] - held[0] == one_input
    fewer, more = (transformer(count, offload_activations=True) for count in (layers, layers + 1))
    assert more.peak_bytes["activations"] == fewer.peak_bytes["activations"]
    assert more.host_peak_bytes["activations"] - fewer.host_peak_bytes["activations"] == one_input


def far_scenario(*, ranks=2, **parallel):
    base = scenario(ranks=ranks, micro_batches=4, stages=("zero3",))
    return replace(base, parallel=replace(base.parallel, **parallel))


def test_the_page_has_a_column_and_the_trace_a_lane(tmp_path):
    path, page, trace = tmp_path / "far.toml", tmp_path / "far.html", tmp_path / "far.json"
    path.write_text("[world]\nranks = 2\n[train]\nsteps = 2\n[[variant]]\noffload_optimizer = 'host'\n[[variant]]\n")
    assert main(["run", str(path), "--progress", "none", "--report", str(page), "--trace", str(trace)]) == 0
    assert "on host, " in page.read_text()
    events = json.loads(trace.read_text())["traceEvents"]
    carried = [event["args"]["bytes"] for event in events if event.get("cat") == "offload"]
    ranks, units, gradients_and_weights_both_ways = 2, 3, 3
    assert len(carried) == ranks * units * gradients_and_weights_both_ways
    assert min(carried) > 0


@pytest.mark.parametrize(("far", "keys"), [(UPDATES, {"prefetch": True}), (BOTH, {"reshard_after_forward": False})])
def test_a_plan_has_the_bytes_of_a_run(far, keys):
    built = far_scenario(ranks=1, **far, **keys)
    (config,) = prepare(built, labelled()).rows
    found = rehearse(config, cluster_of(ClusterKeys(host_memory=LinkKeys(0, 1.0)), built.origin, 1), traced=True)
    due = expected(config)
    assert +found.host_peak == due.host_peak_bytes
    assert found.peak["parameters"] == due.peak_bytes["parameters"]
    carried = Counter()
    for span in found.clock.spans:
        carried[span.what] += span.bytes * (span.lane == OFFLOAD)
    assert +carried == +StepsOnShapes(config, 1, skipped=False).moved_in(1)


# Planted faults.


def test_state_that_is_not_brought_is_seen(monkeypatch):
    def lost(self, owner, into, source, kind, came_from, to):
        if (kind, to) != ("parameters", "device"):
            honest(self, owner, into, source, kind, came_from, to)

    honest = Storage.fill
    monkeypatch.setattr(Storage, "fill", lost)
    fails(outcome_of(**UPDATES, stages=("zero3",), steps=3), "bits differ")


def test_state_that_stays_on_the_device_is_seen(monkeypatch):
    monkeypatch.setattr(Storage, "allocator", lambda self, kind: self.device)
    fails(outcome_of(**UPDATES, stages=("zero3",)), "bytes kept are not the formula's")


def swapped(near, far, carry):
    def shelf(owner, arrays):
        taken = offloaded(near, far, carry)(owner, arrays)
        return lambda: [*reversed(taken())]

    return shelf


def hoarding(near, far, carry):
    """Copies arrays, and keeps them all the same."""
    shelf, kept = offloaded(near, far, carry), []
    return lambda owner, arrays: kept.append(arrays) or shelf(owner, arrays)


@pytest.mark.parametrize(("fault", "words"), [
    (swapped, "bits differ"), (hoarding, "more memory than allowed is in use at the peak"),
    (lambda near, far, carry: in_memory, "more memory than allowed is in use at the peak"),
])
def test_a_planted_fault_of_the_shelf_is_seen(monkeypatch, fault, words):
    plain = outcome_of(**INPUTS | {"hidden": (5, 9, 9, 9)}, stages=("zero2",), accumulation="layered")
    assert plain.failures == []
    shapes = expected(plain.trained[0].config)
    monkeypatch.setattr("zerosim.training.build.offloaded", fault)
    monkeypatch.setattr("zerosim.verdict.judged_run.expected", lambda config, updates=None: shapes)
    fails(outcome_of(**INPUTS | {"hidden": (5, 9, 9, 9)}, stages=("zero2",), accumulation="layered"), words)
