"""Units: the layers of a model, grouped into flat buffers for training.

    layer      parameters, and a function of weights and input
    unit       layers that are gathered, reduced and updated together; their parameters are in one flat buffer in
               model order, which may be padded after `count` elements
    place      the position of a parameter in that buffer
    segment    a run of neighbouring layers of one unit; if layers of a unit are not neighbours, as with tied
               embeddings, the unit has several segments and forward uses it several times

A model is a readable function. Sizes, memory and floating-point operations are derived from the graph of that
function; no other part of the project knows the composition of a model.

A weight has one place in one buffer. Tied embeddings therefore share a unit with two segments: it is reduced once, and
Stage III gathers it for each segment. FSDP keeps such a root unit gathered from its first use to its last, which is
`reshard_after_forward = false` here.

Segments of equal computations share graphs and plans, so a transformer of a hundred blocks is analysed once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import Any, ClassVar

import numpy as np

from zerosim.autograd.graph import Compute, Graph, GraphPlan
from zerosim.autograd.operation import Shape
from zerosim.autograd.tape_collectives import Direction
from zerosim.core.allocation import Array
from zerosim.core.errors import ZerosimError
from zerosim.core.parts.loading import Declared
from zerosim.models.parallel import IN_ONE_PIECE, ModelParallel
from zerosim.models.parameters import ORIGIN, Coordinates, Parameter


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer, computed by `compute(weights, x)`; `weights` has its own and borrowed parameters by name."""

    name: str
    prefix: str
    """The prefix of its parameters' full names, for example `layers.0.`."""
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
    """The place of a parameter in its unit's flat buffer, which begins at `start`."""

    parameter: Parameter
    layer: int
    prefix: str
    start: int

    @property
    def name(self) -> str:
        """The full name, as in files of weights."""
        return self.prefix + self.parameter.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parameter.shape

    @property
    def stop(self) -> int:
        """The index after the last element."""
        return self.start + self.parameter.count


Computation = tuple[tuple[Compute, tuple[tuple[str, int, Shape], ...]], ...]
"""The functions of layers, each with the names, numbers in the unit, and shapes of its parameters."""
Known = dict[Any, Any]
"""Graphs by the shape of the input, and plans by their arguments."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Neighbouring layers of one unit, run one after the other, and their `numbers` in the model."""

    layers: tuple[Layer, ...]
    numbers: tuple[int, ...]
    computation: Computation
    known: Known
    """The graphs and plans so far, which segments of equal computations share."""

    @property
    def first_layer(self) -> int:
        return self.numbers[0]

    @property
    def last_layer(self) -> int:
        return self.numbers[-1]

    def plan(self, shape: Shape, /, *, of_parameters: bool, of_input: bool) -> GraphPlan:
        """The plan for an input of this shape and these gradients, the same object for equal arguments."""
        key = shape, of_parameters, of_input
        if key not in self.known:
            self.known[key] = GraphPlan(self.graph(shape), of_parameters, of_input)
        plan: GraphPlan = self.known[key]
        return plan

    def graph(self, shape: Shape) -> Graph:
        """The graph for an input of this shape, the same object for equal shapes; parameters count within the unit."""
        if shape not in self.known:
            graph = Graph(shape)
            for number, (compute, parameters) in enumerate(self.computation):
                graph.layer = number
                weights = {name: graph.parameter(place, of_shape) for name, place, of_shape in parameters}
                graph.output = compute(weights, graph.output)
            self.known[shape] = graph    # whole: other threads read it
        known: Graph = self.known[shape]
        return known


