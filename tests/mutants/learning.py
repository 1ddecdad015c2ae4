"""Which tests run which functions, and how long each takes: learned from one run of the suite, and kept."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mutants.judging import Test, copied, forked_pytest

SECONDS_FOR_A_TEST = 600.0


class Learner:
    """A pytest plugin: traces each test to a file of its own, and tells its parent how it went."""

    def __init__(self, traces: Path, tell: Callable[[str], None]) -> None:
        self.traces, self.tell = traces, tell
        self.passed = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        from tests.mutants import tracing  # the copy's own

        self.passed, began = True, time.monotonic()
        tracing.begin(str(self.traces / hashlib.sha256(item.nodeid.encode()).hexdigest()))
        result = yield
        self.tell(json.dumps([item.nodeid, time.monotonic() - began, self.passed]))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed = self.passed and not report.failed


def learned(tree: Path, kept: Path) -> list[Test]:
    """Every test of the tree that passes while it is traced; from `kept`, if the tree has not changed since."""
    file = kept / f"{fingerprint(tree)}.json"
    if file.exists():
        return [Test(name, seconds, frozenset(runs)) for name, seconds, runs in json.loads(file.read_text())]
    with copied(tree) as copy:
        tests = list(traced(copy))
    kept.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([[test.name, test.seconds, sorted(test.runs)] for test in tests]))
    return tests


def traced(copy: Path) -> Iterator[Test]:
    traces = copy.parent / "traces"
    traces.mkdir()
    with forked_pytest(copy, ["tests"], lambda tell: Learner(traces, tell), learning=True) as lines:
        for line in lines(lambda: SECONDS_FOR_A_TEST):
            if not line:
                raise RuntimeError("the suite did not come to its end while it was traced")
            if line.startswith("ended"):
                return
            name, seconds, passed = json.loads(line)
            trace = traces / hashlib.sha256(name.encode()).hexdigest()
            runs = frozenset(trace.read_text().split()) if trace.exists() else frozenset()
            if passed:
                yield Test(name, seconds, runs)
            else:
                print(f"left out, since it fails while it is traced: {name}", flush=True)


def fingerprint(tree: Path) -> str:
    """What tells one state of the package and its tests from another."""
    digest = hashlib.sha256()
    for path in sorted([*tree.glob("zerosim/**/*.py"), *tree.glob("tests/**/*.py")]):
        digest.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
