"""zerosim: ZeRO under MPI in pure NumPy, every bit checked against one process.

>>> import numpy as np
>>> import zerosim as zs
>>> def program(comm):
...     return zs.all_reduce(comm, np.arange(5.0) + comm.rank)
>>> zs.spawn(program, ranks=4)[0]
array([ 6., 10., 14., 18., 22.])
"""

from zerosim.worlds.launcher import guard

guard()

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
from zerosim.comm import Communicator
from zerosim.errors import CollectiveError, Deadlock, LaunchError, ScenarioError, ZerosimError
from zerosim.notebook import plan, prove, run, show
from zerosim.worlds.local import spawn
from zerosim.worlds.mpi import MpiCommunicator, connect

__all__ = [
    "Communicator",
    "spawn",
    "connect",
    "MpiCommunicator",
    "reduce_scatter",
    "all_gather",
    "all_reduce",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
    "barrier",
    "plan",
    "run",
    "show",
    "prove",
    "ZerosimError",
    "CollectiveError",
    "Deadlock",
    "LaunchError",
    "ScenarioError",
]
