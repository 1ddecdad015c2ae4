"""`zerosim torch`: an unchanged PyTorch script over the collectives of this package."""

import argparse
import os

from zerosim.core.errors import UsageError
from zerosim.core.files import is_file
from zerosim.worlds.launcher import launched_rank


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim torch`, which come before the script."""
    parser.add_argument("--calls", action="store_true", help="print the calls of collectives, their lines and bytes")
    parser.add_argument("script", help="a Python file that trains with torch.distributed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")


def main(arguments: argparse.Namespace) -> int:
    """Run the script as one of the ranks that the launcher started; its exit code."""
    if not is_file(arguments.script):
        raise UsageError(f"there is no script {arguments.script!r}; give a Python file after the flags")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    try:
        from zerosim.torch import running  # noqa: PLC0415 - imports torch
    except ModuleNotFoundError as error:
        raise UsageError("PyTorch is not installed; pip install 'zerosim[torch]' installs it") from error
    code = running.run_script(arguments.script, arguments.arguments)
    if arguments.calls and launched_rank() in (None, 0):
        print(running.calls())
    return code
