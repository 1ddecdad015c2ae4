"""What PyTorch and zerosim are both asked of autocast: which operations cast, to what, and the numbers that come out.

    lists      torch's own: `low` and `float32`, the operations of autocast_mode.h for CUDA
    steps      of each model's forward pass the operations in order, each with the bits of its output: `cast:16`
    numbers    logits, loss and gradients under autocast, as `functions.told` makes them

Models are those of `functions`, and multi-layer perceptrons. Nothing here knows zerosim or PyTorch.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.oracles import functions

RECORDED = Path(__file__).with_name("torch_autocast.json")
DTYPES = ("bfloat16", "float16")
AS_FAR = 2.0
"""How far two answers may be apart, in units of how far PyTorch's is from the exact one: attention, one operation in
both, rounds to 16 bits in other places."""
ALIKE = 0.02
"""The same of perceptrons, where all roundings to 16 bits are in the same places: sums in float32 differ."""


@dataclass(frozen=True)
class Perceptron:
    """Linear maps with an activation between them."""

    widths: tuple[int, ...]
    activation: str
    samples: int = 9

    @property
    def name(self):
        return f"{'-'.join(map(str, self.widths))} {self.activation}"

    def parameter(self, name, shape):
        return functions.normals(f"{self.name} {name}", shape) * np.float32(1 / np.sqrt(shape[-1]))

    def batch(self):
        random = functions.random_of(self.name)
        x = random.standard_normal((self.samples, self.widths[0])).astype(np.float32)
        return x, random.randint(self.widths[-1], size=self.samples)


PERCEPTRONS = [Perceptron((6, 17, 9, 5), "relu"), Perceptron((13, 32, 10), "gelu"), Perceptron((40, 7, 3), "tanh")]
PERCEPTRON_NAMES = {case.name for case in PERCEPTRONS}
CASES = [*PERCEPTRONS, *functions.LANGUAGES]


def read(path=RECORDED):
    answers = json.loads(Path(path).read_text())
    for way in ("numbers", "exact"):
        for case in answers[way].values():
            case.update({name: np.array(numbers) for name, numbers in case.items()})
    return answers


def written(path, answers):
    Path(path).parent.mkdir(exist_ok=True)

    def plain(numbers):
        return [float(f"{number:.6g}") for number in numbers]

    told = {way: {case: {name: plain(each) for name, each in arrays.items()} for case, arrays in answers[way].items()}
            for way in ("numbers", "exact")}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**answers, **told}.items()]
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def disagreements(found, recorded):
    """The names of the cases whose steps differ, or whose numbers are further apart than is permitted.

    An array's own distance from the exact one may be small by luck, so that the typical one of its case is permitted.
    """
    wrong = []
    for case, steps in recorded["steps"].items():
        if found["steps"][case] != steps:
            wrong.append(f"{case}|steps")
    for case, arrays in recorded["numbers"].items():
        exact = recorded["exact"][case.partition("|")[0]]
        distances = {name: functions.distance(array, exact[name]) for name, array in arrays.items()}
        usual = functions.typical(distances, exact)
        as_far = ALIKE if case.partition("|")[0] in PERCEPTRON_NAMES else AS_FAR
        for name, array in arrays.items():
            permitted = as_far * max(distances[name], usual * functions.size(exact[name]))
            if not functions.distance(found["numbers"][case][name], array) <= permitted:
                wrong.append(f"{case}|{name}")
    return wrong
