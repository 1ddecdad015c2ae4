"""What the launcher (mpirun, srun) says of this process, and how it learns that a rank has failed. Loads no MPI.

MPI's start returns once every rank has come to it. A rank that fails on its way there must therefore end so that the
launcher notices and ends the others: to MPICH's, a rank that ends without MPI, with whatever exit code, has done all
it wanted to.
"""

import os
import signal
import stat
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from zerosim.worlds.last_words import exit_code, say

SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMI_SIZE",              # Hydra (MPICH, Intel MPI, MVAPICH), and srun with --mpi=pmi2
    "MV2_COMM_WORLD_SIZE",   # MVAPICH's own mpirun_rsh
    "PALS_SIZE",             # Cray's mpiexec
)
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID")
FIRST_RESERVED_SLURM_STEP = 0xFFFF_FFF0  # steps above are batch scripts and interactive shells
FORWARDING = 0.2  # seconds for the launcher to pass on what was printed; it drops the rest
LAST_WORDS = 2.0  # seconds that the first rank to fail has for ending the others


def launched() -> int | None:
    """The number of ranks the launcher says it started; None without a launcher.

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
    """The first of these environment variables that is a whole number."""
    values = (os.environ.get(variable, "") for variable in variables)
    return next((int(value) for value in values if value.isascii() and value.isdigit()), None)


def guard() -> None:
    """From here until `connect`, an exception that a rank with company does not catch ends all ranks."""
    if has_company():
        sys.excepthook = fail_unconnected


def fail_unconnected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """Say why and end all ranks. Rank 0 speaks first: what befell the others too is then said once."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if launched_rank() > 0:
            time.sleep(LAST_WORDS)
        say(error, launched_rank())
        time.sleep(FORWARDING)
    finally:
        end_all(exit_code(error))


def end_all(code: int) -> NoReturn:
    """End this process so that its launcher ends all ranks, with this exit code if it is MPICH's.

    The others notice a signal. (Open MPI's notices an exit code too, but has then hung itself in 15 of 36 tries.)
    """
    with suppress(OSError):
        ask_to_abort(code)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives SIGKILL")


def ask_to_abort(code: int) -> None:
    """Tell MPICH's launcher, through the socket that it gives to each rank, and let it end them all."""
    launcher = first_number("PMI_FD")
    if launcher is not None and stat.S_ISSOCK(os.fstat(launcher).st_mode):
        os.write(launcher, f"cmd=abort exitcode={code}\n".encode())
        time.sleep(LAST_WORDS)
