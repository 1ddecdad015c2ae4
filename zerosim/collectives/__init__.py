"""Collectives on whole arrays. The modules here hold the algorithms beneath them, one file each.

There are two interfaces. Algorithms work in place on the chunks of one flat vector, because stages and lessons are
written in terms of chunks and copies would hide what is sent. `arrays.py` wraps them for whole arrays, in NumPy's
style. Both are accepted wherever a user names a function.
"""

from zerosim.collectives.arrays import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from zerosim.collectives.table import ALGORITHMS, Algorithm, algorithm_of, find

__all__ = [
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather",
    "all_to_all", "barrier", "ALGORITHMS", "Algorithm", "algorithm_of", "find",
]
