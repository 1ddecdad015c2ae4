"""Runs a PyTorch script as `__main__`; all groups that it makes on the CPU belong to this package."""

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.errors import UsageError
from zerosim.instruments.faults import Faults
from zerosim.instruments.trace import Trace
from zerosim.scenario.fault import Fault
from zerosim.torch.document import collected, document
from zerosim.torch.group import refused
from zerosim.torch.memory import Live
from zerosim.torch.watching import WATCH
from zerosim.worlds.mpi import connect
from zerosim.worlds.mpi_world import MpiWorld

REFUSED = ("monitored_barrier", "split_group", "shrink_group")
"""Functions of `torch.distributed` that other backends alone support."""
ON_THE_CPU = ("", "undefined", "gloo", "mpi", "zerosim")
"""Backends that a script may name; `zerosim` replaces them."""


@dataclass(frozen=True)
class Seen:
    """The observations of a script on rank 0 after it has ended on all ranks."""

    document: dict[str, Any]
    trace: Trace


def run_script(script: str, arguments: Sequence[str], *, memory: bool) -> int:
    """Run `script` with these arguments; the exit code that it passes to `sys.exit`, else 0."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    with every_group_is_ours(), Live(WATCH.ledger) if memory else nullcontext():
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            return code_of(ended)
    return 0


def watch() -> None:
    """Observe the script from here on."""
    WATCH.begin(connect().rank)


def befall(faults: Sequence[Fault]) -> None:
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
    found = collected(comm, WATCH)
    if found is None:
        return None
    world = MpiWorld(comm)
    about = {"kind": world.kind, "ranks": world.ranks, "library": world.library}
    return Seen(document(Path(script).name, command, about, *found), found[1])


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
def every_group_is_ours() -> Iterator[None]:
    """A context in which every group that is made on the CPU is one of zerosim's."""
    original = dist.init_process_group, dist.new_group
    others = {name: getattr(dist, name) for name in REFUSED}
    for name in REFUSED:
        setattr(dist, name, refused(name))
    for module in (dist, distributed_c10d, device_mesh):
        module.init_process_group = replaced(original[0], "backend", 0)
        module.new_group = replaced(original[1], "backend", 2)
    try:
        yield
    finally:
        for name, function in others.items():
            setattr(dist, name, function)
        for module in (dist, distributed_c10d, device_mesh):
            module.init_process_group, module.new_group = original


def replaced(function: Callable[..., Any], name: str, position: int) -> Callable[..., Any]:
    """A wrapper of `function` whose argument of this name and position is always our backend."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = args[position] if len(args) > position else kwargs.get(name)
        check_backend(function.__name__, str(asked or ""))
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
    zerosim.errors.UsageError: init_process_group asks for 'nccl', which does not run on the CPU; use gloo, mpi, zerosim
    """
    words = [word for word in asked.lower().split(",") if word.startswith("cpu:") or ":" not in word]
    on_cpu = [word.removeprefix("cpu:") for word in words]
    if not on_cpu or any(each not in ON_THE_CPU for each in on_cpu):
        raise UsageError(f"{name} asks for {asked!r}, which does not run on the CPU; use {', '.join(ON_THE_CPU[2:])}")
