"""zerosim: ZeRO under MPI in pure NumPy, every bit checked against one process.

>>> import numpy as np
>>> import zerosim as zs
>>> def program(comm):
...     return zs.all_reduce(comm, np.arange(5.0) + comm.rank)
>>> zs.spawn(program, ranks=4)[0]
array([ 6., 10., 14., 18., 22.])
"""

from __future__ import annotations

import sys as _sys


def _interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an interrupt of the program `zerosim`, even during its import, as one line; all else as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        _sys.stderr.write("zerosim: interrupted\n")
    else:
        _sys.__excepthook__(kind, error, trace)


if _sys.orig_argv[1:3] == ["-m", "zerosim"] or _sys.argv[0].endswith("/zerosim"):
    _sys.excepthook = _interrupted

from zerosim.worlds.launcher import guard

guard()

from typing import TYPE_CHECKING

import zerosim.plan
import zerosim.show  # noqa: F401 - folders are bound before the functions of the same names
from zerosim.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError, Deadlock, LaunchError, ScenarioError, ZerosimError
from zerosim.worlds.local import spawn
from zerosim.worlds.mpi import connect
from zerosim.worlds.mpi_communicator import MpiCommunicator

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from zerosim.collectives import Algorithm
    from zerosim.models.units import ModelKind
    from zerosim.scenario import Check, Data, Parallel, Scenario, Train
    from zerosim.scenario import ModelKeys as Model
    from zerosim.scenario import WorldKeys as World
    from zerosim.scenario.sections import Variant
    from zerosim.show.shown import Shown
    from zerosim.stages import Stage
    from zerosim.stages.optimizers import Optimizer

__all__ = [
    "Communicator", "spawn", "connect", "MpiCommunicator", "reduce_scatter", "all_gather", "all_reduce", "broadcast",
    "reduce", "scatter", "gather", "all_to_all", "barrier", "Scenario", "World", "Data", "Model", "Train", "Parallel",
    "Variant", "Check", "check", "plan", "run", "show", "prove", "ZerosimError", "CollectiveError",
    "Deadlock", "LaunchError", "ScenarioError",
]

SECTIONS = {"Model": "ModelKeys", "World": "WorldKeys"}
"""The sections of a scenario that have shorter names here."""


def __getattr__(name: str) -> Any:
    """A section of a scenario, or `Scenario`, imported on first access."""
    if name not in __all__:
        raise AttributeError(f"module 'zerosim' has no attribute {name!r}")
    from zerosim.scenario import schema, sections  # noqa: PLC0415

    return schema.Scenario if name == "Scenario" else getattr(sections, SECTIONS.get(name, name))


def run(
    scenario: str | os.PathLike[str] | Mapping[str, Any] | Scenario, set: Mapping[str, Any] | None = None
) -> Shown:
    """The outcome of a scenario, run in this process, a thread for each rank; its last step is traced.

    `scenario` is a path, the name of a shipped one, a dict such as `{"train": {"steps": 5}}`, or a `zs.Scenario`.

    `set` replaces keys of the scenario, as `--set` does on the command line. Raises `ScenarioError` for errors in the
    file or in `set`; `LaunchError` under `mpirun`, where `zerosim run` is to be used, and for a scenario that limits
    memory, which needs one process for each rank.

    >>> import os, tempfile
    >>> import zerosim as zs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "mine.toml")
    ...     with open(path, "w") as file:
    ...         _ = file.write('title = "Two ranks"\\n[world]\\nranks = 2\\n')
    ...     outcome = zs.run(path, set={"train.steps": 2, "parallel.stages": ["ddp", "zero3"]})
    >>> outcome
    <outcome of 'Two ranks': PASSED: 2 rows on 2 ranks: every bit equal to one process>
    >>> [(row["name"], row["kept_bytes"]) for row in outcome.rows()]
    [('DDP', 143520), ('Stage III', 71760)]
    """
    from zerosim.show.prepared import run_here  # noqa: PLC0415

    return run_here(scenario, set or {})


