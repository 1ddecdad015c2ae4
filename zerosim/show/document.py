"""The outcome of a run as one JSON document: the same numbers as in the terminal.

The page of a run is a function of this document alone, so a run and its old document give the same page.
The document therefore contains the command, the versions, the verdict and the trace.
"""

import math
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from zerosim.core.words import joined_names, plural
from zerosim.observe.trace import ClockOffset, RankStep, Span, Trace
from zerosim.observe.traffic import Count
from zerosim.scenario import resolved
from zerosim.stages import STAGES
from zerosim.training.measurement import RankMemory
from zerosim.verdict.addresses import Fragmentation
from zerosim.verdict.outcome import Outcome, RowOutcome, lingering, overweight, traffic_fault
from zerosim.worlds.world import World

SCHEMA = "zerosim.run/1"
PACKAGES = ("zerosim", "numpy")
"""The packages whose versions a document contains."""
MOST_NAMES = 4
"""The most rows that a verdict names."""
STEP_FIGURES = (
    "computation_ns", "waiting_ns", "waiting_for_memory_ns", "idle_ns", "communication_ns", "hidden_ns", "moving_ns")


def document(outcome: Outcome, world: dict[str, Any], command: str | None = None) -> dict[str, Any]:
    """The whole outcome in JSON's own types; NaN and infinities become the strings "nan", "inf" and "-inf".

    `command` is the command line of the run, if there was one. "stages" is the former name of "rows", for readers that
    do not know the new one yet.
    """
    scenario, rows = outcome.scenario, [row_document(row) for row in outcome.trained]
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
            "rows": rows,
            "stages": rows,
            "differences": [asdict(each) | {"cause": each.cause} for each in outcome.differences],
            "did_not_fit": [
                picked(row, "stage", "name", "needed_bytes", "allowed_bytes", "would_fit")
                for row in outcome.did_not_fit
            ],
            "on_other_ranks": [
                {"ranks": ranks, "name": row.name, "weights_sha256": row.measured.weights_sha256}
                for ranks, row in outcome.on_other_ranks
            ],
        }
    )
    return found


def world_document(world: World) -> dict[str, Any]:
    """A world in documents."""
    found: dict[str, Any] = {"kind": world.kind, "ranks": world.ranks, "library": world.library}
    return found | ({"shared_cores": world.shared_cores} if world.shared_cores else {})


def row_document(row: RowOutcome) -> dict[str, Any]:
    """The measured figures of a row, and the expected ones."""
    found, divergence = row.measured, row.first_divergence
    return {
        "stage": row.stage,
        "name": row.name,
        "model": {"title": row.config.model.words, "parameters": row.config.model.count},
        "equal": row.equal,
        "compared_with": row.compared_with,
        "first_divergence": None if divergence is None else asdict(divergence) | {"order_of_addition": row.order},
        **found.figures,
        "losses": [float(loss[0]) for loss in found.losses],
        "formula_operations": row.formula_operations,
        "ignored": row.config.ignored,
        "traffic": [traffic_document(rank, *pair) for rank, pair in enumerate(row.traffic)],
        "traffic_holds": not any(traffic_fault(rank, *pair) for rank, pair in enumerate(row.traffic)),
        "volume": row.volume,
        "memory": [memory_document(*pair) for pair in row.memory],
        "fragmentation": None if row.fragmentation is None else fragmentation_document(row.fragmentation),
        "resumed": resumed(row),
        "trace": found.trace and trace_document(found.trace),
    } | ({} if row.stage in STAGES else {"own_stage": picked(row.config.stage, "title", "also", "sharded")})


def trace_document(trace: Trace) -> dict[str, Any]:
    """The traced steps of each rank: spans, memory, and totals."""
    return {
        "hidden": trace.hidden,
        "clocks": [asdict(clock) for clock in trace.clocks],
        "steps": [
            picked(step, "rank", "step", "begin_ns", "end_ns", *STEP_FIGURES) | {
                "spans": [span._asdict() for span in step.spans],
                "memory": [{"ns": at, **held} for at, held in step.memory],
            }
            for step in trace.steps
        ],
    }


def read_trace(found: dict[str, Any]) -> Trace:
    """The inverse of `trace_document`."""
    return Trace([ClockOffset(**clock) for clock in found["clocks"]], [
        RankStep(step["rank"], step["step"], step["begin_ns"], step["end_ns"], [Span(**span) for span in step["spans"]],
                 [(at["ns"], {kind: count for kind, count in at.items() if kind != "ns"}) for at in step["memory"]])
        for step in found["steps"]])


