"""The second channel, on which prefetched and overlapped collectives run: in one thread, in the order of the code.

Messages between two ranks arrive in order, so two collectives at the same time on one channel would receive each
other's. The next unit's all-gather begins before this unit's backward, and its reduction after, so none waits for the
other. The step's thread allocates and keeps, so peaks and sums do not depend on the timing of threads.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.models.units import Unit

Work = Callable[[Communicator], Array]


class Pending:
    """A pending array, which can be taken once; then only its taker holds it."""

    def __init__(self, future: "Future[Array]") -> None:
        self._future = [future]

    def take(self) -> Array:
        """The array, after waiting for it; raises the exception of its computation."""
        return self._future.pop().result()


class SecondChannel:
    """A second channel, which must carry nothing else, and its thread.

    Without a channel, in a world that has none, all work is done at once on the step's own communicator, with the same
    bits.

    >>> import numpy as np
    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     second = SecondChannel(comm)
    ...     return second.begin(lambda comm: np.full(2, comm.rank)).take().tolist()
    >>> spawn(program, ranks=2)
    [[0, 0], [1, 1]]
    """

    def __init__(self, own: Communicator, channel: Communicator | None = None) -> None:
        self._comm = own if channel is None else channel
        self._thread = None if channel is None else ThreadPoolExecutor(1)

    def begin(self, work: Work) -> Pending:
        """Start `work`; its result is pending."""
        if self._thread is not None:
            return Pending(self._thread.submit(copy_context().run, work, self._comm))
        done: Future[Array] = Future()
        done.set_result(work(self._comm))
        return Pending(done)

    def wait(self, unit: Unit, pending: Pending) -> Array:
        """The pending array of `unit`."""
        return pending.take()
