"""The launcher (mpirun, srun): what it tells this process, and how a rank that fails before MPI has started ends all.

MPI's start returns once every rank has reached it, and MPICH's launcher regards a rank that ends before MPI has
started, with any exit code, as successful. Such a rank therefore tells the launcher, and then ends by a signal.
"""

import os
import signal
import stat
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from zerosim.core.errors import exit_code, say

SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMI_SIZE",              # Hydra (MPICH, Intel MPI, MVAPICH), and srun with --mpi=pmi2
    "MV2_COMM_WORLD_SIZE",   # MVAPICH's own mpirun_rsh
    "PALS_SIZE",             # Cray's mpiexec
)
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID")
FIRST_RESERVED_SLURM_STEP = 0xFFFF_FFF0  # steps above are batch scripts and interactive shells
FORWARDING = 0.2  # seconds for the launcher to forward printed output; it drops the rest
LAST_WORDS = 2.0  # seconds that the first rank to fail has to end the others


def launched() -> int | None:
    """The number of ranks that the launcher started, by its environment variables; None without a launcher.

    A Slurm allocation (`salloc`, `sbatch`) is not a launcher; a step that `srun` started in it is.
    """
    size = first_number(*SIZE_VARIABLES)
    if size is not None:
        return size
    step = first_number("SLURM_STEP_ID")
    if step is None or step >= FIRST_RESERVED_SLURM_STEP:
        return None
    return first_number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def launched_rank() -> int:
    """The rank that the launcher gave to this process; 0 without a launcher."""
    return 0 if launched() is None else first_number(*RANK_VARIABLES) or 0


def has_company() -> bool:
    """Whether this process is one of several ranks."""
    return (launched() or 1) > 1


def first_number(*variables: str) -> int | None:
    """The value of the first of these environment variables that is a whole number."""
    values = (os.environ.get(variable, "") for variable in variables)
    return next((int(value) for value in values if value.isascii() and value.isdigit()), None)


def guard() -> None:
    """Until `connect` is called, let an uncaught exception of a rank end all ranks, if there are several."""
    if has_company():
        sys.excepthook = fail_unconnected


def fail_unconnected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """Print the error and end all ranks. Rank 0 prints first, so an error of all ranks is printed once."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if launched_rank() > 0:
            time.sleep(LAST_WORDS)
        say(error, launched_rank())
        time.sleep(FORWARDING)
    finally:
        end_all(exit_code(error))


def end_all(code: int) -> NoReturn:
    """End this process so that its launcher ends all ranks, with this exit code if it is MPICH's."""
    launcher = first_number("PMI_FD")
    with suppress(OSError):
        if launcher is not None and stat.S_ISSOCK(os.fstat(launcher).st_mode):
            os.write(launcher, f"cmd=abort exitcode={code}\n".encode())
            time.sleep(LAST_WORDS)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives SIGKILL")
