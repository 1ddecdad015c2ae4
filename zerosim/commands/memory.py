"""`zerosim memory`: the memory of model states by formula, and of a transformer's activations."""

import argparse
import re
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from zerosim.commands.arguments import whole_number, whole_numbers
from zerosim.commands.output import RUN_WIDTH, standard_output, write_json
from zerosim.core.errors import ScenarioError
from zerosim.models import MODELS
from zerosim.models.units import Task
from zerosim.plan.foreign import hugging_face
from zerosim.scenario.load import parse_override
from zerosim.scenario.reading import Origin, read
from zerosim.scenario.sections import ModelKeys
from zerosim.show.estimates import show_activations, show_estimates
from zerosim.stages.optimizers import OPTIMIZERS
from zerosim.verdict.blocks import transformer
from zerosim.verdict.model_states import PRECISIONS, estimate

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST_PARAMETERS, MOST_DEVICES = 10**15, 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim memory`."""
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "--parameters", type=parameter_count, metavar="COUNT",
        help="number of parameters: 7500000000, 7.5e9, 7.5B or 350M")
    subject.add_argument(
        "--model", type=transformer_shape, metavar="SHAPE",
        help="a Hugging Face config.json, or the [model] keys of a transformer: layers=32,width=4096,heads=32,"
             "vocabulary=32000,sequence=4096,...; this adds activations")
    parser.add_argument(
        "--ranks", type=whole_numbers(1, MOST_DEVICES), metavar="N,N", required=True,
        help="data-parallel ranks; several numbers: a column for each")
    parser.add_argument(
        "--micro-batch", type=whole_number(1, 10**6), default=1, metavar="B",
        help="sequences in a micro-batch of --model; default %(default)s")
    for flag, choices, words in (
        ("--precision", [*PRECISIONS], "mixed: 2 bytes a weight, 2 a gradient, fp32 master weights; bf16_alone: 2 "
                                       "bytes of each"),
        ("--optimizer", [*OPTIMIZERS], ""),
        ("--accumulate-dtype", ["weights", "fp32"], "fp32: a float32 gradient beside that in 16 bits, 4 bytes more"),
        ("--offload-optimizer", ["none", "host"], "keep optimizer state, and reduced gradients, on the host"),
        ("--offload-parameters", ["none", "host"], "keep Stage III's weights on the host"),
    ):
        usual = {"--optimizer": "adam"}.get(flag, choices[0])
        parser.add_argument(
            flag, choices=choices, default=usual, help="; ".join(filter(None, [words, "default %(default)s"])))
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Show the estimates, and write their JSON; 0."""
    console, parameters = standard_output(arguments, RUN_WIDTH), arguments.parameters
    if arguments.model is not None:
        parameters, activations = transformer(arguments.model, arguments.micro_batch)
    estimates = [
        estimate(parameters, ranks, arguments.precision, arguments.optimizer,
                 offload_optimizer=arguments.offload_optimizer, offload_parameters=arguments.offload_parameters,
                 accumulate=arguments.accumulate_dtype)
        for ranks in arguments.ranks]
    show_estimates(console, estimates)
    documents = [estimated.document() for estimated in estimates]
    figures: dict[str, Any] = documents[0] if len(documents) == 1 else {"each": documents}
    if arguments.model is not None:
        figures["activations"] = asdict(activations)
        show_activations(console, activations)
    if arguments.json is not None:
        write_json(arguments.json, {"schema": "zerosim.memory/1", **figures})
    return 0


def transformer_shape(text: str) -> ModelKeys:
    """The transformer of `--model`, with the keys and the bounds of a scenario's [model].

    >>> transformer_shape("layers=12,width=768,heads=12,vocabulary=50257,sequence=1024").layers
    12
    """
    try:
        keys = hugging_face(text).keys if text.endswith(".json") else {
            str(path[-1]): value for path, value in map(parse_override, text.split(","))}
        values = {key.removeprefix("model."): value for key, value in keys.items()}
        model = read(ModelKeys, {"kind": "mixture" if "experts" in values else "transformer", **values}, ("model",),
                     Origin("--model"))
    except ScenarioError as error:
        _, _, message = str(error).partition(f"{error.line}:{error.column}: ")
        raise argparse.ArgumentTypeError(message) from None
    if min(model.vocabulary, model.sequence) == 0:
        raise argparse.ArgumentTypeError("give vocabulary and sequence, since there are no data to take them from")
    task = Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)
    if wrong := MODELS[model.kind].problem(model, task):
        raise argparse.ArgumentTypeError(f"{wrong[0]}: {wrong[1]}")
    return model


def parameter_count(text: str) -> int:
    """A number of parameters, or of tokens, on a command line.

    >>> parameter_count("7.5e9") == parameter_count("7.5B") == 7_500_000_000
    True
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?(?:e\+?\d{1,2})?)([kmbt]?)", text, re.A | re.I)
    count = Fraction(match[1]) * SUFFIXES[match[2].upper()] if match else Fraction(0)
    if count.denominator != 1 or not 1 <= count <= MOST_PARAMETERS:
        raise argparse.ArgumentTypeError(
            f"found {text!r}; give a whole number from 1 to {MOST_PARAMETERS:.0e}, such as 7500000000, 7.5e9, 7.5B or "
            "350M")
    return int(count)
