"""Samples from a user's function: arrays with the same checks as those of an .npz.

The function is called twice and must return the same bytes: samples that change from call to call could not be resumed
from a checkpoint, and would differ from rank to rank.
"""

from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import DataFault
from zerosim.parts import Named
from zerosim.parts.failing import told

NAMES = ("x", "y", "x_test", "y_test")
FORM = "return x, y or x, y, x_test, y_test, as arrays, or a dict of these"


def given(name: Named, keys: dict[str, Any], fault: DataFault) -> dict[str, Array]:
    """The function's arrays by name. Raises `fault`'s error if it fails or if they change from call to call."""
    once, again = (called(name, keys, fault) for _ in range(2))
    for what, array in once.items():
        if again.keys() != once.keys() or array.tobytes() != again[what].tobytes():
            raise fault(f"its {what} changes from call to call; seed its random numbers, as in "
                        f"np.random.default_rng(0)")
    return once


def called(name: Named, keys: dict[str, Any], fault: DataFault) -> dict[str, Array]:
    """The arrays of one call."""
    function = name.part.function
    try:
        found = function(**keys)
    except Exception as error:
        raise fault(told(error, function)) from error
    if isinstance(found, tuple | list) and len(found) in (2, 4):
        found = dict(zip(NAMES, found, strict=False))
    if not isinstance(found, dict) or not {"x", "y"} <= set(found) <= set(NAMES):
        said = f"a dict of {', '.join(map(str, found))}" if isinstance(found, dict) else f"a {type(found).__name__}"
        if isinstance(found, tuple | list):
            said += f" of {len(found)}"
        raise fault(f"it returned {said}; {FORM}")
    if len(found) == 3:
        raise fault(f"it returned {', '.join(found)}; x_test and y_test come together")
    wrong = next((what for what, array in found.items() if not isinstance(array, np.ndarray)), None)
    if wrong is not None:
        raise fault(f"its {wrong} is a {type(found[wrong]).__name__}; {FORM}")
    return {what: found[what] for what in NAMES if what in found}