def show(
    collective: str | Algorithm | Stage | Callable[..., Any], ranks: int = 4, root: int | None = None, *,
    claims: str | None = None,
) -> Shown:
    """A collective, a step of a stage, or the passes of a pipeline, from a recorded run on that many ranks.

    `collective` is a name from the table of algorithms, `my_file.py:my_all_reduce`, a function, a stage such as
    `"zero3"`, a schedule such as `"1f1b"`, or several stages or schedules, `"ddp,zero3"`; `claims` names the collective
    of a function if its name does not. Raises `UsageError` for an unknown name, and for ranks or a root that it does
    not support. A wrong collective raises nothing: its schedule has the faults.

    >>> import zerosim as zs
    >>> zs.show("ring.all_reduce", ranks=3)
    <ring.all_reduce on 3 ranks: 4 rounds, 12 messages; PASSED: every rank holds what all_reduce promises>
    """
    from zerosim.show.recorded import shown  # noqa: PLC0415

    return shown(collective, ranks, root=root, claims=claims)


def prove(
    collective: str | Algorithm | Callable[..., Any], ranks: int | Iterable[int] = 4, *, claims: str | None = None,
    elements: Sequence[int] | None = None,
) -> Shown:
    """The proofs of a collective on symbols, on `ranks` ranks or on each of `ranks`, for vectors of these `elements`.

    `collective` and `claims` are as in `show`. A proof is for all values, and for the lengths that it says. Raises
    `UsageError` for an unknown name and for ranks that it does not support. A wrong collective raises nothing: its
    proofs have the faults.

    >>> import zerosim as zs
    >>> zs.prove("ring.all_reduce", ranks=range(2, 5))
    <ring.all_reduce on 2, 3, 4 ranks: proved>
    """
    from zerosim.show.proofs import proved  # noqa: PLC0415

    return proved(collective, ranks, claims, elements=elements)


def check(part: str | Algorithm | Stage | Optimizer | ModelKind | Callable[..., Any]) -> Shown:
    """The check of a part: all that its kind and its declarations promise. `FILE.py:NAME` is loaded first.

    Raises `UsageError` for an object that is no part.

    >>> import zerosim as zs
    >>> def all_gather(comm, chunks): raise NotImplementedError
    >>> zs.check(all_gather)
    <check of zerosim:all_gather: not yet written>
    """
    from zerosim.show.proofs import checked_part  # noqa: PLC0415

    return checked_part(part)


def plan(
    path: str | os.PathLike[str] | Mapping[str, Any] | Scenario, ranks: int | Iterable[int] = (), *,
    set: Mapping[str, Any] = {}, sweep: Mapping[str, Sequence[Any]] = {}, search: int | str | None = None,
) -> Shown:
    """The plan of a scenario on its own number of ranks, on `ranks` ranks, or on each of `ranks`; `path` is as in
    `run`.

    `set` replaces keys of the scenario, `sweep` gives several values of a key; all combinations are planned. `search`
    finds so many of the fastest layouts that fit, or "all": of stage, groups, micro-batch and recomputation, and of the
    keys in `sweep`, unless `set` has them; all train on the same batch. Raises `ScenarioError` as `zerosim plan` does,
    and `UsageError` for invalid `ranks`.

    >>> import zerosim as zs
    >>> planned = zs.plan("mpt_7b", 64, set={"model.layers": 2, "parallel.stages": ["ddp", "zero3"]})
    >>> planned
               memory
                   GB  fits    step    waits    MFU
    DDP          24.4   yes  899 ms  9.41 ms  51.4%
    Stage III    16.3   yes  886 ms  8.14 ms  52.1%
    Best that fits: Stage III, 41,605 tokens a second on each device
    >>> [(row["name"], row["fits"], row["peak_bytes"]) for row in planned.rows()]
    [('DDP', True, 24404590592), ('Stage III', True, 16324575744)]
    """
    from zerosim.plan.reading import read_plan, read_search  # noqa: PLC0415
    from zerosim.show.plan import shown_plan  # noqa: PLC0415 - most programs do not need it

    return shown_plan(read_plan(path, ranks, set, sweep) if search is None else
                      read_search(path, ranks, set, sweep, most=search))
