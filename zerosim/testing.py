"""A kit for property-testing collectives, ours or a user's: Hypothesis strategies, and laws to apply in one line.

>>> import zerosim as zs
>>> from zerosim.testing import laws
>>> def my_all_reduce(comm, x):
...     return zs.all_gather(comm, zs.reduce_scatter(comm, x), out=x.copy())
>>> laws.all_reduce_is_broadcast_after_reduce(my_all_reduce)
"""

try:
    import hypothesis  # noqa: F401 - imported here, so that only one place says how to install it
except ImportError as error:
    raise ImportError("zerosim.testing needs Hypothesis: pip install 'hypothesis>=6.100'") from error

from zerosim.proofs import laws, strategies
from zerosim.proofs.law import Keywords, Law, LawBroken
from zerosim.proofs.laws import LAWS, check

__all__ = ["laws", "strategies", "check", "LAWS", "Keywords", "Law", "LawBroken"]
