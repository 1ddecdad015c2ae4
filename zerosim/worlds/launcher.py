"""The launcher (mpirun, srun): what it tells this process, and how it learns that a rank has failed. Loads no MPI.

MPI's start returns once every rank has reached it. A rank that fails before must therefore end so that the launcher
notices and ends the others: MPICH's launcher regards a rank that ends before MPI has started, with any exit code, as
successful.

A process that no launcher kills reports the rank that died. MPICH's launcher ends all others within 10 ms of a death,
by a signal that cannot be caught, so no survivor can report it. A child of the first rank on each host, which exists
for the start anyway, waits for the end of any rank, without polling, and names the first.

The launcher learns of a death by a socket that closes, and on a busy machine it has killed the others before the
first process is gone. Each rank therefore keeps a pipe that was made after that socket: Linux closes the files of a
dying process from the last to the first, so the pipe hangs up before the socket. (By `pidfd` alone another rank was
named in 2 runs of 14; with the pipe in none of 14.) This relies on Linux's order and has been seen on 6.18 with MPICH
only. MPICH's launcher waits for the end of standard error and so forwards the child's output. So did Open MPI's
in each of 6 deaths of a connected rank; other launchers have not been tried.
"""

import os
import select
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

from zerosim.errors import BROKE, INTERRUPTED, exit_code, say
from zerosim.worlds.board import Board
from zerosim.worlds.here import explained
from zerosim.worlds.processes import GONE, state_of

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
FORWARDING = 0.2  # seconds for the launcher to forward printed output; it drops the rest
PROXY = -1
LOOKOUT = 0.1  # seconds between two checks of the other ranks
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


def restarts(*, resumes: bool) -> int:
    """The number of times that this job has been restarted, by a supervisor or Slurm; at least 1 if it `resumes`."""
    return max(first_number(*RESTART_VARIABLES) or 0, int(resumes))


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
    """End this process so that its launcher ends all ranks, with this exit code if it is MPICH's.

    Other launchers notice the signal. (Open MPI's notices an exit code too, but then hung in 15 of 36 tries.)
    """
    end(os.getpid(), code)
    raise AssertionError("nobody survives SIGKILL")


def end(rank: int, code: int) -> None:
    """End the process `rank`, this one or its parent, so that its launcher ends all ranks."""
    with suppress(OSError):
        ask_to_abort(code)
    os.kill(rank, signal.SIGKILL)


def ask_to_abort(code: int) -> None:
    """Ask MPICH's launcher to end all ranks, through the socket that it gives to each rank."""
    launcher = first_number("PMI_FD")
    if launcher is not None and stat.S_ISSOCK(os.fstat(launcher).st_mode):
        os.write(launcher, f"cmd=abort exitcode={code}\n".encode())
        time.sleep(LAST_WORDS)


class Watcher:
    """A child process that watches the ranks of its host and takes orders from `pipe`; or none."""

    def __init__(self, process: int = 0, pipe: int = -1) -> None:
        self._process, self._pipe = process, pipe
        self._stays = False

    def stay(self, file: int, ranks: int) -> None:
        """Keep the watcher while there are ranks; it reads the board in `file`, a descriptor that this process has
        open."""
        if self._process:
            self._stays = True
            with suppress(OSError):
                os.write(self._pipe, f"{file} {ranks}".encode())

    @property
    def exists(self) -> bool:
        return bool(self._process)

    @contextmanager
    def hears_interrupts(self) -> Iterator[None]:
        """A context in which the watcher hears of SIGINT at once, although no Python of this process may run."""
        if not self._process:
            yield
            return
        os.set_blocking(self._pipe, False)
        before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def leave(self) -> None:
        """End the watcher, unless it stays."""
        if self._process:
            os.close(self._pipe)
        if self._process and not self._stays:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)


