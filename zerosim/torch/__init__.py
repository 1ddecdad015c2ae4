"""PyTorch's own trainers over the collectives of this package; `checking` judges trainings over any other.

Importing it does nothing, and needs neither MPI nor PyTorch. `import zerosim.torch.backend` connects the ranks that
mpirun has started, sets what PyTorch reads from the environment, and registers the backend "zerosim".
"""

from zerosim.torch.check import Checked, checking

__all__ = ["Checked", "checking"]
