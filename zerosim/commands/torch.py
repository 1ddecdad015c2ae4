"""`zerosim torch`: an unchanged PyTorch script over the collectives of this package."""

import argparse
import os
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from zerosim.commands.output import check_writable, write_json
from zerosim.errors import UsageError
from zerosim.files import is_file, write_text
from zerosim.instruments.trace import Trace
from zerosim.scenario.fault import FAULT_KINDS, Fault
from zerosim.show.page.page import page
from zerosim.show.page.pictures import converter
from zerosim.show.run_document import runs_of
from zerosim.show.trace_events import markers, trace_events
from zerosim.words import plural
from zerosim.worlds.launcher import launched, launched_rank


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim torch`, which come before the script."""
    parser.add_argument("--json", metavar="FILE", help="write the outcome as JSON, in the format of zerosim run")
    parser.add_argument("--report", metavar="FILE", help="write an HTML page; zerosim report compares two")
    parser.add_argument(
        "--trace", metavar="FILE", help="write a timeline of the last step as trace events, for Perfetto")
    parser.add_argument(
        "--fault", metavar="KEY=VALUE,…", action="append", default=[], type=fault,
        help="inject a fault like [[fault]] of a scenario: kind=flip,rank=1,step=2,collective=all_reduce")
    parser.add_argument(
        "--cpu", action="store_true", help="run a script for GPUs on the CPU: map CUDA and NCCL to it")
    check = parser.add_argument_group("check", "--json then has verdicts and findings; exit code 1 if there are any")
    check.add_argument("--check", action="store_true", help="check that the script trains what one process would")
    check.add_argument("--check-steps", metavar="A..B", default="1..", help="the steps to check, such as 1..3")
    check.add_argument("--double", action="store_true",
                       help="check with a default dtype of 64 bits, where rounding errors are about 1e-16")
    parser.add_argument("script", help="a Python file that trains with torch.distributed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")


def main(arguments: argparse.Namespace) -> int:
    """Run the script as one of the ranks that the launcher started; its exit code."""
    if not is_file(arguments.script):
        raise UsageError(f"there is no script {arguments.script!r}; give a Python file after the flags")
    require_torch()
    from zerosim.torch import running  # noqa: PLC0415 - imports torch
    from zerosim.torch.verdicts import CheckOptions, TrainingCheck, say, steps_of  # noqa: PLC0415 - as above

    running.inject(arguments.fault)
    asked = CheckOptions(*steps_of(arguments.check_steps), double=arguments.double)
    checked = TrainingCheck(asked, ours=True) if arguments.check else None
    about_run = not arguments.check and arguments.json, arguments.report, arguments.trace
    if launched_rank() == 0 and any((arguments.json, *about_run)):
        check_writable(arguments, {"the script": arguments.script})
    if arguments.report:
        converter()
    if any(about_run):
        running.watch()
    code = running.run_script(arguments.script, arguments.arguments, on_cpu=arguments.cpu, memory=any(about_run[:2]),
                              inside=None if checked is None else checked.around())
    if any(about_run):
        flags = [*["--cpu"] * arguments.cpu, *["--check"] * arguments.check]
        words = ["mpirun", "-n", str(launched() or 1), "zerosim", "torch", *flags, arguments.script]
        found = running.seen(arguments.script, shlex.join([*words, *arguments.arguments]))
        if found is not None:
            write(arguments, found.document, found.trace, None if checked is None else checked.document)
    if checked is not None:
        code = code or say(checked.document, launched_rank() or 0, arguments.json)
    return code or running.missed()


TORCHS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter")
NUMBERS: dict[str, Callable[[str], Any]] = {"rank": int, "step": int, "message": int, "bit": int, "seconds": float}


def fault(text: str) -> Fault:
    """A fault as on the command line.

    >>> fault("kind=kill,rank=1,step=3").kind
    'kill'
    >>> fault("kind=flip,rank=1,step=2")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: a flip needs collective=…
    """
    words = dict(each.partition("=")[::2] for each in text.split(","))
    for key in words:
        if key not in ("kind", "collective", *NUMBERS):
            raise ArgumentTypeError(f"found {key!r}; a fault has kind, collective, {', '.join(NUMBERS)}")
    try:
        found: dict[str, Any] = {key: NUMBERS.get(key, str)(value) for key, value in words.items()}
    except ValueError as error:
        raise ArgumentTypeError(f"{error}; give numbers as kind=kill,rank=1,step=3") from error
    if found.get("kind", "kill") not in FAULT_KINDS or found.get("collective", TORCHS[0]) not in TORCHS:
        raise ArgumentTypeError(f"found {text!r}; kinds are {', '.join(FAULT_KINDS)}, collectives {', '.join(TORCHS)}")
    if found.get("kind") in ("flip", "drop", "duplicate") and "collective" not in found:
        raise ArgumentTypeError(f"a {found['kind']} needs collective=…")
    return Fault(**found)


def require_torch() -> None:
    """Refuse to run without PyTorch; give it one thread, as torchrun does."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        import torch  # noqa: F401, PLC0415 - may be missing, and only this needs it
    except ModuleNotFoundError as error:
        raise UsageError("PyTorch is not installed; pip install 'zerosim[torch]' installs it") from error


def write(arguments: argparse.Namespace, document: dict[str, Any], trace: Trace, check: dict[str, Any] | None) -> None:
    """Write the requested files; the findings of a `check` are failures of the run, and markers in its trace."""
    findings = check["findings"] if check else []
    if check:
        document |= {"check": check, "passed": not findings, "failures": [
            {"name": f"step {each['step']}, rank {each['rank']}: {each['cause']}", "what": each["text"]}
            for each in findings]}
        document["verdict"] = f"CHECKED: {plural(check['steps'], 'step')}, {plural(len(findings), 'finding')}"
    elif arguments.json:
        write_json(arguments.json, document)
    if arguments.report:
        write_text(arguments.report, page(runs_of([document], ["this run"])))
    if arguments.trace:
        events = trace_events([(document["title"], trace)])
        events["traceEvents"] += markers(findings)
        write_json(arguments.trace, events)
