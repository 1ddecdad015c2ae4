"""Which functions of the package a process runs: each is written down when it is first called."""

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

FILE = "MUTANTS_TRACE"
"""The environment's word for the file to write to, so that the processes which a test starts write there, too."""
STARTUP = """
import os

from tests.mutants import tracing

if tracing.FILE in os.environ:
    tracing.begin(os.environ[tracing.FILE])
"""
"""What Python is to run when it starts: `sitecustomize.py`."""


def begin(file: str) -> None:
    """Write to `file`, from here on, which functions any thread calls: `path:line`, the line being where it begins."""
    os.environ[FILE] = file
    package = str(Path(__file__).parents[2]) + os.sep
    known: dict[int, CodeType] = {}

    def called(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if id(code) not in known:
            known[id(code)] = code
            if code.co_filename.startswith(package):
                with suppress(OSError), open(file, "a", encoding="utf-8") as trace:
                    trace.write(f"{code.co_filename.removeprefix(package)}:{code.co_firstlineno}\n")

    threading.settrace(called)
    sys.settrace(called)
