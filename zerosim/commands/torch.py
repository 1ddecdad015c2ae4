"""`zerosim torch`: an unchanged PyTorch script over the collectives of this package, or checked over its own."""

import argparse
import os
import re
import runpy
import sys
from pathlib import Path

from zerosim.core.errors import UsageError
from zerosim.worlds.launcher import launched_rank


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim torch`, which come before the script."""
    parser.add_argument("--check", action="store_true", help="judge the training: gradients, weights, batches, updates")
    parser.add_argument("--check-steps", metavar="A..B", default="1..", help="the steps to check, such as 100..102")
    parser.add_argument("--json", metavar="FILE", default="", help="write verdicts and findings as JSON")
    parser.add_argument("--records", metavar="FOLDER", default="",
                        help="where ranks write their records; on several hosts a folder that all of them see")
    parser.add_argument("--double", action="store_true", help="a default dtype of 64 bits, with errors of about 1e-16")
    parser.add_argument("--strict", action="store_true", help="exit with 4 if gradients were not judged")
    parser.add_argument("--judge", metavar="FOLDER", help="judge the records of an earlier run; needs no PyTorch")
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)  # judge when this launcher is gone
    parser.add_argument("--calls", action="store_true", help="print the calls of collectives, their lines and bytes")
    parser.add_argument("script", nargs="?", help="a Python file that trains with torch.distributed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")


def main(arguments: argparse.Namespace, ours: bool = True) -> int:
    """Run the script as one of the ranks that the launcher started; its exit code.

    `ours` says that its groups run over the collectives of this package.
    """
    from zerosim.torch.check import running as checked  # noqa: PLC0415 - the package imports torch, if it is there

    steps = re.fullmatch(r"(\d+)(?:(\.\.)(\d+)?)?", arguments.check_steps)
    first, last = (int(steps[1]), None if steps[2] and not steps[3] else int(steps[3] or steps[1])) if steps else (1, 0)
    if last is not None and last < first:
        raise UsageError(f"--check-steps is {arguments.check_steps!r}; give the steps as 1.., 3 or 100..102")
    asked = checked.Asked(first, last, arguments.records, arguments.json, arguments.strict, arguments.double)
    if arguments.judge and arguments.after:
        return checked.stay(Path(arguments.judge), arguments.after, asked)
    if arguments.judge:
        records = checked.read_all(Path(arguments.judge))
        if not records:
            raise UsageError(f"--judge {arguments.judge}: no records of ranks are there; name the folder of --records")
        return checked.say(records, asked)
    if not arguments.script or not os.path.isfile(arguments.script):
        named = f" {arguments.script!r}" if arguments.script else ""
        raise UsageError(f"there is no script{named}; give a Python file after the flags")
    if ours:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    try:
        import torch  # noqa: F401, PLC0415 - most commands need none
    except ModuleNotFoundError as error:
        raise UsageError("PyTorch is not installed; pip install 'zerosim[torch]' installs it") from error
    sys.argv, sys.path[0] = [arguments.script, *arguments.arguments], str(Path(arguments.script).resolve().parent)
    if ours:
        from zerosim.torch import running  # noqa: PLC0415 - connects the ranks

        running.take_groups()
    code = checked.run(asked, script) if arguments.check else script()
    if arguments.calls and ours and launched_rank() in (None, 0):
        print(running.calls())
    return code


def script() -> int:
    """Run the script that `sys.argv` names; 0, or the exit code of its `sys.exit`."""
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
