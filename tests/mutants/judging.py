"""One mutant at a time, and the first test that fails.

Tests are collected once, and a fork of that process exchanges the code of the mutant's function and runs the tests
that could notice. Where the change takes effect on import, pytest starts anew.
"""

import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.mutants.exchange import exchange, functions_by_file
from tests.mutants.forks import Lines, Tell, forked_pytest, kill
from tests.mutants.mutations import Mutant

IMPORTS = "imports"
SECONDS_TO_COLLECT = 120.0


@dataclass(frozen=True, eq=False)
class Known:
    """A test that passes, what it takes, and the functions that it runs, as `file:line`."""

    name: str
    seconds: float
    runs: frozenset[str]


def case_of(name: str) -> str:
    """The test of which this is a case: its name without parameters."""
    return name.partition("[")[0]


class CannotExchangeError(Exception):
    """The mutant has to be imported anew."""


class Telling:
    """A pytest plugin: a line to the parent as each test begins, and as it fails."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.failed = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(f"begins {nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            self.tell(f"failed {report.nodeid}")


class Chosen(Telling):
    """Tests in the order given, and no others; a name without parameters is that of all cases."""

    def __init__(self, names: Sequence[str], tell: Tell) -> None:
        super().__init__(tell)
        self.places = {name: place for place, name in enumerate(names)}

    def place(self, item: pytest.Item) -> int | None:
        return self.places.get(item.nodeid, self.places.get(case_of(item.nodeid)))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = [(place, item) for item in items if (place := self.place(item)) is not None]
        items[:] = [item for _, item in sorted(found, key=lambda each: each[0])]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell(f"failed {IMPORTS} of {report.nodeid}")


class Waiting(Telling):
    """All tests are collected; then, for each file and list of tests that is asked about, a fork runs them.

    It tells "ready" for a request, the fork's number, what the fork has to tell, and "gone" when that has ended.
    """

    def __init__(self, requests: TextIO, tell: Tell) -> None:
        super().__init__(tell)
        self.requests = requests

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.functions = functions_by_file()
        gc.freeze()  # forks need not copy what no collection touches
        self.tell("ready")
        for request in self.requests:
            path, names = json.loads(request)
            process = os.fork()
            if process == 0:
                with suppress(BaseException):
                    os.setsid()
                    self.tell(f"{os.getpid()}")
                    self.run(path, [items[name] for name in names])
                os._exit(0)
            os.waitpid(process, 0)
            self.tell("gone")
            self.tell("ready")
        return True

    def run(self, path: str, items: Sequence[pytest.Item]) -> None:
        """The tests, on the code that the file has now, to the first failure."""
        if not exchange(self.functions[path], path, Path(path).read_text(encoding="utf-8")):
            self.tell("impossible")
            return
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return
        self.tell("ended")


Judge = Callable[[Path, Mutant, Sequence[Known], float], str | None]
"""The first test that fails in the copy, where the mutant is; or that takes five times its time and `grace` seconds."""


@contextmanager
def collected(copy: Path) -> Iterator[Judge]:
    """The judge of mutants inside of functions."""
    reading, writing = os.pipe()

    def plugin(tell: Tell) -> Any:
        os.close(writing)
        return Waiting(os.fdopen(reading), tell)

    with forked_pytest(copy, ["tests"], plugin) as lines, os.fdopen(writing, "w") as requests:
        os.close(reading)
        if lines.next(SECONDS_TO_COLLECT) != "ready":
            raise RuntimeError("pytest collected no tests")

        def judge(copy: Path, mutant: Mutant, tests: Sequence[Known], grace: float) -> str | None:
            print(json.dumps([str(copy / mutant.module), [test.name for test in tests]]), file=requests, flush=True)
            process = int(lines.next(SECONDS_TO_COLLECT) or "")
            try:
                return first_failure(lines, tests, grace)
            finally:
                kill(process)
                while (line := lines.next(SECONDS_TO_COLLECT)) != "ready":
                    assert line, "the process that collected the tests has died"

        yield judge


def judged_anew(copy: Path, mutant: Mutant, tests: Sequence[Known], grace: float) -> str | None:
    """The judge of any mutant."""
    names = [test.name for test in tests]
    files = list(dict.fromkeys(name.partition("::")[0] for name in names))
    with forked_pytest(copy, files, lambda tell: Chosen(names, tell)) as lines:
        return first_failure(lines, tests, grace)


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
            case "impossible":
                raise CannotExchangeError
            case _:
                return f"{current} ({'timeout' if line is None else 'the process died'})"
