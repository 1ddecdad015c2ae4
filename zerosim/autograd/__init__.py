"""The tape and its operations: differentiation that holds activations, never weights."""

from zerosim.autograd.operations import ACTIVATIONS, LINEAR, LOSSES, Operation
from zerosim.autograd.tape import Tape, left_to_right

__all__ = ["ACTIVATIONS", "LINEAR", "LOSSES", "Operation", "Tape", "left_to_right"]
