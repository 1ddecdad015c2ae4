"""Lets tests import each other as `tests.…`, gives every run the same examples, and hides how wide the terminal is."""

import compileall
import os
import sys
from collections import defaultdict
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
    "accumulation", "autocast", "bounds", "bring", "buckets", "checkpoint", "checkpoint_run", "cli", "collectives",
    "confirmed", "docs", "examples", "far", "formulas", "grade", "hosts", "hunt", "independent",
    "independent_transformer", "kinds", "lessons", "loops", "marking", "mesh", "mixture", "mutants",
    "notebooks", "operations", "outside_answers", "page", "param_dtype",
    "pictures", "pipeline", "planted",
    "ported_from_mpi_suites", "proofs", "published", "published_layouts", "python_first", "quantized",
    "right_programs", "run", "scenarios", "second_copy", "segments", "sequences",
    "split_checkpoints", "split_models", "split_runs", "torch_functions",
    "trace", "transformers", "two_level", "variants", "whole_steps", "wires", "laws", "wrong_programs",
    "checks_of_parts",
}
"""The files whose tests train, prove or draw many cases: `make check` leaves them to `make test`."""


def in_sample(cases):
    """Each of `cases`, and whether `make test` tries it: all of SHORT, of more the first and the last.

    Where a table is a product of several lists, these two differ in each of them. `make whole` tries the others.

    >>> [case for case, kept in in_sample(range(20)) if kept]
    [0, 19]
    """
    return [(case, len(cases) <= SHORT or index in {0, len(cases) - 1}) for index, case in enumerate(cases)]


SHORT = 2
"""A table of up to so many cases is no long one."""


def pytest_collection_modifyitems(items):
    """Tests that start processes come first: one worker has them in turn, and no long one is left to the end."""
    tables = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("long"):
            tables[item.nodeid.partition("[")[0]].append(item)
    for cases in tables.values():
        for item, kept in in_sample(cases):
            broad = item.path.stem.removeprefix("test_") in BROAD
            if broad:
                item.add_marker("broad")
            if not kept and (broad or item.get_closest_marker("mpi")):
                item.add_marker("rest")
    items.sort(key=lambda item: item.get_closest_marker("mpi") is None)
