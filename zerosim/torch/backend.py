"""A `torch.distributed` backend in one page: PyTorch's DDP, ZeRO and FSDP2 over the ring and the trees of this package.

Every operation runs at once, in the thread that calls it, so there is no queue and nothing overlaps. The orders of
addition are those of `zerosim.collectives`: chunk c of a ring is ((g[c+1] + g[c+2]) + …) + g[c]. A receive takes place
when it is waited for. Importing this module connects the ranks and registers the backend.
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from inspect import signature
from itertools import chain
from types import FunctionType
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.distributed import device_mesh, distributed_c10d

from zerosim.collectives import direct, dissemination, naive, ring, tree
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, among
from zerosim.core.errors import CollectiveError, UsageError
from zerosim.core.sharding import split
from zerosim.observe.observed import Observed
from zerosim.observe.traffic import Traffic
from zerosim.torch.places import calling
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import broadcast_object, gather_objects

NARROW = {torch.bfloat16: (torch.int16, ml_dtypes.bfloat16)}
"""The dtypes of PyTorch that NumPy lacks: an integer of their width, and the dtype of ml_dtypes."""
FUNCTIONS = {"SUM": np.add, "AVG": np.add, "PREMUL_SUM": np.add, "PRODUCT": np.multiply,
             "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
ON_THE_CPU = ("", "undefined", "none", "gloo", "mpi", "zerosim", "cpu:gloo", "cpu:gloo,cuda:nccl")
"""What a script may ask for and get this backend."""
NAMES = {int(getattr(dist.ReduceOp, name)): name for name in FUNCTIONS}


TRAFFIC = Traffic()
"""What this rank has sent; the name of a collective is followed by the lines of PyTorch and the script that call it."""


def flat(tensor: Any) -> Array:
    """The elements of a contiguous tensor of the CPU on one axis, in its own memory.

    >>> tensor = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    >>> flat(tensor)[:] += 1
    >>> tensor
    tensor([2.5000, 3.0000], dtype=torch.bfloat16)
    """
    whole, narrow = NARROW.get(tensor.dtype, (tensor.dtype, None))
    vector: Array = np.from_dlpack(tensor.detach().view(whole)).reshape(-1)  # .numpy() would forbid FSDP1 to resize it
    return vector if narrow is None else vector.view(narrow)


def contiguous(tensor: Any) -> Any:
    """`tensor`, or a contiguous copy of it."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise CollectiveError(f"a tensor on {tensor.device}, {tensor.layout}; use a dense tensor on the CPU")
    return tensor.resolve_neg().contiguous()


def inputs(tensors: Sequence[Any]) -> list[Array]:
    return [flat(contiguous(tensor)) for tensor in tensors]


def function_of(op: Any, array: Array) -> np.ufunc:
    """The function of a reduction; raises `CollectiveError` for one that these elements do not have."""
    name = NAMES.get(int(getattr(op, "op", op)), "?")
    if name == "?" or array.dtype.kind in ("fcV" if name[0] == "B" else "biu" if name == "AVG" else ""):
        raise CollectiveError(f"a reduction by {name} of {array.dtype} is not supported; use {', '.join(FUNCTIONS)}")
    if name == "PREMUL_SUM":  # every rank multiplies its contribution by a factor first
        np.multiply(array, array.dtype.type(op.factor), out=array)
    return FUNCTIONS[name]


def averaged(array: Array, op: Any, size: int) -> None:
    if int(getattr(op, "op", op)) == int(dist.ReduceOp.AVG):
        np.divide(array, array.dtype.type(size), out=array)


