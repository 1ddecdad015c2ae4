"""The local world: one thread for each rank, of which exactly one runs at a time.

    buffered      a send never waits for its receiver: the default, and what the protocol promises
    rendezvous    a send waits for its receiver: a program that needs buffers ends in a deadlock

A rank runs until it must wait; then another rank that can run, drawn from a seeded order, resumes. Since every receive
names its source, the order changes no result of a program, and a test shows this by varying the seed. When no rank can
run, the world ends with `Deadlock`, which says which rank waits for which. This needs no time limit.

Proofs run in both modes. A program that passes only the first works until its messages are large.

There is no second channel. A rank's other thread would not wait for the rank's turn, so prefetch and overlap run in
place here: same bits, same bytes, no overlap in time.
"""

import contextvars
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

from zerosim.core.allocation import Allocator
from zerosim.core.comm import Communicator, Exchange, ExchangesTogether, Payload, Reduction, check_rank
from zerosim.core.errors import CollectiveError, Deadlock
from zerosim.core.words import plural
from zerosim.worlds.call_stack import CodePlace, places, throw
from zerosim.worlds.delivery import check_into, check_match, check_payload, deliver
from zerosim.worlds.here import HERE, Location, explained
from zerosim.worlds.world import Result, left_early

RankProgram = Callable[[Communicator], Any]
Sends = Literal["buffered", "rendezvous"]

LOOK_UP_SECONDS = 0.1
UNWIND_SECONDS = 1.0
TURN_SECONDS = 5.0
"""The seconds that a rank may compute without a message, in a world that has a limit."""
MESSAGE, RECEIPT = "waits for a message from", "waits for its message to be received by"
STOPPED = "is stopped"


class Wait(NamedTuple):
    """The wait of a rank: its kind, the other rank, and the location."""

    what: str
    whom: int
    location: Location


class StillRunning(Deadlock):
    """A rank neither ended nor waited within its time; `places` are the lines it was in, innermost last."""

    def __init__(self, message: str, places: Sequence[CodePlace] = ()) -> None:
        super().__init__(message)
        self.places = places


def spawn(
    program: RankProgram, ranks: int, *, seed: int = 0, sends: Sends = "buffered", limit_seconds: float | None = None
) -> list[Any]:
    """The results of `program(comm)` on each of `ranks` ranks, as a list in rank order.

    `seed` fixes the order in which ranks take turns. With `sends="rendezvous"` a `send` waits until its message
    has been received, as an MPI library may do with messages above some size: a program that only works while its
    messages are small ends in `Deadlock` at once.

    Raises the exception of a rank, with a note that names the rank; `Deadlock` when no rank can continue;
    `StillRunning` when the ranks have not ended after `limit_seconds` or, with this limit, one has computed for
    `TURN_SECONDS` without a message; and `CollectiveError` when messages were never received, or a rank called
    `sys.exit`.

    >>> from zerosim.core.comm import left, right
    >>> import numpy as np
    >>> def program(comm):
    ...     arrived = np.empty(1)
    ...     comm.exchange(np.array([10.0 * comm.rank]), to=right(comm), into=arrived, source=left(comm))
    ...     return float(arrived[0])
    >>> spawn(program, ranks=3)
    [20.0, 0.0, 10.0]
    """
    if type(ranks) is not int or ranks < 1:
        raise CollectiveError(f"ranks={ranks!r}: a world has an integer number of ranks, 1 or more")
    if sends not in ("buffered", "rendezvous"):
        raise CollectiveError(f"sends={sends!r}: either 'buffered' or 'rendezvous'")
    return _World(ranks, seed, rendezvous=sends == "rendezvous").run(program, limit_seconds)


@dataclass(frozen=True)
class LocalWorld:
    """All ranks in this process, as `spawn` runs them: a `World`.

    >>> LocalWorld(3).run(lambda comm: comm.rank)
    [0, 1, 2]
    """

    ranks: int
    seed: int = 0
    sends: Sends = "buffered"
    limit_seconds: float | None = None
    kind: ClassVar[str] = "local"
    library: ClassVar[str] = "threads"
    rank_is_process: ClassVar[bool] = False
    shared_cores: ClassVar[int] = 0

    @property
    def hosts(self) -> list[int]:
        """One host for all ranks."""
        return [0] * self.ranks

    @property
    def words(self) -> str:
        return f"{plural(self.ranks, 'rank')} simulated in this process (mpirun -n {self.ranks}: one process per rank)"

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        return spawn(program, self.ranks, seed=self.seed, sends=self.sends, limit_seconds=self.limit_seconds)

    def channel(self) -> None:
        """None: another thread of a rank would not wait for the rank's turn."""

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Does nothing: messages in flight are counted for no rank."""

    def kill(self, comm: Communicator) -> NoReturn:
        """End the thread of this rank, which has no process of its own."""
        raise _Killed(HERE.get())

    def stop(self, comm: Communicator) -> None:
        """Block the thread of this rank for ever."""
        assert isinstance(comm, LocalCommunicator)
        comm.stop()


class _Killed(BaseException):
    """Ends a rank at its present line, without a message to others."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self.location = location


