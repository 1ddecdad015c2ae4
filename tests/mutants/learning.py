"""Which tests run which functions, and how long each takes: learned from one run of the suite, and kept."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.copying import copied
from tests.mutants.forks import Tell, forked_pytest
from tests.mutants.judging import IMPORTS, Known

SECONDS_FOR_A_TEST = 120.0


class Learner:
    """A pytest plugin: traces each test to a file of its own, and tells its parent how it went.

    What happens before, imports and the collecting of tests, counts as a test called "imports".
    """

    def __init__(self, traces: Path, tell: Tell) -> None:
        self.traces, self.tell = traces, tell
        self.passed = True

    def begin(self, test: str) -> float:
        """Trace what is called from here on to the file of this test; the time now."""
        from tests.mutants import tracing  # the copy's own

        self.passed = True
        tracing.begin(str(self.traces / file_name(test)))
        return time.monotonic()

    def end(self, test: str, began: float) -> None:
        self.tell(json.dumps([test, time.monotonic() - began, self.passed]))

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        began = self.begin(IMPORTS)
        result = yield
        self.end(IMPORTS, began)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = self.begin(item.nodeid)
        result = yield
        self.end(item.nodeid, began)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed = self.passed and not report.failed


def learned(tree: Path, kept: Path) -> list[Known]:
    """Every test of the tree that passes while it is traced; from `kept`, if the tree has not changed since."""
    file = kept / f"{fingerprint(tree)}.json"
    if file.exists():
        return [Known(name, seconds, frozenset(runs)) for name, seconds, runs in json.loads(file.read_text())]
    with copied(tree) as copy:
        tests = list(traced(copy))
    kept.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([[test.name, test.seconds, sorted(test.runs)] for test in tests]))
    return tests


def traced(copy: Path) -> Iterator[Known]:
    """The tests that start no MPI, one file after the other, each in a process of its own."""
    traces = copy.parent / "traces"
    traces.mkdir()
    for file in sorted((copy / "tests").glob("test_*.py")):
        yield from traced_file(copy, traces, file.relative_to(copy).as_posix())


def traced_file(copy: Path, traces: Path, file: str) -> Iterator[Known]:
    words = [file, "-m", "not mpi"]
    with forked_pytest(copy, words, lambda tell: Learner(traces, tell), keep_bytecode=True) as lines:
        while line := lines.next(SECONDS_FOR_A_TEST):
            if line == "ended":
                return
            name, seconds, passed = json.loads(line)
            trace = traces / file_name(name)
            runs = frozenset(trace.read_text().split()) if trace.exists() else frozenset()
            if passed:
                yield Known(name, seconds, runs)
            else:
                print(f"left out, since it fails while it is traced: {name}", flush=True)
    print(f"left out from here on, since a test ended its process while it was traced: {file}", flush=True)


def file_name(test: str) -> str:
    return hashlib.sha256(test.encode()).hexdigest()


def fingerprint(tree: Path) -> str:
    """What tells one state of the package and its tests from another."""
    digest = hashlib.sha256()
    for path in sorted([*tree.glob("zerosim/**/*.py"), *tree.glob("tests/**/test_*.py"), *tree.glob("tests/mpi/*.py")]):
        digest.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
