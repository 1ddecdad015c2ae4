"""A copy of the tree, one mutant in it, and the first test that fails.

pytest runs in a fork of this process, which has imported what does not change: a mutant costs a second and its tests.
"""

import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np  # noqa: F401  so that every fork has it
import pytest

from tests.mutants import tracing
from tests.mutants.mutations import Mutant

OPTIONS = ("-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider")
COLLECTING = "collecting"
SECONDS_TO_COLLECT = 60.0


@dataclass(frozen=True)
class Test:
    """A test that passes, what it takes, and the functions that it runs, as `file:line`."""

    name: str
    seconds: float
    runs: frozenset[str]


@contextmanager
def copied(tree: Path) -> Iterator[Path]:
    """A copy of the tree that may be changed, without what is hidden or built."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve() / "tree"
        shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info"))
        (copy / "tests" / "mutants").mkdir(parents=True, exist_ok=True)
        shutil.copy(tracing.__file__, copy / "tests" / "mutants")
        (copy / "sitecustomize.py").write_text(tracing.STARTUP)
        yield copy


@contextmanager
def planted(copy: Path, mutant: Mutant) -> Iterator[None]:
    """The mutant is in the copy, and no bytecode of the file that it replaces."""
    path = copy / mutant.module
    original = path.read_bytes()
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()
    path.write_text(mutant.source, encoding="utf-8")
    try:
        yield
    finally:
        path.write_bytes(original)


class Judge:
    """A pytest plugin: the chosen tests in their order, and a line to the parent as each begins or fails."""

    def __init__(self, tests: Sequence[Test], tell: Callable[[str], None]) -> None:
        self.place = {test.name: place for place, test in enumerate(tests)}
        self.tell = tell

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell(f"failed {COLLECTING} {report.nodeid}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(f"begins {nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tell(f"failed {report.nodeid}")


def first_failure(copy: Path, tests: Sequence[Test], grace: float) -> str | None:
    """The first of these tests that fails in the copy, or takes too long; None if all pass.

    Too long is five times what it took when it was learned, and `grace` seconds more.
    """
    seconds = {test.name: test.seconds for test in tests}
    files = list(dict.fromkeys(test.name.partition("::")[0] for test in tests))
    current, limit, ended = COLLECTING, SECONDS_TO_COLLECT, False
    with forked_pytest(copy, files, lambda tell: Judge(tests, tell)) as lines:
        for line in lines(lambda: limit):
            what, _, name = (line or "").partition(" ")
            match what:
                case "begins":
                    current, limit = name, grace + 5 * seconds[name]
                case "failed":
                    return name
                case "ended":
                    ended = True
                case _:
                    break
    if not ended:
        return f"{current} ({'timeout' if line is None else 'the process died'})"
    return None


@contextmanager
def forked_pytest(
    copy: Path, files: Sequence[str], plugin: Callable[..., Any], *, learning: bool = False
) -> Iterator[Any]:
    """pytest over `files` of the copy, in a fork; `lines(limit)` are what its plugin tells, None after a silence."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        with suppress(BaseException):
            os.close(reading)
            run_pytest(copy, files, plugin, writing, learning)
        os._exit(0)
    os.close(writing)
    try:
        yield lambda limit: lines_from(reading, limit)
    finally:
        end_with_descendants(process)
        os.close(reading)


def run_pytest(copy: Path, files: Sequence[str], plugin: Callable[..., Any], writing: int, learning: bool) -> None:
    """In the fork: leave nothing of the tree from which this was started, and run."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir(copy)
    sys.path[:] = [str(copy), *(place for place in sys.path if place not in ("", str(Path(__file__).parents[2])))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "zerosim")]:
        del sys.modules[name]
    os.environ |= {"PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1"}
    if not learning:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, deadline=None, database=None, max_examples=30,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )  # fmt: skip
    hypothesis.settings.load_profile("mutants")

    def tell(line: str) -> None:
        os.write(writing, line.replace("\n", " ").encode() + b"\n")

    stop = [] if learning else ["-x"]
    pytest.main([*OPTIONS, *stop, f"--basetemp={copy.parent / 'temporary'}", *files], plugins=[plugin(tell)])
    tell("ended ")


def lines_from(reading: int, limit: Callable[[], float]) -> Iterator[str | None]:
    """Lines from a pipe to its end; None, once, if none came within `limit()` seconds."""
    pending = b""
    while True:
        deadline = time.monotonic() + limit()
        while b"\n" not in pending:
            if not select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
                yield None
                return
            read = os.read(reading, 1 << 16)
            if not read:
                yield ""
                return
            pending += read
        line, _, pending = pending.partition(b"\n")
        yield line.decode()


def end_with_descendants(process: int) -> None:
    """Kill a process and whatever it has started, and wait for it."""
    for each in [*descendants(process), process]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    os.waitpid(process, 0)


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that these have; none where there is no /proc."""
    found = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                found += [*descendants(int(child)), int(child)]
    return found
