"""zerosim's answers to `functions`; run as a program, weights that it has trained, for others to open.

    python -m tests.oracles.our_functions FOLDER
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from tests.oracles import functions
from zerosim.autograd.operations.losses import LOSSES, counted
from zerosim.autograd.player import Precise
from zerosim.autograd.tape import Tape
from zerosim.commands.cli import main as command
from zerosim.core.allocation import allocate
from zerosim.models.mlp import mlp
from zerosim.models.parallel import IN_ONE_PIECE
from zerosim.models.transformer import TransformerShape, transformer

NUMPY = {"float64": np.float64, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def of_loss(case, dtype):
    targets, precise = case.targets(), Precise(allocate, "loss")
    wide = precise.widened(case.outputs().astype(dtype))
    if targets.dtype.kind == "f":
        targets = targets.astype(wide.dtype)
    loss, upstream = LOSSES[case.loss](wide, targets, counted(targets), empty=precise.empty)
    return {"loss": loss, "outputs": upstream.astype(dtype)}


def model_of(case, parallel=IN_ONE_PIECE):
    if isinstance(case, functions.Perceptron):
        inputs, *hidden, outputs = case.widths
        return mlp(inputs, hidden, outputs, case.activation, case.loss, parallel=parallel)
    return transformer(shape_of_case(case, parallel))


def shape_of_case(case, parallel=IN_ONE_PIECE):
    fields = {name: value for name, value in vars(case).items() if name not in ("samples", "uncounted")}
    return TransformerShape(**fields, parallel=parallel)


def weights_of(case, unit, dtype):
    """Its flat buffer."""
    return np.concatenate([case.parameter(each.name, each.shape).ravel() for each in unit.places]).astype(dtype)


def of_model(case, dtype):
    """The logits, the loss, and the gradient of each parameter."""
    model, tape = model_of(case), Tape()
    weights = {unit: weights_of(case, unit, dtype) for unit in model.units}
    x, targets = case.batch()
    x = x.astype(dtype) if x.dtype.kind == "f" else x
    targets = targets.astype(np.result_type(dtype, np.float32)) if targets.dtype.kind == "f" else targets
    (logits,), answers = forward(model, tape, weights, x), {}
    answers["logits"] = logits.astype(np.float64)
    answers["loss"], upstreams = tape.loss(case.loss, [logits], [targets], counted(targets))
    for unit in model.backward_units:
        upstreams, gradient = tape.backward(unit, weights[unit], upstreams)
        if gradient is not None:
            answers |= unit.views(gradient)
    return answers


def forward(model, tape, weights, tokens):
    activations = [tokens]
    for unit in model.forward_units:
        activations = tape.forward(unit, weights[unit], activations)
    return activations


def ask(precision):
    """All answers, in numbers."""
    dtype = NUMPY[precision]
    return functions.in_numbers(
        {each.name: of_loss(each, dtype) for each in functions.JUDGED}
        | {each.name: of_model(each, dtype) for each in functions.MODELS}
    )


SCENARIO = """
[data]
source = "text"
[model]
kind = "transformer"
architecture = "{family}"
layers = {layers}
width = {width}
heads = {heads}
key_value_heads = {key_value_heads}
inner = {inner}
vocabulary = {vocabulary}
sequence = {sequence}
tied_embeddings = {tied}
[train]
steps = 3
micro_batch = 2
learning_rate = 0.01
[parallel]
stages = ["zero3"]
"""


def train(case, folder):
    """Train a few steps, write the weights that `--weights` writes, and the logits of the case's tokens by them."""
    scenario, weights = folder / f"{case.name}.toml", folder / f"{case.name}.safetensors"
    scenario.write_text(SCENARIO.format(**vars(case), tied=str(case.tied_embeddings).lower()))
    assert command(["run", str(scenario), "--weights", str(weights), "--progress", "none"]) == 0
    found, model = load_file(weights), model_of(case)
    flat = {unit: np.concatenate([found[each.name].ravel() for each in unit.places]) for unit in model.units}
    (logits,) = forward(model, Tape(), flat, case.batch()[0])
    np.save(folder / f"{case.name}.npy", logits)
    return found


def main(folder):
    Path(folder).mkdir(parents=True, exist_ok=True)
    for case in functions.TRAINED:
        train(case, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
