"""Observations of a step that trains right, and sends or computes more than it needs; choices, so never findings."""

from typing import Any

from torch import nn

from zerosim.torch.verdicts.findings import Book
from zerosim.torch.verdicts.session import Tracked
from zerosim.torch.verdicts.split import units


def observe(book: Book, model: Tracked, ranks: int, line: str) -> None:
    """Note waste of one model's step, with the bytes that each rank sends for it in a ring."""
    around = (ranks - 1) / ranks
    trained = sum(size_of(each) for each in model.parameters().values() if each.requires_grad)
    reducing = len({call.backward for call in model.calls if call.backward and call.synchronized})
    groups = units(model.root)
    if reducing > 1:
        once = int(trained * around * (1 if groups else 2))
        book.observe("reductions", f"gradients are reduced in {reducing} micro-batches of a step; once is enough "
                     "(no_sync, set_requires_gradient_sync)", (reducing - 1) * once, line)
    if len({call.backward for call in model.calls if call.backward}) > 1 and not any(
            call.scaled for call in model.calls if call.backward):
        book.observe("accumulation", "the loss of each micro-batch is not divided by their number: the gradient is the "
                     "sum over them", 0, line)
    again = sum(size_of(each.sharded_param) for group in groups if group.post_forward_mesh_info is not None
                for each in group.fsdp_params)
    if again:
        book.observe("gathers", "weights are gathered twice, in forward and in backward; reshard_after_forward=False "
                     "gathers once and keeps them", int(again * around), line)
    for module in model.root.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel) and module.find_unused_parameters and all(
                each.grad is not None for each in model.parameters().values() if each.requires_grad):
            book.observe("unused parameters", "find_unused_parameters=True finds none", 0, line)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training and not isinstance(
                module, nn.SyncBatchNorm):
            book.observe("BatchNorm", "BatchNorm normalises by each rank's own batch; SyncBatchNorm by all", 0, line)


def size_of(parameter: Any) -> int:
    """The bytes of a whole parameter."""
    return int(parameter.numel() * parameter.element_size())
