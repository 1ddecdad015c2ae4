"""Lets tests import each other as `tests.…`, gives every run the same examples, and hides how wide the terminal is."""

import compileall
import os
import sys
from itertools import groupby
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("others", deadline=None)  # for `make fuzz`
settings.load_profile("same")

os.environ.pop("COLUMNS", None)


def pytest_configure(config):
    """Compile once what some hundred processes of the suite import, and may not be allowed to keep compiled."""
    if not hasattr(config, "workerinput"):
        for folder in ("zerosim", "tests"):
            compileall.compile_dir(ROOT / folder, quiet=2)


BROAD = {
    "accumulation", "bounds", "bring", "buckets", "checkpoint", "checkpoint_run", "cli", "collectives",
    "confirmed", "docs", "examples", "grade", "hosts", "hunt", "independent", "independent_transformer",
    "kinds", "lessons", "loops", "marking", "mesh", "mistakes", "mutants", "notebooks", "offload", "far",
    "operations", "outside", "outside_answers", "page", "pictures", "plan", "plan_drawn", "planted",
    "ported_from_mpi_suites", "prove", "published", "python_first", "rehearsal", "right", "run", "scenarios",
    "second_copy", "sequences", "software", "stages", "testing", "torch_functions", "trace", "transformers",
    "trial", "two_level", "variants", "whole_steps",
}
"""The files whose tests train, prove or draw many cases: `make check` leaves them to `make test`."""


def in_sample(cases):
    """Each of `cases`, and whether it is one of at most SAMPLE that are evenly spread.

    >>> [case for case, kept in in_sample(range(20)) if kept]
    [0, 4, 8, 12, 16]
    """
    step = -(-len(cases) // SAMPLE)
    return [(case, index % step == 0) for index, case in enumerate(cases)]


SAMPLE = 6
"""The cases that `make test` tries of a table in such a file, evenly spread; `make whole` tries all others, for CI."""


def pytest_collection_modifyitems(items):
    """Tests that start processes come first: one worker has them in turn, and no long one is left to the end."""
    for _, cases in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        for item, kept in in_sample(list(cases)):
            broad = item.path.stem.removeprefix("test_") in BROAD
            if broad:
                item.add_marker("broad")
            if not kept and (broad or item.get_closest_marker("mpi")):
                item.add_marker("rest")
    items.sort(key=lambda item: item.get_closest_marker("mpi") is None)
