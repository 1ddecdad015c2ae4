"""A process group of PyTorch with the collectives of this package.

The algorithm is the same for all reductions: a ring for all-reduce, reduce-scatter and all-gather, a binomial tree for
broadcast and reduce, all pairs for all-to-all; gather and scatter use direct messages to and from the root. Orders of
addition are therefore those of `zerosim.collectives`: chunk c of a ring is ((g[c+1] + g[c+2]) + …) + g[c].

An asynchronous collective runs on the group's thread, in the group's own channel. Point-to-point messages use a second
channel, so they never mix with collectives.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import chain
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._autograd import _profiler_enabled
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.profiler import record_function

from zerosim.allocation import Array
from zerosim.collectives import direct, dissemination, naive, ring, tree
from zerosim.comm import Communicator, among
from zerosim.errors import CollectiveError, Deadlock
from zerosim.instruments.observed import Observed
from zerosim.sharding import split
from zerosim.torch.arrays import Landing, Signed, inputs, reducing
from zerosim.torch.places import calling
from zerosim.torch.watching import WATCH
from zerosim.torch.works import Began, Mail, Turns

Doing = Callable[[Communicator], None]
Rows = Sequence[Sequence[Array]]
BARRIER_TAG = 2**20
"""The tag of messages of `monitored_barrier`, which programs are unlikely to use."""
LEAST = 1e-3
"""The shortest timeout of a wait, in seconds; 0 stands for the group's."""


def refused(name: str) -> Callable[..., Any]:
    """An unsupported operation: calling it raises a `CollectiveError` that names it.

    >>> refused("split_group")()
    Traceback (most recent call last):
    zerosim.errors.CollectiveError: split_group is not supported over zerosim; docs/torch.md lists the supported calls
    """
    def call(*args: Any, **kwargs: Any) -> Any:
        raise CollectiveError(f"{name} is not supported over zerosim; docs/torch.md lists the supported calls")

    return call


