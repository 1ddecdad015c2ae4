"""Optimizers, the schedule and the factor of gradients, and the update that uses them."""
