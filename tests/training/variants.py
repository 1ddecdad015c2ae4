"""A run with keys of a variant, its tensors, and the keys of states on the host."""

from functools import partial

from tests.training import run as whole_run

UPDATES, BOTH = {"offload_optimizer": "host"}, {"offload_optimizer": "host", "offload_parameters": "host"}
FAR = (UPDATES, {"offload_parameters": "host"}, BOTH)
run = partial(whole_run, keep_weights=True)


def tensors(stage):
    """The final weights by parameter."""
    return {name: view for unit, flat in stage.measured.weights.items() for name, view in unit.views(flat).items()}
