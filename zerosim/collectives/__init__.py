"""Collectives on whole arrays; the algorithms beneath them, as plain text, are in the modules here."""

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
from zerosim.collectives.table import ALGORITHMS, Algorithm, find

__all__ = [
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather",
    "all_to_all", "barrier", "ALGORITHMS", "Algorithm", "find",
]
