"""The reference for PyTorch's trainers: one process adds every rank's gradient in the declared order.

It calls no collective. PyTorch computes the gradients with the full model, `tests.torch.adding` the sums, and the
same optimizer the update.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.torch.adding import all_reduced, in_ring_order, over_mesh
from tests.torch.ways import CLIP, batches, fresh_model, loss_of, optimizer_of, units
from zerosim.torch.backend import flat


class Alone:
    """Trains as `ranks` ranks would in one of the ways."""

    def __init__(self, way, ranks):
        self.way, self.ranks = way, ranks
        self.model = fresh_model()
        self.parameters = list(self.model.parameters())
        self._optimizer = optimizer_of(self.parameters)
        self._ready = []
        self._reductions = 0

    def step(self, number):
        """Train one step; afterwards `parameters` are those that every rank must have."""
        parts = [list(batches(number, rank, self.way)) for rank in range(self.ranks)]
        gradient = self._each_time(parts) if self.way.syncs_each else self._once(parts)
        for parameter, found in zip(self.parameters, gradient, strict=True):
            parameter.grad = found.to(parameter.dtype)
        if self.way.clip and self.way.trainer == "ddp":
            nn.utils.clip_grad_norm_(self.parameters, CLIP)
        elif self.way.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, CLIP, self._sharded_norm())
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _once(self, parts):
        """The sum of a rank's micro-batches, left to right; then of the ranks."""
        totals = []
        for of_rank in parts:
            total = self._gradient(*of_rank[0])
            for micro_batch in of_rank[1:]:
                total = [one + other for one, other in zip(total, self._gradient(*micro_batch), strict=True)]
            totals.append(total)
        return self._reduced(totals)

    def _each_time(self, parts):
        """Micro-batch by micro-batch, the sum over the ranks.

        DDP reduces the contents of `grad`, which include the mean of earlier ones; FSDP2 adds each mean to its shard.
        """
        held = None
        for micro_batches in zip(*parts, strict=True):
            brought = [self._gradient(*each) for each in micro_batches]
            if held is None:
                held = self._reduced(brought)
            elif self.way.trainer == "ddp":
                held = self._reduced([[h + g for h, g in zip(held, of_rank, strict=True)] for of_rank in brought])
            else:
                held = [one + other for one, other in zip(held, self._reduced(brought), strict=True)]
        return held

    def _gradient(self, x, y):
        """The gradient of one micro-batch, by the full model in its computing precision."""
        model, parameters = self.model, self.parameters
        if self.way.param_dtype is not None:
            model = fresh_model().to(self.way.param_dtype)
            parameters = list(model.parameters())
            for narrow, parameter in zip(parameters, self.parameters, strict=True):
                narrow.data.copy_(parameter.data)
            x = x.to(self.way.param_dtype)
        ready = []
        hooks = [parameter.register_post_accumulate_grad_hook(lambda _, number=number: ready.append(number))
                 for number, parameter in enumerate(parameters)]
        loss_of(model, x, y).backward()
        for hook in hooks:
            hook.remove()
        self._ready = self._ready or ready
        found = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        return found

    def _reduced(self, brought):
        """The mean over the ranks."""
        self._reductions += 1
        return self._by_buckets(brought) if self.way.trainer == "ddp" else self._by_shards(brought)

    def _by_buckets(self, brought):
        """The mean as DDP computes it, bucket by bucket."""
        found = [None] * len(self.parameters)
        for bucket in self._buckets():
            start, length = 0, sum(self.parameters[number].numel() for number in bucket)
            for number in bucket:
                shape = self.parameters[number].shape
                shares = [flat(self._share(of_rank[number]).reshape(-1)) for of_rank in brought]
                found[number] = torch.from_numpy(all_reduced(shares, start, length)).reshape(shape)
                start += shape.numel()
        return found

    def _share(self, gradient):
        """A rank's contribution to the sum that is the mean."""
        views = self.way.as_views and self._reductions > 1
        return gradient.div(self.ranks) if views else gradient.mul(1.0 / self.ranks)

    def _buckets(self):
        """The parameters of each bucket, in the order of the bucket."""
        if self._reductions == 1:
            return [list(range(len(self.parameters)))]
        ready = [self.parameters[number] for number in self._ready]
        limit = self.way.bucket_bytes
        found, _ = dist._compute_bucket_assignment_by_size(ready, [limit, limit], [False] * len(ready), self._ready)
        return [list(bucket) for bucket in found]

    def _by_shards(self, brought):
        """The mean as FSDP2 computes it: pieces of ⌈rows/shards⌉ rows of each parameter, unit by unit."""
        found, shards = [], self.ranks // self.way.replicas()
        for unit in units(self.model):
            start, rows = 0, [-(-len(each) // shards) for each in unit]
            widths = [count * each[0].numel() for count, each in zip(rows, unit, strict=True)]
            for count, width, each in zip(rows, widths, unit, strict=True):
                arrays = [self._array(of_rank[len(found)]) for of_rank in brought]
                pieces = [over_mesh([[array[shard * count : (shard + 1) * count].reshape(-1)
                                      for array in arrays[first : first + shards]]
                                     for first in range(0, self.ranks, shards)], shard, start, sum(widths))
                          for shard in range(shards)]
                found.append(torch.from_numpy(np.concatenate(pieces).astype("f4")).reshape(each.shape))
                start += width
        return found

    def _array(self, gradient):
        """The gradient as an array in the precision of the reduction."""
        reduced = gradient.to(self.way.reduce_dtype or gradient.dtype)
        return flat(reduced).reshape(gradient.shape)

    def _sharded_norm(self):
        """The norm of all gradients, computed from shards.

        Each rank squares the norm of its piece of each parameter. The root of their sum over the ranks, in the order
        of chunk 0 of a ring, is the parameter's norm; the norm of these is the result.
        """
        norms = []
        for parameter in self.parameters:
            rows = -(-len(parameter) // self.ranks)
            cut = [parameter.grad[rank * rows : (rank + 1) * rows] for rank in range(self.ranks)]
            squares = [flat(torch.linalg.vector_norm(piece).reshape(1) ** 2.0) for piece in cut]
            norms.append((torch.from_numpy(in_ring_order(squares, 0)) ** 0.5)[0])
        return torch.linalg.vector_norm(torch.stack(norms))
