"""A collective under examination: ours or a user's, with one way to call both kinds of functions.

A function whose second parameter is named `chunks` (or `outgoing`, or `vector`, see the table of kinds) works in place
on a vector, as those in `zerosim.collectives` do. Any other takes this rank's array and returns its result, as
`zerosim.all_reduce` does.
"""

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zerosim.collectives import ALGORITHMS, Algorithm
from zerosim.collectives.kinds import COLLECTIVE_KINDS, COLLECTIVES, CollectiveKind, own
from zerosim.collectives.table import levels
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError, UsageError
from zerosim.core.parts.loading import Loader, is_python, meant
from zerosim.core.sharding import Chunks

HOUSE = str(Path(__file__).parents[1]) + os.sep
IN_PLACE = {name for kind in COLLECTIVE_KINDS.values() for name in kind.parameters[:1]}


@dataclass(frozen=True)
class Subject:
    """A function, the collective that it implements, and its row in the table of algorithms if it has one."""

    name: str
    collective: str
    function: Callable[..., Any]
    manner: Literal["in place", "array"]
    algorithm: Algorithm | None = None
    declared: Algorithm | None = None
    """The declaration of a user's function: its order of addition, and the numbers of ranks that it supports."""

    @property
    def kind(self) -> CollectiveKind:
        return COLLECTIVE_KINDS[self.collective]

    @property
    def file(self) -> str:
        """The file of the function, or an empty string if Python does not know it."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return "" if code is None else str(code.co_filename)

    @property
    def shipped(self) -> bool:
        """Whether its code is zerosim's own, which needs no time limit."""
        return self.algorithm is not None or self.file.startswith(HOUSE)

    @cached_property
    def takes_reduction(self) -> bool:
        """Whether it accepts a reduction: it has a parameter named `reduce`."""
        return self.kind.reducing and "reduce" in inspect.signature(self.function).parameters

    @property
    def keeps_argument(self) -> bool:
        """Whether its argument must be unchanged afterwards: in place, only a copy that is sent."""
        return self.manner == "array" or self.kind.displacing

    @property
    def even(self) -> bool:
        """Whether all chunks must be equally long: it exchanges blocks, or derives the whole length from a shard."""
        return self.kind.displacing or (self.manner == "array" and self.kind.brings is own)

    def serves(self, size: int) -> bool:
        """Whether it supports `size` ranks: a user's function without a declaration always does."""
        row = self.algorithm or self.declared
        return row is None or row.serves(size)

    def __call__(self, comm: Communicator, vector: Any, root: int = 0, *reduction: Any) -> None:
        """Run the collective on flat `vector`, in place, for both kinds of functions.

        This rank's input is in its place in `vector`, and so is its result; a displacing collective sends a copy.
        `reduction` is passed on to a reducing one; without it, a function with a parameter `reduce` gets np.add.
        """
        if self.takes_reduction and not reduction:
            reduction = (np.add,)
        kind, chunks = self.kind, Chunks(vector, comm.size)
        where = [root] if kind.rooted else []
        if self.manner == "in place":
            views = {"vector": vector, "chunks": chunks, "incoming": chunks}
            if kind.displacing:
                views["outgoing"] = Chunks(vector.copy(), comm.size)
            self.function(comm, *(views[name] for name in kind.parameters), *where, *reduction)
            return
        given = chunks[comm.rank] if kind.brings is own else vector
        result = self.function(comm, given.copy(), *where, *reduction)
        left = kind.left(vector, comm.rank, comm.size, root)
        if left is None:
            return
        returned = f"{self.name} returned"
        if not isinstance(result, np.ndarray):
            type_name = "None" if result is None else f"a {type(result).__name__}"
            one = " (np.concatenate joins several)" if isinstance(result, list | tuple) else ""
            raise CollectiveError(f"{returned} {type_name} on rank {comm.rank}: return the result as an array{one}, or "
                                  "name its second parameter `chunks` if it works in place")
        if result.size != left.size or result.dtype != left.dtype:
            raise CollectiveError(f"{returned} {result.size} × {result.dtype} on rank {comm.rank}; expected "
                                  f"{left.size} × {left.dtype}")
        left[...] = result.reshape(left.shape)


