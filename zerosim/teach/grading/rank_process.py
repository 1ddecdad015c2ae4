"""A rank in a separate process, which has only its own input and its messages.

`python -m zerosim.teach.grading.rank_process PARENT FILE FUNCTION DESCRIPTOR…` forks a process for each descriptor.
Each imports the file and runs the function on each request through its descriptor, in lines of JSON:

    request     {"size", "rank"}; for a collective {"root", "vector", "reduce", "per_host"}, for a step {"tiny"}
    messages    {"to", "array"}, {"from", "count", "dtype"}, or all of these; a receive is answered with the array
    answer      {"gave"}, or {"raised"} with the message of an exception
    report      {"used"}, at any time, before a use of the library's own solutions takes effect
"""

import base64
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from math import prod
from operator import index
from typing import Any, NoReturn

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Payload, Reduction, SendsFirst
from zerosim.parts.loading import load_file
from zerosim.teach.grading.claims import ON_VECTORS, STAGE_TRIALS, as_exercise
from zerosim.teach.grading.contained import end_with
from zerosim.teach.grading.examination import limit_memory
from zerosim.teach.grading.library_use import watch
from zerosim.teach.grading.trained import Figures, Tiny, Trained, checked, on_a_rank, prepared
from zerosim.teach.proofs.hints import raised
from zerosim.teach.proofs.subject import collective_in, subject
from zerosim.training.alike import alike_everywhere
from zerosim.worlds.delivery import deliver

Said = dict[str, Any]
NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
           "float32", "float64", "complex128")
LEAVE = os._exit


def packed(array: Array) -> Said:
    """An array as JSON types.

    >>> packed(np.arange(2, dtype=np.uint8))
    {'dtype': 'uint8', 'shape': [2], 'bytes': 'AAE='}
    """
    return {"dtype": array.dtype.name, "shape": [*array.shape], "bytes": base64.b64encode(array.tobytes()).decode()}


def unpacked(said: Any) -> Array:
    """The array from `packed`. Raises `ValueError` for anything else.

    >>> unpacked(packed(np.array([[1.5]])))
    array([[1.5]])
    """
    try:
        if said["dtype"] not in NUMBERS:
            raise ValueError
        dtype, shape, held = np.dtype(said["dtype"]), [int(each) for each in said["shape"]], said["bytes"]
        content = base64.b64decode(held, validate=True)
        if prod(shape) * dtype.itemsize != len(content):
            raise ValueError
        return np.frombuffer(content, dtype).reshape(shape).copy()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("a rank sent data other than an array of numbers") from error


class Wire:
    """Lines of JSON over a socket."""

    def __init__(self, descriptor: int) -> None:
        self._stream = socket.socket(fileno=descriptor).makefile("rwb")

    def say(self, said: Said) -> None:
        self._stream.write(json.dumps(said).encode() + b"\n")
        self._stream.flush()

    def hear(self) -> Said:
        """The next line; ends the process if the other end is closed."""
        line = self._stream.readline()
        if not line:
            LEAVE(0)
        said: Said = json.loads(line)
        return said


class Routed(SendsFirst):
    """A communicator whose messages all pass through the grading process."""

    def __init__(self, wire: Wire, rank: int, size: int) -> None:
        self.rank, self.size, self._wire = rank, size, wire

    @property
    def came_ns(self) -> int:
        return time.monotonic_ns()

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        """One request, so that the marker's world sees an exchange."""
        self._receive(self._sending(outgoing, to), into, source, reduce)

    def send(self, outgoing: Payload, *, to: int) -> None:
        self._wire.say(self._sending(outgoing, to))

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        self._receive({}, into, source, reduce)

    def _sending(self, outgoing: Payload, to: int) -> Said:
        return {"to": index(to), "array": packed(outgoing)}

    def _receive(self, sending: Said, into: Payload, source: int, reduce: Reduction | None) -> None:
        self._wire.say(sending | {"from": index(source), "count": into.size, "dtype": into.dtype.name})
        arrived = unpacked(self._wire.hear()["array"])
        deliver(arrived, into, reduce)


def carried_out(function: Callable[..., Any], name: str, comm: Routed, asked: Said) -> Any:
    """The result of one run on this rank."""
    if "tiny" in asked:
        return trained_here(function, name, comm, asked["tiny"])
    vector = unpacked(asked["vector"])
    if name in ON_VECTORS:
        ON_VECTORS[name](function).run(comm, vector)
        return packed(vector)
    reduction = [getattr(np, asked["reduce"])] if asked["reduce"] else []
    examined = as_exercise(name, subject(function, collective_in(name)), asked["per_host"])
    examined(comm, vector, asked["root"], *reduction)
    return packed(vector)


def trained_here(function: Callable[..., Any], name: str, comm: Routed, tiny: Said) -> Any:
    """The results of a training on this rank: losses, kept arrays, bytes kept after each step, peak bytes."""
    trial, size = STAGE_TRIALS[name](function), tiny_of(tiny)
    experiment = prepared(size, trial.stage, tuple(trial.variant.items()))
    found = Trained(figures=[Figures() for _ in range(comm.size)])
    with alike_everywhere():
        on_a_rank(comm, experiment, checked(trial.step), trial.hand, found)
    mine = found.figures[comm.rank]
    return {
        "losses": [[step, packed(loss)] for (_, step), loss in found.losses.items()],
        "held": [[step, what, unit, packed(array)] for (_, step), held in found.held.items()
                 for (what, unit), array in held.items()],
        "kept": mine.kept, "peak": mine.peak, "weights_in_backward": mine.weights_in_backward,
    }


def tiny_of(said: Said) -> Tiny:
    """The `Tiny` from `dataclasses.asdict`, after JSON."""
    return Tiny(**said | {"hidden": tuple(said["hidden"]), "train": tuple(map(tuple, said["train"]))})


def serve(file: str, name: str, descriptor: int) -> None:
    """Run the function on each request until the other end is closed."""
    wire = Wire(descriptor)
    watch(lambda used: wire.say({"used": used}), own_calls=name not in STAGE_TRIALS and name not in ON_VECTORS)
    function = getattr(load_file(file), name)
    while True:
        asked = wire.hear()
        try:
            gave = {"gave": carried_out(function, name, Routed(wire, asked["rank"], asked["size"]), asked)}
        except Exception as error:
            gave = {"raised": raised(error, os.path.abspath(file))}
        wire.say(gave)


def fork(descriptors: Sequence[int], serving: Callable[[int], None]) -> list[int]:
    """Fork a process for each descriptor, in which the other descriptors are closed; return the process ids."""
    here, found = os.getpid(), []
    for descriptor in descriptors:
        process = os.fork()
        if process:
            found.append(process)
        else:
            end(descriptors, descriptor, here, serving)
    return found


def end(descriptors: Sequence[int], mine: int, parent: int, serving: Callable[[int], None]) -> NoReturn:
    """The main function of a forked process."""
    try:
        end_with(parent)
        for other in descriptors:
            if other != mine:
                os.close(other)
        serving(mine)
    finally:
        LEAVE(1)


def main(parent: str, file: str, name: str, *descriptors: str) -> None:
    """Start the ranks and wait until they end."""
    end_with(int(parent))
    limit_memory()
    children = fork([*map(int, descriptors)], lambda mine: serve(file, name, mine))
    for each in descriptors:
        os.close(int(each))
    for child in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
