"""A tape: runs units forward and, last unit first, backward, micro-batch by micro-batch.

Between forward and backward it keeps activations and nothing else. Weights are handed in twice,
once for each direction, so whoever drops them in between has really freed them.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from zerosim.allocation import Allocator, Array, allocate
from zerosim.autograd.operations import LOSSES, Operation


class Layer(Protocol):
    """What a tape asks of a layer: its place in the model and what it computes, in order."""

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def operations(self) -> Sequence[Operation]: ...


class Unit(Hashable, Protocol):
    """What a tape asks of a unit: one flat buffer of `count` elements, seen as named parameters."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def layers(self) -> Sequence[Layer]: ...
    def views(self, flat: Array, /) -> dict[str, Array]: ...


Total = Any
"""What an `Accumulate` makes of the contributions so far: an array, or whatever its order needs."""

Accumulate = Callable[[Total, Array], Total]
"""`accumulate(total, contribution)` gives the new total; the first total is None."""


def left_to_right(total: Array | None, contribution: Array) -> Array:
    """((g₀ + g₁) + g₂) + …, in the memory of g₀."""
    if total is None:
        return contribution
    total += contribution
    return total


class Tape:
    """One step's activations, for each of this rank's micro-batches.

    `allocate` gives every array as large as an activation or a gradient; `accumulate` folds the
    contributions of micro-batches, first to last, to the loss and to each unit's gradient.

    >>> import numpy as np
    >>> from zerosim.model import mlp
    >>> (unit,), tape = mlp(2, [], 1, "relu", "mean_squared_error").units, Tape()
    >>> weights = np.array([1.0, 2.0, 0.5])         # W = [[1, 2]], b = [0.5]
    >>> outputs = tape.forward(unit, weights, [np.array([[1.0, 1.0]])])
    >>> loss, upstreams = tape.loss("mean_squared_error", outputs, [np.array([[1.5]])], samples=1)
    >>> float(loss[0]), tape.backward(unit, weights, upstreams)
    (4.0, ([], array([4., 4., 4.])))
    """

    def __init__(
        self, allocate: Allocator = allocate, accumulate: Accumulate = left_to_right
    ) -> None:
        self._allocate = allocate
        self._accumulate = accumulate
        self._kept: dict[Unit, list[list[Array]]] = {}

    def forward(self, unit: Unit, weights: Array, activations: Sequence[Array]) -> list[Array]:
        """The unit's outputs, one array (samples, outputs) for each (samples, inputs) given.

        `weights` is the unit's flat buffer, `unit.count` elements and any padding. The outputs
        belong to the tape: backward may overwrite them.
        """
        self._kept[unit] = [[] for _ in activations]
        return [
            self._play(unit, weights, x, kept)
            for x, kept in zip(activations, self._kept[unit], strict=True)
        ]

    def loss(
        self, name: str, outputs: Sequence[Array], targets: Sequence[Array], samples: int
    ) -> tuple[Total, list[Array]]:
        """The loss, a total over one-element arrays, and ∂L/∂output for each micro-batch.

        `name` is a key of `LOSSES`. `samples` counts the global batch, over all ranks: each
        micro-batch is scaled by its inverse, so nothing is divided after the sum.
        """
        empty = partial(self._allocate, kind="activations", owner="loss")
        total, upstreams = None, []
        for output, target in zip(outputs, targets, strict=True):
            contribution, upstream = LOSSES[name](output, target, samples, empty=empty)
            total = self._accumulate(total, contribution)
            upstreams.append(upstream)
        return total, upstreams

    def backward(
        self, unit: Unit, weights: Array, upstreams: list[Array]
    ) -> tuple[list[Array], Total]:
        """∂L/∂input for each micro-batch, and ∂L/∂weights: flat, as long as `weights`, padding 0.

        Units come in reverse order of forward. `upstreams` holds ∂L/∂output and is emptied on the
        way, its arrays overwritten; afterwards the tape holds nothing of the unit. The first
        layer's inputs are data, so for its unit the list is empty.
        """
        inputs, total = [], None
        for kept in self._kept.pop(unit):
            contribution = self._allocate(
                weights.shape, weights.dtype, kind="gradients", owner=unit.name
            )
            contribution[unit.count :] = 0.0
            upstream = self._rewind(unit, weights, contribution, kept, upstreams.pop(0))
            if upstream is not None:
                inputs.append(upstream)
            total = self._accumulate(total, contribution)
            del contribution  # before the next one is allocated: at most two are alive
        return inputs, total

    def _play(self, unit: Unit, weights: Array, x: Array, kept: list[Array]) -> Array:
        empty = partial(self._allocate, kind="activations", owner=unit.name)
        views = unit.views(weights)
        for layer in unit.layers:
            for operation in layer.operations:
                x, keep = operation.forward(x, *_of(layer, operation, views), empty=empty)
                kept.append(keep)
        return x

    def _rewind(
        self, unit: Unit, weights: Array, gradient: Array, kept: list[Array], upstream: Array
    ) -> Array | None:
        empty = partial(self._allocate, kind="activations", owner=unit.name)
        views, gradients = unit.views(weights), unit.views(gradient)
        for layer in reversed(unit.layers):
            for operation in reversed(layer.operations):
                keep = kept.pop()
                if operation.gradients:
                    operation.gradients(upstream, keep, *_of(layer, operation, gradients))
                if layer.index == 0 and not kept:
                    return None  # below lies the data, which nobody differentiates
                upstream = operation.backward(
                    upstream, keep, *_of(layer, operation, views), empty=empty
                )
        return upstream


def _of(layer: Layer, operation: Operation, views: dict[str, Array]) -> list[Array]:
    return [views[f"{layer.name}.{parameter}"] for parameter in operation.parameters]