class Group(dist.ProcessGroup):
    """Some ranks as a `torch.distributed.ProcessGroup`; `ranks` are their numbers in the world, in the group's order.

    `collectives` is a channel of the world to these ranks, in which `turns` orders the operations; `mail` carries
    point-to-point messages.
    """

    def __init__(self, name: str, ranks: Sequence[int], collectives: Observed, mail: Mail, turns: Turns) -> None:
        comm = among(collectives, ranks)
        super().__init__(comm.rank, comm.size)
        self._name, self._words = name, ""
        self.comm, self._mail = comm, mail
        self._named = collectives.named
        self._turns = turns
        self._begun = 0

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        return "zerosim"

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._words

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")]

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._words = desc

    def size(self) -> int:
        return self.comm.size

    def rank(self) -> int:
        return self.comm.rank

    def allreduce(self, tensors: Any, opts: Any = None) -> Began:
        opts = opts or dist.AllreduceOptions()
        landing = Landing("all_reduce", [tensors] if hasattr(tensors, "dtype") else tensors)
        reduction = [reducing("all_reduce", opts.reduceOp, array, self.size()) for array in landing.arrays]

        def do(comm: Communicator) -> None:
            for array, how, tensor in zip(landing.arrays, reduction, landing.tensors, strict=True):
                how.before(array)
                signed = Signed(comm, how, array.dtype, tensor.shape)
                ring.all_reduce(signed, split(array.view(signed.dtype), comm.size), signed.function)
                how.after(array)

        return self._begin(landing, do, opts)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = None) -> Began:
        opts, landing = opts or dist.BroadcastOptions(), Landing("broadcast", tensors)

        def do(comm: Communicator) -> None:
            for array in landing.arrays:
                tree.broadcast(comm, array, opts.rootRank)

        return self._begin(landing, do, opts)

    def reduce(self, tensors: Any, opts: Any = None) -> Began:
        opts, landing = opts or dist.ReduceOptions(), Landing("reduce", tensors)

        def do(comm: Communicator) -> None:
            for array, tensor in zip(landing.arrays, tensors, strict=True):
                how = reducing("reduce", opts.reduceOp, array, comm.size)
                vector = array if comm.rank == opts.rootRank else array.copy()
                how.before(vector)
                signed = Signed(comm, how, vector.dtype, tensor.shape)
                tree.reduce(signed, vector.view(signed.dtype), opts.rootRank, signed.function)
                how.after(vector)

        return self._begin(landing, do, opts)

    def allgather(self, output_lists: list[list[Any]], tensors: list[Any], opts: Any = None) -> Began:
        landing = Landing("all_gather", [*chain(*output_lists)])
        return self._all_gather(landing, self._rows(landing.arrays), tensors, opts)

    def allgather_coalesced(self, output_lists: list[list[Any]], tensors: list[Any], opts: Any = None) -> Began:
        """Gather each tensor; `output_lists[r]` has the destinations of rank r's tensors."""
        of_each_tensor = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self.allgather(of_each_tensor, tensors, opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Began:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: list[Any], tensors: list[Any], opts: Any = None) -> Began:
        landing = Landing("all_gather", outputs)
        return self._all_gather(landing, [split(array, self.size()) for array in landing.arrays], tensors, opts)

    def _all_gather(self, landing: Landing, rows: Rows, tensors: list[Any], opts: Any) -> Began:
        """Fill each of `rows`, the chunks of one vector, with all ranks' tensors of that number."""
        shards = inputs("all_gather", tensors)

        def do(comm: Communicator) -> None:
            for chunks, shard in zip(rows, shards, strict=True):
                chunks[comm.rank][...] = shard
                ring.all_gather(comm, chunks)

        return self._begin(landing, do, opts or dist.AllgatherOptions())

    def reduce_scatter(self, outputs: list[Any], input_lists: list[list[Any]], opts: Any = None) -> Began:
        return self._reduce_scatter(outputs, [inputs("reduce_scatter", tensors) for tensors in input_lists], opts)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Began:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Any], tensors: list[Any], opts: Any = None) -> Began:
        rows = [split(vector, self.size()) for vector in inputs("reduce_scatter", tensors)]
        return self._reduce_scatter(outputs, rows, opts)

    def _reduce_scatter(self, outputs: list[Any], rows: Rows, opts: Any) -> Began:
        """Fill each output with this rank's chunk of the sum of that row over the ranks."""
        opts, landing = opts or dist.ReduceScatterOptions(), Landing("reduce_scatter", outputs)

        def do(comm: Communicator) -> None:
            for array, chunks in zip(landing.arrays, rows, strict=True):
                scattered(comm, [chunk.copy() for chunk in chunks], array, opts.reduceOp)

        return self._begin(landing, do, opts)

    def gather(self, output_lists: list[list[Any]], tensors: list[Any], opts: Any = None) -> Began:
        opts, landing = opts or dist.GatherOptions(), Landing("gather", [*chain(*output_lists)])
        rows, shards = self._rows(landing.arrays), inputs("gather", tensors)

        def do(comm: Communicator) -> None:
            for number, shard in enumerate(shards):
                chunks = rows[number] if comm.rank == opts.rootRank else [shard] * comm.size
                chunks[comm.rank][...] = shard
                naive.gather(comm, chunks, opts.rootRank)

        return self._begin(landing, do, opts)

    def scatter(self, outputs: list[Any], input_lists: list[list[Any]], opts: Any = None) -> Began:
        opts, landing = opts or dist.ScatterOptions(), Landing("scatter", outputs)
        rows = [inputs("scatter", tensors) for tensors in input_lists]

        def do(comm: Communicator) -> None:
            for number, array in enumerate(landing.arrays):
                chunks = rows[number] if comm.rank == opts.rootRank else [array] * comm.size
                naive.scatter(comm, chunks, opts.rootRank)
                array[...] = chunks[comm.rank]

        return self._begin(landing, do, opts)

    def alltoall(self, outputs: list[Any], tensors: list[Any], opts: Any = None) -> Began:
        landing = Landing("all_to_all", outputs)
        return self._all_to_all(landing, landing.arrays, inputs("all_to_all", tensors), opts)

    def all_to_all_single(
        self, output: Any, tensor: Any, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Began:
        landing, (brought,) = Landing("all_to_all", [output]), inputs("all_to_all", [tensor])
        outgoing = blocks(brought, tensor, input_splits, self.size())
        incoming = blocks(landing.arrays[0], output, output_splits, self.size())
        return self._all_to_all(landing, incoming, outgoing, opts)

    def _all_to_all(self, landing: Landing, incoming: list[Array], outgoing: list[Array], opts: Any) -> Began:
        return self._begin(
            landing, lambda comm: direct.all_to_all(comm, outgoing, incoming), opts or dist.AllToAllOptions())

    def barrier(self, opts: Any = None) -> Began:
        return self._begin(Landing("barrier", []), dissemination.barrier, opts or dist.BarrierOptions())

    def send(self, tensors: list[Any], to: int, tag: int) -> Began:
        messages, owner = self._mail.tagged(tag), calling(self._name)
        for array in inputs("send", tensors):
            messages.send(owner, array, to)
        return Began([])

    def recv(self, tensors: list[Any], source: int | None, tag: int) -> Began:
        return self._mail.tagged(tag).ask(calling(self._name), Landing("recv", tensors), tensors, source)

    def recv_anysource(self, tensors: list[Any], tag: int) -> Began:
        return self.recv(tensors, None, tag)

    def _start_coalescing(self, device: Any) -> None:
        """Does nothing: coalesced operations run one by one."""

    def _end_coalescing(self, device: Any) -> Began:
        return self._turns.now(lambda: None, [])

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that this rank has begun in the group."""
        return self._begun

    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool = False) -> None:
        """A barrier that fails on rank 0 with the ranks that have not arrived within `timeout`."""
        words, nothing = calling(self._name), [torch.zeros(1)]
        barrier = self._mail.tagged(BARRIER_TAG)
        if self.rank() > 0:
            barrier.send(words, inputs("barrier", nothing)[0], 0)
            barrier.ask(words, Landing("barrier", nothing), nothing, 0).wait()
            return
        late = []
        deadline = time.monotonic() + timeout.total_seconds()
        for rank in range(1, self.size()):
            receive = barrier.ask(words, Landing("barrier", nothing), nothing, rank)
            try:
                receive.wait(timedelta(seconds=max(deadline - time.monotonic(), LEAST)))
            except Deadlock:
                late.append(rank)
                if not wait_all_ranks:
                    break
        if late:
            said = f"{'Ranks' if len(late) > 1 else 'Rank'} {', '.join(map(str, late))}"
            raise Deadlock(
                f"[Rank 0]: {said} failed to pass monitoredBarrier in {round(1e3 * timeout.total_seconds())} ms from "
                f"{words}: Timed out waiting; give it a longer timeout=")
        for rank in range(1, self.size()):
            barrier.send(words, inputs("barrier", nothing)[0], rank)

    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single
    split_group, merge_remote_group = refused("split_group"), refused("merge_remote_group")
    _register_on_completion_hook = refused("_register_on_completion_hook")

    def set_timeout(self, timeout: timedelta) -> None:
        raise CollectiveError("set_timeout is not supported: give init_process_group its timeout=")

    def abort(self) -> None:
        """Does nothing."""

    shutdown = abort

    def _rows(self, arrays: list[Array]) -> list[list[Array]]:
        """The arrays for one vector after the other: as many as there are ranks."""
        return [arrays[first : first + self.size()] for first in range(0, len(arrays), self.size())]

    def _begin(self, landing: Landing, do: Doing, opts: Any) -> Began:
        """Run a collective that fills `landing`, on the group's thread if it is asynchronous."""
        def filling(comm: Communicator) -> None:
            do(comm)
            landing.finish()

        name, outputs = landing.what, landing.tensors
        named = self._named(name, WATCH.calls.describing(filling, outputs) if WATCH.begun else filling)
        owner, comm = calling(self._name), self.comm
        take_turn = self._turns.begin if opts.asyncOp else self._turns.now
        self._begun += 1
        if not _profiler_enabled():
            return take_turn(lambda: named(owner, comm), outputs)
        with record_function(f"c10d::{name.replace('all_', 'all').replace('to_all', 'toall')}_"):
            return take_turn(lambda: named(owner, comm), outputs)


for each in vars(Group).values():
    if isinstance(each, FunctionType):
        # C++ calls these while torch.compile traces a model, as DDP does; nothing within them is traced.
        set_code_exec_strategy(each.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def scattered(comm: Communicator, chunks: Any, into: Array, op: Any) -> None:
    """Fill `into` with this rank's chunk of the sum of all `chunks`, which are overwritten."""
    how = reducing("reduce_scatter", op, into, comm.size)
    for chunk in chunks:
        how.before(chunk)
    signed = Signed(comm, how, into.dtype, into.shape)
    ring.reduce_scatter(signed, [chunk.view(signed.dtype) for chunk in chunks], signed.function)
    into[...] = chunks[comm.rank]
    how.after(into)


def blocks(array: Array, tensor: Any, splits: Sequence[int], size: int) -> list[Array]:
    """A flat array in one block for each rank: equally long, or as many rows of the tensor as `splits` says."""
    if not splits:
        if array.size % size:
            raise CollectiveError(f"all_to_all of {array.size} elements has no {size} equal blocks: give split sizes")
        return list(split(array, size))
    row = array.size // max(tensor.shape[0], 1)
    if sum(splits) != tensor.shape[0]:
        raise CollectiveError(f"all_to_all: splits {list(splits)} are of {sum(splits)} rows, the tensor has "
                              f"{tensor.shape[0]}: they must agree")
    ends = [sum(splits[: number + 1]) * row for number in range(size)]
    return [array[end - rows * row : end] for rows, end in zip(splits, ends, strict=True)]
