"""Mutants that change no behaviour, each with the reason: `equivalent.toml`, by file name, function and both lines."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.mutations import Mutant

FILE = Path("tests/mutants/equivalent.toml")
Key = tuple[str, str, str, str]


def equivalents(tree: Path) -> dict[Key, str]:
    """The reason for each mutant that is said to change nothing, by its key."""
    if not (tree / FILE).exists():
        return {}
    rows = tomllib.loads((tree / FILE).read_text(encoding="utf-8"))["mutant"]
    return {(row["file"], row["function"], row["before"], row["after"]): row["reason"] for row in rows}


def stale(said: Iterable[Key], every: Iterable[Mutant]) -> list[Key]:
    """Those that are mutants of no line any more."""
    there = {mutant.key for mutant in every}
    return [key for key in said if key not in there]