@dataclass(frozen=True, eq=False)
class Unit:
    """One or several layers whose parameters share a flat buffer, and their `numbers` in the model.

    >>> from zerosim.models.mlp import mlp
    >>> unit = mlp(2, [], 3, "relu", "cross_entropy").units[0]
    >>> [(place.name, place.shape, place.start, place.stop) for place in unit.places]
    [('layers.0.weight', (3, 2), 0, 6), ('layers.0.bias', (3,), 6, 9)]
    """

    layers: tuple[Layer, ...]
    numbers: tuple[int, ...]
    frozen: bool = False
    """Whether its weights are not trained; it then has no gradient and no optimizer state."""
    computations: dict[Computation, Known] = field(default_factory=dict)
    """The computations of the model so far, with what is known of each."""
    end: int | None = None
    """The number of the one segment that a rank of a pipeline runs."""

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
        """The segments that are run here, in the order of forward."""
        segments, runs = [], runs_of(self.numbers)
        known = {place.name: (number, place.shape) for number, place in enumerate(self.places)}
        for run in runs if self.end is None else runs[self.end :][:1]:
            layers = tuple(self.layers[self.numbers.index(number)] for number in run)
            computation = tuple((layer.compute, (
                *((parameter.name, *known[layer.prefix + parameter.name]) for parameter in layer.parameters),
                *((name, *known[name]) for name in layer.borrows))) for layer in layers)
            segments.append(Segment(layers, tuple(run), computation, self.computations.setdefault(computation, {})))
        return tuple(segments)

    def bounds(self, number: int) -> tuple[int, int]:
        """The range of layer `number` of the model in the buffer: first element, and the one after the last."""
        at = self.numbers.index(number)
        start = sum(layer.count for layer in self.layers[:at])
        return start, start + self.layers[at].count

    @cached_property
    def name(self) -> str:
        """The name: `layers.0`, `layers.0-1` for neighbours, or `embedding+head`."""
        runs = [[self.layers[self.numbers.index(number)].name for number in run] for run in runs_of(self.numbers)]
        return "+".join(names[0] if len(names) == 1 else f"{names[0]}-{names[-1].split('.')[-1]}" for names in runs)

    def views(self, flat: Array) -> dict[str, Array]:
        """Each parameter as a shaped view into `flat`, which may be padded.

        >>> from zerosim.models.mlp import mlp
        >>> unit = mlp(2, [], 1, "relu", "cross_entropy").units[0]
        >>> unit.views(np.arange(4.0))
        {'layers.0.weight': array([[0., 1.]]), 'layers.0.bias': array([2.])}
        """
        return {self.places[number].name: view for number, view in self.parts(flat).items()}

    def parts(self, flat: Array) -> dict[int, Array]:
        """Each parameter as a shaped view into `flat`, by its number in the unit."""
        return {number: flat[place.start : place.stop].reshape(place.shape)
                for number, place in enumerate(self.places)}

    def initial(self, seed: int, coordinates: Coordinates = ORIGIN) -> Array:
        """The initial weights of a place: float32, flat, `count` elements.

        Each layer has a separate random stream, so any rank can draw any layer, in any grouping. A cut parameter is
        drawn whole, so the pieces of all places are those of the model in one piece.

        >>> from zerosim.models.mlp import mlp
        >>> first = mlp(4, [], 8, "relu", "cross_entropy").units[0].initial(seed=0)
        >>> first.dtype, len(first), bool(abs(first).max() <= 0.5)
        (dtype('float32'), 40, True)
        """
        flat = np.empty(self.count, np.float32)
        for number, places in groupby(self.places, lambda place: place.layer):
            random = np.random.default_rng([seed, number])
            for place in places:
                place.parameter.begin(random, flat[place.start : place.stop], coordinates)
        return flat


@dataclass(frozen=True)
class ModelKind(Declared):
    """A kind of model that a scenario can name; `settings` are the keys of [model]."""

    WRITTEN: ClassVar[str] = "layers"

    key: str
    own_keys: tuple[str, ...]
    """The keys of [model] that this kind reads; a kind without a key refuses it."""
    for_task: Callable[[Any, "Task", Sequence[Sequence[int]], Collection[int]], "Model"]
    """`for_task(settings, task, groups, frozen)` returns the model for a task."""
    layer_count: Callable[[Any], int]
    tied: Callable[[Any], bool] = lambda settings: False
    """Whether the first and the last layer share weights, and so a unit."""
    reads_tokens: bool = False
    problem: Callable[[Any, "Task"], tuple[str, str] | None] = lambda settings, task: None
    """`problem(settings, task)` returns the key of a size that does not fit, and why."""
    keys: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The keys that are not fields of [model], with their defaults; their values are in `settings.own`."""
    attention: Callable[[Any], int] = lambda settings: 0
    """`attention(settings)` returns layers · width of attention, which the MFU counts beside the parameters."""
    layers: Callable[..., Sequence[Layer]] | None = None
    """A user's function under `@model`."""


