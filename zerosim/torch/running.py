"""Runs a PyTorch script as `__main__`; all groups that it makes on the CPU belong to this package.

Its outcome is the JSON document that `zerosim run` writes, with the observations of all ranks.
"""

import os
import platform
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import device_mesh, distributed_c10d

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.allocation import Kind
from zerosim.errors import BROKE, UsageError, ZerosimError
from zerosim.instruments.faults import Faults
from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.instruments.trace import Trace, brought_together
from zerosim.scenario.fault import Fault
from zerosim.show.document import SCHEMA, plain, trace_document
from zerosim.torch.group import refused
from zerosim.torch.joining import wrapped_by
from zerosim.torch.memory import Live
from zerosim.torch.patching import patched
from zerosim.torch.watching import WATCH
from zerosim.worlds.mpi import MpiWorld, connect
from zerosim.worlds.objects import gather_objects

STAGE = "torch"
REFUSED = ("split_group", "shrink_group")
"""Functions of `torch.distributed` that other backends alone support."""
ON_THE_CPU = ("", "undefined", "gloo", "mpi", "zerosim")
"""Backends that a script may name; `zerosim` replaces them."""
LEAVING = 1.0
"""The seconds that other ranks have to end after one that ends with an exit code."""


@dataclass(frozen=True)
class Seen:
    """The observations of a script on rank 0 after it has ended on all ranks."""

    document: dict[str, Any]
    trace: Trace


def run_script(script: str, arguments: Sequence[str], *, memory: bool, on_cpu: bool,
               inside: AbstractContextManager[object] | None = None) -> int:
    """Run `script` with these arguments, `on_cpu` even if it asks for CUDA; the exit code of its `sys.exit`, else 0.

    The context `inside` is entered when all groups are ours.

    Raises `Left` if that code is not 0 and other ranks go on.
    """
    end_when_told()
    with ExitStack() as around:
        around.enter_context(failing_alone(script))
        around.enter_context(every_group_is_ours(("nccl",) if on_cpu else ()))
        if on_cpu:
            from zerosim.torch.cuda import cuda_is_the_cpu  # noqa: PLC0415 - imports FSDP, which takes a second

            around.enter_context(cuda_is_the_cpu())
        if memory:
            around.enter_context(Live(WATCH.ledger))
        around.enter_context(inside or nullcontext())
        code = run_main(script, arguments)
        if code:
            leave(code)
        return code


class ScriptFailed(ZerosimError):
    """An exception of the script; the message is its traceback, without the frames that called the script."""

    exit_code = BROKE

    def __init__(self, error: BaseException, script: str) -> None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        super().__init__("\n" + "".join(traceback.format_exception(type(error), error, trace)).rstrip())


@contextmanager
def failing_alone(script: str) -> Iterator[None]:
    """A context in which an unexpected exception of `script` becomes a `ScriptFailed`."""
    try:
        yield
    except (ZerosimError, MemoryError, BrokenPipeError):
        raise
    except Exception as error:
        cause = wrapped_by(error)
        raise (cause if isinstance(cause, ZerosimError) else ScriptFailed(cause, script)) from error


