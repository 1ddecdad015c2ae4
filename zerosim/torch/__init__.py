"""PyTorch's own trainers over the collectives of this package; `zerosim.torch.check` judges trainings over any other.

Importing it under `mpirun` connects the ranks, sets what PyTorch reads from the environment, and registers the backend
"zerosim". Under torchrun nothing is connected, and MPI is not loaded.
"""

import os

import torch.distributed as dist

from zerosim.worlds.launcher import launched

if launched() or "TORCHELASTIC_RUN_ID" not in os.environ:
    from zerosim.torch.backend import Group, set_environment

    set_environment()
    if "ZEROSIM" not in dist.Backend._plugins:
        dist.Backend.register_backend("zerosim", lambda options, _: Group(options), extended_api=True, devices=["cpu"])
