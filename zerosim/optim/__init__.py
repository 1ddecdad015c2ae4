"""Optimizers, learning rates, loss scaling and clipping, and the update that combines them."""