class _Ended(BaseException):
    """Unwinds a rank after another one has failed."""


def has_ended() -> CollectiveError:
    return CollectiveError("this communicator's world has ended: use it inside the program that spawn runs")


class _World:
    def __init__(self, size: int, seed: int, *, rendezvous: bool) -> None:
        self.size = size
        self.rendezvous = rendezvous
        self.random = random.Random(seed)
        self.mail: defaultdict[tuple[int, int], deque[Payload]] = defaultdict(deque)
        self.waits_for: list[Wait | None] = [None] * size
        self.runnable = list(range(size))
        self.woke_ns = [0] * size
        self.unfinished = set(range(size))
        self.killed: dict[int, Location] = {}
        self.turns = [threading.Lock() for _ in range(size)]
        self.results: list[Any] = [None] * size
        self.failure: BaseException | None = None
        self.running = 0
        self.moves = 0
        self.threads: list[threading.Thread] = []
        self.ended = False
        self.done = threading.Event()

    def run(self, program: RankProgram, limit_seconds: float | None) -> list[Any]:
        for turn in self.turns:
            turn.acquire()
        for rank in range(self.size):
            live = contextvars.copy_context().run  # so that np.errstate and other context variables hold on every rank
            thread = threading.Thread(target=live, args=(self._live, rank, program), name=f"rank {rank}", daemon=True)
            try:
                thread.start()
                self.threads.append(thread)
            except RuntimeError as error:
                self.unfinished = set(range(rank))
                self.failure = CollectiveError(
                    f"{rank} of {self.size} ranks have started, and no more threads can: {error}; give fewer ranks")
                break
        self._pass_turn()
        try:
            self._await_end(limit_seconds)
        except BaseException as interruption:
            self.failure = interruption
            if isinstance(interruption, StillRunning):
                throw(self.threads[self.running].ident, _Ended)
                self.done.wait(UNWIND_SECONDS)
            raise
        finally:
            self.ended = True
        if self.failure is not None:
            raise self.failure
        for (source, to), mail in self.mail.items():
            if mail:
                raise CollectiveError(f"rank {to} ended without receiving {len(mail)} message(s) from rank {source}: "
                                      "every send needs its receive")
        return self.results

    def _await_end(self, limit_seconds: float | None) -> None:
        """Wait for the last rank, and wake up regularly: an interrupt may have reached another thread."""
        began, moves, computed = time.monotonic(), -1, 0.0
        while not self.done.wait(LOOK_UP_SECONDS):
            if limit_seconds is None:
                continue
            if moves != self.moves:
                moves, computed = self.moves, time.process_time()
            if time.process_time() - computed > TURN_SECONDS:
                raise self._still_running(f"after {TURN_SECONDS:g} s of computing without a message")
            if time.monotonic() - began > limit_seconds:
                raise self._still_running(f"after {limit_seconds:g} s")

    def _still_running(self, when: str) -> StillRunning:
        rank = self.running
        return StillRunning(f"rank {rank} still ran {when}", places(self.threads[rank].ident))

    def _live(self, rank: int, program: RankProgram) -> None:
        with suppress(_Ended):  # it is raised in a running rank at any line
            self._take_turns(rank, program)

    def _take_turns(self, rank: int, program: RankProgram) -> None:
        self.turns[rank].acquire()
        try:
            if self.failure is None:
                self.results[rank] = program(LocalCommunicator(self, rank))
        except _Ended:
            pass
        except _Killed as end:
            self.killed[rank] = end.location
        except SystemExit as exit_:
            if self.failure is None:
                self.failure = left_early(exit_, rank, self.size)
        except BaseException as error:
            if self.failure is None:
                error.add_note(f"(raised on rank {rank} of {self.size})")
                self.failure = error
        self.unfinished.discard(rank)
        self._pass_turn()

    def _pass_turn(self) -> None:
        """Let the next rank run: one that can or, once the world has failed, any that must be unwound."""
        if self.failure is None and not self.runnable and (self.unfinished or self.killed):
            self.failure = Deadlock(f"no rank can go on{explained(self._who_waits())}")
        if not self.unfinished:
            self.done.set()
            return
        if self.failure is not None:
            self.turns[next(iter(self.unfinished))].release()
            return
        self.moves += 1
        drawn = int(self.random.random() * len(self.runnable))
        self.runnable[drawn], self.runnable[-1] = self.runnable[-1], self.runnable[drawn]
        self.running = self.runnable.pop()
        self.turns[self.running].release()

    def post(self, rank: int, outgoing: Payload, to: int) -> None:
        if self.ended:
            raise has_ended()
        self.moves += 1
        self.mail[rank, to].append(outgoing.copy())
        if self._waits(to, MESSAGE, rank):
            self._wake(to)

    def take(self, rank: int, source: int) -> Payload:
        if self.ended:
            raise has_ended()
        mail = self.mail[source, rank]
        if not mail:
            self.wait(rank, MESSAGE, source)
        arrived = mail.popleft()
        if not mail and self._waits(source, RECEIPT, rank):
            self._wake(source)
        return arrived

    def await_receipt(self, rank: int, to: int) -> None:
        if self.mail[rank, to]:
            self.wait(rank, RECEIPT, to)

    def _waits(self, rank: int, what: str, whom: int) -> bool:
        wait = self.waits_for[rank]
        return wait is not None and wait.what == what and wait.whom == whom

    def wait(self, rank: int, what: str, whom: int) -> None:
        self.waits_for[rank] = Wait(what, whom, HERE.get())
        self._pass_turn()
        self.turns[rank].acquire()
        self.woke_ns[rank] = time.monotonic_ns()
        if self.failure is not None:
            raise _Ended

    def _wake(self, rank: int) -> None:
        self.waits_for[rank] = None
        self.runnable.append(rank)

    def _who_waits(self) -> list[tuple[str, str]]:
        """The ranks that have not finished, with the kind and location of each wait; killed ranks come first."""
        states = [(f"rank {rank} was killed", str(location)) for rank, location in self.killed.items()]
        for rank in sorted(self.unfinished):
            wait = self.waits_for[rank]
            assert wait is not None
            gone = ", which was killed" if wait.whom in self.killed else ", which has finished"
            whom = f" rank {wait.whom}{'' if wait.whom in self.unfinished else gone}" if wait.what != STOPPED else ""
            states.append((f"rank {rank} {wait.what}{whom}", str(wait.location)))
        return states


