"""The exercise of 1F1B: a schedule in the verbs of a pipeline, on numbers.

A rank's piece of the model multiplies by a number; a micro-batch is one number, with one ∂L/∂output. All are in a
vector, in whose place the rank leaves its gradient and the order of its passes, so a confirmation runs the exercise on
separate ranks like a collective.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.errors import CollectiveError
from zerosim.figures.pipelines import bubble, bubble_due, held, held_due
from zerosim.stages.schedules import Slot
from zerosim.teach.grading.exercises import Claim
from zerosim.teach.grading.pairs import OnVectors
from zerosim.worlds.local import spawn

SHAPES = ((2, 4), (2, 1), (4, 3), (4, 6), (1, 3))
"""Numbers of ranks and of micro-batches."""
WARM_UP = "warm up with one forward for each rank after this one"


class PipelineOfNumbers:
    """One rank of a pipeline, in the verbs of `Pipeline`; a micro-batch is its number."""

    def __init__(self, comm: Communicator, vector: Array) -> None:
        self._comm, self._who, self._count = comm, f"rank {comm.rank}", len(vector) // 2
        self._weight, self._inputs, self._upstreams = vector[0], vector[1 : self._count + 1], vector[self._count + 1 :]
        self.after = comm.size - 1 - comm.rank
        self.passes, self.gradient, self.updated = list[int](), 0.0, False
        self._given = dict[int, Array]()
        self._passed_on = {"activation": set[int](), "gradient": set[int]()}

    def begin(self, batch: Any) -> list[int]:
        return list(range(self._count))

    def receive_activation(self, part: int) -> Array:
        return self._received(self._inputs[part], self._comm.rank - 1)

    def forward(self, part: int, activation: Array) -> Array:
        self._once(part, part + 1, "forward")
        self._given[part] = activation
        return np.array(activation * self._weight)

    def send_activation(self, part: int, activation: Array) -> None:
        self._send("activation", part, activation, self._comm.rank + 1)

    def receive_gradient(self, part: int) -> Array:
        if part not in self._passed_on["activation"]:
            raise CollectiveError(f"{self._who} waits for the gradient of micro-batch {part}, whose activation it has "
                                  "not sent on: send_activation after forward")
        return self._received(self._upstreams[part], self._comm.rank + 1)

    def backward(self, part: int, upstream: Array) -> Array:
        self._once(part, -part - 1, "backward")
        if part not in self._given:
            raise CollectiveError(f"{self._who} runs micro-batch {part} backward before forward")
        if any(-earlier - 1 not in self.passes for earlier in range(part)):
            raise CollectiveError(f"{self._who} runs micro-batch {part} backward before an earlier one, which changes "
                                  "the bits of the sum; take them in the order of forward")
        self.gradient += float((upstream * self._given[part])[0])
        return np.array(upstream * self._weight)

    def send_gradient(self, part: int, upstream: Array) -> None:
        self._send("gradient", part, upstream, self._comm.rank - 1)

    def update(self) -> None:
        for part in range(self._count):
            if -part - 1 not in self.passes:
                raise CollectiveError(f"{self._who} updates before the backward of micro-batch {part}: run the "
                                      "remaining ones first (step 3), or the update lacks its gradient")
            if part not in self._passed_on["gradient"]:
                raise CollectiveError(f"{self._who} never sends the gradient of micro-batch {part} back: send_gradient "
                                      "after backward")
        self.updated = True

    def _received(self, here: Any, source: int) -> Array:
        found = np.array([here])
        if 0 <= source < self._comm.size:
            self._comm.recv(into=found, source=source)
        return found

    def _send(self, what: str, part: int, array: Array, to: int) -> None:
        self._passed_on[what].add(part)
        if 0 <= to < self._comm.size:
            self._comm.send(array, to=to)

    def _once(self, part: int, code: int, what: str) -> None:
        if code in self.passes:
            raise CollectiveError(f"{self._who} runs micro-batch {part} {what} twice")
        self.passes.append(code)


def on_numbers(step: Callable[..., Any]) -> OnVectors:
    """A learner's `one_f_one_b_step(pipeline, batch)` as a function of vectors."""
    def run(comm: Communicator, vector: Array) -> None:
        pipeline = PipelineOfNumbers(comm, vector.copy())
        step(pipeline, None)
        if not pipeline.updated:
            raise CollectiveError(f"rank {comm.rank} never updates: end with return pipeline.update()")
        vector[0], vector[1:] = pipeline.gradient, pipeline.passes

    return OnVectors(run)


class ScheduleTrial:
    """Runs of the exercise on random integers."""

    def __init__(self, function: Any) -> None:
        self._run = (function if isinstance(function, OnVectors) else on_numbers(function)).run
        self.on = cache(self._on)

    def _on(self, size: int, count: int) -> tuple[list[float], list[float], list[list[Slot]]]:
        """The gradient of each rank, that due, and each rank's passes."""
        random = np.random.default_rng()
        weights, x, upstreams = (random.integers(1, 5, length).astype(np.float64) for length in (size, count, count))

        def program(comm: Communicator) -> Array:
            vector = np.concatenate([weights[comm.rank : comm.rank + 1], x, upstreams])
            self._run(comm, vector)
            return vector

        found = spawn(program, size, limit_seconds=20.0)
        others = [prod(weights[:rank]) * prod(weights[rank + 1 :]) for rank in range(size)]
        return [float(each[0]) for each in found], [float(x @ upstreams * each) for each in others], [
            [Slot("F" if code > 0 else "B", int(abs(code)) - 1, 0) for code in each[1:]] for each in found]

    def first(self, wrong: Callable[[int, int], str | None]) -> str | None:
        """The first complaint of `wrong(ranks, micro_batches)`, or of a verb."""
        for size, count in SHAPES:
            try:
                said = wrong(size, count)
            except CollectiveError as error:
                said = str(error)
            if said:
                return f"on {size} ranks with {count} micro-batches, {said}\nsee: zerosim run pipeline --timeline"
        return None

    def sum_otherwise(self, size: int, count: int) -> str | None:
        for rank, (found, due) in enumerate(zip(*self.on(size, count)[:2], strict=True)):
            if found != due:
                return (f"the gradient of rank {rank} is {found:g}; it must be {due:g}: pass on what forward and "
                        "backward return, each for its own micro-batch")
        return None

    def holds_more(self, size: int, count: int) -> str | None:
        for rank, passes in enumerate(self.on(size, count)[2]):
            if (most := held(passes)) > (due := held_due("1f1b", rank, size, count)):
                return f"rank {rank} holds {most} micro-batches at once; 1F1B holds at most {due} there: {WARM_UP}"
        return None

    def idles_more(self, size: int, count: int) -> str | None:
        found, due = bubble(self.on(size, count)[2]), bubble_due(size, count)
        return f"ranks idle for {found} of the step; with 1F1B for {due}: {WARM_UP}" if found > due else None


def schedule_claims(function: Any) -> list[Claim]:
    """The claims of 1F1B."""
    trial = ScheduleTrial(function)
    return [
        Claim("every rank adds the gradient of each micro-batch once, in their order, before the update",
              lambda: trial.first(trial.sum_otherwise), 6, first=True),
        Claim("rank i holds the activations of at most p − i micro-batches", lambda: trial.first(trial.holds_more), 2),
        Claim("the bubble is (p − 1)/(m + p − 1)", lambda: trial.first(trial.idles_more), 2),
    ]
