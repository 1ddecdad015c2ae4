"""`zerosim check`: all claims about the parts of a user's file; operations against differences in float64."""

import argparse
import json
from pathlib import Path
from typing import Any

from zerosim.autograd.differences import operation_fault
from zerosim.autograd.operation import Operation
from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS, OperationExample
from zerosim.commands.output import standard_output, write
from zerosim.core.errors import UsageError, error_line
from zerosim.core.parts import Loader, is_python
from zerosim.core.parts.loading import load_file
from zerosim.plan.operations import OperationFigures, figures
from zerosim.proofs.claim import CheckedClaim, CheckedPart
from zerosim.proofs.parts import DECLARED, checked
from zerosim.show.proofs import claims_of, show_check, show_operations
from zerosim.training.transposes import direction_in, transpose_fault

DIFFERENCES = "its gradients are those of differences in float64, and it satisfies its declared laws"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim check`."""
    parser.add_argument("file", nargs="?", help="a Python file with parts, or FILE.py:NAME; EXAMPLES has shapes of "
                                                "operations; without a file, list the public operations with the "
                                                "memory and cost of each")
    parser.add_argument("--json", metavar="FILE", help="write each claim with its state as a line of JSON; - is "
                                                       "standard output")


def main(arguments: argparse.Namespace) -> int:
    """Check all parts: 0 if every part holds, 1 if one does not."""
    operations, others = parts_of(arguments.file) if arguments.file else (
        {name: (operation, EXAMPLES[name]) for name, operation in OPERATIONS.items()}, {})
    if not operations and not any(isinstance(part, tuple(DECLARED)) for part in others.values()):
        file = Path(arguments.file.partition(".py:")[0])
        test = file.with_name(f"test_{file.stem}.py")
        if test.is_file():
            raise UsageError(f"{file.stem}.py is checked by a test: pytest {test}")
    if not operations and not others:
        raise UsageError(f"{arguments.file} declares no operation, optimizer, stage, collective or "
                         f"@model; data sources are checked when their scenario runs")
    console, tries = standard_output(arguments), {name: tried(*operation) for name, operation in operations.items()}
    if known := [figures for figures, _ in tries.values() if figures is not None]:
        show_operations(console, known)
    parts = [CheckedPart(name, [CheckedClaim(DIFFERENCES, "does not hold" if fault else "holds", fault)])
             for name, (_, fault) in tries.items()]
    parts += [checked(name, part) for name, part in others.items()]
    for part in parts:
        if arguments.file or not part.holds:
            show_check(console, part)
    holding = [part for part in parts if part.holds]
    if not arguments.file:
        console.print(f"{len(holding)} of {len(parts)} operations have the gradients of finite differences in float64 "
                      "and satisfy their declared laws")
    if arguments.json:
        write(arguments.json, "".join(f"{json.dumps(claim)}\n" for part in parts for claim in claims_of(part)))
    return 0 if len(holding) == len(parts) else 1


def parts_of(address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The operations of a file with their examples, and its other parts; for FILE.py:NAME only the named one."""
    file, _, only = address.rpartition(":") if is_python(address) else (address, "", "")
    names = vars(load_file(file))
    if only:
        names = {name: names[name] for name in ("__name__", "EXAMPLES") if name in names} | {
            only: Loader().load(address).part}
    examples = names.get("EXAMPLES", {})
    operations = {name: (part, examples.get(name)) for name, part in names.items()
                  if isinstance(part, Operation) and part.forward.__module__ == names["__name__"]}
    return operations, {f"{file}:{name}": part for name, part in names.items()
                        if isinstance(part, tuple(DECLARED)) or (name == only and not operations)}


def tried(part: Operation, example: OperationExample | None) -> tuple[OperationFigures | None, str | None]:
    """An operation's figures on its example, if it runs on shapes, and its fault or None."""
    if example is None:
        return None, f"give example shapes of its inputs: EXAMPLES = {{\"{part.name}\": ((2, 3), …)}}"
    arrays = [value for value in example if not isinstance(value, dict)]
    settings = next((value for value in example if isinstance(value, dict)), {})
    try:
        fault = (transpose_fault if direction_in(settings) else operation_fault)(part, arrays, settings)
    except Exception as error:
        return None, error_line(error, part.forward)
    try:
        return figures(part, example), fault
    except Exception as error:
        line = error_line(error.__cause__ or error, part.forward)
        return None, fault or f"a plan runs it on shapes, without numbers: {line}"
