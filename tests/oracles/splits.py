"""Models that ranks split, two in each direction, as zerosim, PyTorch and Megatron-Core are asked: loss and gradients.

An answer is in float64, of at most `functions.KEPT` numbers an array. Nothing here knows zerosim or PyTorch.
"""

from dataclasses import dataclass

import numpy as np

from tests.oracles import functions

FILE = "torch_splits.npz"
RANKS = 2
MICRO_BATCHES = 4
"""Those of a pipeline."""
EXPERTS = {"mixture": (4, 6, 2), "DeepSeek": (4, 6, 2), "joined": (16, 2, 1)}
"""The experts of a mixture, the neighbouring tokens that its queues serve, and those that an expert takes of them."""
LATENTS = {"latent": 6, "query_latent": 10, "rotary_size": 2}
SHARED, DENSE, CHOSEN = 8, 14, 2
"""DeepSeek's blocks: widths of the shared perceptron and of the first block's, and the experts of a token."""


@dataclass(frozen=True)
class Split:
    """A model, whether each rank has a piece of the sequence between the cut products, and by which schedule."""

    by: str
    model: functions.Perceptron | functions.Language
    sequence: bool = False
    how: str = ""

    @property
    def name(self):
        return f"{self.by} {self.model.name}{' sequence' * self.sequence}{self.how and ' '}{self.how}"


PERCEPTRON = functions.Perceptron((6, 8, 5, 12, 3), "gelu", "cross_entropy")
LLAMA = functions.Language("llama", 2, 16, 4, 2, 12, 10, 6, tied_embeddings=False, uncounted=1)
STAGED = functions.Perceptron((6, 8, 5, 12, 3), "gelu", "cross_entropy", samples=2 * MICRO_BATCHES)
ALIKE = functions.Perceptron((7, 8, 8, 8, 3), "gelu", "cross_entropy", samples=2 * MICRO_BATCHES)
GPT2 = functions.Language("gpt2", 2, 12, 3, 3, 10, 7, 6, tied_embeddings=False, samples=4, uncounted=1)
DEEPSEEK = functions.Language("llama", 2, 16, 4, 4, 12, 10, 6, tied_embeddings=False, samples=4)
JOINED = functions.Language("llama", 2, 16, 4, 4, 12, 10, 8, tied_embeddings=False, samples=4)
SPLITS = [
    Split("DTensor", PERCEPTRON), Split("DTensor", LLAMA), Split("DTensor", LLAMA, sequence=True),
    Split("Megatron", PERCEPTRON), Split("Megatron", LLAMA), Split("Megatron", LLAMA, sequence=True),
    *(Split("pipelining", STAGED, how=each) for each in ("gpipe", "1f1b", "interleaved_1f1b")),
    *(Split("Megatron", ALIKE, how=each) for each in ("1f1b", "interleaved_1f1b")),
    Split("context", LLAMA), Split("mixture", GPT2), Split("DeepSeek", DEEPSEEK),
    Split("joined", JOINED, sequence=True),
]


def in_numbers(split, answers):
    """{"name|array": numbers} of one split."""
    return {f"{split.name}|{name}": functions.told(f"{split.model.name} {name}", array)
            for name, array in answers.items()}


def write(folder, found):
    lengths = np.array([len(each) for each in found.values()])
    np.savez_compressed(folder / FILE, names=np.array([*found]), lengths=lengths,
                        numbers=np.concatenate([*found.values()]))


def read(folder=functions.ANSWERS):
    with np.load(folder / FILE) as file:
        return dict(zip(file["names"].tolist(), functions.parted(file["numbers"], file["lengths"]), strict=True))


def disagreements(found, due):
    """What is further from PyTorch's answers than `functions.FORMULA` relative to the numbers of the array."""
    assert found.keys() <= due.keys()
    return [f"{name}: {error:.3g}" for name, numbers in found.items() if not (
        error := functions.distance(numbers, due[name]) / functions.size(due[name])) <= functions.FORMULA]
