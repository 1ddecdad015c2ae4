"""A clock that is moved, to see whether a function's result depends on the time at which it is called."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

CLOCKS = ("time", "monotonic", "perf_counter")
LATER_SECONDS = 3661
"""An hour, a minute and a second."""


@contextmanager
def clock_moved(function: Callable[..., Any], seconds: int) -> Iterator[None]:
    """Move the clocks of `time` by `seconds`, those too that the module of `function` has imported by name.

    >>> with clock_moved(clock_moved, 60):
    ...     later = time.time()
    >>> 50 < later - time.time() < 70
    True
    """
    moved: dict[int, Callable[[], Any]] = {}
    for name in CLOCKS:
        for clock, by in ((getattr(time, name), seconds), (getattr(time, f"{name}_ns"), seconds * 10**9)):
            moved[id(clock)] = partial(lambda clock, by: clock() + by, clock, by)
    with ExitStack() as back:
        for names in (vars(time), getattr(function, "__globals__", {})) if seconds else ():
            clocks = {name: value for name, value in names.items() if id(value) in moved}
            back.callback(names.update, clocks)
            names.update({name: moved[id(clock)] for name, clock in clocks.items()})
        yield