@contextmanager
def watched() -> Iterator[Watcher]:
    """A context in which the end of any rank of this host ends all ranks, although MPICH's launcher ignores it.

    A rank may end before any line of this package has run: Python, interrupted while it starts, exits with code 1. A
    child process watches for that, since no Python code of this process runs while MPI starts. It may stay afterwards,
    and then reports the state of all ranks when one dies.
    """
    if not has_company():
        yield Watcher()
        return
    rank, proxy, expected = os.getpid(), os.getppid(), ranks_of_the_proxy()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, here NumPy's: the child needs none of them
        process = os.fork()
    if process == 0:
        try:
            os.close(writing)
            watch(rank, proxy, expected, reading)
        finally:
            os._exit(0)
    os.close(reading)
    watcher = Watcher(process, writing)
    try:
        yield watcher
    finally:
        watcher.leave()


def watch(rank: int, proxy: int, expected: int | None, pipe: int) -> None:
    """End process `rank`, and with it all ranks, once `proxy` has had too few living children for `LAST_WORDS` seconds.

    (The delay is there because `proxy` may still be starting them.) When `rank` asks for it, watch the board.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    complete = time.monotonic()
    while os.getppid() == rank:
        if expected is None or living_children(proxy) >= expected:
            complete = time.monotonic()
        elif time.monotonic() - complete > LAST_WORDS:
            sys.stderr.write("zerosim: a rank ended before MPI started\n")
            sys.stderr.flush()
            time.sleep(FORWARDING)
            end(rank, BROKE)
        readable, _, _ = select.select([pipe], [], [], LOOKOUT)
        if readable:
            said = os.read(pipe, 64).split()
            if said == [bytes([signal.SIGINT])]:
                end_interrupted(rank)
            elif len(said) == 2:
                file, ranks = map(int, said)
                board = Board(os.open(f"/proc/{rank}/fd/{file}", os.O_RDWR), ranks)
                watch_board(board, proxy if expected is not None else None)
            return


def end_interrupted(rank: int) -> None:
    """Report that process `rank` was interrupted while MPI started, and end all ranks."""
    os.kill(rank, signal.SIGSTOP)  # it would report the same once MPI has started
    if launched_rank() > 0:
        time.sleep(LAST_WORDS)
    say(KeyboardInterrupt(), launched_rank())
    time.sleep(FORWARDING)
    end(rank, INTERRUPTED)


def watch_board(board: Board, proxy: int | None) -> None:
    """Wait for the death of a rank of this host; unless another process reports it, report the state of all ranks.

    If MPICH's `proxy`, which would end them all, has died itself, end them.
    """
    stay_alone()
    ends, ranks = select.epoll(), {}
    for rank, process in [*board.processes.items(), *([(PROXY, proxy)] if proxy is not None else [])]:
        with suppress(ProcessLookupError):
            opened = os.pidfd_open(process)
            ranks[opened] = rank
            ends.register(opened, select.EPOLLIN)
    for rank in board.processes:
        with suppress(OSError):
            opened = board.opened_life(rank)
            ranks[opened] = rank
            ends.register(opened, select.EPOLLHUP)
    while set(ranks.values()) - {PROXY} and not board.is_ending:
        ((opened, _),) = ends.poll(maxevents=1)  # only the first: a launcher soon ends the others
        ends.unregister(opened)
        rank = ranks.pop(opened)
        if rank == PROXY:
            kill_all(board)
        elif rank in board.processes and not board.is_ending:
            sys.stderr.write(f"zerosim: no rank can go on{explained(board.what_all_do([rank]))}\n")
            sys.stderr.flush()
            return


def stay_alone() -> None:
    """Detach this process from the signals and streams of the ranks; it ends when they have ended."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)


def kill_all(board: Board) -> None:
    """End the ranks of this host."""
    for process in board.processes.values():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def ranks_of_the_proxy() -> int | None:
    """The number of ranks that MPICH's launcher has started on this host; None for other launchers."""
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
    return sum(state_of(child) not in GONE for child in children)
