"""Each collective of torch.distributed over the backend, against what every rank can compute by itself.

Run as `mpirun -n N python -m tests.torch.collectives`; each `check_*` is a program that all ranks run.
"""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.errors import CollectiveError, Deadlock
from zerosim.torch.works import Turns

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8)


def brought(rank, count=5, dtype=torch.float32):
    """What a rank brings: small whole numbers, which every dtype adds without rounding."""
    return ((torch.arange(count) + 2 * rank) % 5 + 1).to(dtype)


def all_brought(size, count=5, dtype=torch.float32):
    return torch.stack([brought(rank, count, dtype) for rank in range(size)])


def same(found, due):
    assert found.dtype == due.dtype
    assert found.shape == due.shape
    assert torch.equal(found, due), (found, due)


def check_all_reduce(rank, size):
    for dtype in DTYPES:
        for op, reduce in ((ReduceOp.SUM, torch.sum), (ReduceOp.MAX, torch.amax), (ReduceOp.MIN, torch.amin)):
            for count in (0, 1, 5, 17):
                tensor = brought(rank, count, dtype)
                dist.all_reduce(tensor, op)
                same(tensor, reduce(all_brought(size, count, dtype), 0).to(dtype))


def check_other_reductions(rank, size):
    tensor = brought(rank, dtype=torch.float64)
    dist.all_reduce(tensor, ReduceOp.AVG)
    same(tensor, all_brought(size, dtype=torch.float64).sum(0) / size)
    tensor = brought(rank, dtype=torch.float64)
    dist.all_reduce(tensor, ReduceOp.PRODUCT)
    same(tensor, all_brought(size, dtype=torch.float64).prod(0))
    tensor = brought(rank)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    same(tensor, (all_brought(size) * 0.5).sum(0))
    bits = torch.tensor([1 << (rank % 8)], dtype=torch.uint8)
    dist.all_reduce(bits, ReduceOp.BOR)
    same(bits, torch.tensor([(1 << min(size, 8)) - 1], dtype=torch.uint8))


def check_complex_and_bool(rank, size):
    tensor = torch.complex(brought(rank), brought(rank + 1))
    dist.all_reduce(tensor)
    same(tensor, torch.complex(all_brought(size).sum(0), all_brought(size + 1)[1:].sum(0)))
    said = torch.tensor([rank == 0, True, False])
    dist.all_reduce(said, ReduceOp.MAX)
    same(said, torch.tensor([True, True, False]))


def check_broadcast_and_reduce(rank, size):
    for root in range(size):
        tensor = brought(rank)
        dist.broadcast(tensor, root)
        same(tensor, brought(root))
        tensor = brought(rank)
        dist.reduce(tensor, root)
        same(tensor, all_brought(size).sum(0) if rank == root else brought(rank))


def check_all_gather(rank, size):
    found = [torch.empty(5) for _ in range(size)]
    dist.all_gather(found, brought(rank))
    same(torch.stack(found), all_brought(size))
    uneven = [torch.empty(each) for each in range(size)]
    dist.all_gather(uneven, brought(rank, rank))
    for each in range(size):
        same(uneven[each], brought(each, each))
    whole = torch.empty(size, 5)
    dist.all_gather_into_tensor(whole, brought(rank))
    same(whole, all_brought(size))


def check_reduce_scatter(rank, size):
    chunk = torch.empty(3)
    vector = brought(rank, 3 * size)
    dist.reduce_scatter_tensor(chunk, vector)
    same(chunk, all_brought(size, 3 * size).sum(0)[3 * rank : 3 * rank + 3])
    same(vector, brought(rank, 3 * size))
    pieces = list(brought(rank, 3 * size).chunk(size))
    dist.reduce_scatter(chunk, pieces, ReduceOp.AVG)
    same(chunk, all_brought(size, 3 * size).sum(0)[3 * rank : 3 * rank + 3] / size)


