"""`zerosim check`: the parts of a user's file, each tested as before a run; operations against differences in float64.
"""

import argparse
from dataclasses import asdict

from zerosim.autograd.differences import operation_fault
from zerosim.autograd.operation import Operation
from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS, OperationExample
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.core.errors import UsageError
from zerosim.core.parts import Loader, is_python
from zerosim.core.parts.loading import load_file
from zerosim.core.parts.users_code import error_line
from zerosim.plan.operations import OperationFigures, declared, figures, show_operations
from zerosim.proofs.parts import DECLARED, checked
from zerosim.show.proofs import check_document, show_check
from zerosim.training.transposes import direction_in, transpose_fault


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim check`."""
    parser.add_argument("file", nargs="?", help="a Python file with parts, or FILE.py:NAME; EXAMPLES has shapes of "
                                                "operations; without a file, list the public operations with the "
                                                "memory and cost of each")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Check all parts: 0 if every part holds, 1 if one does not."""
    if arguments.file:
        file, _, only = arguments.file.rpartition(":") if is_python(arguments.file) else (arguments.file, "", "")
        check_writable(arguments, {"the file": file})
        names = vars(load_file(file))
        if only:
            names = {each: names[each] for each in ("__name__", "EXAMPLES") if each in names} | {
                only: Loader().load(arguments.file).value}
        operations = declared(names)
        parts = [checked(f"{file}:{name}", part) for name, part in names.items()
                 if isinstance(part, tuple(DECLARED)) or (name == only and not operations)]
    else:
        check_writable(arguments)
        operations, parts = {name: (each, EXAMPLES[name]) for name, each in OPERATIONS.items()}, []
    console = standard_output(arguments)
    found = {name: tried(*each) for name, each in operations.items()}
    faults = [(name, fault) for name, (_, fault) in found.items()]
    if not faults and not parts:
        raise UsageError(f"{arguments.file} declares no operation, optimizer, stage, collective or "
                         f"@model; data sources are checked when their scenario runs")
    known = [each for each, _ in found.values() if each is not None]
    if known:
        show_operations(console, known)
    for name, fault in faults:
        if arguments.file or fault:
            console.print(f"{name}: {fault or 'holds'}", soft_wrap=True, markup=False)
    for part in parts:
        show_check(console, part)
    if not arguments.file:
        console.print(f"{len(found) - sum(fault is not None for _, fault in faults)} of {len(found)} operations have "
                      f"the gradients of finite differences in float64 and satisfy their declared laws")
    if arguments.json:
        write_json(arguments.json, {
            "schema": "zerosim.check/2", "parts": [check_document(part) for part in parts],
            "operations": [{"name": name, "fault": fault} for name, fault in faults],
            "figures": [asdict(each) for each in known]})
    return 0 if all(part.holds for part in parts) and not any(fault for _, fault in faults) else 1


def tried(part: Operation, example: OperationExample | None) -> tuple[OperationFigures | None, str | None]:
    """An operation's figures on its example, if it runs on shapes, and its fault or None."""
    if example is None:
        return None, f"give example shapes of its inputs: EXAMPLES = {{\"{part.name}\": ((2, 3), …)}}"
    arrays = [each for each in example if not isinstance(each, dict)]
    settings = next((each for each in example if isinstance(each, dict)), {})
    try:
        fault = (transpose_fault if direction_in(settings) else operation_fault)(part, arrays, settings)
    except Exception as error:
        return None, error_line(error, part.forward)
    try:
        return figures(part, example), fault
    except Exception as error:
        line = error_line(error.__cause__ or error, part.forward)
        return None, fault or f"a plan runs it on shapes, without numbers: {line}"