def run_main(script: str, arguments: Sequence[str]) -> int:
    """Run a script as `__main__`; the exit code of its `sys.exit`, else 0."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        return code_of(ended)
    return 0


def end_when_told() -> None:
    """Let SIGTERM end this rank while C++ code keeps Python's handler from running; a handler of the script decides.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler):
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def wait() -> None:
        while signal.SIGTERM not in os.read(reading, 1) or signal.getsignal(signal.SIGTERM) != handler:
            pass
        time.sleep(LEAVING)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def spawn(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """`torch.multiprocessing.spawn`: if it asks for as many processes as there are ranks, each rank calls `fn`."""
    comm = connect()
    if nprocs == comm.size:
        return fn(comm.rank, *args)
    words = f"mp.spawn asks for {nprocs} processes; mpirun -n {nprocs} zerosim torch … runs each as a rank"
    if comm.size > 1:
        raise UsageError(f"{words}, and there are {comm.size}")
    print(f"zerosim: {words}, here they run without zerosim", file=sys.stderr)
    return SPAWN(fn, args, nprocs, join, daemon, start_method)


SPAWN = torch.multiprocessing.spawn


class Left(ZerosimError):
    """A rank's script has ended with an exit code other than 0 while other ranks went on."""

    def __init__(self, rank: int, code: int) -> None:
        super().__init__(f"rank {rank} has ended by sys.exit({code}) while others run; let all ranks end alike")
        self.exit_code = code


def leave(code: int) -> None:
    """Wait until all ranks of this host have finished; raises `Left` if some have not, a second later."""
    comm = connect()
    comm.timeout_seconds = LEAVING
    try:
        comm.close()
    except ZerosimError:
        raise Left(comm.rank, code) from None


def watch() -> None:
    """Observe the script from here on."""
    WATCH.begin(connect().rank)


def inject(faults: Sequence[Fault]) -> None:
    """Inject this rank's faults among `faults`."""
    comm = connect()
    world = MpiWorld(comm)
    mine = [fault for fault in faults if fault.rank == comm.rank]
    WATCH.faults = Faults(mine, lambda: world.kill(comm), lambda: world.stop(comm)) if mine else None
    if WATCH.faults is not None:
        WATCH.faults.begin(WATCH.step)


def missed() -> int:
    """The exit code 1, with a line printed for each, if faults of this rank have not struck; else 0."""
    found = [] if WATCH.faults is None else WATCH.faults.missed
    for fault in found:
        print(f"zerosim: a fault was not injected: {fault}", file=sys.stderr)
    return int(bool(found))


def seen(script: str, command: str) -> Seen | None:
    """The observations of all ranks, on rank 0; None on the others. All ranks call this."""
    comm = connect()
    trace = brought_together(comm, WATCH.spans)
    found = gather_objects(comm, seen_by(comm.rank))
    if found is None or trace is None:
        return None
    world = MpiWorld(comm)
    about = {"kind": world.kind, "ranks": world.ranks, "library": world.library}
    return Seen(document(Path(script).name, command, about, found, trace), trace)


def code_of(ended: SystemExit) -> int:
    """The exit code of `sys.exit`, which prints its argument if that is text.

    >>> code_of(SystemExit()), code_of(SystemExit(2))
    (0, 2)
    """
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1


@contextmanager
def every_group_is_ours(also: Sequence[str] = ()) -> Iterator[None]:
    """A context in which every group that is made on the CPU, or with a backend of `also`, is one of zerosim's."""
    makers = {"init_process_group": replaced(dist.init_process_group, "backend", 0, also),
              "new_group": replaced(dist.new_group, "backend", 2, also)}
    with patched(
            (torch.multiprocessing, "spawn", spawn), (dist, "monitored_barrier", monitored_barrier),
            *((dist, name, refused(name)) for name in REFUSED),
            *((module, *each) for module in (dist, distributed_c10d, device_mesh) for each in makers.items())):
        yield


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """`torch.distributed.monitored_barrier`, which PyTorch itself allows with gloo only."""
    of = group or dist.group.WORLD
    if of is not dist.GroupMember.NON_GROUP_MEMBER:
        of.monitored_barrier(timeout or distributed_c10d.default_pg_timeout, wait_all_ranks)


def replaced(function: Callable[..., Any], name: str, position: int, also: Sequence[str]) -> Callable[..., Any]:
    """A wrapper of `function` whose argument of this name and position is always our backend."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = str((args[position] if len(args) > position else kwargs.get(name)) or "")
        if also:
            kwargs.pop("device_id", None)
        if not asked.lower().startswith(tuple(also) or "?"):
            check_backend(function.__name__, asked)
        if len(args) > position:
            args = (*args[:position], "zerosim", *args[position + 1 :])
        else:
            kwargs[name] = "zerosim"
        return function(*args, **kwargs)

    return call


def check_backend(name: str, asked: str) -> None:
    """Refuse a backend for other devices than the CPU.

    >>> check_backend("init_process_group", "cpu:gloo,cuda:nccl")
    >>> check_backend("init_process_group", "nccl")
    Traceback (most recent call last):
    zerosim.errors.UsageError: init_process_group asks for 'nccl', which does not run on the CPU; use gloo, mpi, \
zerosim, or zerosim torch --cpu
    """
    words = [word for word in asked.lower().split(",") if word.startswith("cpu:") or ":" not in word]
    on_cpu = [word.removeprefix("cpu:") for word in words]
    if not on_cpu or any(each not in ON_THE_CPU for each in on_cpu):
        raise UsageError(f"{name} asks for {asked!r}, which does not run on the CPU; use {', '.join(ON_THE_CPU[2:])}, "
                         "or zerosim torch --cpu")


def seen_by(rank: int) -> dict[str, Any]:
    """The observations of this rank."""
    traffic, ledger = WATCH.traffic, WATCH.ledger
    resting = {kind: WATCH.resting.get(kind, 0) for kind in MEMORY_KINDS[:3]}
    peak = max(ledger.peak_total, sum(resting.values()))
    return {
        "losses": WATCH.losses,
        "steady_bytes": steady(WATCH.sent_bytes),
        "seconds": WATCH.seconds,
        "whole_bytes": WATCH.whole_bytes,
        "calls": [asdict(call) for call in WATCH.last_calls],
        "traffic": {
            "rank": rank, "sent_bytes": traffic.sent_bytes, "received_bytes": traffic.received_bytes,
            "messages": traffic.messages, "largest_message_bytes": traffic.largest_bytes,
            "by_collective": {name: asdict(count) for name, count in traffic.by_collective.items()},
        },
        "memory": {
            "rank": rank, "resting_bytes": resting,
            "peak_bytes": {**resting, "activations": peak - sum(resting.values()), "buffers": 0, "total": peak},
            "curve": curve(WATCH.curve, resting),
        },
    }


def curve(alive: Sequence[tuple[int, int]], resting: Mapping[Kind, int]) -> list[dict[str, int]]:
    """Memory over a step: parameters, optimizer state, and all other bytes that were alive, gradients included.

    Changes by less than 3% of the peak are left out: an operation of PyTorch makes several of them.

    >>> curve([(0, 30), (5, 900), (6, 904)], {"parameters": 10, "gradients": 10, "optimizer": 20})
    [{'ns': 0, 'parameters': 10, 'optimizer': 20, 'activations': 0}, \
{'ns': 5, 'parameters': 10, 'optimizer': 20, 'activations': 870}]
    """
    shown = list(alive[:1])
    most = max((total for _, total in alive), default=0)
    for at in alive:
        if 100 * abs(at[1] - shown[-1][1]) >= 3 * most > 0:
            shown.append(at)
    parameters, optimizer = resting["parameters"], resting["optimizer"]
    return [
        {"ns": ns, "parameters": parameters, "optimizer": optimizer,
         "activations": max(total - parameters - optimizer, 0)} for ns, total in shown]


def document(title: str, command: str, world: dict[str, Any], found: list[dict[str, Any]], trace: Trace) -> Any:
    """The outcome, in JSON's own types.

    Nothing is compared or claimed: `volume` is the measured one.
    """
    steps = len(found[0]["losses"])
    losses = [float(np.mean([each["losses"][step] for each in found])) for step in range(steps)]
    ranks = len(found)
    row = {
        "stage": STAGE, "name": title, "equal": None, "compared_with": None, "first_divergence": None,
        "disagreement": None, "losses": losses,
        "test": None, "weights_sha256": "", "optimizer_sha256": "", "traffic": [each["traffic"] for each in found],
        "traffic_holds": True, "volume": volume(found), "memory": [each["memory"] for each in found],
        "calls": [each["calls"] for each in found], "seconds": {"train": found[0]["seconds"], "save": 0.0},
        "resumed": None, "trace": trace_document(trace),
    }
    return plain({
        "schema": SCHEMA, "title": title,
        "scenario": {"title": title, "caption": "A PyTorch script over zerosim's collectives.",
                     "world": {"ranks": ranks}, "train": {"steps": steps}, "parallel": {"order": "ring"}},
        "world": world, "command": command,
        "versions": {"python": platform.python_version()} | {
            name: version(name) for name in ("zerosim", "numpy", "torch")},
        "passed": True, "verdict": f"RAN: {steps} steps on {ranks} ranks; no claims to check",
        "failures": [], "rows": [row], "differences": [], "did_not_fit": [], "on_other_ranks": [],
    })


def steady(sent_bytes: Sequence[int]) -> float:
    """The bytes sent per step after the first, which includes construction; those of one step if there is no other.

    >>> steady([1000, 1200, 1400]), steady([70]), steady([])
    (200.0, 70.0, 0.0)
    """
    first, *others = sent_bytes or [0]
    return (others[-1] - first) / len(others) if others else float(first)


def volume(found: list[dict[str, Any]]) -> float:
    """The bytes sent per rank and step, after the first step, in units of P (N−1)/N; P: bytes of all parameters."""
    ranks, whole = len(found), max(each["whole_bytes"] for each in found)
    sent = sum(each["steady_bytes"] for each in found)
    return float(sent / (whole * (ranks - 1))) if whole * (ranks - 1) else 0.0
