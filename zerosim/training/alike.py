"""The settings of a process under which equal operations give equal bits."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from threadpoolctl import threadpool_limits


class OneBlasThread:
    """A context with one BLAS thread in this process; the first run to enter sets it, the last to leave lifts it.

    Runs in two threads otherwise lift each other's limit.
    """

    def __init__(self) -> None:
        self._lock, self._runs, self._limit = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._runs:
                self._limit.enter_context(threadpool_limits(1))
            self._runs += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._runs -= 1
            if not self._runs:
                self._limit.close()


ONE_BLAS_THREAD = OneBlasThread()


@contextmanager
def alike_everywhere() -> Iterator[None]:
    """Use one BLAS thread, since their number changes bits; and no warnings, since overflows are results."""
    with ONE_BLAS_THREAD, np.errstate(all="ignore"):
        yield
