"""Units: a model as those who train it see it, layers grouped into flat buffers.

    layer      parameters, and a function of weights and input
    unit       the layers that are gathered, reduced and updated together; its parameters lie in one flat buffer in
               model order, which may be padded behind `count`
    place      where a parameter lies in that buffer
    segment      a run of neighbouring layers of one unit; where layers that are not neighbours share a unit, as tied
               embeddings do, forward comes to it more than once

A model is a function that one can read. Sizes, memory and floating-point operations are read off the graph of that
function, so nothing else in the project knows what a model is made of.

A weight has one place in one buffer. Tied embeddings therefore share a unit, which has two segments: it is reduced
once, and Stage III gathers it for each segment. FSDP keeps such a root unit gathered from its first use to its last,
which is `reshard_after_forward = false` here.

Alike segments share a `Computation`, a graph and a plan, so that a transformer of a hundred blocks is analysed once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.graph import Compute, Graph, GraphPlan
from zerosim.autograd.operation import Shape
from zerosim.errors import ZerosimError
from zerosim.models.parameters import Parameter
from zerosim.parts.loading import Declared


@dataclass(frozen=True, eq=False)
class Layer:
    """`compute(weights, x)` computes the layer; `weights` has its parameters, and those it borrows, by name."""

    name: str
    prefix: str
    """The prefix of its parameters' names, as others know them: `layers.0.`."""
    parameters: tuple[Parameter, ...]
    compute: Compute
    borrows: tuple[str, ...] = ()
    """Full names of parameters that belong to another layer of the same unit."""

    @property
    def count(self) -> int:
        """The number of elements in the layer's own parameters."""
        return sum(parameter.count for parameter in self.parameters)


@dataclass(frozen=True, eq=False)
class ParameterPlace:
    """The place of a parameter: from `start` on in its unit's flat buffer."""

    parameter: Parameter
    layer: int
    prefix: str
    start: int

    @property
    def name(self) -> str:
        """The full name, as other programs know it."""
        return self.prefix + self.parameter.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parameter.shape

    @property
    def stop(self) -> int:
        """The index behind the last element."""
        return self.start + self.parameter.count


Read = tuple[tuple[Compute, tuple[tuple[str, int, Shape], ...]], ...]
"""The functions of layers; for each its parameters: their names in it, their numbers in the unit, and their shapes."""


@dataclass(frozen=True, eq=False)
class Computation:
    """The computation that alike segments share; a parameter is named by its number in the unit."""

    layers: Read
    _plans: dict[tuple[Shape, bool, bool], GraphPlan] = field(default_factory=dict)
    _graphs: dict[Shape, Graph] = field(default_factory=dict)

    def plan(self, shape: Shape, *, of_parameters: bool, of_input: bool) -> GraphPlan:
        """The plan of the computation, the same object for equal arguments."""
        key = shape, of_parameters, of_input
        if key not in self._plans:
            self._plans[key] = GraphPlan(self.graph(shape), of_parameters, of_input)
        return self._plans[key]

    def graph(self, shape: Shape) -> Graph:
        """The graph of the computation, the same object for equal shapes."""
        if shape not in self._graphs:
            graph = Graph(shape)
            for number, (compute, parameters) in enumerate(self.layers):
                graph.layer = number
                weights = {name: graph.parameter(place, of_shape) for name, place, of_shape in parameters}
                graph.output = compute(weights, graph.output)
            self._graphs[shape] = graph
        return self._graphs[shape]


Computations = dict[Read, Computation]


@dataclass(frozen=True, eq=False)
class Segment:
    """Neighbouring layers of one unit, run one after the other; `numbers` are theirs in the model."""

    layers: tuple[Layer, ...]
    numbers: tuple[int, ...]
    computation: Computation

    @property
    def first_layer(self) -> int:
        return self.numbers[0]

    @property
    def last_layer(self) -> int:
        return self.numbers[-1]

    def plan(self, shape: Shape, /, *, of_parameters: bool, of_input: bool) -> GraphPlan:
        """The plan of this segment for an input of this shape and these gradients; alike segments share it."""
        return self.computation.plan(shape, of_parameters=of_parameters, of_input=of_input)

    def graph(self, shape: Shape) -> Graph:
        """The graph of its layers for an input of this shape."""
        return self.computation.graph(shape)


