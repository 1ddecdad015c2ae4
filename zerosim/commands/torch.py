"""`zerosim torch`: an unchanged PyTorch script over the collectives of this package, or checked over its own."""

from zerosim.torch.command import add_arguments, main

__all__ = ["add_arguments", "main"]
