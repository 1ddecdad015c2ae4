"""The keys that an optimizer of whole matrices does not go with."""

import json
from collections.abc import Iterator

from zerosim.scenario.origin import Conflict
from zerosim.scenario.sections import Parallel, Train

REFUSED = (
    ("precision", ("fp32", "fp64"), "it rewrites the differences of weights that have no master copy"),
    ("publish", ("weights",), "it sends its differences itself"),
    ("offload_optimizer", ("none",), "it rewrites them on the device"),
    ("tensor_ranks", (1,), "each rank has a piece of a matrix"),
    ("expert_ranks", (1,), "each rank has a piece of a matrix"),
)
"""Each key, its allowed values, and why it has no others."""


def of_matrices(parallel: Parallel, train: Train) -> Iterator[Conflict]:
    """The refused keys of a row whose optimizer needs whole matrices."""
    for name, allowed, why in REFUSED:
        section, keys = ("train", train) if hasattr(train, name) else ("parallel", parallel)
        found, due = getattr(keys, name), " or ".join(map(json.dumps, allowed))
        if found not in allowed:
            yield Conflict(f"{section}.{name} = {json.dumps(found)} does not go with an optimizer of whole matrices: "
                           f"{why}; set it to {due}", f"{section}.{name}", "train.optimizer")