class LocalCommunicator(ExchangesTogether):
    """One rank of a local world."""

    def __init__(self, world: _World, rank: int) -> None:
        self.rank = rank
        self.size = world.size
        self._world = world

    @property
    def came_ns(self) -> int:
        """The time at which this rank last resumed after a wait, by the monotonic clock."""
        return self._world.woke_ns[self.rank]

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            self._check_send(exchange.outgoing, exchange.to)
            self._check_receive(exchange.into, exchange.source)
        for exchange in exchanges:
            self._world.post(self.rank, exchange.outgoing, exchange.to)
        for exchange in exchanges:
            self._receive(exchange.into, exchange.source, exchange.reduce)
        if self._world.rendezvous:
            for exchange in exchanges:
                self._world.await_receipt(self.rank, exchange.to)

    def send(self, outgoing: Payload, *, to: int) -> None:
        self._check_send(outgoing, to)
        self._world.post(self.rank, outgoing, to)
        if self._world.rendezvous:
            self._world.await_receipt(self.rank, to)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        self._check_receive(into, source)
        self._receive(into, source, reduce)

    def stop(self) -> None:
        """Block until the world ends."""
        self._world.wait(self.rank, STOPPED, self.rank)

    def _check_send(self, outgoing: Payload, to: int) -> None:
        check_rank(to, self.size, "to")
        check_payload(outgoing, "outgoing")

    def _check_receive(self, into: Payload, source: int) -> None:
        check_rank(source, self.size, "source")
        check_payload(into, "into")
        check_into(into)

    def _receive(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        arrived = self._world.take(self.rank, source)
        check_match(arrived, into, source=source, rank=self.rank)
        deliver(arrived, into, reduce)
