"""zerosim: ZeRO under MPI in pure NumPy, every bit checked against one process.

>>> import numpy as np
>>> import zerosim as zs
>>> def program(comm):
...     return zs.all_reduce(comm, np.arange(5.0) + comm.rank)
>>> zs.spawn(program, ranks=4)[0]
array([ 6., 10., 14., 18., 22.])
"""

import sys as _sys


def _interrupted(kind: type[BaseException], error: BaseException, trace: "_TracebackType | None") -> None:
    """Print an interrupt of the program `zerosim`, even during its import, as one line; all else as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        _sys.stderr.write("zerosim: interrupted\n")
    else:
        _sys.__excepthook__(kind, error, trace)


if _sys.orig_argv[1:3] == ["-m", "zerosim"] or _sys.argv[0].endswith("/zerosim"):
    _sys.excepthook = _interrupted

from zerosim.worlds.launcher import guard

guard()

from types import TracebackType as _TracebackType
from typing import TYPE_CHECKING
from typing import Any as _Any

import zerosim.plan  # noqa: F401 - the folder is bound before the function of its name
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
from zerosim.show import check, operations, plan, prove, run, show
from zerosim.worlds.local import spawn
from zerosim.worlds.mpi import connect
from zerosim.worlds.mpi_communicator import MpiCommunicator

if TYPE_CHECKING:
    from zerosim.scenario import Check, Data, Parallel, Scenario, Train
    from zerosim.scenario import ModelKeys as Model
    from zerosim.scenario import WorldKeys as World
    from zerosim.scenario.sections import Variant

__all__ = [
    "Communicator", "spawn", "connect", "MpiCommunicator", "reduce_scatter", "all_gather", "all_reduce", "broadcast",
    "reduce", "scatter", "gather", "all_to_all", "barrier", "Scenario", "World", "Data", "Model", "Train", "Parallel",
    "Variant", "Check", "check", "operations", "plan", "run", "show", "prove", "ZerosimError", "CollectiveError",
    "Deadlock", "LaunchError", "ScenarioError",
]

SECTIONS = {"Model": "ModelKeys", "World": "WorldKeys"}
"""The sections of a scenario that have shorter names here."""


def __getattr__(name: str) -> _Any:
    """A section of a scenario, or `Scenario`, imported on first access."""
    if name not in __all__:
        raise AttributeError(f"module 'zerosim' has no attribute {name!r}")
    from zerosim.scenario import schema, sections  # noqa: PLC0415

    return schema.Scenario if name == "Scenario" else getattr(sections, SECTIONS.get(name, name))
