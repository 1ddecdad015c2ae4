"""Data sets: rows of features or sequences of tokens, shipped, generated or a user's own, and the order of samples."""

from zerosim.scenario.data.dataset import Dataset, exact_share, sample_order
from zerosim.scenario.data.load import load_dataset, sequences

__all__ = ["Dataset", "load_dataset", "sequences", "sample_order", "exact_share"]
