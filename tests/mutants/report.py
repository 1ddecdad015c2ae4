"""The report of a run, as a page of Markdown; `equivalent.toml`, of mutants that change nothing, has the reasons."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
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


@dataclass(frozen=True)
class Judged:
    """A mutant, the test that caught it, how many of the tests that run its function were asked, or why none can."""

    mutant: Mutant
    caught_by: str | None
    asked: int
    running: int
    reason: str = ""

    @property
    def what(self) -> str:
        if self.caught_by:
            return "caught"
        return "equivalent" if self.reason else "survivor"


HEAD = """\
{count} of {possible} mutants were judged, with seed {seed}. `tests/mutants/__init__.py` says how.
"""


def note(results: Sequence[Judged], possible: int, seed: str, day: date) -> str:
    """The page, in Markdown."""
    return "\n".join([
        f"# {day}: mutants", "", HEAD.format(count=len(results), possible=f"{possible:,}", seed=seed),
        *by_module(results), "", *by_catcher(results), "", *equivalent(results), "", *survivors(results), "",
    ])  # fmt: skip


def by_module(results: Sequence[Judged]) -> Iterator[str]:
    yield "| module | mutants | caught | equivalent | survivors |"
    yield "|---|---:|---:|---:|---:|"
    for module in dict.fromkeys(each.mutant.module for each in results):
        yield row(f"`{module}`", [each for each in results if each.mutant.module == module])
    yield row("all", results)


def row(title: str, results: Sequence[Judged]) -> str:
    counts = Counter(each.what for each in results)
    cells = [len(results), counts["caught"], counts["equivalent"], counts["survivor"]]
    return f"| {title} | {' | '.join(map(str, cells))} |"


def by_catcher(results: Sequence[Judged]) -> Iterator[str]:
    """Which files of tests caught how many; which test caught which mutant is what the tool prints."""
    caught = Counter(each.caught_by.partition("::")[0].split()[-1] for each in results if each.caught_by)
    yield "Who caught them: " + ", ".join(f"`{file}` {count}" for file, count in caught.most_common()) + "."
    timeouts = sum(each.caught_by is not None and each.caught_by.endswith("(timeout)") for each in results)
    yield f"{timeouts} of them by a timeout."


def equivalent(results: Sequence[Judged]) -> Iterator[str]:
    yield "## Equivalent"
    yield ""
    for each in results:
        if each.what == "equivalent":
            yield f"- {described(each.mutant)}: {each.reason}"


def survivors(results: Sequence[Judged]) -> Iterator[str]:
    yield "## Survivors"
    yield ""
    found = [each for each in results if each.what == "survivor"]
    for each in found:
        yield f"- {described(each.mutant)} ({each.asked} of {each.running} tests asked)"
    if not found:
        yield "None."


def described(mutant: Mutant) -> str:
    return f"`{mutant.module}` {mutant.function or 'the module'}: `{mutant.before}` → `{mutant.after}`"
