"""Lets tests import each other as `tests.…`, asserts no time of any example, and hides how wide the terminal is."""

import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))

if settings.default.deadline is not None:
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")

os.environ.pop("COLUMNS", None)
