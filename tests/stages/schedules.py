"""A schedule that is wrong."""

from zerosim.stages.schedules import gpipe


def without_flush(rank, ranks, micro_batches, chunks):
    """GPipe that leaves out a micro-batch."""
    return [slot for slot in gpipe(rank, ranks, micro_batches, chunks) if slot.micro_batch != 1]
