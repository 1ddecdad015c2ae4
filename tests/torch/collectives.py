"""Each collective of torch.distributed over the backend, against what every rank can compute by itself.

Run as `mpirun -n N python -m tests.torch.collectives`; each `check_*` is a program that all ranks run.
"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import zerosim.torch.backend  # noqa: F401 - registers the backend
from zerosim.core.errors import CollectiveError

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
    dist.all_reduce(said := torch.tensor([rank == 0, True, False]), ReduceOp.MAX)
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
        same(torch.stack(found or list(all_brought(size))), all_brought(size))
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


def check_receives_get_messages_in_the_order_in_which_they_were_asked_for(rank, size):
    """A receive that was asked for later must not take the message of an earlier one."""
    if size == 1:
        return
    found = torch.zeros(3)
    if rank == 0:
        asked = [dist.irecv(each, size - 1) for each in found]
        asked[2].wait()
        same(found, torch.tensor([1.0, 2.0, 3.0]))
        assert asked[0].is_completed()
    elif rank == size - 1:
        for value in (1.0, 2.0, 3.0):
            dist.send(torch.tensor(value), 0)


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


def check_a_callback_may_wait_for_a_collective(rank, size):
    one, other = brought(rank), brought(rank)
    dist.all_reduce(one, async_op=True).get_future().then(
        lambda _: dist.all_reduce(other, async_op=True).get_future().wait()).wait()
    same(other, all_brought(size).sum(0))


def check_what_is_not_supported_says_so(rank, size):
    for tensor, op, said in ((torch.ones(1, dtype=torch.bool), ReduceOp.AVG, "a reduction by AVG of bool is not supp"),
                             (torch.ones(1), ReduceOp.BXOR, "a reduction by BXOR of float32 is not supported"),
                             (torch.eye(2).to_sparse(), ReduceOp.SUM, r"a tensor on cpu, torch\.sparse_coo")):
        with pytest.raises(CollectiveError, match=said):
            dist.all_reduce(tensor, op)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    dist.init_process_group("zerosim")
    for check in CHECKS:
        check(dist.get_rank(), dist.get_world_size())
        dist.barrier()
    dist.destroy_process_group()
    print(f"passed {len(CHECKS)}")
