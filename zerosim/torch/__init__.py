"""A `torch.distributed` backend: PyTorch's own trainers over the collectives of this package.

Importing it registers `"zerosim"` for tensors on the CPU. Under `mpirun` it also connects the ranks, and sets the
environment variables that PyTorch reads (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`), so that

    torch.distributed.init_process_group("zerosim")

needs no other set-up. Under torchrun nothing is connected, and MPI is not loaded. `zerosim.torch.step()` ends a step
where `optimizer.step()` does not; `zerosim.torch.checking()` checks what trains within it. Only this folder imports
torch; the extra `zerosim[torch]` installs it.
"""

import os

import torch.distributed as dist

from zerosim.torch.joining import create, set_environment
from zerosim.torch.verdicts import checking
from zerosim.torch.watching import step
from zerosim.worlds.launcher import launched

__all__ = ["checking", "step"]

if launched() or "TORCHELASTIC_RUN_ID" not in os.environ:
    set_environment()
if "ZEROSIM" not in dist.Backend._plugins:
    dist.Backend.register_backend("zerosim", create, extended_api=True, devices=["cpu"])
