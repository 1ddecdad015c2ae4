"""The outcome of a run as one JSON document: the same numbers that the terminal shows."""

import math
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from zerosim.instruments.trace import Trace
from zerosim.plan.addresses import Fragmentation
from zerosim.report.conclusion import verdict
from zerosim.scenario import resolved
from zerosim.verdict.outcome import Outcome, RankMemory, TrainedRow

SCHEMA = "zerosim.run/1"
PACKAGES = ("zerosim", "numpy")
"""Whose versions a document names."""
STEP_FIGURES = ("computation_ns", "waiting_ns", "idle_ns", "communication_ns", "hidden_ns")


def document(outcome: Outcome, world: dict[str, Any], command: str | None = None) -> dict[str, Any]:
    """The whole outcome in JSON's own types; NaN and infinities become the strings "nan", "inf" and "-inf".

    `command` is the command line that ran it, where there was one.
    """
    scenario = outcome.scenario
    found: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "title": scenario.title,
            "scenario": resolved(scenario),
            "world": world,
            "command": command,
            "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
            "passed": outcome.passed,
            "verdict": verdict(outcome),
            "test_measure": None if outcome.experiment.dataset.x_test is None else outcome.experiment.dataset.measure,
            "failures": [{"name": name, "what": what} for name, what in outcome.failures],
            "stages": [stage_document(stage) for stage in outcome.stages],
            "differences": [asdict(each) | {"cause": each.cause} for each in outcome.apart],
            "did_not_fit": [
                {"stage": config.row.stage, "name": config.name, "needed_bytes": each.needed_bytes,
                 "allowed_bytes": each.allowed_bytes, "would_fit": each.would_fit}
                for config, each in outcome.did_not_fit
            ],
            "on_other_ranks": [
                {"ranks": other.ranks, "name": other.name, "weights_sha256": other.weights_sha256}
                for other in outcome.on_other_ranks
            ],
        }
    )
    return found


def stage_document(stage: TrainedRow) -> dict[str, Any]:
    divergence = stage.first_divergence
    return {
        "stage": stage.stage,
        "name": stage.name,
        "equal": stage.equal,
        "compared_with": stage.compared_with,
        "first_divergence": None
        if divergence is None
        else asdict(divergence) | {"order_of_addition": stage.order},
        "disagreement": stage.disagreement,
        "losses": [float(loss[0]) for loss in stage.losses],
        "test": stage.test,
        "sample": stage.sample,
        "operations": stage.operations,
        "formula_operations": stage.formula_operations,
        "weights_sha256": stage.weights_sha256,
        "optimizer_sha256": stage.optimizer_sha256,
        "traffic": [asdict(rank) for rank in stage.traffic],
        "traffic_holds": all(rank.holds for rank in stage.traffic),
        "volume": stage.volume,
        "memory": [memory_document(rank) for rank in stage.memory],
        "fragmentation": None if stage.fragmentation is None else fragmentation_document(stage.fragmentation),
        "updates": stage.updates,
        "seconds": {"train": stage.seconds, "save": stage.seconds_saving},
        "resumed": resumed(stage),
        "trace": stage.trace and trace_document(stage.trace),
    }


def trace_document(trace: Trace) -> dict[str, Any]:
    """What each rank did in each traced step: its spans, the memory beside them, and what they add up to."""
    return {
        "hidden": trace.hidden,
        "clocks": [asdict(clock) for clock in trace.clocks],
        "steps": [
            {
                "rank": step.rank, "step": step.step, "begin_ns": step.begin_ns, "end_ns": step.end_ns,
                **{figure: getattr(step, figure) for figure in STEP_FIGURES},
                "spans": [span._asdict() for span in step.spans],
                "memory": [{"ns": at, **held} for at, held in step.memory],
            }
            for step in trace.steps
        ],
    }


def fragmentation_document(found: Fragmentation) -> dict[str, Any]:
    return {
        "peak_bytes": found.peak_bytes,
        "laid_out_bytes": found.laid_out_bytes,
        "needed_bytes": found.needed_bytes,
        "beyond_peak_bytes": found.beyond_peak_bytes,
        "address_space": [
            {"from": taking.since, "to": taking.until, "kind": taking.kind, "owner": taking.owner,
             "bytes": taking.held_bytes, "long_lived": stays,
             "address": {name: starts[number] for name, starts in found.addresses.items()}}
            for number, (taking, stays) in enumerate(zip(found.takings, found.long_lived, strict=True))
        ],
    }


def resumed(stage: TrainedRow) -> dict[str, Any] | None:
    """From which checkpoint the row went on."""
    found = stage.config.resumed
    if found is None:
        return None
    return {"folder": found.folder, "step": found.step, "stage": found.last.row.stage, "ranks": found.last.ranks}


def memory_document(memory: RankMemory) -> dict[str, Any]:
    return asdict(memory) | {"curve": [{"ns": at, **now} for at, now in memory.curve]}


def plain(value: Any) -> Any:
    """`value` with tuples as lists and non-finite floats as strings, which strict JSON can carry.

    >>> plain({"losses": (1.0, math.nan)})
    {'losses': [1.0, 'nan']}
    """
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
