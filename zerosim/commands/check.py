"""`zerosim check`: the parts of a user's file, each tried as before a run; operations beside differences in float64."""

import argparse
from collections.abc import Iterator
from typing import Any

from zerosim.autograd.differences import gradient_fault
from zerosim.autograd.operation import Operation
from zerosim.collectives import Algorithm
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.errors import UsageError
from zerosim.grading.tried import fault_of_stage
from zerosim.optim.optimizers import Optimizer
from zerosim.optim.own import wrong
from zerosim.parts import Named
from zerosim.parts.failing import told
from zerosim.parts.loading import load_file
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import subject
from zerosim.stages import Stage

RANKS = (2, 3, 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim check`."""
    parser.add_argument("file", help="a Python file with parts; EXAMPLES in it has shapes for its operations")
    parser.add_argument("--json", metavar="FILE", help="write what was found; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """0 if every part holds, 1 if one does not."""
    check_writable(arguments, {"the file": arguments.file})
    module, console = load_file(arguments.file), standard_output(arguments)
    found = list(checks(vars(module)))
    if not found:
        raise UsageError(f"{arguments.file} declares no operation, optimizer, stage or collective; models and samples "
                         "are tried with their scenario")
    for name, fault in found:
        console.print(f"{name}: {fault or 'holds'}", soft_wrap=True, markup=False)
    if arguments.json:
        write_json(arguments.json, {"schema": "zerosim.check/1", "parts": [
            {"name": name, "holds": fault is None, "fault": fault} for name, fault in found]})
    return 1 if any(fault for _, fault in found) else 0


def checks(names: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Each part that a file itself declares, and what is wrong with it."""
    examples = names.get("EXAMPLES", {})
    for name, part in names.items():
        if isinstance(part, Operation) and part.forward.__module__ == names["__name__"]:
            yield name, operation_fault(part, examples.get(name))
        elif isinstance(part, Optimizer):
            yield name, wrong(part)
        elif isinstance(part, Stage):
            yield name, fault_of_stage(Named(name, part, ""))
        elif isinstance(part, Algorithm):
            under_test = subject(part)
            proofs = [prove(under_test, size) for size in RANKS if under_test.serves(size)]
            said = [f"on {proof.size} ranks: {proof.faults[0].what}" for proof in proofs if proof.faults]
            yield name, said[0] if said else None


def operation_fault(part: Operation, example: Any) -> str | None:
    """What is wrong with an operation's gradients, for the example shapes that its file gives."""
    if example is None:
        return f"give shapes of its inputs to be tried on: EXAMPLES = {{\"{part.name}\": ((2, 3), …)}}"
    shapes = [each for each in example if not isinstance(each, dict)]
    settings = next((each for each in example if isinstance(each, dict)), {})
    try:
        return gradient_fault(part, shapes, settings)
    except Exception as error:
        return told(error, part.forward)