def fragmentation_document(found: Fragmentation) -> dict[str, Any]:
    return picked(found, "peak_bytes", "laid_out_bytes", "needed_bytes", "beyond_peak_bytes") | {
        "address_space": [
            {"from": lifetime.since, "to": lifetime.until, "kind": lifetime.kind, "owner": lifetime.owner,
             "bytes": lifetime.held_bytes, "long_lived": stays,
             "address": {name: starts[number] for name, starts in found.addresses.items()}}
            for number, (lifetime, stays) in enumerate(zip(found.lifetimes, found.long_lived, strict=True))
        ],
    }


def resumed(row: RowOutcome) -> dict[str, Any] | None:
    found = row.config.resumed
    if found is None:
        return None
    return {"folder": found.path, "step": found.step, "stage": found.stage, "ranks": found.ranks}


def traffic_document(rank: int, measured: Count, due: Count) -> dict[str, Any]:
    """One rank's counts, each with the formula's."""
    formula = {f"formula_{name.removeprefix('sent_')}": count for name, count in counts(due).items()}
    return {"rank": rank} | counts(measured) | formula


def counts(traffic: Count) -> dict[str, Any]:
    """The messages and bytes of a rank, in all and by collective."""
    return picked(traffic, "sent_bytes", "received_bytes", "messages", "largest_message_bytes", "inside_bytes",
                  "between_bytes") | {"by_collective": {
                      name: picked(each, "calls", "sent_bytes", "messages")
                      for name, each in traffic.by_collective.items()}}


HOST_FIGURES = ("host_resting_bytes", "host_peak_bytes", "moved_bytes")


def memory_document(found: RankMemory, due: RankMemory) -> dict[str, Any]:
    """One rank's bytes by kind, and those due; `rests` and `peaks` judge it."""
    return {
        **picked(found, "rank", "resting_bytes", "peak_bytes", "alive_bytes", "resident_bytes", *HOST_FIGURES),
        "formula_bytes": due.resting_bytes,
        "bound_bytes": due.peak_bytes,
        **picked(due, "padding_bytes", "least_bytes"),
        "overweight": overweight(found, due),
        "lingering": lingering(found, due),
        **{f"formula_{name}": getattr(due, name) for name in HOST_FIGURES},
        "curve": [{"ns": at, **now} for at, now in found.curve],
    }


def rests(rank: dict[str, Any]) -> bool:
    """Whether a rank of a document keeps the bytes due between steps."""
    return rank["resting_bytes"] == rank["formula_bytes"] and not rank["overweight"]


def peaks(rank: dict[str, Any]) -> bool:
    """Whether a rank of a document holds the bytes due at the peak and later, and on the host."""
    held, least = rank["peak_bytes"], rank["least_bytes"]
    return (all(least.get(kind, 0) <= held[kind] <= most for kind, most in rank["bound_bytes"].items())
            and not rank["lingering"]
            and all(rank.get(name) == rank.get(f"formula_{name}") for name in HOST_FIGURES))


def verdict(outcome: Outcome) -> str:
    """PASSED or FAILED with its subject, in a line."""
    if not outcome.passed:
        names = list(dict.fromkeys(name for name, _ in outcome.failures))
        of = joined_names(names) if len(names) <= MOST_NAMES else f"{len(names)} rows"
        return f"FAILED: {plural(len(outcome.failures), 'check')} did not hold, of {of}"
    stages, ranks = outcome.trained, outcome.scenario.world.ranks
    rows = stages[0].name if len(stages) == 1 else plural(len(stages), "row")
    return f"PASSED: {rows} on {plural(ranks, 'rank')}: {compared(outcome)}"


def compared(outcome: Outcome) -> str:
    """The words for the reference of every bit."""
    partners = {stage.compared_with for stage in outcome.trained}
    if partners == {"one process"}:
        return "every bit equal to one process"
    first = outcome.trained[0].name if outcome.trained else None
    if [stage.compared_with for stage in outcome.trained[1:]] == [first] * (len(outcome.trained) - 1) != []:
        return f"every bit equal to {first}"
    if partners <= {None}:
        return "not compared with one process"
    return "every bit equal where rows add in the same order, not compared with one process"


def picked(found: object, *names: str) -> dict[str, Any]:
    """These attributes of an object, by name."""
    return {name: getattr(found, name) for name in names}


def plain(value: Any) -> Any:
    """`value` with tuples as lists and non-finite floats as strings, for strict JSON.

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
