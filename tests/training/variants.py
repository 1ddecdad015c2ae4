"""A run with keys of a variant, its tensors, and the keys of states on the host."""

from tests.training import SMALL, labelled, scenario
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

UPDATES, BOTH = {"offload_optimizer": "host"}, {"offload_optimizer": "host", "offload_parameters": "host"}
FAR = (UPDATES, {"offload_parameters": "host"}, BOTH)


def run(base=None, *, dataset=None, **changes):
    return run_locally(prepare(scenario(base or SMALL, **changes), dataset or labelled(), keep_weights=True))


def tensors(stage):
    """The final weights by parameter."""
    return {name: view for unit, flat in stage.measured.weights.items() for name, view in unit.views(flat).items()}
