"""PyTorch's own trainers over the collectives of this package; `checking` judges trainings over any other.

Importing it under `mpirun` connects the ranks, sets what PyTorch reads from the environment, and registers the backend
"zerosim". As `python -m zerosim.torch` it only checks: nothing is connected, and MPI is not loaded.
"""

import os
import sys

from zerosim.torch.check import Checked, checking
from zerosim.worlds.launcher import launched

__all__ = ["Checked", "checking"]

if sys.argv[:1] != ["-m"] and (launched() or "TORCHELASTIC_RUN_ID" not in os.environ):
    try:
        import torch.distributed as dist
    except ModuleNotFoundError:  # records can be judged without PyTorch
        pass
    else:
        from zerosim.torch.backend import Group, set_environment

        set_environment()
        if "ZEROSIM" not in dist.Backend._plugins:
            dist.Backend.register_backend(
                "zerosim", lambda options, _: Group(options), extended_api=True, devices=["cpu"])
