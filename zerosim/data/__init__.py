"""Samples: the digits that ship with zerosim, or a user's own arrays, and the order in which they are taken."""

from zerosim.data.dataset import Dataset, load_dataset, sample_order

__all__ = ["Dataset", "load_dataset", "sample_order"]