def check_gather_and_scatter(rank, size):
    for root in range(size):
        found = [torch.empty(5) for _ in range(size)] if rank == root else None
        dist.gather(brought(rank), found, dst=root)
        if rank == root:
            same(torch.stack(found), all_brought(size))
        mine = torch.empty(5)
        dist.scatter(mine, list(all_brought(size)) if rank == root else None, src=root)
        same(mine, brought(rank))


def check_all_to_all(rank, size):
    incoming = torch.empty(2 * size)
    dist.all_to_all_single(incoming, torch.arange(2.0 * size) + 100 * rank)
    same(incoming, torch.cat([torch.arange(2.0) + 2 * rank + 100 * each for each in range(size)]))
    splits_out, splits_in = [each + 1 for each in range(size)], [rank + 1] * size
    outgoing = torch.full((sum(splits_out), 2), float(rank))
    incoming = torch.empty(sum(splits_in), 2)
    dist.all_to_all_single(incoming, outgoing, splits_in, splits_out)
    same(incoming, torch.arange(float(size)).repeat_interleave(rank + 1)[:, None].expand(-1, 2).contiguous())
    lists = [torch.empty(each + 1) for each in range(size)]
    dist.all_to_all(lists, [torch.full((rank + 1,), float(rank)) for _ in range(size)])
    for each in range(size):
        same(lists[each], torch.full((each + 1,), float(each)))


def check_send_and_recv(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    found = torch.empty(5)
    requests = [dist.isend(brought(rank), right), dist.irecv(found, left)]
    for request in requests:
        request.wait()
    same(found, brought(left))
    two = [torch.empty(1), torch.empty(1)]
    operations = [dist.P2POp(dist.isend, torch.tensor([10.0 * rank]), right),
                  dist.P2POp(dist.isend, torch.tensor([10.0 * rank + 1]), right),
                  dist.P2POp(dist.irecv, two[0], left), dist.P2POp(dist.irecv, two[1], left)]
    for request in reversed(dist.batch_isend_irecv(operations)):
        request.wait()
    same(torch.cat(two), torch.tensor([10.0 * left, 10.0 * left + 1]))


def check_tags_and_receives_from_any_rank(rank, size):
    """A message finds the receive of its tag; a receive from any rank takes what came first and names its rank."""
    right, left = (rank + 1) % size, (rank - 1) % size
    found = [torch.empty(1) for _ in range(3)]
    for tag in (0, 7, 40_000):
        dist.isend(torch.tensor([100.0 * rank + tag]), right, tag=tag)
    requests = [dist.irecv(each, left, tag=tag) for each, tag in zip(found, (40_000, 0, 7), strict=True)]
    for request in requests[::-1]:
        request.wait()
    same(torch.cat(found), 100.0 * left + torch.tensor([40_000.0, 0.0, 7.0]))
    for each in range(size):
        dist.isend(torch.tensor([float(rank)]), each, tag=1)
    sources, values = [], torch.empty(size)
    for each in values:
        request = dist.irecv(each, tag=1)
        request.wait()
        sources.append(request.source_rank())
    same(values, torch.tensor([float(each) for each in sources]))
    assert sorted(sources) == list(range(size))


def check_receives_get_messages_in_the_order_in_which_they_were_asked_for(rank, size):
    """The first receive takes any rank's; those of one rank that were asked for later must not take its message."""
    if size == 1:
        return
    found = torch.zeros(3)
    if rank == 0:
        anybodys = dist.irecv(found[0])
        later = [dist.irecv(each, size - 1) for each in found[1:]]
        later[1].wait()
        same(found, torch.tensor([1.0, 2.0, 3.0]))
        assert anybodys.is_completed()
        assert anybodys.source_rank() == size - 1
    elif rank == size - 1:
        for value in (1.0, 2.0, 3.0):
            dist.send(torch.tensor(value), 0)


def check_asking_whether_a_receive_is_complete_never_waits(rank, size):
    """Each rank asks before anything was sent to it, and sends only then."""
    right, left = (rank + 1) % size, (rank - 1) % size
    found = [torch.empty(5), torch.empty(5)]
    requests = [dist.irecv(found[0], left), dist.irecv(found[1], tag=3)]
    assert not any(request.is_completed() for request in requests)
    dist.barrier()
    dist.isend(brought(rank), right)
    dist.isend(brought(rank), right, tag=3)
    while not all(request.is_completed() for request in requests):
        pass
    same(torch.stack(found), torch.stack([brought(left)] * 2))


def check_what_is_in_pieces(rank, size):
    columns = brought(rank, 12).reshape(3, 4).T
    dist.all_reduce(columns)
    same(columns, all_brought(size, 12).sum(0).reshape(3, 4).T)
    negative = torch._neg_view(brought(rank))
    dist.all_reduce(negative)
    same(negative.resolve_neg(), -all_brought(size).sum(0))
    every_other = torch.zeros(10)[::2]
    every_other.copy_(brought(rank))
    dist.broadcast(every_other, size - 1)
    same(every_other, brought(size - 1))


def check_coalesced(rank, size):
    tensors = [brought(rank, count) for count in (1, 5, 9)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        same(tensor, all_brought(size, tensor.numel()).sum(0))
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor, ReduceOp.MAX)
    wholes, shards = [torch.empty(size, 2), torch.empty(size, 3)], [brought(rank, 2), brought(rank, 3)]
    with dist._coalescing_manager():
        for whole, shard in zip(wholes, shards, strict=True):
            dist.all_gather_into_tensor(whole, shard)
    for whole in wholes:
        same(whole, all_brought(size, whole.shape[1]))


def check_objects(rank, size):
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank, "words": "x" * rank})
    assert found == [{"rank": each, "words": "x" * each} for each in range(size)]
    said = [rank, None]
    dist.broadcast_object_list(said, src=size - 1)
    assert said == [size - 1, None]
    one = [None]
    dist.scatter_object_list(one, list(range(size)) if rank == 0 else None, src=0)
    assert one == [rank]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (None, list(range(size)))


