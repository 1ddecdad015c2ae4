"""Three trainings on sequences that have different numbers of counted targets, for PyTorch and zerosim.

    python -m tests.oracles.uneven     asks PyTorch in float64 where it is installed, and records its answers

An answer is the loss of each step, and for each parameter after the last the sum of its numbers with fixed signs.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.oracles import functions

FILE = Path(__file__).parent / "torch_uneven.json"
STEPS, LEARNING_RATE = 3, 0.1


@dataclass(frozen=True)
class Uneven(functions.Language):
    """A model, and twelve sequences, which are one step; a third of the targets counts."""

    norm_epsilon: float = 1e-5
    gelu: str = "tanh"

    def batch(self):
        tokens, targets = super().batch()
        targets[random_of(self.name).random_sample(targets.shape) < 0.66] = functions.UNCOUNTED
        return tokens, targets


random_of = functions.random_of
CASES = [
    Uneven("gpt2", 2, 12, 3, 3, 20, 11, 7, tied_embeddings=False, samples=12, gelu="exact"),
    Uneven("gpt2", 1, 8, 2, 2, 16, 9, 5, tied_embeddings=True, samples=12, norm_epsilon=0.0),
    Uneven("llama", 2, 12, 3, 3, 18, 11, 7, tied_embeddings=False, samples=12, norm_epsilon=1e-6),
]


def told(case, losses, weights):
    return {"losses": [float(loss) for loss in losses], "weights": {
        name: float(random_of(f"{case.name} {name}").choice([-1.0, 1.0], array.size) @ np.asarray(array, float).ravel())
        for name, array in weights.items()}}


def pytorch(case):
    import torch

    from tests.oracles.torch_functions import loss_of, module

    built = module(case, case.parameter).double()
    tokens, targets = map(torch.from_numpy, case.batch())
    optimizer, losses = torch.optim.SGD(built.parameters(), LEARNING_RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(loss_of(case.loss, built(tokens), targets))
        losses[-1].backward()
        optimizer.step()
    return told(case, losses, {name: each.detach().numpy() for name, each in built.named_parameters()})


def disagreements():
    """A line for each live answer that is not the recorded one."""
    recorded = json.loads(FILE.read_text())
    return [f"{case.name}: PyTorch's live answer differs from what is recorded by {far:.2g}" for case in CASES
            if not (far := furthest(pytorch(case), recorded[case.name])) < 1e-12]


def furthest(found, due):
    """The greatest distance of two answers."""
    assert found["weights"].keys() == due["weights"].keys()
    return max(abs(a - b) for a, b in zip(
        [*found["losses"], *found["weights"].values()],
        [*due["losses"], *(due["weights"][name] for name in found["weights"])], strict=True))


if __name__ == "__main__":
    FILE.write_text(json.dumps({case.name: pytorch(case) for case in CASES}, indent=1) + "\n")
