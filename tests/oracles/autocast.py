"""What PyTorch and zerosim are both asked of autocast: which operations cast, to what, and the numbers that come out.

    lists      torch's own: `low` and `float32`, the operations of autocast_mode.h for CUDA
    steps      of each model's forward pass the operations in order, each with the bits of its output: `cast:16`
    numbers    logits, loss and gradients under autocast, as `functions.told` makes them

Models are those of `functions`, whose exact answers are theirs. Nothing here knows zerosim or PyTorch.
"""

import json

import numpy as np

from tests.oracles import functions

FILE = "torch_autocast.json"
AS_FAR = 2.0
"""How far two answers may be apart, in units of how far PyTorch's is from the exact one: attention, one operation in
both, rounds to 16 bits in other places."""
ALIKE = 0.02
"""The same of perceptrons, where all roundings to 16 bits are in the same places: sums in float32 differ."""
CASES = [case for case in functions.MODELS if case.loss == "cross_entropy"]


def read(folder=functions.ANSWERS):
    answers = json.loads((folder / FILE).read_text())
    for case in answers["numbers"].values():
        case.update({name: np.array(numbers) for name, numbers in case.items()})
    return answers


def write(folder, answers):
    def plain(numbers):
        return [float(f"{number:.6g}") for number in numbers]

    told = {case: {name: plain(each) for name, each in arrays.items()} for case, arrays in answers["numbers"].items()}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**answers, "numbers": told}.items()]
    (folder / FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def disagreements(found, folder=functions.ANSWERS):
    """The names of the cases whose steps differ, or whose numbers are further apart than is permitted.

    An array's own distance from the exact one may be small by luck, so that the typical one of its case is permitted.
    """
    recorded, answers = read(folder), functions.read(folder)
    wrong = ["lists"] if found.get("lists", recorded["lists"]) != recorded["lists"] else []
    for case, steps in recorded["steps"].items():
        if found["steps"][case] != steps:
            wrong.append(f"{case}|steps")
    for case, arrays in recorded["numbers"].items():
        model = case.partition("|")[0]
        exact = answers.exact[model]
        distances = {name: functions.distance(array, exact[name]) for name, array in arrays.items()}
        usual = functions.typical(distances, exact)
        as_far = ALIKE if model in functions.PERCEPTRON_NAMES else AS_FAR
        for name, array in arrays.items():
            permitted = as_far * max(distances[name], usual * functions.size(exact[name]))
            if not functions.distance(found["numbers"][case][name], array) <= permitted:
                wrong.append(f"{case}|{name}")
    return wrong
