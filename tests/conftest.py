"""Lets tests import each other as `tests.…`, however pytest was started, and asserts no time of any example."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))

if settings.default.deadline is not None:
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
