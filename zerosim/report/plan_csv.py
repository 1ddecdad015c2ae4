"""The rows of a plan as flat dicts and as CSV."""

import csv
import io
from typing import Any

from zerosim.planner.planning import Plan


def csv_of(plan: Plan) -> str:
    """A line for each row: each swept key in its own column, then every figure of `zerosim plan --json`."""
    document = plan.document()
    rows = [row.pop("swept") | flat(row) for row in document["rows"]]
    if document["answers"] is not None:
        rows = [row | {key: answer[key] for key in ("days", "goodput", "dollars", "in_time")}
                for row, answer in zip(rows, document["answers"]["rows"], strict=True)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), restval="", extrasaction="raise", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the document with nested dicts flattened.

    >>> flat({"name": "DDP", "memory": {"peak": 3, "resting": {"parameters": 1}}, "mfu": 0.5})
    {'name': 'DDP', 'peak_bytes': 3, 'resting_parameters_bytes': 1, 'mfu': 0.5}
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        if not isinstance(value, dict):
            found[key] = value
            continue
        if key != "memory":
            found[key] = "; ".join(f"{name}: {why}" for name, why in value.items())
            continue
        held = {kind: each for kind, each in value.items() if kind != "resting"}
        resting = {f"resting_{kind}": each for kind, each in value["resting"].items()}
        found |= {f"{kind}_bytes": each for kind, each in (held | resting).items()}
    return found
