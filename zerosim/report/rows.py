"""A run as plain rows: flat dicts of numbers and words, which pandas, polars, csv and json accept."""

from typing import Any

from zerosim.report.page.page_run import KINDS, PageRow, PageRun

Rows = list[dict[str, Any]]


def compared(run: PageRun) -> Rows:
    """A row for each line of the comparison."""
    return [compared_row(row) for row in run.rows]


def compared_row(row: PageRow) -> dict[str, Any]:
    found, kept = row.found, row.fullest["resting_bytes"]
    return {
        "name": found["name"],
        "stage": found["stage"],
        "equal": found["equal"],
        "compared_with": found["compared_with"],
        "final_loss": float(found["losses"][-1]) if found["losses"] else None,
        "test": None if found["test"] is None else float(found["test"]),
        "sent_bytes": row.sent_bytes,
        "messages": max((rank["messages"] for rank in found["traffic"]), default=0) // max(row.steps, 1),
        "volume": found["volume"],
        "weights_bytes": kept.get("parameters", 0),
        "gradients_bytes": kept.get("gradients", 0),
        "optimizer_bytes": kept.get("optimizer", 0),
        "kept_bytes": sum(kept.get(kind, 0) for kind in KINDS[:3]),
        "peak_bytes": row.fullest["peak_bytes"]["total"],
        "hidden": row.hidden,
        "train_seconds": found["seconds"]["train"],
        "weights_sha256": found["weights_sha256"],
    }


def losses(run: PageRun) -> Rows:
    """A row for each step of each line; the first step is 1."""
    return [
        {"name": row.found["name"], "step": step, "loss": float(loss)}
        for row in run.rows for step, loss in enumerate(row.found["losses"], 1)
    ]


def spans(run: PageRun) -> Rows:
    """A row for each span of each line and traced step."""
    return [
        {"name": row.found["name"], "step": step["step"], **span}
        for row in run.rows for step in traced(row) for span in step["spans"]
    ]


def memory(run: PageRun) -> Rows:
    """A row for each change of a rank's memory, of each line and traced step."""
    return [
        {"name": row.found["name"], "step": step["step"], "rank": step["rank"], "ns": at["ns"],
         **{kind: at.get(kind, 0) for kind in KINDS}}
        for row in run.rows for step in traced(row) for at in step["memory"]
    ]


def traced(row: PageRow) -> list[dict[str, Any]]:
    """Every traced step of every rank."""
    found: list[dict[str, Any]] = (row.found.get("trace") or {"steps": []})["steps"]
    return found