def check_asynchronous_collectives_keep_their_order(rank, size):
    tensors = [brought(rank, 1000) for _ in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = brought(rank, 1000)
    dist.all_reduce(last)  # here and now, after those
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    for tensor in [*tensors, last]:
        same(tensor, all_brought(size, 1000).sum(0))
    future = dist.all_reduce(last, async_op=True).get_future()
    same(future.wait()[0], size * all_brought(size, 1000).sum(0))


def check_groups_work_at_once(rank, size):
    """Each rank in two groups, whose collectives are under way together, on every second rank in a different order."""
    halves = [dist.new_group([each for each in range(size) if each % 2 == half]) for half in range(min(2, size))]
    mine, backwards = halves[rank % 2], dist.new_group(list(range(size))[::-1])
    one, other = brought(rank, 999), brought(rank, 999)
    begin = [lambda: dist.all_reduce(one, group=mine, async_op=True),
             lambda: dist.all_reduce(other, group=backwards, async_op=True)]
    for work in [each() for each in (begin if rank % 2 else begin[::-1])]:
        work.wait()
    same(one, all_brought(size, 999)[rank % 2 :: 2].sum(0))
    same(other, all_brought(size, 999).sum(0))
    assert dist.get_world_size(mine) == len(range(rank % 2, size, 2))
    found = [None] * size
    dist.all_gather_object(found, rank, group=backwards)
    assert sorted(found) == list(range(size))
    tensor = brought(rank)
    dist.broadcast(tensor, src=size - 1, group=backwards)
    same(tensor, brought(size - 1))


def check_a_mesh(rank, size):
    if size % 2:
        return
    mesh = dist.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    for name, members in (("replicate", range(rank % 2, size, 2)), ("shard", range(rank // 2 * 2, rank // 2 * 2 + 2))):
        tensor = brought(rank)
        dist.all_reduce(tensor, group=mesh.get_group(name))
        same(tensor, all_brought(size)[list(members)].sum(0))


def check_ranks_that_reduce_differently_are_named(rank, size):
    """Nobody receives after a refusal, so each pair of calls has a group of its own."""
    for odd, even in (({"op": ReduceOp.MAX}, {}), ({}, {"shape": (3, 2)}), ({}, {"dtype": torch.int32})):
        group = dist.new_group(range(size))
        wanted = {"op": ReduceOp.SUM, "shape": (2, 3), "dtype": torch.float32} | (odd if rank % 2 else even)
        tensor = torch.ones(wanted["shape"], dtype=wanted["dtype"])
        if size % 2:
            continue
        with pytest.raises(CollectiveError, match=f"^ranks {rank} and {(rank - 1) % size} of the group differ in the "):
            dist.all_reduce(tensor, wanted["op"], group)


def check_what_is_brought_is_not_changed(rank, size):
    chunks = [brought(rank) for _ in range(size)]
    dist.reduce_scatter(brought(rank), chunks)
    assert all(torch.equal(each, brought(rank)) for each in chunks)
    tensor = brought(rank)
    dist.all_reduce(tensor)
    assert tensor.untyped_storage().resizable()


def check_a_failed_operation_is_no_success(rank, size):
    turns = Turns("mine", 60.0, lambda: 0)
    failed, done = turns.begin(lambda: 1 / 0, []), turns.begin(lambda: None, [])
    done.wait()
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert done.is_success()
    assert failed.is_completed()
    assert not failed.is_success()


def check_a_wait_for_a_collective_ends(rank, size):
    """An operation that never ends is waited for as long as messages arrive, and then for the timeout."""
    arriving, ends = iter([1, 2, 2, 2]), threading.Event()
    turns = Turns("mine", 0.01, lambda: next(arriving))
    work = turns.begin(lambda: ends.wait() and None, [])
    for timeout, seconds in ((timedelta(seconds=0.02), "0.02"), (timedelta(0), r"1\.01")):
        with pytest.raises(Deadlock, match=rf"^waited {seconds} s for a collective of group mine; "):
            work.wait(timeout)
    ends.set()
    work.wait()


def check_a_callback_may_wait_for_a_collective(rank, size):
    one, other = brought(rank), brought(rank)
    dist.all_reduce(one, async_op=True).get_future().then(
        lambda _: dist.all_reduce(other, async_op=True).get_future().wait()).wait()
    same(other, all_brought(size).sum(0))


def check_a_monitored_barrier_names_who_is_late(rank, size):
    before = dist.group.WORLD._get_sequence_number_for_group()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=30))
    dist.barrier()
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 1
    if size > 2:
        three = dist.new_group([0, 1, 2])
        if rank == 0:
            with pytest.raises(Deadlock, match=r"Ranks 1, 2 failed to pass monitoredBarrier in 10 ms .* Timed out"):
                three.monitored_barrier(timedelta(seconds=0.01), wait_all_ranks=True)


def check_what_is_not_supported_says_so(rank, size):
    with pytest.raises(CollectiveError, match="tag=-1: tags are whole numbers from 0 to"):
        dist.isend(torch.ones(1), (rank + 1) % size, tag=-1)
    with pytest.raises(CollectiveError, match="all_reduce by avg of int64 is not supported"):
        dist.all_reduce(torch.ones(1, dtype=torch.int64), ReduceOp.AVG)
    with pytest.raises(CollectiveError, match="all_reduce by bxor of float32 is not supported"):
        dist.all_reduce(torch.ones(1), ReduceOp.BXOR)
    with pytest.raises(CollectiveError, match=r"all_reduce of a tensor on cpu, torch\.sparse_coo is not supported"):
        dist.all_reduce(torch.eye(2).to_sparse())
    with pytest.raises(CollectiveError, match=r"broadcast of torch\.float4_e2m1fn_x2 is not supported"):
        dist.broadcast(torch.empty(1, dtype=torch.float4_e2m1fn_x2), 0)
    for name in ("split_group", "merge_remote_group", "_register_on_completion_hook"):
        with pytest.raises(CollectiveError, match=f"^{name} is not supported over zerosim"):
            getattr(dist.group.WORLD, name)()


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    dist.init_process_group("zerosim")
    for check in CHECKS:
        check(dist.get_rank(), dist.get_world_size())
        dist.barrier()
    dist.destroy_process_group()
    print(f"passed {len(CHECKS)}")
