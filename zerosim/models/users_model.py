"""A user's model: a function of a task and of keys that returns layers.

Shipped models are made of the same layers and parameters. The code of each layer runs on shapes first, so that an
unused parameter, a wrong shape and a wrong width of the output are reported before training.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zerosim.autograd.graph import Graph, Variable
from zerosim.autograd.tape_collectives import Direction
from zerosim.core.errors import UsageError, ZerosimError, error_line
from zerosim.core.parts.signature import signature_of
from zerosim.core.sharding import parts_of
from zerosim.models.parameters import Cut, Parameter
from zerosim.models.units import Layer, Model, ModelKind, Task, grouped

Layers = Callable[..., Sequence[Layer]]
"""`layers(task, **keys)`"""

TOKEN_KEYS = ("vocabulary", "sequence")
SAMPLES = 2
"""The samples of the input on which a model is checked, for each of the ranks that share a micro-batch."""


def model(*, tokens: bool = False) -> Callable[[Layers], ModelKind]:
    """A decorator: the function as a kind of model; with `tokens` its input is (samples, sequence) tokens.

    >>> @model(tokens=True)
    ... def counting(task, *, width=8): ...
    >>> counting.reads_tokens, counting.keys
    (True, {'width': 8})
    """
    return lambda layers: declared(layers.__name__, layers, tokens=tokens)


def declared(name: str, layers: Layers, *, tokens: bool = False) -> ModelKind:
    """The kind of model that a function's signature declares; its keys are the keyword-only parameters."""
    signature = signature_of(name, layers)
    if len(signature.positional) != 1:
        raise UsageError(f"{name} takes {', '.join(signature.positional) or 'nothing'}; write def {layers.__name__}"
                         "(task, *, key=default, …) and return a list of layers")
    probe = Task(64, 64, "cross_entropy", tokens=True) if tokens else Task(64, 10, "cross_entropy")

    def of_task(settings: Any, task: Task) -> list[Layer]:
        return layers_of(name, layers, task, settings.own)

    def for_task(settings: Any, task: Task, groups: Sequence[Sequence[int]], frozen: Collection[int]) -> Model:
        own_layers = of_task(settings, task)
        check_layers(name, layers, own_layers, task)
        count = sum(len(group) for group in groups)
        if len(own_layers) != count:
            raise UsageError(f"{name} has {count} layers for a task of {probe.inputs} inputs, and {len(own_layers)} "
                             f"for one of {task.inputs}; make their number depend on keys alone")
        return Model(grouped(own_layers, groups, frozen), task, f"{name}, {count} layers")

    return ModelKind(
        name, TOKEN_KEYS if tokens else (), for_task, layer_count=lambda settings: len(of_task(settings, probe)),
        tied=lambda settings: any(layer.borrows for layer in of_task(settings, probe)), reads_tokens=tokens,
        keys=signature.keys, layers=layers)


def as_model(name: str, part: Any) -> ModelKind:
    """The kind of model that a scenario names. Raises `UsageError` for anything else."""
    if isinstance(part, ModelKind):
        return replace(part, key=name)
    if not inspect.isfunction(part):
        raise UsageError(f"{name} is a {type(part).__name__}; give a function, def {name.rpartition(':')[2]}(task, *, "
                         "key=default, …), that returns a list of layers")
    return declared(name, part)


def layers_of(name: str, layers: Layers, task: Task, keys: Mapping[str, Any]) -> list[Layer]:
    """The layers for a task. Raises `ZerosimError` if the function fails or returns anything but layers."""
    try:
        returned = layers(task, **keys)
    except ZerosimError as error:
        raise UsageError(f"{name}: {error}") from error
    except Exception as error:
        raise UsageError(f"{name}: {error_line(error, layers)}") from error
    if not isinstance(returned, list | tuple) or not returned or not all(isinstance(x, Layer) for x in returned):
        raise UsageError(f"{name} returned {returned!r:.60}; return a list of Layer(name, prefix, parameters, "
                         "compute), at least one")
    names = set[str]()
    for layer in returned:
        for parameter in layer.parameters:
            check_parameter(name, layer, parameter)
            full_name = layer.prefix + parameter.name
            if full_name in names:
                raise UsageError(f"{name} has two parameters {full_name!r}; give each layer a prefix of its own")
            names.add(full_name)
    return list(returned)


