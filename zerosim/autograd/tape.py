"""A tape: runs units forward and, last unit first, backward, micro-batch by micro-batch.

Between forward and backward it keeps activations and nothing else. Weights are handed in twice,
once for each direction, so whoever drops them in between has really freed them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from zerosim.allocation import Allocator, Array, allocate
from zerosim.autograd.operations import LOSSES, Empty, Operation

FLOAT_BYTES = np.dtype(np.float32).itemsize


class TapeLayer(Protocol):
    """What a tape asks of a layer: its place in the model and what it computes, in order."""

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def operations(self) -> Sequence[Operation]: ...


class TapeUnit(Hashable, Protocol):
    """What a tape asks of a unit: one flat buffer of `count` elements, seen as named parameters."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def frozen(self) -> bool: ...
    @property
    def layers(self) -> Sequence[TapeLayer]: ...
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

    `allocate` gives every array as large as an activation or a gradient; `accumulate` folds the contributions of
    micro-batches, first to last, to the loss and to each unit's gradient. Layers below `lowest` need no gradient, and
    neither does what is frozen.

    Numbers of 16 bits are for keeping and sending: every operation widens them, computes in float32 and rounds. With
    them gradients may be scaled by `loss_scale`, so that small ones do not vanish; the loss itself never is.

    >>> import numpy as np
    >>> from zerosim.models.mlp import mlp
    >>> (unit,), tape = mlp(2, [], 1, "relu", "mean_squared_error").units, Tape()
    >>> weights = np.array([1.0, 2.0, 0.5])         # W = [[1, 2]], b = [0.5]
    >>> outputs = tape.forward(unit, weights, [np.array([[1.0, 1.0]])])
    >>> loss, upstreams = tape.loss("mean_squared_error", outputs, [np.array([[1.5]])], samples=1)
    >>> float(loss[0]), tape.backward(unit, weights, upstreams)
    (4.0, ([], array([4., 4., 4.])))
    """

    def __init__(
        self, allocate: Allocator = allocate, accumulate: Accumulate = left_to_right, lowest: int = 0
    ) -> None:
        self.loss_scale = 1.0
        self._allocate = allocate
        self._accumulate = accumulate
        self._lowest = lowest
        self._kept: dict[TapeUnit, list[list[Array]]] = {}

    def forward(self, unit: TapeUnit, weights: Array, activations: Sequence[Array]) -> list[Array]:
        """The unit's outputs, one array (samples, outputs) for each (samples, inputs) given.

        `weights` is the unit's flat buffer, `unit.count` elements and any padding. The outputs belong to the tape:
        backward may overwrite them.
        """
        outputs, kept = [], []
        for x in activations:
            y, keep = self._play(unit, weights, x)
            outputs.append(y)
            kept.append(keep)
        if self._keeps(unit):
            self._kept[unit] = kept
        return outputs

    def loss(
        self,
        name: str,
        outputs: Sequence[Array],
        targets: Sequence[Array],
        samples: int,
        total: Total = None,
    ) -> tuple[Total, list[Array]]:
        """The loss, added to `total` where there is one, and ∂L/∂output for each micro-batch.

        `name` is a key of `LOSSES`. `samples` counts the global batch, over all ranks: each micro-batch is scaled by
        its inverse, so nothing is divided after the sum.
        """
        upstreams = []
        for output, target in zip(outputs, targets, strict=True):
            contribution, upstream = self._judge(name, output, target, samples)
            total = self._accumulate(total, contribution)
            upstreams.append(upstream)
        return total, upstreams

    def backward(
        self, unit: TapeUnit, weights: Array, upstreams: list[Array]
    ) -> tuple[list[Array], Total]:
        """∂L/∂input for each micro-batch, and ∂L/∂weights: flat, as long as `weights`, padding 0.

        Units come in reverse order of forward. `upstreams` holds ∂L/∂output and is emptied on the way, its arrays
        overwritten; afterwards the tape holds nothing of the unit. Below the lowest layer to be trained nobody
        differentiates, so for its unit the list is empty; a frozen unit has the gradient None.
        """
        inputs: list[Array] = []
        total: Total = None
        for kept in self._kept.pop(unit):
            contribution = None if unit.frozen else self._contribution(unit, weights)
            upstream = self._rewind(unit, weights, contribution, kept, upstreams.pop(0))
            if upstream is not None:
                inputs.append(upstream)
            if contribution is not None:
                total = self._accumulate(total, contribution)
            del contribution  # before the next one is allocated: at most two are alive
        return inputs, total

    def _contribution(self, unit: TapeUnit, weights: Array) -> Array:
        contribution = self._allocate(weights.shape, weights.dtype, kind="gradients", owner=unit.name)
        contribution[unit.count :] = 0.0
        return contribution

    def _keeps(self, unit: TapeUnit) -> bool:
        """Whether backward will come down to this unit."""
        return unit.layers[-1].index >= self._lowest

    def _play(self, unit: TapeUnit, weights: Array, x: Array) -> tuple[Array, list[Array]]:
        """The output of one micro-batch, and what each operation keeps if anything is to be kept."""
        views, kept = unit.views(weights), []
        for layer in unit.layers:
            for operation in layer.operations:
                x, keep = self._step_forward(unit, operation, x, _of(layer, operation, views))
                if self._keeps(unit):
                    kept.append(keep)
        return x, kept

    def _step_forward(
        self, unit: TapeUnit, operation: Operation, x: Array, parameters: Sequence[Array]
    ) -> tuple[Array, Array]:
        """One operation's output and what to keep of it, in the precision of x."""
        wide = self._widened(x)
        y, keep = operation.forward(wide, *map(self._widened, parameters), empty=self._empty(unit.name))
        output = self._rounded(y, x.dtype, unit.name)
        if keep is y:  # asked first: an activation writes y over the widened x, which is then no copy of x
            return output, output
        return output, x if keep is wide else self._rounded(keep, x.dtype, unit.name)

    def _judge(self, name: str, output: Array, target: Array, samples: int) -> tuple[Array, Array]:
        """A micro-batch's loss in at least 32 bits, and ∂L/∂output, scaled, in the precision of the output."""
        contribution, upstream = LOSSES[name](self._widened(output), target, samples, empty=self._empty("loss"))
        if self.loss_scale != 1.0:
            upstream *= self.loss_scale
        return contribution, self._rounded(upstream, output.dtype, "loss")

    def _rewind(
        self, unit: TapeUnit, weights: Array, gradient: Array | None, kept: list[Array], upstream: Array
    ) -> Array | None:
        views = unit.views(weights)
        into = {} if gradient is None else unit.views(gradient)
        for layer in reversed(unit.layers):
            for operation in reversed(layer.operations):
                keep = kept.pop()
                if operation.gradients and into:
                    self._differentiate(operation, upstream, keep, _of(layer, operation, into))
                if layer.index == self._lowest and not kept:
                    return None  # below lies the data, or what is frozen, which nobody differentiates
                upstream = self._step_backward(unit, operation, upstream, keep, _of(layer, operation, views))
        return upstream

    def _differentiate(self, operation: Operation, upstream: Array, keep: Array, into: Sequence[Array]) -> None:
        """Write ∂L/∂p into each of `into`, rounded to its precision."""
        assert operation.gradients is not None
        found = [self._wide_like(view) for view in into]
        operation.gradients(self._widened(upstream), self._widened(keep), *found)
        for view, values in zip(into, found, strict=True):
            if values is not view:
                view[...] = values

    def _step_backward(
        self, unit: TapeUnit, operation: Operation, upstream: Array, keep: Array, parameters: Sequence[Array]
    ) -> Array:
        """∂L/∂x from ∂L/∂y, in the precision of the latter."""
        wide = operation.backward(
            self._widened(upstream), self._widened(keep), *map(self._widened, parameters), empty=self._empty(unit.name)
        )
        return self._rounded(wide, upstream.dtype, unit.name)

    def _empty(self, owner: str) -> Empty:
        return partial(self._allocate, kind="activations", owner=owner)

    def _widened(self, array: Array) -> Array:
        """`array` in at least 32 bits: itself, or a copy."""
        wide = self._wide_like(array)
        if wide is not array:
            wide[...] = array
        return wide

    def _wide_like(self, array: Array) -> Array:
        """`array` itself if it has 32 bits or more, else room for as many elements of 32 bits."""
        if array.dtype.itemsize >= FLOAT_BYTES:
            return array
        return self._allocate(array.shape, np.float32, kind="buffers", owner="widened")

    def _rounded(self, array: Array, dtype: np.dtype[Any], owner: str) -> Array:
        """`array` as `dtype`: itself, or a rounded copy."""
        if array.dtype == dtype:
            return array
        narrow = self._allocate(array.shape, dtype, kind="activations", owner=owner)
        narrow[...] = array
        return narrow


def _of(layer: TapeLayer, operation: Operation, views: Mapping[str, Array]) -> list[Array]:
    """The operation's parameters in a layer, or their gradients."""
    return [views[f"{layer.name}.{parameter}"] for parameter in operation.parameters]