def subject(function: Callable[..., Any] | Algorithm, collective: str | None = None) -> Subject:
    """`function` as the collective that its name contains, or as `collective`.

    >>> def my_all_reduce(comm, x): ...
    >>> subject(my_all_reduce).collective, subject(my_all_reduce).manner
    ('all_reduce', 'array')

    Raises `UsageError` when the name contains no collective or `collective` is unknown.
    """
    row = function if isinstance(function, Algorithm) else None
    function = function.function if isinstance(function, Algorithm) else function
    name: str = getattr(function, "__name__", "the function")
    claimed = collective or collective_in(name)
    if claimed not in COLLECTIVES:
        raise UsageError(f"which collective is {collective or name!r}? Name one of {', '.join(COLLECTIVES)} (on the "
                         "command line with --as), or let the function's name contain it")
    parameters = list(inspect.signature(function).parameters)
    manner: Literal["in place", "array"] = "in place" if parameters[1:2] and parameters[1] in IN_PLACE else "array"
    return Subject(name, claimed, function, manner, declared=row)


def collective_in(name: str) -> str | None:
    """The collective that a function's name contains, in any case; None if it contains none.

    >>> collective_in("ringAllReduce"), collective_in("walk")
    ('all_reduce', None)
    """
    letters = name.lower().replace("_", "")
    return next((collective for collective in COLLECTIVES if collective.replace("_", "") in letters), None)


def named_subject(
    name: str, collective: str | None = None, stages: Sequence[str] = (), loader: Loader | None = None,
    folder: Path = Path(),
) -> Subject:
    """The subject that the command line names: `ring.all_reduce`, `my_file.py:my_all_reduce`, `package.module:name`.

    Raises `UsageError` for a name in neither form, and for a missing file or function; the message mentions `stages` if
    these are allowed too.
    """
    if name in ALGORITHMS:
        row = ALGORITHMS[name]
        if collective not in (None, row.collective):
            raise UsageError(f"{name} is an algorithm of {row.collective}, not of {collective}; remove --as")
        return Subject(name, row.collective, row.function, "in place", row)
    if not is_python(name):
        among = f" nor a stage or a pipeline's schedule ({', '.join(stages)})" if stages else ""
        raise UsageError(f"{name!r} is neither in the table of algorithms (zerosim show --list){among} nor "
                         f"FILE.py:FUNCTION{meant(name, [*ALGORITHMS, *stages])}")
    return subject((loader or Loader()).load(name, folder).part, collective)


def subject_on_hosts(
    collective: str | Algorithm | Callable[..., Any], claims: str | None, ranks_per_host: int | None = None,
    loader: Loader | None = None, stages: Sequence[str] = (),
) -> Subject:
    """A collective by its name, or a function; a two-level or two-hop one on hosts of `ranks_per_host` ranks.

    Raises `UsageError` for anything else, and for hosts of an algorithm that has none; the message mentions `stages` if
    these are allowed too.
    """
    if isinstance(collective, str):
        chosen = named_subject(collective, claims, stages, loader)
    elif isinstance(collective, Algorithm) or callable(collective):
        chosen = subject(collective, claims)
    else:
        raise UsageError(f"found {collective!r}; give the name of an algorithm, FILE.py:FUNCTION, or a function")
    if ranks_per_host is None:
        return chosen
    if chosen.algorithm is None or not chosen.algorithm.per_host:
        raise UsageError(f"remove --ranks-per-host: {chosen.name} does not use hosts; two_level.* and two_hop.* do")
    row = next(row for row in levels(ranks_per_host)
               if (row.name, row.collective) == (chosen.algorithm.name, chosen.collective))
    return replace(chosen, function=row.function, algorithm=row)
