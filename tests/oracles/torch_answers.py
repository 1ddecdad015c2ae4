"""Asks PyTorch what `functions`, `updates` and `autocast` hold: run it where torch is installed.

    python -m tests.oracles.torch_answers                     records the answers again, beside this file
    python -m tests.oracles.torch_answers FOLDER [WEIGHTS]    writes live answers to FOLDER, checks the recorded ones by
                                                              them, and loads the weights that zerosim has trained in
                                                              WEIGHTS, with its logits
"""

import sys
from pathlib import Path

import numpy as np
import torch

from tests.oracles import autocast, functions, torch_autocast, torch_functions, torch_updates, uneven, updates


def main(arguments):
    torch.set_num_threads(1)
    folder, *weights = map(Path, arguments or [functions.RECORDED])
    folder.mkdir(parents=True, exist_ok=True)
    exact, others = torch_functions.answers()
    np.savez_compressed(folder / functions.FILE, **functions.stored(exact, others))
    np.savez_compressed(folder / updates.FILE, **(updated := torch_updates.ask()))
    autocast.write(folder, cast := torch_autocast.ask())
    with np.load(functions.RECORDED / updates.FILE) as recorded:
        wrong = sorted(updates.disagreements(updated, recorded))
    wrong += torch_functions.disagreements(exact, others) + autocast.disagreements(cast, functions.RECORDED)
    wrong += uneven.disagreements()
    wrong += [line for each in weights for line in torch_functions.opened(each)]
    print("\n".join(wrong) or f"PyTorch {torch.__version__} agrees with the recorded answers")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
