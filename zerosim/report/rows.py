"""A run as plain rows: flat dicts of numbers and words, which pandas, polars, csv and json accept."""

from typing import Any

from zerosim.report.columns import FIGURES, MEASURED
from zerosim.report.run_document import KINDS, RowDocument, RunDocument

Rows = list[dict[str, Any]]


def compared(run: RunDocument) -> Rows:
    """A row for each line of the comparison."""
    return [compared_row(row) for row in run.rows]


def compared_row(row: RowDocument) -> dict[str, Any]:
    found = row.found
    return {
        **{key: found[key] for key in ("name", "stage", "equal", "compared_with")},
        "final_loss": float(found["losses"][-1]) if found["losses"] else None,
        "test": None if found["test"] is None else float(found["test"]),
        **{figure.key: figure.value(row) for figure in FIGURES},
        **{key: found.get(key) for key in MEASURED},
        "hidden": row.hidden,
        "train_seconds": found["seconds"]["train"],
        "weights_sha256": found["weights_sha256"],
    }


def losses(run: RunDocument) -> Rows:
    """A row for each step of each line; the first step is 1."""
    return [
        {"name": row.found["name"], "step": step, "loss": float(loss)}
        for row in run.rows for step, loss in enumerate(row.found["losses"], 1)
    ]


def spans(run: RunDocument) -> Rows:
    """A row for each span of each line and traced step."""
    return [
        {"name": row.found["name"], "step": step["step"], **span}
        for row in run.rows for step in traced(row) for span in step["spans"]
    ]


def memory(run: RunDocument) -> Rows:
    """A row for each change of a rank's memory, of each line and traced step."""
    return [
        {"name": row.found["name"], "step": step["step"], "rank": step["rank"], "ns": at["ns"],
         **{kind: at.get(kind, 0) for kind in KINDS}}
        for row in run.rows for step in traced(row) for at in step["memory"]
    ]


def traced(row: RowDocument) -> list[dict[str, Any]]:
    """Every traced step of every rank."""
    found: list[dict[str, Any]] = (row.found.get("trace") or {"steps": []})["steps"]
    return found