def check_parameter(name: str, layer: Layer, parameter: Parameter) -> None:
    """Refuse a malformed shape, and initial values that are not callable."""
    which = f"{name}, layer {layer.name}: the parameter {parameter.name!r}"
    sizes = parameter.shape
    if not isinstance(sizes, tuple) or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UsageError(f"{which} has shape {sizes!r}; give a tuple of whole numbers above 0")
    cut = parameter.cut
    if cut is not None and not (isinstance(cut, Cut) and cut.axis in range(len(sizes)) and cut.blocks > 0
                                and sizes[cut.axis] % cut.blocks == 0):
        raise UsageError(f"{which} of shape {sizes} has cut {cut!r}; give Cut(direction, axis) with one of its "
                         "dimensions, and blocks that divide that one")
    if not callable(parameter.initial):
        raise UsageError(f"{which} begins with {parameter.initial!r}; give uniform(bound), normal(deviation), "
                         "constant(value) or a function of a generator and an array")


def check_layers(name: str, layers: Callable[..., Any], own_layers: Sequence[Layer], task: Task) -> None:
    """Run each layer's code on shapes. Raises `ZerosimError` with the name of the layer for a mismatch."""
    samples, used = SAMPLES * task.parallel.places, {"sequence_parallel", "vocabulary_parallel"}
    graph = Graph((samples, task.inputs))
    parameters = {layer.prefix + parameter.name: graph.parameter(layer.prefix + parameter.name, parameter.shape)
                  for layer in own_layers for parameter in layer.parameters}
    for number, layer in enumerate(own_layers):
        graph.layer = number
        own = {parameter.name: parameters[layer.prefix + parameter.name] for parameter in layer.parameters}
        before = len(graph.instructions)
        try:
            weights = {**{name: parameters[name] for name in layer.borrows}, **own}
            output: Any = layer.compute(weights, graph.output)
        except ZerosimError as error:
            raise UsageError(f"{name}, layer {layer.name}: {error}") from error
        except Exception as error:
            raise UsageError(f"{name}, layer {layer.name}: {error_line(error, layers)}") from error
        if not isinstance(output, Variable):
            raise UsageError(f"{name}, layer {layer.name}: its code returned {type(output).__name__}; return the "
                             f"result of an operation of zerosim.autograd")
        read = {slot for instruction in graph.instructions[before:] for slot in instruction.inputs.values()}
        for unread in sorted(own):
            if own[unread].slot not in read:
                raise UsageError(f"{name}, layer {layer.name}: its code does not read the parameter {unread!r}; use it "
                                 "or remove its declaration")
        graph.output = output
    cuts = (parameter.cut.direction for layer in own_layers for parameter in layer.parameters if parameter.cut)
    named = (value for x in graph.instructions for value in x.settings.values() if isinstance(value, Direction))
    used |= {f"{name}_ranks" for direction in (*cuts, *named) for name in parts_of(direction.name)}
    if unused := task.parallel.unused(*used):
        raise UsageError(f"{name} has no operation and no cut over {unused.replace('_', ' ')}, which would repeat the "
                         f"same work; remove parallel.{unused}, or split the model")
    expected = (samples, task.inputs, task.outputs) if task.tokens else (samples, task.outputs)
    if graph.output.shape != expected:
        raise UsageError(f"{name}: for an input of {samples} × {task.inputs} the last layer gives shape "
                           f"{graph.output.shape}; expected {expected}: task.outputs = {task.outputs}")