@dataclass(frozen=True)
class Task:
    """The sizes and the loss that a data set requires of a model."""

    inputs: int
    """Numbers per sample, or tokens per sequence."""
    outputs: int
    """Outputs per sample or token: classes, the vocabulary, or numbers."""
    loss: str
    tokens: bool = False
    """Whether samples are sequences of tokens."""
    parallel: ModelParallel = IN_ONE_PIECE


@dataclass(frozen=True, eq=False)
class Model:
    """Units in the order of their first layers, and the task."""

    units: tuple[Unit, ...]
    task: Task
    words: str
    """A short description, such as 64-64-10 MLP."""
    loss_over: Mapping[str, Direction] = field(default_factory=dict)
    """The directions over which the outputs are cut, by the names that the loss has for them."""

    @property
    def count(self) -> int:
        """The number of elements in all parameters, without padding."""
        return sum(unit.count for unit in self.units)

    @property
    def lowest_trained(self) -> int:
        """The first layer that is not frozen; layers below it need no gradient."""
        trained = [unit.numbers[0] for unit in self.units if not unit.frozen]
        return min(trained, default=len(self.layers))

    @cached_property
    def segments(self) -> tuple[tuple[Unit, Segment], ...]:
        """All segments in the order of forward, each with its unit."""
        segments = [(unit, segment) for unit in self.units for segment in unit.segments]
        return tuple(sorted(segments, key=lambda pair: pair[1].first_layer))

    @cached_property
    def forward_units(self) -> tuple[Unit, ...]:
        """The unit of each segment in forward; a unit with several segments occurs several times."""
        return tuple(unit for unit, _ in self.segments)

    @cached_property
    def backward_units(self) -> tuple[Unit, ...]:
        """The units in the order of backward, down to the lowest trained one."""
        lowest = self.lowest_trained
        return tuple(unit for unit, segment in reversed(self.segments) if segment.last_layer >= lowest)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of all units, in model order."""
        return tuple(layer for _, segment in self.segments for layer in segment.layers)

    @property
    def places(self) -> tuple[ParameterPlace, ...]:
        """The places of all parameters, in model order."""
        return tuple(sorted((place for unit in self.units for place in unit.places), key=lambda place: place.layer))


def runs_of(numbers: Sequence[int]) -> list[list[int]]:
    """The runs of neighbours among a unit's layers.

    >>> runs_of([0, 1, 5])
    [[0, 1], [5]]
    """
    return [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]


def grouped(
    layers: Sequence[Layer], groups: Sequence[Sequence[int]] | None, frozen: Collection[int]
) -> tuple[Unit, ...]:
    """The units of these layers: one per layer, or as in `groups`; layers in `frozen` keep their weights.

    Raises `ZerosimError` if `groups` does not list every layer once, and for a partly frozen unit.
    """
    of_units = [[number] for number in range(len(layers))] if groups is None else [sorted(group) for group in groups]
    if sorted(chain(*of_units)) != list(range(len(layers))) or not all(of_units):
        raise ZerosimError(f"units {of_units} must name the layers 0 to {len(layers) - 1}, each once")
    units, computations = list[Unit](), dict[Computation, Known]()
    for numbers in sorted(of_units):
        if len({number in frozen for number in numbers}) > 1:
            raise ZerosimError(f"the unit of layers {numbers} is partly frozen; freeze all of its layers or none")
        layers_of = tuple(layers[number] for number in numbers)
        units.append(Unit(layers_of, tuple(numbers), numbers[0] in frozen, computations))
    return tuple(units)
