"""What the whole process holds: arrays and objects that no ledger counts, by `tracemalloc`, to which NumPy reports.

A ledger counts the arrays of zerosim's allocator. A part of a user may make arrays of its own, and keep them. Here
every live block is known, with the code that allocated it. Python runs several times as long, so a run does it on
request only.
"""

import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FRAMES = 12
"""The calls that are known of an allocation: enough to leave functions of NumPy that are written in Python."""
HOUSE = str(Path(__file__).parents[1])
STEP_BYTES = 4096
"""The bytes that a rank may keep of each step: its loss, and entries of lists."""


@contextmanager
def traced(frames: int = 1) -> Iterator[None]:
    """A context in which allocations are traced."""
    tracemalloc.start(frames)
    try:
        yield
    finally:
        tracemalloc.stop()


def traced_bytes() -> int:
    """The live bytes that have been allocated since tracing began; 0 if it has not."""
    return tracemalloc.get_traced_memory()[0]


def growth(after_steps: Sequence[int]) -> tuple[int, int]:
    """The bytes by which a process has grown in the second half of its steps, and their number.

    Ranks that share the process may be within a step, so the least of some neighbouring steps counts.

    >>> growth([0, 900, 0, 0, 10, 20, 930, 40])
    (40, 4)
    """
    half, few = len(after_steps) // 2, max(len(after_steps) // 4, 1)
    return min(after_steps[-few:]) - min(after_steps[half - few : half]), len(after_steps) - half


def made_by(file: str) -> Counter[int]:
    """The live bytes that lines of a file have allocated, by line; not those that zerosim allocated for them.

    >>> import numpy as np
    >>> with traced(FRAMES):
    ...     kept = np.zeros(1000)
    ...     max(made_by(__file__).values(), default=0) < kept.nbytes
    True
    """
    lines = Counter[int]()
    for trace in tracemalloc.take_snapshot().traces:
        for frame in reversed(trace.traceback):
            if frame.filename == file:
                lines[frame.lineno] += trace.size
            if frame.filename == file or frame.filename.startswith(HOUSE):
                break
    return lines
