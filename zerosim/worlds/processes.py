"""The states of processes, as Linux lists them."""

from pathlib import Path

FROZEN, GONE = "Tt", "ZX"


def state_of(process: str) -> str:
    """The letter of a process's state in Linux: R runs, S sleeps, T is stopped, Z has ended; X if it does not exist."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

