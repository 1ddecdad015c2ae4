"""A separate process for a learner's code, and a channel to the grader that the learner's code cannot write to.

The examination answers through its own pipe, behind a secret that is drawn for each examination and is in no file,
argument or environment variable.

A learner's function has a time limit, because a loop may never end. Its process ends with its parent.
"""

import faulthandler
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, Any

from zerosim.teach.grading.contained import GRACE_SECONDS, Learner, end_with, ended

MOST_BYTES = 1 << 20
"""The bytes kept of the channel and of standard error; the last ones are kept."""
MOST_TOLD = 2_000
"""The characters kept of the last line of standard error."""


class Ended(Exception):
    """A process ended without an answer: its exit code and last line of output; `complained` has all lines."""

    def __init__(self, message: str, complained: str) -> None:
        super().__init__(message)
        self.complained = complained

    @property
    def out_of_patience(self) -> bool:
        """Whether the process reached its time limit, and so reported the positions of its threads."""
        return "Timeout (" in self.complained


def answer_of_process(module: str, arguments: list[str], patience_seconds: float, learner: Learner) -> dict[str, Any]:
    """The answer of a learner's process that runs `module`; it ends with this one or at its time limit.

    Raises `Ended` if there is no answer, and `TimeoutError` if the process does not end after its time limit.
    """
    secret = secrets.token_hex(16)
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as channel:
        try:
            process = learner.started(
                module, [str(writing), str(patience_seconds), *arguments], [writing], subprocess.PIPE, subprocess.PIPE)
        finally:
            os.close(writing)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(secret.encode())
            said, complained = heard(channel, process, time.monotonic() + patience_seconds + GRACE_SECONDS)
        finally:
            ended(process)
    found = behind(secret, said)
    if found is None:
        lines = complained.decode("utf-8", "replace").strip()
        last = lines.rpartition("\n")[2][-MOST_TOLD:]
        raise Ended(f"its process {ending(process.returncode)} {last}".strip(), lines)
    return found


def ending(code: int) -> str:
    """The end of a process, in words.

    >>> ending(3), ending(-9)
    ('ended with code 3', 'was ended by SIGKILL')
    """
    return f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def heard(channel: IO[bytes], process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """The last bytes of the channel and of standard error, after the process has ended.

    Raises `TimeoutError` if it has not ended by `deadline`, in seconds of the monotonic clock.
    """
    assert process.stderr is not None
    last: dict[Any, bytes] = {channel: b"", process.stderr: b""}
    with selectors.DefaultSelector() as waiting, process.stderr:
        for stream in last:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for key, _ in waiting.select(left):
                piece = os.read(key.fd, MOST_BYTES)
                if not piece:
                    waiting.unregister(key.fileobj)
                last[key.fileobj] = (last[key.fileobj] + piece)[-MOST_BYTES:]
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return last[channel], last[process.stderr]


def behind(secret: str, said: bytes) -> dict[str, Any] | None:
    """The JSON object behind the secret; None if the secret is absent or anything else follows it.

    >>> behind("abc", b'xabc{"x": 1}'), behind("abc", b'{"x": 1}'), behind("abc", b'abc{"x": 1}y')
    ({'x': 1}, None, None)
    """
    _, found, answer = said.rpartition(secret.encode())
    if not found:
        return None
    try:
        read = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


class Answering:
    """The examination's end of the channel; it must be made before the learner's code is imported."""

    def __init__(self, parent: str, descriptor: str, patience_seconds: str) -> None:
        end_with(int(parent))
        faulthandler.dump_traceback_later(float(patience_seconds), exit=True)
        self._descriptor, self._secret = int(descriptor), sys.stdin.read()

    def say(self, answer: dict[str, Any]) -> None:
        """Send the answer and close the channel."""
        with open(self._descriptor, "w", encoding="utf-8") as channel:
            channel.write(f"{self._secret}{json.dumps(answer)}")
