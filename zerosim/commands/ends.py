"""The end of the process `zerosim`: it comes, with the exit code of the verdict, whatever a user's part does.

    SIGTERM       one line and exit code 143, as an interrupt is one line and 130
    os._exit      before the verdict, the end of a run without one: at least 3; after it, never 0 for a failed check
    threads       those that a part has left behind get `END_SECONDS` to end; then the process ends, with at least 3
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from zerosim.core.errors import Terminated, ZerosimError

END_SECONDS = 10.0


def ended(command: Callable[[], int]) -> int:
    """The exit code of a command of this process, which ends with it."""
    own, leave = os.getpid(), os._exit
    verdicts = list[int]()

    def late(what: str, code: int) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            print(f"zerosim: {what}", file=sys.stderr, flush=True)
        leave(max([*verdicts[:1], code]) or ZerosimError.exit_code)

    def exit_now(code: int) -> None:
        if os.getpid() != own or (verdicts and code >= verdicts[0]):
            leave(code)
        late(f"a part has called os._exit({code})" + ", so there is no verdict" * (not verdicts), code)

    def end() -> None:
        left = [thread.name for thread in threading.enumerate()
                if not thread.daemon and thread is not threading.main_thread()]
        late(f"{', '.join(left) or 'the process'} has not ended {END_SECONDS:g} s after the command",
             ZerosimError.exit_code)

    def terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminated)
    os._exit = exit_now  # type: ignore[assignment]
    try:
        verdicts.append(command())
    except SystemExit as stopped:
        verdicts.append(stopped.code if isinstance(stopped.code, int) else ZerosimError.exit_code)
        raise
    finally:
        waiting = threading.Timer(END_SECONDS, end)
        waiting.daemon = True
        waiting.start()
    return verdicts[0]