class ParameterViews(Mapping[int, Array]):
    """Each parameter as a shaped view into `flat`, by its number in the unit; made when it is first asked for."""

    def __init__(self, places: Sequence[ParameterPlace], flat: Array) -> None:
        self._places = places
        self._flat = flat
        self._made: dict[int, Array] = {}

    def __getitem__(self, number: int) -> Array:
        if number not in self._made:
            place = self._places[number]
            self._made[number] = self._flat[place.start : place.stop].reshape(place.shape)
        return self._made[number]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._places)))

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True, eq=False)
class Unit:
    """One or several layers whose parameters share a flat buffer; `numbers` are theirs in the model.

    >>> from zerosim.models.mlp import mlp
    >>> unit = mlp(2, [], 3, "relu", "cross_entropy").units[0]
    >>> [(place.name, place.shape, place.start, place.stop) for place in unit.places]
    [('layers.0.weight', (3, 2), 0, 6), ('layers.0.bias', (3,), 6, 9)]
    """

    layers: tuple[Layer, ...]
    numbers: tuple[int, ...]
    frozen: bool = False
    """Whether its weights stay as they are: it then has no gradient and no optimizer state."""
    computations: Computations = field(default_factory=dict)
    """The computations of its model so far, so that alike segments share one."""

    @cached_property
    def places(self) -> tuple[ParameterPlace, ...]:
        """The places of all parameters, in model order, without gaps."""
        places: list[ParameterPlace] = []
        for number, layer in zip(self.numbers, self.layers, strict=True):
            for parameter in layer.parameters:
                start = places[-1].stop if places else 0
                places.append(ParameterPlace(parameter, number, layer.prefix, start))
        return tuple(places)

    @cached_property
    def count(self) -> int:
        """The number of elements, without padding."""
        return sum(layer.count for layer in self.layers)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that forward makes, first to last."""
        runs = groupby(enumerate(self.numbers), key=lambda each: each[1] - each[0])
        return tuple(self._segment([index for index, _ in run]) for _, run in runs)

    def _segment(self, indices: Sequence[int]) -> Segment:
        layers = tuple(self.layers[index] for index in indices)
        read = tuple((layer.compute, self._parameters(layer)) for layer in layers)
        computation = self.computations.setdefault(read, Computation(read))
        return Segment(layers, tuple(self.numbers[index] for index in indices), computation)

    def _parameters(self, layer: Layer) -> tuple[tuple[str, int, Shape], ...]:
        own = {each.name: layer.prefix + each.name for each in layer.parameters}
        numbers = {name: self._numbers[full] for name, full in (own | {name: name for name in layer.borrows}).items()}
        return tuple((name, number, self.places[number].shape) for name, number in numbers.items())

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The numbers of its parameters, by their full names."""
        return {place.name: number for number, place in enumerate(self.places)}

    def bounds(self, number: int) -> tuple[int, int]:
        """The first element of layer `number` of the model and the one after its last."""
        return self._bounds[number]

    @cached_property
    def _bounds(self) -> dict[int, tuple[int, int]]:
        stops = list(accumulate(layer.count for layer in self.layers))
        return dict(zip(self.numbers, pairwise([0, *stops]), strict=True))

    @cached_property
    def name(self) -> str:
        """`layers.0`, or `layers.0-1` for neighbours, or `embedding+head`."""
        names = [[layer.name for layer in segment.layers] for segment in self.segments]
        return "+".join(each[0] if len(each) == 1 else f"{each[0]}-{each[-1].split('.')[-1]}" for each in names)

    def views(self, flat: Array) -> dict[str, Array]:
        """Each parameter as a shaped view into `flat`, which may be padded.

        >>> from zerosim.models.mlp import mlp
        >>> unit = mlp(2, [], 1, "relu", "cross_entropy").units[0]
        >>> import numpy as np
        >>> unit.views(np.arange(4.0))
        {'layers.0.weight': array([[0., 1.]]), 'layers.0.bias': array([2.])}
        """
        return {each.name: flat[each.start : each.stop].reshape(each.shape) for each in self.places}

    def parts(self, flat: Array) -> ParameterViews:
        """Each parameter as a shaped view into `flat`, by its number in the unit."""
        return ParameterViews(self.places, flat)

    def initial(self, seed: int) -> Array:
        """The initial weights: float32, flat, `count` elements.

        Each layer has a random stream of its own, so any rank can draw any layer, in any grouping.

        >>> from zerosim.models.mlp import mlp
        >>> first = mlp(4, [], 8, "relu", "cross_entropy").units[0].initial(seed=0)
        >>> first.dtype, len(first), bool(abs(first).max() <= 0.5)
        (dtype('float32'), 40, True)
        """
        flat = np.empty(self.count, np.float32)
        for number, layer in zip(self.numbers, self.layers, strict=True):
            random = np.random.default_rng([seed, number])
            start, _ = self.bounds(number)
            for parameter in layer.parameters:
                parameter.initial(random, flat[start : start + parameter.count])
                start += parameter.count
        return flat


