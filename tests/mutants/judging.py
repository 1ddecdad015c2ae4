"""The first test that notices a mutant: pytest starts in a fork, imports the changed file, and runs tests in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.forks import Lines, Tell, forked_pytest

IMPORTS = "imports"
SECONDS_TO_COLLECT = 120.0
FASTEST = 10


@dataclass(frozen=True, eq=False)
class Known:
    """A test that passes, what it takes, and the functions that it runs, as `file:line`."""

    name: str
    seconds: float
    runs: frozenset[str]


def case_of(name: str) -> str:
    """The test of which this is a case: its name without parameters."""
    return name.partition("[")[0]


class Chosen:
    """A pytest plugin: tests in the order given, and no others; a name without parameters is that of all cases.

    A line goes to the parent as each test begins, and as it fails.
    """

    def __init__(self, names: Sequence[str], tell: Tell) -> None:
        self.tell = tell
        self.places = {name: place for place, name in enumerate(names)}

    def place(self, item: pytest.Item) -> int | None:
        return self.places.get(item.nodeid, self.places.get(case_of(item.nodeid)))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = [(place, item) for item in items if (place := self.place(item)) is not None]
        items[:] = [item for _, item in sorted(found, key=lambda each: each[0])]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell(f"failed {IMPORTS} of {report.nodeid}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(f"begins {nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tell(f"failed {report.nodeid}")


def noticed_by(copy: Path, tests: Sequence[Known], grace: float) -> str | None:
    """The first test that fails in the copy, where the mutant is; or takes five times its time and `grace` seconds.

    The fastest have a start of their own, for which few files are collected: they catch most mutants.
    """
    for asked in (tests[:FASTEST], tests[FASTEST:]):
        names = [test.name for test in asked]
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        if names:
            with forked_pytest(copy, files, lambda tell, names=names: Chosen(names, tell)) as lines:
                if failed := first_failure(lines, asked, grace):
                    return failed
    return None


def first_failure(lines: Lines, tests: Sequence[Known], grace: float) -> str | None:
    """What `lines` tell of these tests."""
    seconds = {test.name: test.seconds for test in tests}
    current, limit = IMPORTS, SECONDS_TO_COLLECT
    while True:
        line = lines.next(limit)
        what, _, name = (line or "").partition(" ")
        match what:
            case "begins":
                current, limit = name, grace + 5 * seconds.get(name, seconds.get(case_of(name), 0.0))
            case "failed":
                return name
            case "ended":
                return None
            case _:
                return f"{current} ({'timeout' if line is None else 'the process died'})"
