"""Ranks of a submission in separate processes; this process routes and counts their messages.

A rank receives the other ranks' values only in messages. So a result from values drawn here was computed from messages
routed here, unless the ranks communicate secretly.
"""

import json
import selectors
import socket
import subprocess
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zerosim.allocation import Array
from zerosim.plan.fluid import FluidProgram, ReceiveFrom, Transfer
from zerosim.teach.grading.contained import Learner, ended
from zerosim.teach.grading.rank_apart import Said, packed, unpacked
from zerosim.words import plural

MOST_BYTES = 1 << 20
"""The longest line that a rank may send; read as JSON it takes up to 30 times as much, and right ones have 7 kB."""
MOST_POSTED_BYTES, POSTED_BYTES = 1 << 28, 1 << 10
"""The most bytes sent in one run, where each message counts as `POSTED_BYTES` more."""
MOST_USED = 100
"""The most reports of a use, and the characters kept of each."""
LIMIT_SECONDS = 120.0
"""The time limit of all runs together."""


class Astray(Exception):
    """A run that did not end correctly; the message is the cause."""


@dataclass(frozen=True)
class Carried:
    """A received message."""

    source: int
    to: int
    elements: int
    bytes: int
    round: int


@dataclass
class RoutedRun:
    """The result of each rank, and all messages in the order of their receipt."""

    gave: list[Any] = field(default_factory=list)
    messages: list[Carried] = field(default_factory=list)
    programs: list[FluidProgram] = field(default_factory=list)
    """The sends and receives of each rank, in its order."""

    def sent_by(self, rank: int) -> tuple[int, int]:
        """The number of messages from a rank, and of elements in them."""
        found = [message.elements for message in self.messages if message.source == rank]
        return len(found), sum(found)

    def bytes_of(self, rank: int) -> int:
        return sum(message.bytes for message in self.messages if message.source == rank)

    @property
    def rounds(self) -> int:
        return max((message.round for message in self.messages), default=0)


class RankProcesses:
    """Processes that run a function of a file, one per rank."""

    def __init__(self, file: str, name: str, most: int, learner: Learner) -> None:
        pairs = [socket.socketpair() for _ in range(most)]
        self._ours = [ours for ours, _ in pairs]
        for each in self._ours:
            each.settimeout(LIMIT_SECONDS)
        theirs = [its.fileno() for _, its in pairs]
        try:
            self._process = learner.started(
                "zerosim.teach.grading.rank_apart", [file, name, *map(str, theirs)], theirs, subprocess.DEVNULL,
                subprocess.DEVNULL)
        finally:
            for _, its in pairs:
                its.close()
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self._trouble = ""
        self.used: set[str] = set()
        """The uses of zerosim's solutions, as the ranks reported them before they took effect."""

    def __enter__(self) -> "RankProcesses":
        return self

    def __exit__(self, *given: object) -> None:
        ended(self._process)
        for each in self._ours:
            each.close()

    def run(self, asked: Sequence[Said]) -> RoutedRun:
        """One run on `len(asked)` ranks.

        Raises `Astray` if a rank raises, deadlocks, sends anything malformed, or ends; later runs raise it as well.
        """
        if self._trouble:
            raise Astray(self._trouble)
        try:
            return Routing(self._ours[:len(asked)], self._deadline, self.used).run(asked)
        except Astray as error:
            self._trouble = str(error)
            raise
        except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            self._trouble = f"on {plural(len(asked), 'rank')}: a rank ended or sent an invalid message"
            raise Astray(self._trouble) from error


@dataclass
class PostedArray:
    round: int
    array: Array


