"""CUDA's interface on the CPU, so that a script written for GPUs runs without one.

    a device        "cuda", "cuda:1", a `torch.device` of that type, and a number stand for the CPU wherever a tensor, a
                    module, a mesh, autocast or a scaler is given one
    a GPU           there seem to be as many as ranks on this host; all are the same CPU
    streams         everything runs in the order of the program; events read the clock
    memory          counts as 0 bytes

Everything else of `torch.cuda` that needs a GPU raises a `UsageError` that names it.
"""

import os
import re
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _device, data

from zerosim.errors import UsageError
from zerosim.torch.patching import patched
from zerosim.torch.places import PACKAGES, passes_on

CPU = torch.device("cpu")
FACTORIES = (
    "arange", "as_tensor", "asarray", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "full",
    "full_like", "linspace", "load", "logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "scalar_tensor", "set_default_device", "sparse_coo_tensor", "tensor",
    "tril_indices", "triu_indices", "zeros", "zeros_like")
METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
CLASSES = (DistributedDataParallel, fsdp.FullyShardedDataParallel, device_mesh.DeviceMesh, _device.DeviceContext,
           data.DataLoader, torch.autocast, torch.amp.GradScaler)
DROPPED = ("device_ids", "output_device")
"""Arguments that name the GPUs of a rank."""
ON_A_GPU = re.compile(r"(?i)\b_?(cuda|nccl|nvtx|nvidia)|torch\._C\._cuda")
"""Words in errors of functions that need a GPU."""


def on_cpu(value: Any) -> Any:
    """A device of CUDA as the CPU; any other value itself.

    >>> on_cpu("cuda:1"), on_cpu(torch.device("cuda")), on_cpu("cudas"), on_cpu(3)
    ('cpu', device(type='cpu'), 'cudas', 3)
    """
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return value


def mapped(function: Callable[..., Any], number_at: int = -1) -> Callable[..., Any]:
    """`function` with CUDA's devices in its arguments replaced; arguments that name a rank's GPUs are left out.

    A number in the position `number_at` is a device too.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            number = name in ("device", "device_id") and isinstance(value, int)
            kwargs[name] = CPU if number else None if name in DROPPED else on_cpu(value)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        given = [CPU if place == number_at and type(value) is int else on_cpu(value)
                 for place, value in enumerate(args)]
        return function(*given, **kwargs)

    return call


class Instant:
    """The time at which it was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, other: "Instant") -> float:
        """The milliseconds from this event to the other."""
        return 1e3 * (other._at - self._at)

    def query(self) -> bool:
        return True

    def nothing(self, *_: Any) -> None:
        """Everything earlier has ended already."""

    synchronize = wait = nothing


class Stream(nullcontext[None]):
    """The order of the program."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Instant:
        found = event or Instant()
        found.record()
        return found

    def nothing(self, *_: Any) -> None:
        """Everything earlier has ended already."""

    synchronize = wait_event = wait_stream = nothing


class Generator(torch.Generator):
    """A generator whose device may be CUDA's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, on_cpu(device))


