"""Lets tests import each other as `tests.…`, gives every run the same examples, and hides how wide the terminal is."""

import compileall
import os
import sys
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


def pytest_collection_modifyitems(items):
    """Tests that start processes come first: one worker has them in turn, and no long one is left to the end."""
    items.sort(key=lambda item: item.get_closest_marker("mpi") is None)