@dataclass(frozen=True)
class ModelKind(Declared):
    """A kind of model that a scenario can name: how it is made of the keys of [model], which are `settings` here."""

    key: str
    own_keys: tuple[str, ...]
    """The keys of [model] that this kind alone reads."""
    for_task: Callable[[Any, "Task", Sequence[Sequence[int]], Collection[int]], "Model"]
    """`for_task(settings, task, groups, frozen)`: the model for data of that task."""
    layer_count: Callable[[Any], int]
    tied: Callable[[Any], bool] = lambda settings: False
    """Whether the first and the last layer share weights, and so a unit."""
    reads_tokens: bool = False
    problem: Callable[[Any, int, int], tuple[str, str] | None] = lambda settings, inputs, outputs: None
    """`problem(settings, inputs, outputs)`: the key of sizes that do not go together with such data, and why."""
    keys: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The keys that are no fields of [model], with their defaults; their values are in `settings.own`."""
    attention: Callable[[Any], int] = lambda settings: 0
    """Layers · width of attention, which the MFU counts beside the parameters."""


@dataclass(frozen=True)
class Task:
    """The sizes and the loss that a data set asks of a model."""

    inputs: int
    """The numbers of each sample, or the tokens of each sequence."""
    outputs: int
    """The outputs for each sample or token: classes, the vocabulary, or numbers."""
    loss: str
    tokens: bool = False
    """Whether samples are sequences of tokens."""


@dataclass(frozen=True, eq=False)
class Model:
    """Units in order of their first layers, and what they are for."""

    units: tuple[Unit, ...]
    task: Task
    words: str
    """A short description, such as 64-64-10 MLP."""

    @property
    def loss(self) -> str:
        """The name of the loss that judges the last layer's outputs."""
        return self.task.loss

    @property
    def count(self) -> int:
        """The number of elements in all parameters, without padding."""
        return sum(unit.count for unit in self.units)

    @property
    def lowest_trained(self) -> int:
        """The first layer that is not frozen: nothing below it needs a gradient."""
        trained = [unit.numbers[0] for unit in self.units if not unit.frozen]
        return min(trained, default=len(self.layers))

    @cached_property
    def segments(self) -> tuple[tuple[Unit, Segment], ...]:
        """The segments of every unit, in the order in which forward makes them."""
        segments = [(unit, segment) for unit in self.units for segment in unit.segments]
        return tuple(sorted(segments, key=lambda each: each[1].first_layer))

    @cached_property
    def forward_units(self) -> tuple[Unit, ...]:
        """The unit of each segment in forward; a unit with several segments comes as often."""
        return tuple(unit for unit, _ in self.segments)

    @cached_property
    def backward_units(self) -> tuple[Unit, ...]:
        """The units that backward goes through: last first, down to the lowest that is trained."""
        lowest = self.lowest_trained
        return tuple(unit for unit, segment in reversed(self.segments) if segment.last_layer >= lowest)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of all units, in model order."""
        return tuple(layer for _, segment in self.segments for layer in segment.layers)

    @property
    def places(self) -> tuple[ParameterPlace, ...]:
        """The places of all parameters, in model order."""
        return tuple(sorted((place for unit in self.units for place in unit.places), key=lambda each: each.layer))


def grouped(
    layers: Sequence[Layer], groups: Sequence[Sequence[int]] | None, frozen: Collection[int]
) -> tuple[Unit, ...]:
    """The units of these layers: each by itself, or as `groups` says; those in `frozen` keep their weights.

    Raises `ZerosimError` when a group does not name layers, or a unit would be frozen in part.
    """
    numbers = [[number] for number in range(len(layers))] if groups is None else [sorted(each) for each in groups]
    if sorted(number for each in numbers for number in each) != list(range(len(layers))) or not all(numbers):
        raise ZerosimError(f"units {list(numbers)} must name the layers 0 to {len(layers) - 1}, each once")
    return tuple(_units(layers, sorted(numbers), frozen))


def _units(layers: Sequence[Layer], groups: Sequence[Sequence[int]], frozen: Collection[int]) -> Iterator[Unit]:
    computations: Computations = {}
    for numbers in groups:
        if len({number in frozen for number in numbers}) > 1:
            raise ZerosimError(f"the unit of layers {list(numbers)} is partly frozen; freeze all of its layers or none")
        yield Unit(tuple(layers[number] for number in numbers), tuple(numbers), numbers[0] in frozen, computations)
