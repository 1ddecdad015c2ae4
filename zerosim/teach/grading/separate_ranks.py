"""Ranks of a submission in separate processes, as functions that the claims run in this process.

A stand-in for the submission's function runs on each rank of a local world here: it asks the rank's process, and sends
and receives in its place. So this process routes and counts all messages, and notices deadlocks.

A rank receives the other ranks' values only in messages. Contributions travel as numbers drawn here for each run, and
this process attributes each number that comes back. So a result was computed from messages routed here, unless the
ranks communicate secretly.

    exact     the real part of a number: integers, whose sum identifies its terms
    rounded   the imaginary part, whose bits show in which order it was added
"""

import json
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator, Reduction
from zerosim.errors import CollectiveError
from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.instruments.observed import Observed
from zerosim.instruments.traffic import Traffic
from zerosim.numerics.orders import AddingOrder, rank_order
from zerosim.payloads.terms import Blank, Symbol, Term, commuted, filled
from zerosim.sharding import Chunks, chunk_length
from zerosim.teach.grading.contained import Learner, ended
from zerosim.teach.grading.rank_process import NUMBERS, Said, packed, unpacked
from zerosim.teach.grading.trained import Figures, SeparateStep, Tiny, Trained

MOST_BYTES = 1 << 20
"""The longest line that a rank may send; read as JSON it takes up to 30 times as much, and right ones have 7 kB."""
MOST_POSTED_BYTES, POSTED_BYTES = 1 << 28, 1 << 10
"""The most bytes sent in one run, where each message and each attributed number counts as `POSTED_BYTES` more."""
MOST_USED = 100
"""The most reports of a use, and the characters kept of each."""
LIMIT_SECONDS = 120.0
"""The time limit of all runs together."""
ATTRIBUTED = np.dtype(np.complex128)
"""The dtype of contributions."""
ROUNDING = 1e-9
"""More than orders of addition differ in the rounded part of a sum."""
DRAWN = secrets.randbits(32)
"""The seed of the samples of trainings, which no submission knows beforehand."""


class RunFailed(CollectiveError):
    """A run that did not end correctly; the message is the cause."""


class Contributions:
    """The number of each contribution in one run, and the symbols of numbers that ranks send."""

    def __init__(self, size: int, count: int, order: AddingOrder | None) -> None:
        random = np.random.default_rng()
        exact, rounded = random.integers(-1 << 48, 1 << 48, (size, count)), random.standard_normal((size, count))
        self.numbers: Array = exact + 1j * rounded
        self._size, self._count, self._order = size, count, order
        self._sent: dict[int, tuple[Symbol, complex]] = {}

    @cached_property
    def _sums(self) -> dict[float, tuple[int, int]]:
        """The sum of each set of ranks at each element: the set as bits, and the element."""
        table = np.zeros((1, self._count))
        for own in self.numbers.real:
            table = np.concatenate([table, table + own])
        return {total: (ranks, element) for ranks, row in enumerate(table.tolist()) if ranks
                for element, total in enumerate(row)}

    def encoded(self, symbols: Array) -> Array:
        """The numbers of symbols that were drawn or attributed here, and noise for blanks."""
        noise = np.random.default_rng().standard_normal(symbols.size)
        return np.array([self._number(symbol, other) for symbol, other in zip(symbols.flat, noise, strict=True)],
                        ATTRIBUTED)

    def _number(self, symbol: Symbol, noise: float) -> complex:
        if isinstance(symbol, Term):
            return complex(self.numbers[symbol.rank, symbol.element])
        return self._sent.get(id(symbol), (symbol, complex(noise)))[1]

    def attributed(self, numbers: Array, rank: int) -> Array:
        """The symbols of numbers from a rank; `Blank` for a number that is no sum of contributions to one element."""
        symbols = filled(self._symbol(number, rank) for number in numbers.reshape(-1).tolist())
        self._sent |= {id(symbol): (symbol, number)
                       for symbol, number in zip(symbols, numbers.reshape(-1).tolist(), strict=True)}
        return symbols

    def _symbol(self, number: complex, rank: int) -> Symbol:
        found: Symbol
        ranks, element = self._sums.get(number.real, (0, 0))
        terms = [Term(each, element) for each in range(self._size) if ranks >> each & 1]
        total = sum(complex(self.numbers[term.rank, element]) for term in terms)
        if not terms or abs(number - total) > ROUNDING:
            return Blank(rank)
        if self._order is None or len(terms) < self._size:
            found = rank_order(terms, 0)
            return found
        chunk = element // chunk_length(self._count, self._size)
        found = self._order(terms, chunk)
        if complex(self._order(list(self.numbers[:, element]), chunk)) == number:
            return found
        others = (rank_order(each, 0) for each in permutations(terms))
        return next((other for other in others if commuted(other) != commuted(found)), Blank(rank))


