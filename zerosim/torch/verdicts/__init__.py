"""Checks that a script trains what one process would: its forwards, gradients, clipping and updates, step by step.

    mpirun -n 4 zerosim torch --check train.py
    torchrun --nproc-per-node 4 -m zerosim.torch --check train.py
"""

from zerosim.torch.verdicts.script import CheckOptions, TrainingCheck, checking, say, steps_of

__all__ = ["CheckOptions", "TrainingCheck", "checking", "say", "steps_of"]
