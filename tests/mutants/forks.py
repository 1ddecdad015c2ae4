"""pytest in a fork of this process, which has imported what does not change; what its plugin tells comes as lines."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np  # noqa: F401  so that every fork has it
import pytest

OPTIONS = ("-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider")
Tell = Callable[[str], None]


class Lines:
    """What is written to a pipe, line by line."""

    def __init__(self, reading: int) -> None:
        self.reading, self.pending = reading, b""

    def next(self, seconds: float) -> str | None:
        """The next line; "" at the end; None if there is none within so many seconds."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.pending:
            if not select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            read = os.read(self.reading, 1 << 16)
            if not read:
                return ""
            self.pending += read
        line, _, self.pending = self.pending.partition(b"\n")
        return line.decode()


@contextmanager
def forked_pytest(
    copy: Path, files: Sequence[str], plugin: Callable[[Tell], Any], *, keep_bytecode: bool = False
) -> Iterator[Lines]:
    """pytest over `files` of the copy; what its plugin tells, and "ended" at the end."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        with suppress(BaseException):
            os.close(reading)
            run_pytest(copy, files, plugin, writing, keep_bytecode)
        os._exit(0)
    os.close(writing)
    try:
        yield Lines(reading)
    finally:
        kill(process)
        os.waitpid(process, 0)
        os.close(reading)


def run_pytest(
    copy: Path, files: Sequence[str], plugin: Callable[[Tell], Any], writing: int, keep_bytecode: bool
) -> None:
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
    if not keep_bytecode:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, deadline=None, database=None, max_examples=30,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )  # fmt: skip
    hypothesis.settings.load_profile("mutants")

    def tell(line: str) -> None:
        os.write(writing, line.replace("\n", " ").encode() + b"\n")

    pytest.main([*OPTIONS, f"--basetemp={copy.parent / 'temporary'}", *files], plugins=[plugin(tell)])
    tell("ended")


def kill(process: int) -> None:
    """Kill a process and whatever it has started."""
    for each in [*descendants(process), process]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that these have; none where there is no /proc."""
    found = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                found += [*descendants(int(child)), int(child)]
    return found
