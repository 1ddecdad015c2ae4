"""The order of a group's operations: one channel, one operation at a time, in the order of their calls.

Asynchronous operations run on a thread of the group. Others run on the calling thread, after all earlier ones have
ended: passing them to a thread would cost more than a small collective.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from zerosim.errors import Deadlock
from zerosim.torch.watching import WATCH

Doing = Callable[[], None]
LATER = 1.0
"""The seconds by which a wait for an operation outlasts the operation's own wait, whose error names the ranks."""


class Began(Work):
    """An operation in progress; `outputs` are the tensors that it fills."""

    def __init__(
        self, outputs: list[Any], future: "Future[None] | None" = None, turns: "Turns | None" = None
    ) -> None:
        super().__init__()
        self._outputs = outputs
        self._future, self._turns = future, turns

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return once it has ended; raises its exception, and `Deadlock` after `timeout`."""
        if self._future is not None and self._turns is not None:
            future, turns = self._future, self._turns
            WATCH.waiting(lambda: turns.finish(future, timeout.total_seconds()))
            future.result()
        return True

    def is_completed(self) -> bool:
        return self._future is None or self._future.done()

    def is_success(self) -> bool:
        return self._future is None or (self._future.done() and self._future.exception() is None)

    def exception(self) -> BaseException | None:
        return None if self._future is None else self._future.exception()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Any]:
        """The tensors, after waiting until they are filled."""
        self.wait()
        return self._outputs

    def get_future(self) -> Any:
        """The tensors, as a PyTorch future."""
        ended = torch.futures.Future()
        if self._future is None:
            ended.set_result(self._outputs)
            return ended
        # A PyTorch future fails in a wait in C++ only if a callback raises.
        told = ended.then(self._value)
        # A callback may wait for a later collective, so it must not run on the thread that runs collectives.
        self._future.add_done_callback(
            lambda _: threading.Thread(target=ended.set_result, args=(None,), daemon=True).start())
        return told

    def _value(self, _: Any) -> list[Any]:
        self.wait()
        return self._outputs


class Turns:
    """Runs the operations of one channel in order.

    `seconds` is the timeout of the channel's messages, and `progress` changes with each message that arrives.
    """

    def __init__(self, name: str, seconds: float, progress: Callable[[], int]) -> None:
        self._name, self._seconds, self._progress = name, seconds, progress
        self._lock = threading.RLock()
        self._last: Future[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def now(self, do: Doing, outputs: list[Any]) -> Began:
        """Run an operation here, after all earlier ones."""
        with self._lock:
            if self._last is not None:
                self.finish(self._last)
                self._last = None
            do()
        return Began(outputs)

    def begin(self, do: Doing, outputs: list[Any]) -> Began:
        """Run an operation on the thread of this channel."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"zerosim {self._name}")
            self._last = self._thread.submit(WATCH.noting_failure(do))
            return Began(outputs, self._last, self)

    def finish(self, future: "Future[None]", seconds: float = 0.0) -> None:
        """Wait until an operation has ended.

        Raises `Deadlock` after `seconds`; if they are 0, when no message has arrived for the channel's timeout.
        """
        while True:
            before, limit = self._progress(), seconds or self._seconds + LATER
            try:
                future.exception(limit)
                return
            except TimeoutError:
                if seconds or self._progress() == before:
                    raise Deadlock(
                        f"waited {limit:g} s for a collective of group {self._name}; every rank of the group calls it, "
                        "and a slow one needs a longer timeout") from None
