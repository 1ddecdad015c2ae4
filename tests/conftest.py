"""Lets tests import each other as `tests.…`, gives every run the same examples, and hides how wide the terminal is."""

import gc
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

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy is not yet imported; the workers and their processes share the cores

# What is compiled is kept, rewritten assertions too: workers and some hundred processes import the same files.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items):
    """Tests that start processes come first: one worker has them in turn, and no long one is left to the end."""
    items.sort(key=lambda item: item.get_closest_marker("mpi") is None)


def pytest_collection_finish():
    """Modules and collected tests stay to the end: the garbage collector need not pass over them again and again."""
    gc.freeze()