class Routing:
    """One run: the waiting ranks, and the messages under way."""

    def __init__(self, wires: Sequence[socket.socket], deadline: float, used: set[str]) -> None:
        self._wires, self._deadline, self._size, self._used = wires, deadline, len(wires), used
        self._posted: dict[tuple[int, int], deque[PostedArray]] = defaultdict(deque)
        self._awaited: dict[int, int] = {}
        self._round, self._next = [0] * self._size, [1] * self._size
        self._heard = [b""] * self._size
        self._ended: dict[int, Any] = {}
        self._run = RoutedRun(programs=[[] for _ in wires])
        self._posted_bytes = 0

    def run(self, asked: Sequence[Said]) -> RoutedRun:
        for rank, (wire, what) in enumerate(zip(self._wires, asked, strict=True)):
            say(wire, what | {"rank": rank, "size": self._size})
        with selectors.DefaultSelector() as waiting:
            for rank, wire in enumerate(self._wires):
                waiting.register(wire, selectors.EVENT_READ, rank)
            while len(self._ended) < self._size:
                if len(self._ended) + len(self._awaited) == self._size:
                    raise Astray(f"{self._where}: ranks wait for messages that no rank sends")
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise Astray(f"{self._where}: still busy after {LIMIT_SECONDS:g} seconds")
                for key, _ in waiting.select(left):
                    self._hear(key.data)
        if any(self._posted.values()):
            raise Astray(f"{self._where}: some messages were never received")
        self._run.gave = [self._ended[rank] for rank in range(self._size)]
        return self._run

    @property
    def _where(self) -> str:
        return f"on {plural(self._size, 'rank')}"

    def _hear(self, rank: int) -> None:
        """Process all complete lines from a rank."""
        piece = self._wires[rank].recv(1 << 16)
        *lines, rest = (self._heard[rank] + piece).split(b"\n")
        self._heard[rank] = rest
        if not piece:
            raise Astray(f"{self._where}: rank {rank} ended")
        if max(map(len, [rest, *lines])) > MOST_BYTES:
            raise Astray(f"{self._where}: rank {rank} sends more than {MOST_BYTES:,} bytes at once")
        for line in lines:
            self._told(rank, json.loads(line))

    def _told(self, rank: int, said: Said) -> None:
        if "used" in said:
            few = len(self._used) < MOST_USED
            self._used.add(str(said["used"])[:MOST_USED] if few else f"more than {MOST_USED} uses, which are not told")
            return
        if rank in self._awaited or rank in self._ended:
            raise ValueError
        if "raised" in said:
            raise Astray(f"{self._where}: rank {rank}: {str(said['raised'])[:1000]}")
        if "gave" in said:
            self._ended[rank] = said["gave"]
            return
        if "to" in said:
            self._round[rank] += 1
            self._next[rank] = self._round[rank] + ("from" not in said)
            to, array = self._known(said["to"]), unpacked(said["array"])
            self._posted[rank, to].append(PostedArray(self._round[rank], array))
            self._posted_bytes += array.nbytes + POSTED_BYTES
            self._run.programs[rank].append(Transfer(to, array.nbytes))
            if self._posted_bytes > MOST_POSTED_BYTES:
                raise Astray(f"{self._where}: the ranks send more than {MOST_POSTED_BYTES:,} bytes")
        if "from" in said:
            self._awaited[rank] = self._known(said["from"])
            self._run.programs[rank].append(ReceiveFrom(self._awaited[rank]))
        for to, source in [*self._awaited.items()]:
            if self._posted[source, to]:
                del self._awaited[to]
                self._deliver(source, to, self._posted[source, to].popleft())

    def _known(self, rank: Any) -> int:
        if type(rank) is not int or not 0 <= rank < self._size:
            raise ValueError
        return rank

    def _deliver(self, source: int, to: int, mail: PostedArray) -> None:
        self._round[to] = max(self._next[to], mail.round)
        self._next[to] = self._round[to] + 1
        self._run.messages.append(Carried(source, to, mail.array.size, mail.array.nbytes, self._round[to]))
        say(self._wires[to], {"array": packed(mail.array)})


def say(wire: socket.socket, said: Said) -> None:
    wire.sendall(json.dumps(said).encode() + b"\n")
