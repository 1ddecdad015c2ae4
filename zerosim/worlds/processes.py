"""Processes as Linux lists them: their states and their children."""

from pathlib import Path

FROZEN, GONE = "Tt", "ZX"


def state_of(process: str) -> str:
    """The letter of a process's state in Linux: R runs, S sleeps, T is stopped, Z has ended; X if it does not exist."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def children_of(process: int) -> set[int]:
    """The children of a process, including those that have ended; empty if the system does not list them."""
    try:
        listed = Path(f"/proc/{process}/task").glob("*/children")
        return {int(child) for each in listed for child in each.read_text().split()}
    except OSError:
        return set()
