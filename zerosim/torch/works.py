"""The operations of a group: collectives in the order of their calls, and point-to-point messages.

One channel runs one collective at a time. Asynchronous ones run on a thread of the group. Others run on the calling
thread, after all earlier ones have ended: passing them to a thread would cost more than a small collective.

Messages go under tags, and are received from one rank or from any. MPI matches tags and sources. A receive takes place
when its message has arrived and the program waits for it; until then MPI keeps the message. Receives with one tag get
messages in the order of their calls, as MPI's own would. One thread at a time may wait for receives of a group.

    queue       unfinished receives with one tag, in the order of their calls
    a message   goes to the first receive in the queue that names its source or none
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from zerosim.allocation import Array
from zerosim.comm import among
from zerosim.errors import Deadlock
from zerosim.instruments.observed import Observed
from zerosim.torch.arrays import Landing
from zerosim.torch.watching import WATCH
from zerosim.worlds.mpi_communicator import MpiCommunicator

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


LOOK_AGAIN = 1e-4
"""The seconds between two polls in a wait with a timeout."""

Observe = Callable[[MpiCommunicator], Observed]


class Mail:
    """The messages in `channel` between `ranks` of the world, the ranks of a group in its order."""

    def __init__(self, channel: MpiCommunicator, ranks: Sequence[int], observe: Observe) -> None:
        self._channel, self._ranks, self._observe = channel, ranks, observe
        self._tagged: dict[int, Tagged] = {}

    def tagged(self, tag: int) -> "Tagged":
        """The messages under `tag`; raises `CollectiveError` for a tag that MPI does not have."""
        if tag not in self._tagged:
            self._tagged[tag] = Tagged(self._channel.tagged(tag), self._ranks, self._observe)
        return self._tagged[tag]


class Tagged:
    """The messages of one tag, and the receives that wait for them."""

    def __init__(self, channel: MpiCommunicator, ranks: Sequence[int], observe: Observe) -> None:
        observed = observe(channel)
        comm = among(observed, ranks)
        self._send, self._recv = observed.named("send", comm.send), observed.named("recv", comm.recv)
        self._wait_for_any = Observed(channel, WATCH.locator).named("recv", channel.wait_for_any)
        self._channel, self._ranks = channel, ranks
        self._queue: deque[Receive] = deque()

    def send(self, owner: str, array: Array, to: int) -> None:
        """Send a copy of `array` without waiting; `owner` is the line of code that sends it."""
        self._send(owner, array, to=to)

    def ask(self, owner: str, landing: Landing, outputs: list[Any], source: int | None) -> "Receive":
        """A new receive from `source`, or from any rank; `outputs` are the tensors of `landing`."""
        receive = Receive(self, owner, landing, outputs, source)
        self._queue.append(receive)
        return receive

    def finish(self, receive: "Receive") -> None:
        """Wait until `receive` has its message."""
        while receive in self._queue:
            source = self._could_be_from(receive)
            if source is None:
                source = self._ranks.index(WATCH.waiting(lambda: self._wait_for_any(receive.owner)))
            self._deliver(source)

    def finish_within(self, receive: "Receive", seconds: float) -> None:
        """Wait until `receive` has its message; raises `Deadlock` after `seconds` seconds."""
        deadline = time.monotonic() + seconds
        while not WATCH.waiting(lambda: self.has_finished(receive)):
            if time.monotonic() > deadline:
                source = "any rank" if receive.source is None else f"rank {receive.source}"
                raise Deadlock(f"waited {seconds:g} s, the timeout of this wait, for a message from {source}; every "
                               "receive needs its send, and a slow rank a longer timeout")
            time.sleep(LOOK_AGAIN)

    def has_finished(self, receive: "Receive") -> bool:
        """Whether `receive` has its message, after delivering arrived ones; never waits."""
        while receive in self._queue:
            source = self._could_be_from(receive)
            arrived = self._channel.arrived(None if source is None else self._ranks[source])
            if arrived is None:
                return False
            self._deliver(self._ranks.index(arrived))
        return True

    def _could_be_from(self, receive: "Receive") -> int | None:
        """The source of the message to deliver next in a wait for `receive`; None for any rank."""
        ahead = list(self._queue)[: self._queue.index(receive)]
        return None if any(each.source is None for each in ahead) else receive.source

    def _deliver(self, source: int) -> None:
        """Receive the next message of `source`, into the first receive that accepts it."""
        receive = next(each for each in self._queue if each.source in (None, source))
        for array in receive.landing.arrays:
            self._recv(receive.owner, into=array, source=source)
        receive.landing.finish()
        receive.source = source
        self._queue.remove(receive)


class Receive(Began):
    """An unfinished receive. `source` is the rank of its message, None until a receive from any rank has one."""

    def __init__(
        self, messages: Tagged, owner: str, landing: Landing, outputs: list[Any], source: int | None
    ) -> None:
        super().__init__(outputs)
        self._messages = messages
        self.owner, self.landing, self.source = owner, landing, source

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return once the message has arrived; raises `Deadlock` after `timeout` or, if it is 0, after the group's
        timeout."""
        if timeout > timedelta(0):
            self._messages.finish_within(self, timeout.total_seconds())
        else:
            self._messages.finish(self)
        return True

    def is_completed(self) -> bool:
        return self._messages.has_finished(self)

    is_success = is_completed

    def source_rank(self) -> int:
        """The rank of the group that sent the message, after waiting for it."""
        self.wait()
        assert self.source is not None
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """The tensors as a future, after waiting for the message."""
        self.wait()
        return super().get_future()
