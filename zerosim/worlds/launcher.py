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
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from zerosim.worlds.last_words import BROKE, exit_code, say

SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMI_SIZE",              # Hydra (MPICH, Intel MPI, MVAPICH), and srun with --mpi=pmi2
    "MV2_COMM_WORLD_SIZE",   # MVAPICH's own mpirun_rsh
    "PALS_SIZE",             # Cray's mpiexec
)
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID")
RESTARTS = "ZEROSIM_RESTARTS"
RESTART_VARIABLES = (RESTARTS, "SLURM_RESTART_COUNT")
FIRST_RESERVED_SLURM_STEP = 0xFFFF_FFF0  # steps above are batch scripts and interactive shells
FORWARDING = 0.2  # seconds for the launcher to pass on what was printed; it drops the rest
LOOKOUT = 0.1  # seconds between two looks at the other ranks
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


def restarts(*, resumes: bool) -> int:
    """How often this job has been begun anew, as a supervisor or Slurm says; one that `resumes` once at least."""
    return max(first_number(*RESTART_VARIABLES) or 0, int(resumes))


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
    end(os.getpid(), code)
    raise AssertionError("nobody survives SIGKILL")


def end(rank: int, code: int) -> None:
    """The same for the process `rank`: this one or its parent."""
    with suppress(OSError):
        ask_to_abort(code)
    os.kill(rank, signal.SIGKILL)


def ask_to_abort(code: int) -> None:
    """Tell MPICH's launcher, through the socket that it gives to each rank, and let it end them all."""
    launcher = first_number("PMI_FD")
    if launcher is not None and stat.S_ISSOCK(os.fstat(launcher).st_mode):
        os.write(launcher, f"cmd=abort exitcode={code}\n".encode())
        time.sleep(LAST_WORDS)


@contextmanager
def watched() -> Iterator[None]:
    """Within, a rank of this host that ends ends all ranks, although MPICH's launcher takes no notice.

    A rank may end before any line of this package has run: Python, interrupted while it starts, exits with code 1.
    Here a child process looks out for that, as no Python of this one runs while MPI starts.
    """
    proxy, expected = os.getppid(), ranks_of_the_proxy()
    if expected is None:
        yield
        return
    rank = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, here NumPy's: the child needs none of them
        watcher = os.fork()
    if watcher == 0:
        try:
            watch(rank, proxy, expected)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)


def watch(rank: int, proxy: int, expected: int) -> None:
    """End process `rank`, and with it all ranks, once `proxy` has had too few living children for a while.

    (At first it may still be starting them.)
    """
    complete = time.monotonic()
    while os.getppid() == rank:
        if living_children(proxy) >= expected:
            complete = time.monotonic()
        elif time.monotonic() - complete > LAST_WORDS:
            sys.stderr.write("zerosim: a rank ended before MPI had started\n")
            sys.stderr.flush()
            time.sleep(FORWARDING)
            end(rank, BROKE)
        time.sleep(LOOKOUT)


def ranks_of_the_proxy() -> int | None:
    """How many ranks MPICH's launcher has started on this host; None where that cannot be told from its children."""
    proxy = os.getppid()
    try:
        name = Path(f"/proc/{proxy}/comm").read_text().strip()
        living_children(proxy)
    except OSError:
        return None
    return first_number("MPI_LOCALNRANKS") if name == "hydra_pmi_proxy" else None


def living_children(parent: int) -> int:
    """The number of this process's children that have not ended."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return sum(state_of(child) not in "ZX" for child in children)


def state_of(process: str) -> str:
    """Its letter in Linux's table of processes: R runs, S sleeps, Z has ended; X, it is no more."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