class Gpus:
    """The functions of `torch.cuda` and `torch.accelerator` for `count` GPUs, of which `present` is the current one."""

    def __init__(self, count: int, present: int) -> None:
        self.count, self.present = count, present

    def set_device(self, device: Any) -> None:
        chosen = device if isinstance(device, int) else torch.device(device).index
        if chosen is not None and not 0 <= chosen < self.count:
            raise UsageError(f"torch.cuda.set_device({device!r}): --cpu has one device for each rank of this host, "
                             f"0 to {self.count - 1}; use LOCAL_RANK")
        self.present = self.present if chosen is None else chosen

    def properties(self, device: Any = None) -> SimpleNamespace:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return SimpleNamespace(
            name="CPU", total_memory=total, major=8, minor=0, multi_processor_count=os.cpu_count(), warp_size=32)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions of `torch.cuda` by name."""
        def always(value: Any) -> Callable[..., Any]:
            return lambda *_, **__: value

        total = self.properties().total_memory
        nothing = ("synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "init",
                   "reset_accumulated_memory_stats", "ipc_collect", "set_per_process_memory_fraction", "set_stream")
        numbers = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "utilization")
        return {name: always(None) for name in nothing} | {name: always(0) for name in numbers} | {
            "is_available": always(True), "is_bf16_supported": always(True), "device_count": lambda: self.count,
            "current_device": lambda: self.present, "set_device": self.set_device, "get_device_name": always("CPU"),
            "get_device_properties": self.properties, "get_device_capability": always((8, 0)),
            "mem_get_info": always((total, total)), "memory_summary": always(""),
            "memory_stats": lambda *_: defaultdict(int), "Event": Instant, "Stream": Stream,
            "current_stream": lambda *_: Stream(), "default_stream": lambda *_: Stream(),
            "get_rng_state": always(torch.get_rng_state()), "initial_seed": torch.initial_seed,
            "is_current_stream_capturing": always(False),
            "stream": always(nullcontext()), "device": always(nullcontext()), "_lazy_init": refuse,
        }

    def of_accelerator(self) -> dict[str, Callable[..., Any]]:
        """The functions of `torch.accelerator` by name."""
        own, found = self.functions(), torch.device("cuda")
        others = {"set_device_index": "set_device", "set_device_idx": "set_device",
                  "current_device_index": "current_device", "current_device_idx": "current_device"}
        return own | {name: own[other] for name, other in others.items()} | {
            "current_accelerator": lambda *_, **__: found}


def refuse() -> None:
    """Raise the error for a function of `torch.cuda` that has no meaning on the CPU."""
    name = sys._getframe(1).f_code.co_name
    raise UsageError(f"torch.cuda.{name} needs a GPU, and --cpu does not map it; remove the call, or run it on a GPU")


@contextmanager
def cuda_is_the_cpu() -> Iterator[None]:
    """A context in which CUDA's devices stand for the CPU."""
    gpus = Gpus(int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]))
    changes: list[tuple[Any, str, Any]] = [
        (torch, "Generator", Generator), (torch.Tensor, "cuda", itself),
        (torch.Tensor, "to", mapped(torch.Tensor.to, 1)), (torch.nn.Module, "to", mapped(torch.nn.Module.to, 1)),
        (torch.Tensor, "record_stream", itself),
        *((torch.cuda.nvtx, name, itself) for name in ("range_push", "mark")), (torch.cuda.nvtx, "range_pop", nothing),
        (torch.Tensor, "pin_memory", itself), (torch.nn.Module, "cuda", itself),
        (dist, "is_nccl_available", lambda: True),
        *((torch, name, mapped(getattr(torch, name))) for name in FACTORIES),
        *((torch.Tensor, name, mapped(getattr(torch.Tensor, name))) for name in METHODS),
        *((each, "__init__", mapped(each.__init__)) for each in CLASSES),
        *((module, "init_device_mesh", mapped(device_mesh.init_device_mesh)) for module in (dist, device_mesh)),
        (dist, "barrier", mapped(dist.barrier)),
        *((torch.cuda, name, function) for name, function in gpus.functions().items()),
        *((torch.accelerator, name, function) for name, function in gpus.of_accelerator().items()
          if hasattr(torch.accelerator, name)),
    ]
    try:
        with patched(*changes):
            yield
    except (AttributeError, AssertionError, ImportError, RuntimeError, TypeError) as error:
        if not ON_A_GPU.search(str(error)):
            raise
        lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
                 if not frame.filename.startswith(PACKAGES) and not passes_on(frame.filename)]
        raise UsageError(f"{str(error).splitlines()[0]} at {lines[-1]}: --cpu does not map this function of CUDA; "
                         "remove the call, or run it on a GPU") from error


def nothing() -> None:
    """Ends a range for NVIDIA's profiler."""


def itself(thing: Any, *_: Any, **__: Any) -> Any:
    """A tensor or module that is on its device already."""
    return thing