class Done(dist._Work):
    """An operation that has ended, or a receive that takes place when it is waited for."""

    def __init__(self, outputs: list[Any], receive: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.outputs, self.receive = outputs, receive

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        receive, self.receive = self.receive, None
        if receive is not None:
            receive()
        return True

    def is_completed(self) -> bool:
        return self.receive is None

    is_success = is_completed

    def result(self) -> list[Any]:
        self.wait()
        return self.outputs

    def get_future(self) -> Any:
        future = torch.futures.Future()
        future.set_result(self.result())
        return future


class Group(dist.ProcessGroup):
    """Some ranks as a `torch.distributed.ProcessGroup`: a channel for collectives, another for messages."""

    def __init__(self, options: Any) -> None:
        world = connect()
        ranks = list(options.global_ranks_in_group) or list(range(world.size))
        seconds = options.timeout.total_seconds()
        collectives, self._messages = (world.channel(seconds, ranks) for _ in range(2))
        observed = Observed(collectives, TRAFFIC)
        self.comm, self._named, self._ranks = among(observed, ranks), observed.named, ranks
        super().__init__(self.comm.rank, self.comm.size)
        self._name = options.group_id
        self._receives: dict[tuple[int, int], deque[Done]] = {}

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        return "zerosim"

    group_name = property(lambda self: self._name)
    group_desc = property(lambda self: "")
    _device_types = property(lambda self: [torch.device("cpu")])

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        """Does nothing: `group_desc` stays empty."""

    def size(self) -> int:
        return self.comm.size

    def rank(self) -> int:
        return self.comm.rank

    def _run(self, name: str, outputs: Sequence[Any], do: Callable[[Communicator, list[Array]], None]) -> Done:
        """Run a collective that fills `outputs`; those in pieces are filled from copies."""
        whole = [contiguous(tensor) for tensor in outputs]
        by = calling(self._name)
        self._named(f"{name} {by}", do)(by, self.comm, [flat(tensor) for tensor in whole])
        for tensor, filled in zip(outputs, whole, strict=True):
            if tensor is not filled:
                tensor.detach().copy_(filled)
        return Done(list(outputs))

    def _each(self, name: str, tensors: Sequence[Any], do: Callable[[Communicator, Array], object]) -> Done:
        """Run a collective on one tensor after another."""
        def every(comm: Communicator, arrays: list[Array]) -> None:
            for array in arrays:
                do(comm, array)

        return self._run(name, tensors, every)

    def allreduce(self, tensors: Any, opts: Any = None) -> Done:
        op = (opts or dist.AllreduceOptions()).reduceOp

        def do(comm: Communicator, array: Array) -> None:
            ring.all_reduce(comm, split(array, comm.size), function_of(op, array))
            averaged(array, op, comm.size)

        return self._each("all_reduce", [tensors] if isinstance(tensors, torch.Tensor) else tensors, do)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = None) -> Done:
        root = (opts or dist.BroadcastOptions()).rootRank
        return self._each("broadcast", tensors, lambda comm, array: tree.broadcast(comm, array, root))

    def reduce(self, tensors: Any, opts: Any = None) -> Done:
        opts = opts or dist.ReduceOptions()

        def do(comm: Communicator, array: Array) -> None:
            vector = array if comm.rank == opts.rootRank else array.copy()
            tree.reduce(comm, vector, opts.rootRank, function_of(opts.reduceOp, array))
            averaged(vector, opts.reduceOp, comm.size)

        return self._each("reduce", tensors, do)

    def allgather(self, output_lists: Any, tensors: Any, opts: Any = None) -> Done:
        return self._gather([*chain(*output_lists)], tensors, lambda arrays, number: arrays[number * self.size():][
            :self.size()])

    def all_gather_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Done:
        return self._gather(outputs, tensors, lambda arrays, number: split(arrays[number], self.size()))

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Done:
        return self.all_gather_single_coalesced([output], [tensor])

    def _gather(self, outputs: Any, tensors: Any, chunks_of: Callable[[list[Array], int], Any]) -> Done:
        def do(comm: Communicator, arrays: list[Array]) -> None:
            for number, shard in enumerate(inputs(tensors)):
                chunks = chunks_of(arrays, number)
                chunks[comm.rank][...] = shard
                ring.all_gather(comm, chunks)

        return self._run("all_gather", outputs, do)

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Done:
        op = (opts or dist.ReduceScatterOptions()).reduceOp

        def do(comm: Communicator, arrays: list[Array]) -> None:
            for array, tensors in zip(arrays, input_lists, strict=True):
                given = inputs(tensors)
                vector = np.concatenate(given)
                chunks = split(vector, comm.size) if len(given) == 1 else np.split(
                    vector, np.cumsum([len(chunk) for chunk in given])[:-1])
                ring.reduce_scatter(comm, chunks, function_of(op, vector))
                array[...] = chunks[comm.rank]
                averaged(array, op, comm.size)

        return self._run("reduce_scatter", outputs, do)

    def reduce_scatter_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Done:
        return self.reduce_scatter(outputs, [[tensor] for tensor in tensors], opts)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Done:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def gather(self, output_lists: Any, tensors: Any, opts: Any = None) -> Done:
        root = (opts or dist.GatherOptions()).rootRank

        def do(comm: Communicator, arrays: list[Array]) -> None:
            (shard,) = inputs(tensors)
            chunks = arrays if comm.rank == root else [shard] * comm.size
            chunks[comm.rank][...] = shard
            naive.gather(comm, chunks, root)

        return self._run("gather", [*chain(*output_lists)], do)

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Done:
        root = (opts or dist.ScatterOptions()).rootRank

        def do(comm: Communicator, arrays: list[Array]) -> None:
            chunks = inputs(input_lists[0]) if comm.rank == root else [arrays[0]] * comm.size
            naive.scatter(comm, chunks, root)
            arrays[0][...] = chunks[comm.rank]

        return self._run("scatter", outputs, do)

    def alltoall(self, outputs: Any, tensors: Any, opts: Any = None) -> Done:
        return self._run("all_to_all", outputs, lambda comm, arrays: direct.all_to_all(comm, inputs(tensors), arrays))

    def all_to_all_single(self, output: Any, tensor: Any, output_splits: Sequence[int], input_splits: Sequence[int],
                          opts: Any = None) -> Done:
        """Blocks of rows, equally many unless split sizes say otherwise."""
        size = self.size()
        blocks = [list(rows.split(list(splits) or rows.shape[0] // size) if rows.shape[0] else [rows] * size)
                  for rows, splits in ((output, output_splits), (tensor, input_splits))]
        return self.alltoall(*blocks)

    def barrier(self, opts: Any = None) -> Done:
        return self._run("barrier", [], lambda comm, _: dissemination.barrier(comm))

    def send(self, tensors: Any, to: int, tag: int) -> Done:
        for message in inputs(tensors):
            among(self._messages.tagged(tag), self._ranks).send(message, to=to)
        return Done([])

    def recv(self, tensors: Any, source: int, tag: int) -> Done:
        """A receive; those that were asked for earlier get their messages first."""
        queue = self._receives.setdefault((source, tag), deque())

        def receive() -> None:
            while work in queue:
                first = queue.popleft()
                first.receive = None
                for tensor in first.outputs:
                    whole = contiguous(tensor)
                    among(self._messages.tagged(tag), self._ranks).recv(into=flat(whole), source=source)
                    tensor.detach().copy_(whole)

        queue.append(work := Done(tensors, receive))
        return work

    def _start_coalescing(self, device: Any) -> None:
        """Coalesced operations run one by one."""

    def _end_coalescing(self, device: Any) -> Done:
        return Done([])

    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single

    def shutdown(self) -> None:
        """The world outlives its groups."""

    abort = shutdown


for method in vars(Group).values():  # C++ calls these while torch.compile traces a model; nothing in them is traced
    if isinstance(method, FunctionType):
        set_code_exec_strategy(method.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def set_environment() -> None:
    """Set the variables of torchrun from the MPI world, unless a launcher has set them."""
    comm, host = connect(), socket.gethostname()
    hosts = broadcast_object(comm, gather_objects(comm, host))
    local_ranks = [rank for rank, other in enumerate(hosts) if other == host]
    with socket.socket() as listening:
        listening.bind(("", 0))
        port = broadcast_object(comm, int(listening.getsockname()[1]))
    os.environ |= {
        "RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "LOCAL_RANK": str(local_ranks.index(comm.rank)),
        "LOCAL_WORLD_SIZE": str(len(local_ranks)), "MASTER_PORT": str(port),
        "MASTER_ADDR": "127.0.0.1" if len(local_ranks) == comm.size else hosts[0]}


def take_groups() -> None:
    """Have every group that an unchanged script makes from now on run over this backend."""
    for module in (dist, distributed_c10d, device_mesh):
        for name in ("init_process_group", "new_group"):
            setattr(module, name, taken(getattr(module, name)))


def taken(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes groups, with this backend instead of another of the CPU's."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature(function).bind(*args, **kwargs)
        asked = str(given.arguments.get("backend", "")).lower()
        if asked not in ON_THE_CPU:
            raise UsageError(f"{function.__name__} asks for {asked!r}, which does not run on the CPU; use gloo")
        given.arguments["backend"] = "zerosim"
        return function(*given.args, **given.kwargs)

    return call


def calls() -> str:
    """A line for each collective and the line that called it: how often, and the bytes that this rank has sent."""
    return "\n".join(f"rank {connect().rank}: {count.calls:5} × {name:15}{count.sent_bytes:>13,} B  {by}"
                     for called, count in TRAFFIC.by_collective.items() for name, _, by in [called.partition(" ")])


set_environment()
if "ZEROSIM" not in dist.Backend._plugins:
    dist.Backend.register_backend("zerosim", lambda options, _: Group(options), extended_api=True, devices=["cpu"])
