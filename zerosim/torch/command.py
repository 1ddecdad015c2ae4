"""The flags of `zerosim torch` and of `python -m zerosim.torch`, and what they do."""

import argparse
import os
import re
import runpy
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from zerosim.core.errors import UsageError
from zerosim.torch.check import checked_run as checked
from zerosim.torch.check.record import RecordError
from zerosim.torch.same import recorded_run as same
from zerosim.worlds.launcher import launched_rank

KEPT: list[object] = []
"""The names of a script that has ended: they live as long as those of Python's own `__main__`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim torch`, which come before the script."""
    parser.add_argument("--check", action="store_true", help="judge the training: gradients, weights, batches, updates")
    parser.add_argument("--check-steps", metavar="A..B", default="",
                        help="the steps to check, such as 100..102; 1.. is all of them "
                             f"(default: 1..{checked.LAST}, and 1..{same.LAST} with --record)")
    parser.add_argument("--json", metavar="FILE", default="", help="write verdicts and findings as JSON")
    parser.add_argument("--records", metavar="FOLDER", default="",
                        help="where ranks write their records, empty; on several hosts a folder that all of them see")
    parser.add_argument("--double", action="store_true", help="a default dtype of 64 bits, with errors of about 1e-16")
    parser.add_argument("--strict", action="store_true",
                        help="exit with 3 for suspicions, and with 4 if gradients were not judged")
    parser.add_argument("--judge", metavar="FOLDER", help="judge the records of an earlier run; needs no PyTorch")
    parser.add_argument("--record", metavar="FOLDER", help="record the training, to compare it with another run")
    parser.add_argument("--noise", choices=("float64", "float32", "bfloat16", "float16"), default="",
                        help="with --record: move each initial weight by a rounding of this dtype")
    parser.add_argument("--same", metavar="FOLDER", nargs="+",
                        help="compare the record of a run with that of a reference, and with its repetition with "
                             "--noise: REFERENCE RUN [AGAIN]; needs no PyTorch")
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)  # judge when this launcher is gone
    parser.add_argument("--calls", action="store_true", help="print the calls of collectives, their lines and bytes")
    parser.add_argument("-m", metavar="MODULE", dest="module", default="", help="a module that trains, not a file")
    parser.add_argument("script", nargs="?", help="a Python file that trains with torch.distributed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")


def main(arguments: argparse.Namespace, ours: bool = True) -> int:
    """Run the script as one of the ranks that the launcher started; its exit code.

    `ours` says that its groups run over the collectives of this package.
    """
    if arguments.same:
        return same.compare(arguments.same, arguments.json, arguments.strict)
    if arguments.record and (arguments.check or arguments.judge or arguments.records or arguments.json):
        raise UsageError("--record records and judges nothing: give it without --check, --judge, --records and --json; "
                         "--same judges two records")
    if arguments.noise and not arguments.record:
        raise UsageError("--noise is for --record: add --record FOLDER, or leave it out")
    asked = checked.Asked(*steps(arguments), arguments.record or arguments.records, arguments.json, arguments.strict,
                          arguments.double)
    if arguments.judge:
        return judge(arguments, asked)
    words = [*filter(None, [arguments.module, arguments.script]), *arguments.arguments]
    if not arguments.module and not os.path.isfile(arguments.script or ""):
        named = f" {arguments.script!r}" if arguments.script else ""
        raise UsageError(f"there is no script{named}; give a Python file, or -m and a module, after the flags")
    if ours:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    try:
        import torch  # noqa: F401, PLC0415 - most commands need none
    except ModuleNotFoundError as error:
        raise UsageError("PyTorch is not installed; pip install torch installs it") from error
    if arguments.record:
        asked = replace(asked, recorder=partial(same.recorder, arguments.double, arguments.noise))
    asked = checked.prepared(asked) if arguments.check or arguments.record else asked
    sys.argv = words
    sys.path[0] = os.getcwd() if arguments.module else str(Path(arguments.script).resolve().parent)
    if ours:
        from zerosim.torch import backend  # noqa: PLC0415 - connects the ranks

        backend.take_groups()
    body = partial(script, module=arguments.module)
    code = checked.run(asked, body) if arguments.check or arguments.record else body()
    if arguments.calls and ours and launched_rank() in (None, 0):
        print(backend.calls())
    return code


def steps(arguments: argparse.Namespace) -> tuple[int, int | None]:
    """The first step that is observed, and the last, or None; `UsageError` if there is none."""
    span = arguments.check_steps or f"1..{same.LAST if arguments.record else checked.LAST}"
    said = re.fullmatch(r"(\d+)(?:(\.\.)(\d+)?)?", span)
    first, last = (int(said[1]), None if said[2] and not said[3] else int(said[3] or said[1])) if said else (1, 0)
    if last is not None and last < first:
        raise UsageError(f"--check-steps is {arguments.check_steps!r}; give the steps as 1.., 3 or 100..102")
    if arguments.record and first != 1:
        raise UsageError(f"--check-steps is {arguments.check_steps!r}; a record begins with step 1, as 1..{last or ''}")
    return first, last


def judge(arguments: argparse.Namespace, asked: checked.Asked) -> int:
    """Judge records: those of an earlier run, or of this one once its launcher is gone."""
    folder = Path(arguments.judge)
    if arguments.after:
        return checked.stay(replace(asked, folder=str(folder)), arguments.after)
    if not any(folder.glob("rank?????")):
        raise UsageError(f"--judge {folder}: no records of ranks are there; name the folder of --records")
    with suppress(OSError, RecordError):
        if any(record.facts.recorded for record in checked.read_all(folder)):
            raise UsageError(f"--judge {folder}: these are records of --record; compare two by --same")
    return checked.say(folder, asked)


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
