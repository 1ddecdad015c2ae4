"""A grid of ranks, each row and each column a ring: few long messages along columns, then short ones along rows.

    rows       the largest divisor of the ranks up to their square root; rank r is in row r // columns
    steps      rows − 1 along a column, with the chunks of a row each, then columns − 1 along a row, with one chunk each
    bytes      those of one ring: all chunks but one

Sources: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash" (2018), on 2D-torus
all-reduce;
Ying et al., "Image classification at supercomputer scale" (2018), on 2-D torus all-reduce to sum gradients. Both reduce
along rows first; here a row's chunks are neighbours, so that columns send them in one message.
"""

from math import isqrt

import numpy as np

from zerosim.extend import collective


def shape_of(size):
    """Rows and columns."""
    rows = next(each for each in range(isqrt(size), 0, -1) if size % each == 0)
    return rows, size // rows


def ring_sum(parts, last):
    """The sum in the order of a ring that ends with one part."""
    total = parts[(last + 1) % len(parts)]
    for distance in range(2, len(parts) + 1):
        total = total + parts[(last + distance) % len(parts)]
    return total


def columns_then_rows(contributions, chunk):
    """Sums of columns, each in the order of its ring, then their ring along the owner's row."""
    _, columns = shape_of(len(contributions))
    row, column = divmod(chunk, columns)
    return ring_sum([ring_sum(contributions[first::columns], row) for first in range(columns)], column)


def along_column(comm, chunks, behind, reduce=None):
    """One step down: the chunks of the row so far behind the own one leave, and those of the row before arrive."""
    rows, columns = shape_of(comm.size)
    out, into = (((comm.rank // columns - each) % rows) * columns for each in (behind, behind + 1))
    comm.exchange(chunks[out : out + columns], to=(comm.rank + columns) % comm.size,
                  into=chunks[into : into + columns], source=(comm.rank - columns) % comm.size, reduce=reduce)


def along_row(comm, chunks, behind, reduce=None):
    """One step right, of one chunk of the own row."""
    _, columns = shape_of(comm.size)
    row, column = divmod(comm.rank, columns)
    out, to, into, source = (row * columns + (column + each) % columns for each in (-behind, 1, -behind - 1, -1))
    comm.exchange(chunks[out], to=to, into=chunks[into], source=source, reduce=reduce)


@collective(order=columns_then_rows, chunks_sent=lambda ranks: ranks - 1)
def reduce_scatter(comm, chunks, reduce=np.add):
    rows, columns = shape_of(comm.size)
    for step in range(rows - 1):
        along_column(comm, chunks, step + 1, reduce)
    for step in range(columns - 1):
        along_row(comm, chunks, step + 1, reduce)


@collective(chunks_sent=lambda ranks: ranks - 1)
def all_gather(comm, chunks):
    rows, columns = shape_of(comm.size)
    for step in range(columns - 1):
        along_row(comm, chunks, step)
    for step in range(rows - 1):
        along_column(comm, chunks, step)
