"""The flags of `zerosim torch` and of `python -m zerosim.torch`, and what they do."""

import argparse
import os
import re
import runpy
import sys
from functools import partial
from pathlib import Path

from zerosim.core.errors import UsageError
from zerosim.torch.check import running as checked
from zerosim.worlds.launcher import launched_rank

KEPT: list[object] = []
"""The names of a script that has ended: they live as long as those of Python's own `__main__`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim torch`, which come before the script."""
    parser.add_argument("--check", action="store_true", help="judge the training: gradients, weights, batches, updates")
    parser.add_argument("--check-steps", metavar="A..B", default=f"1..{checked.LAST}",
                        help="the steps to check, such as 100..102; 1.. is all of them (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", default="", help="write verdicts and findings as JSON")
    parser.add_argument("--records", metavar="FOLDER", default="",
                        help="where ranks write their records, empty; on several hosts a folder that all of them see")
    parser.add_argument("--double", action="store_true", help="a default dtype of 64 bits, with errors of about 1e-16")
    parser.add_argument("--strict", action="store_true",
                        help="exit with 3 for suspicions, and with 4 if gradients were not judged")
    parser.add_argument("--judge", metavar="FOLDER", help="judge the records of an earlier run; needs no PyTorch")
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)  # judge when this launcher is gone
    parser.add_argument("--calls", action="store_true", help="print the calls of collectives, their lines and bytes")
    parser.add_argument("-m", metavar="MODULE", dest="module", default="", help="a module that trains, not a file")
    parser.add_argument("script", nargs="?", help="a Python file that trains with torch.distributed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")


def main(arguments: argparse.Namespace, ours: bool = True) -> int:
    """Run the script as one of the ranks that the launcher started; its exit code.

    `ours` says that its groups run over the collectives of this package.
    """
    steps = re.fullmatch(r"(\d+)(?:(\.\.)(\d+)?)?", arguments.check_steps)
    first, last = (int(steps[1]), None if steps[2] and not steps[3] else int(steps[3] or steps[1])) if steps else (1, 0)
    if last is not None and last < first:
        raise UsageError(f"--check-steps is {arguments.check_steps!r}; give the steps as 1.., 3 or 100..102")
    asked = checked.Asked(first, last, arguments.records, arguments.json, arguments.strict, arguments.double)
    if arguments.judge and arguments.after:
        return checked.stay(Path(arguments.judge), arguments.after, asked)
    if arguments.judge:
        if not [*Path(arguments.judge).glob("rank?????")]:
            raise UsageError(f"--judge {arguments.judge}: no records of ranks are there; name the folder of --records")
        return checked.say(Path(arguments.judge), asked)
    words = [*filter(None, [None if arguments.module else arguments.script]), *arguments.arguments]
    if arguments.module:
        words = [arguments.module, *filter(None, [arguments.script]), *arguments.arguments]
    elif not arguments.script or not os.path.isfile(arguments.script):
        named = f" {arguments.script!r}" if arguments.script else ""
        raise UsageError(f"there is no script{named}; give a Python file, or -m and a module, after the flags")
    if ours:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    try:
        import torch  # noqa: F401, PLC0415 - most commands need none
    except ModuleNotFoundError as error:
        raise UsageError("PyTorch is not installed; pip install 'zerosim[torch]' installs it") from error
    asked = checked.prepared(asked) if arguments.check else asked
    sys.argv = words
    sys.path[0] = os.getcwd() if arguments.module else str(Path(arguments.script).resolve().parent)
    if ours:
        from zerosim.torch import running  # noqa: PLC0415 - connects the ranks

        running.take_groups()
    body = partial(script, module=arguments.module)
    code = checked.run(asked, body) if arguments.check else body()
    if arguments.calls and ours and launched_rank() in (None, 0):
        print(running.calls())
    return code


def script(module: str = "") -> int:
    """Run the script that `sys.argv` names, or a module; 0, or the exit code of its `sys.exit`."""
    try:
        if module:
            KEPT.append(runpy.run_module(module, run_name="__main__", alter_sys=True))
        else:
            KEPT.append(runpy.run_path(sys.argv[0], run_name="__main__"))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
