"""The outcome of a PyTorch script as the JSON document that `zerosim run` writes, with its observations."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from zerosim.allocation import Kind
from zerosim.comm import Communicator
from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.instruments.trace import Trace, brought_together
from zerosim.show.document import SCHEMA, plain, trace_document
from zerosim.torch.watching import Watch
from zerosim.worlds.objects import gather_objects

STAGE = "torch"


def collected(comm: Communicator, watch: Watch) -> tuple[list[dict[str, Any]], Trace] | None:
    """The observations of all ranks, and their trace, on rank 0; None on the others. All ranks call this."""
    trace = brought_together(comm, watch.spans)
    found = gather_objects(comm, seen(comm.rank, watch))
    return None if found is None or trace is None else (found, trace)


def seen(rank: int, watch: Watch) -> dict[str, Any]:
    """The observations of one rank."""
    traffic, ledger = watch.traffic, watch.ledger
    resting = {kind: watch.resting.get(kind, 0) for kind in MEMORY_KINDS[:3]}
    peak = max(ledger.peak_total, sum(resting.values()))
    return {
        "losses": watch.losses,
        "steady_bytes": steady(watch.sent_bytes),
        "seconds": watch.seconds,
        "whole_bytes": watch.whole_bytes,
        "calls": [asdict(call) for call in watch.last_calls],
        "traffic": {
            "rank": rank, "sent_bytes": traffic.sent_bytes, "received_bytes": traffic.received_bytes,
            "messages": traffic.messages, "largest_message_bytes": traffic.largest_bytes,
            "by_collective": {name: asdict(count) for name, count in traffic.by_collective.items()},
        },
        "memory": {
            "rank": rank, "resting_bytes": resting,
            "peak_bytes": {**resting, "activations": peak - sum(resting.values()), "buffers": 0, "total": peak},
            "curve": curve(watch.curve, resting),
        },
    }


def curve(alive: Sequence[tuple[int, int]], resting: Mapping[Kind, int]) -> list[dict[str, int]]:
    """Memory over a step: parameters, optimizer state, and all other bytes that were alive, gradients included.

    Changes by less than 3% of the peak are left out: an operation of PyTorch makes several of them.

    >>> curve([(0, 30), (5, 900), (6, 904)], {"parameters": 10, "gradients": 10, "optimizer": 20})
    [{'ns': 0, 'parameters': 10, 'optimizer': 20, 'activations': 0}, \
{'ns': 5, 'parameters': 10, 'optimizer': 20, 'activations': 870}]
    """
    shown = list(alive[:1])
    most = max((total for _, total in alive), default=0)
    for at in alive:
        if 100 * abs(at[1] - shown[-1][1]) >= 3 * most > 0:
            shown.append(at)
    parameters, optimizer = resting["parameters"], resting["optimizer"]
    return [
        {"ns": ns, "parameters": parameters, "optimizer": optimizer,
         "activations": max(total - parameters - optimizer, 0)} for ns, total in shown]


def document(title: str, command: str, world: dict[str, Any], found: list[dict[str, Any]], trace: Trace) -> Any:
    """The outcome, in JSON's own types.

    Nothing is compared or claimed: `volume` is the measured one.
    """
    steps = len(found[0]["losses"])
    ranks = len(found)
    row = {
        "stage": STAGE, "name": title, "equal": None, "compared_with": None, "first_divergence": None,
        "disagreement": None, "losses": [mean(each["losses"][step] for each in found) for step in range(steps)],
        "test": None, "weights_sha256": "", "optimizer_sha256": "", "traffic": [each["traffic"] for each in found],
        "traffic_holds": True, "volume": volume(found), "memory": [each["memory"] for each in found],
        "calls": [each["calls"] for each in found], "seconds": {"train": found[0]["seconds"], "save": 0.0},
        "resumed": None, "trace": trace_document(trace),
    }
    return plain({
        "schema": SCHEMA, "title": title,
        "scenario": {"title": title, "caption": "A PyTorch script over zerosim's collectives.",
                     "world": {"ranks": ranks}, "train": {"steps": steps}, "parallel": {"order": "ring"}},
        "world": world, "command": command,
        "versions": {"python": platform.python_version()} | {
            name: version(name) for name in ("zerosim", "numpy", "torch")},
        "passed": True, "verdict": f"RAN: {steps} steps on {ranks} ranks; no claims to check",
        "failures": [], "rows": [row], "differences": [], "did_not_fit": [], "on_other_ranks": [],
    })


def steady(sent_bytes: Sequence[int]) -> float:
    """The bytes sent per step after the first, which includes construction; those of one step if there is no other.

    >>> steady([1000, 1200, 1400]), steady([70]), steady([])
    (200.0, 70.0, 0.0)
    """
    first, *others = sent_bytes or [0]
    return (others[-1] - first) / len(others) if others else float(first)


def volume(found: list[dict[str, Any]]) -> float:
    """The bytes sent per rank and step, after the first step, in units of P (N−1)/N; P: bytes of all parameters."""
    ranks, whole = len(found), max(each["whole_bytes"] for each in found)
    sent = sum(each["steady_bytes"] for each in found)
    return float(sent / (whole * (ranks - 1))) if whole * (ranks - 1) else 0.0


def mean(values: Any) -> float:
    return float(np.mean(list(values)))
