"""The outcome of a script of PyTorch's as the JSON document that `zerosim run` writes, with what was seen of it."""

import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from zerosim.comm import Communicator
from zerosim.instruments.clocks import brought_together
from zerosim.instruments.memory import KINDS
from zerosim.instruments.trace import Trace
from zerosim.report.document import SCHEMA, plain, trace_document
from zerosim.torch.watching import Watch
from zerosim.worlds.objects import gather_objects

STAGE = "torch"


def collected(comm: Communicator, watch: Watch) -> tuple[list[dict[str, Any]], Trace] | None:
    """What all ranks have seen, and their trace, on rank 0; None on the others. All ranks call this."""
    trace = brought_together(comm, watch.spans)
    found = gather_objects(comm, seen(comm.rank, watch))
    return None if found is None or trace is None else (found, trace)


def seen(rank: int, watch: Watch) -> dict[str, Any]:
    """What one rank has seen."""
    traffic, ledger = watch.traffic, watch.ledger
    resting = {kind: watch.resting.get(kind, 0) for kind in KINDS[:3]}
    peak = max(ledger.peak_total, sum(resting.values()))
    return {
        "losses": watch.losses,
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
            "curve": [{"ns": 0, **resting}],
        },
    }


def document(title: str, command: str, world: dict[str, Any], found: list[dict[str, Any]], trace: Trace) -> Any:
    """The outcome, in JSON's own types.

    Nothing is compared and nothing is claimed: `volume` is what was measured.
    """
    steps = len(found[0]["losses"])
    ranks = len(found)
    row = {
        "stage": STAGE, "name": title, "equal": None, "compared_with": None, "first_divergence": None,
        "disagreement": None, "losses": [mean(each["losses"][step] for each in found) for step in range(steps)],
        "test": None, "weights_sha256": "", "optimizer_sha256": "", "traffic": [each["traffic"] for each in found],
        "traffic_holds": True, "volume": volume(found, steps), "memory": [each["memory"] for each in found],
        "calls": [each["calls"] for each in found], "seconds": {"train": found[0]["seconds"], "save": 0.0},
        "resumed": None, "trace": trace_document(trace),
    }
    return plain({
        "schema": SCHEMA, "title": title,
        "scenario": {"title": title, "caption": "A script of PyTorch's, over zerosim's collectives.",
                     "world": {"ranks": ranks}, "train": {"steps": steps}, "parallel": {"order": "ring"}},
        "world": world, "command": command,
        "versions": {"python": platform.python_version()} | {
            name: version(name) for name in ("zerosim", "numpy", "torch")},
        "passed": True, "verdict": f"RAN: {steps} steps on {ranks} ranks; nothing was claimed of them",
        "failures": [], "rows": [row], "differences": [], "did_not_fit": [], "on_other_ranks": [],
    })


def volume(found: list[dict[str, Any]], steps: int) -> float:
    """What a rank sent in a step, the mean over ranks and steps, in units of P (N−1)/N; P: bytes of all parameters."""
    ranks, whole = len(found), max(each["whole_bytes"] for each in found)
    sent = sum(each["traffic"]["sent_bytes"] for each in found)
    return sent / (steps * whole * (ranks - 1)) if steps * whole * (ranks - 1) else 0.0


def mean(values: Any) -> float:
    return float(np.mean(list(values)))