class SeparateRanks:
    """Processes that run a function of a file, one per rank; `order` is the order of addition to look for."""

    def __init__(self, file: str, name: str, most: int, learner: Learner, order: AddingOrder | None = None) -> None:
        pairs = [socket.socketpair() for _ in range(most)]
        self._wires, self._order = [ours for ours, _ in pairs], order
        self._lines = [each.makefile("rb") for each in self._wires]
        theirs = [its.fileno() for _, its in pairs]
        try:
            self._process = learner.started(
                "zerosim.teach.grading.rank_process", [file, name, *map(str, theirs)], theirs, subprocess.DEVNULL,
                subprocess.DEVNULL)
        finally:
            for _, its in pairs:
                its.close()
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self._trouble = ""
        self._open = self._posted_bytes = 0
        self._contributions: Contributions | None = None
        self.used: set[str] = set()
        """The uses of zerosim's solutions, as the ranks reported them before they took effect."""

    def __enter__(self) -> "SeparateRanks":
        return self

    def __exit__(self, *given: object) -> None:
        ended(self._process)
        for lines, wire in zip(self._lines, self._wires, strict=True):
            lines.close()
            wire.close()

    def collective(self, *, rooted: bool = False, per_host: bool = False) -> Callable[..., None]:
        """The function as one of this process, with the calling convention of a collective that works in place."""

        def plain(comm: Communicator, chunks: Any, reduce: Reduction = np.add) -> None:
            self._run_collective(comm, chunks, reduce)

        def with_root(comm: Communicator, vector: Any, root: int, reduce: Reduction = np.add) -> None:
            self._run_collective(comm, vector, reduce, root=root)

        def on_hosts(comm: Communicator, chunks: Any, per_host: int, reduce: Reduction = np.add) -> None:
            self._run_collective(comm, chunks, reduce, per_host=per_host, added="add")

        return on_hosts if per_host else with_root if rooted else plain

    def step(self) -> SeparateStep:
        """The function as a step that trains in the ranks' processes."""
        return SeparateStep(self._train, DRAWN)

    def _run_collective(
        self, comm: Communicator, chunks: Any, reduce: Any, root: int = 0, per_host: int = 1, added: str = "",
    ) -> None:
        """One rank of a run; `added` is the name of the reduction to give where the claim asks for np.add."""
        vector = chunks.flat if isinstance(chunks, Chunks) else chunks
        with self._rank_of_a_run(comm, len(vector) if vector.dtype == object else None):
            drawn = self._contributions
            sent = drawn.encoded(vector) if drawn else vector
            found = unpacked(self._answer(comm, {
                "vector": packed(sent), "root": root, "reduce": added if reduce is np.add else reduce.__name__,
                "per_host": per_host}))
            if found.shape != sent.shape or found.dtype != sent.dtype:
                raise RunFailed(f"rank {comm.rank} is left with {found.size} × {found.dtype}")
            vector[:] = drawn.attributed(found, comm.rank) if drawn else found

    def _train(self, comm: Communicator, tiny: Tiny, found: Trained) -> None:
        """The results of one rank of a training, and its traffic."""
        traffic, rank = Traffic(), comm.rank
        with self._rank_of_a_run(comm, None):
            gave = self._answer(Observed(comm, traffic), {"tiny": asdict(tiny)})
            for step in range(1, tiny.steps + 1):
                found.held[rank, step], found.losses[rank, step] = {}, np.empty(0)
            for step, loss in gave["losses"]:
                found.losses[rank, whole(step)] = unpacked(loss)
            for step, what, unit, array in gave["held"]:
                found.held[rank, whole(step)][str(what), str(unit)] = unpacked(array)
            found.figures[rank] = Figures(
                traffic.sent_bytes, traffic.messages, kept=[by_kind(each) for each in gave["kept"]],
                peak=by_kind(gave["peak"]),
                weights_in_backward=[(str(unit), whole(held)) for unit, held in gave["weights_in_backward"]])

    @contextmanager
    def _rank_of_a_run(self, comm: Communicator, count: int | None) -> Iterator[None]:
        """A rank's part of a run, whose first rank draws `count` contributions for each.

        Raises `RunFailed` if its process raises, sends anything malformed, or ends, and in all later runs.
        """
        if self._trouble:
            raise RunFailed(self._trouble)
        if not self._open:
            self._open, self._posted_bytes = comm.size, 0
            self._contributions = None if count is None else Contributions(comm.size, count, self._order)
        try:
            yield
            self._open -= 1
        except TimeoutError:
            self._trouble = f"still busy after {LIMIT_SECONDS:g} seconds"
            raise RunFailed(self._trouble) from None
        except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            self._trouble = f"rank {comm.rank} ended or sent an invalid message"
            raise RunFailed(self._trouble) from error
        except BaseException as error:
            self._trouble = self._trouble or str(error) or "an earlier run did not end"
            raise

    def _answer(self, comm: Any, what: Said) -> Any:
        """The answer of a rank's process, after all its messages."""
        self._say(comm.rank, what | {"rank": comm.rank, "size": comm.size})
        while "gave" not in (said := self._next_line(comm.rank)):
            self._carry(comm, said)
        return said["gave"]

    def _say(self, rank: int, said: Said) -> None:
        self._wires[rank].sendall(json.dumps(said).encode() + b"\n")

    def _next_line(self, rank: int) -> Said:
        self._wires[rank].settimeout(max(self._deadline - time.monotonic(), 0.01))
        line = self._lines[rank].readline(MOST_BYTES + 1)
        if len(line) > MOST_BYTES:
            raise RunFailed(f"rank {rank} sends more than {MOST_BYTES:,} bytes at once")
        if not line.endswith(b"\n"):
            raise RunFailed(f"rank {rank} ended")
        said: Said = json.loads(line)
        return said

    def _carry(self, comm: Any, said: Said) -> None:
        """Send and receive what a rank asks for, or note what it reports."""
        if "used" in said:
            few = len(self.used) < MOST_USED
            self.used.add(str(said["used"])[:MOST_USED] if few else f"more than {MOST_USED} uses, which are not told")
            return
        if "raised" in said:
            raise RunFailed(f"rank {comm.rank}: {str(said['raised'])[:1000]}")
        outgoing = self._outgoing(comm.rank, unpacked(said["array"])) if "to" in said else None
        if "from" not in said:
            comm.send(outgoing, to=whole(said["to"]))
            return
        into = self._buffer(whole(said["count"]), said["dtype"])
        if outgoing is None:
            comm.recv(into=into, source=whole(said["from"]))
        else:
            comm.exchange(outgoing, to=whole(said["to"]), into=into, source=whole(said["from"]))
        arrived = self._contributions.encoded(into) if self._contributions and into.dtype == object else into
        self._say(comm.rank, {"array": packed(arrived)})

    def _outgoing(self, rank: int, array: Array) -> Array:
        """The message to send here: attributed symbols in a run of contributions."""
        symbolic = self._contributions is not None and array.dtype == ATTRIBUTED
        self._posted_bytes += array.nbytes + POSTED_BYTES * (1 + array.size * symbolic)
        if self._posted_bytes > MOST_POSTED_BYTES:
            raise RunFailed(f"the ranks send more than {MOST_POSTED_BYTES:,} bytes")
        return self._contributions.attributed(array, rank) if self._contributions and symbolic else array

    def _buffer(self, count: int, dtype: str) -> Array:
        """Memory for a message of this length and dtype, which a rank has named."""
        if count > MOST_BYTES or dtype not in NUMBERS:
            raise ValueError(dtype)
        symbolic = self._contributions is not None and dtype == ATTRIBUTED.name
        return np.empty(count, object if symbolic else dtype)


def whole(said: object) -> int:
    """A count that a rank sent. Raises `ValueError` for anything else."""
    if type(said) is not int or said < 0:
        raise ValueError(said)
    return said


def by_kind(said: dict[str, object]) -> dict[str, int]:
    return {str(kind): whole(said[str(kind)]) for kind in MEMORY_KINDS}
