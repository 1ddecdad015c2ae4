"""The exercises in a learner's file, each graded in a process of its own.

One that never ends is ended, and what it prints or breaks is its own affair.
"""

import ast
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal

from zerosim.errors import ScenarioError
from zerosim.files import reason
from zerosim.proofs.subject import read_python

EXERCISES = (
    "reduce_scatter", "all_gather", "all_reduce", "broadcast", "reduce", "zero1_step", "zero2_step", "zero3_step",
)
PATIENCE_SECONDS = 60.0
"""How long the examination of one function may take; that of an honest one takes a few seconds."""

MOST_BYTES = 1 << 16
"""Of what an examination says, the last."""

State = Literal["holds", "does not hold yet", "not yet written", "does not end"]


@dataclass(frozen=True)
class Grade:
    """What was found out about one function: the claims that hold, and a complaint about the first that does not."""

    function: str
    state: State
    held: list[str]
    complaint: str | None = None


def exercises_in(file: str) -> list[str]:
    """The exercises that `file` defines at its top level, in their own order; nothing in it is run.

    Raises `ScenarioError` for a file that cannot be read or has none of them.
    """
    try:
        body = ast.parse(read_python(file), file).body
    except SyntaxError as error:
        raise ScenarioError(
            f"is not Python: {error.msg}", file=file, line=error.lineno or 1, column=error.offset or 1
        ) from error
    except OSError as error:
        raise ScenarioError(f"cannot be read: {reason(error)}", file=file) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScenarioError(f"is not Python: {error}", file=file) from error
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    found = [name for name in EXERCISES if name in defined]
    if not found:
        raise ScenarioError(f"has no function to grade; name it one of {', '.join(EXERCISES)}", file=file)
    return found


def grade_apart(file: str, name: str, patience_seconds: float = PATIENCE_SECONDS) -> Grade:
    """The grade of one function, in a process that lives no longer than `patience_seconds`, nor than this one.

    What it found comes through a pipe of its own, behind a word that is drawn here and that the function is not told.
    Raises `ScenarioError` where the file cannot be imported.
    """
    secret = secrets.token_hex(16)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "zerosim.grading.examination", file, name, str(writing), str(os.getpid())]
    with open(reading, "rb", buffering=0) as channel:
        try:
            examination = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[writing], start_new_session=True)
        finally:
            os.close(writing)
        try:
            assert examination.stdin is not None
            with suppress(BrokenPipeError), examination.stdin as stdin:
                stdin.write(secret.encode())
            said, complained = heard(channel, examination, patience_seconds)
        except TimeoutError:
            advice = f"still busy after {patience_seconds:g} seconds: look for a loop that never ends"
            return Grade(name, "does not end", [], advice)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(examination.pid, signal.SIGKILL)
            examination.wait()
    answer = answered(said, secret)
    if answer is None:
        last = complained.decode("utf-8", "replace").strip().rpartition("\n")[2]
        complaint = f"its process ended with code {examination.returncode} {last}".strip()
        return Grade(name, "does not hold yet", [], complaint)
    if "unusable" in answer:
        raise ScenarioError(answer["unusable"], file=file)
    return Grade(**answer)


def heard(channel: IO[bytes], examination: subprocess.Popen[bytes], patience_seconds: float) -> tuple[bytes, bytes]:
    """The last bytes that came through the channel, and the last on standard error, once the examination has ended.

    Raises `TimeoutError` if it has not by then.
    """
    assert examination.stderr is not None
    last, deadline = {channel: b"", examination.stderr: b""}, time.monotonic() + patience_seconds
    with selectors.DefaultSelector() as waiting, examination.stderr:
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
                last[key.fileobj] = (last[key.fileobj] + piece)[-MOST_BYTES:]  # type: ignore[index]
    try:
        examination.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return last[channel], last[examination.stderr]


def answered(said: bytes, secret: str) -> dict[str, Any] | None:
    """What stands behind the secret, if that was said: JSON, and nothing else."""
    _, found, answer = said.rpartition(secret.encode())
    if not found:
        return None
    try:
        read: dict[str, Any] = json.loads(answer)
    except ValueError:
        return None
    return read
