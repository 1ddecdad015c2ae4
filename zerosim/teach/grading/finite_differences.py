"""Gradients of a user's layers against central differences in float64, by layer and parameter."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zerosim.allocation import Array, allocate
from zerosim.autograd.graph import Graph, GraphPlan
from zerosim.autograd.player import Contribution, Player, Precise
from zerosim.models.units import Layer, Task

SAMPLES = 4
STEP = 1e-6
TOLERANCE = 1e-5
"""The greatest error relative to the sum of the terms in the slope."""


def wrong_slope(layers: Sequence[Layer], task: Task) -> str | None:
    """The first layer whose gradient differs from central differences; None if all agree."""
    random = np.random.default_rng(19)
    weights = {layer.prefix + each.name: noisy_initial(random, each) for layer in layers for each in layer.parameters}
    shape = (SAMPLES, task.inputs)
    x: Array = random.integers(task.outputs, size=shape) if task.tokens else random.standard_normal(shape)
    for number, layer in enumerate(layers):
        of_input = number > 0 or not task.tokens
        y = forward(layer, weights, x)
        upstream = random.standard_normal(y.shape)
        for name, gradient in backward(layer, weights, x, upstream, of_input=of_input).items():
            direction = random.standard_normal(gradient.shape)
            due = slope(layer, weights, x, upstream, name, direction)
            told, size = float(np.sum(gradient * direction)), float(np.abs(gradient * direction).sum())
            if not abs(told - due) <= TOLERANCE * max(1.0, size):
                what = f"its parameter {name!r}" if name else "its input"
                return (f"layer {layer.name}: the gradient of {what} along a random direction is {told:.6g} by "
                        f"backward and {due:.6g} by finite differences; zerosim check FILE tries single operations")
        x = y
    return None


def noisy_initial(random: np.random.Generator, parameter: Any) -> Array:
    """Initial values plus small noise, so that no two are equal."""
    flat = np.zeros(parameter.count, np.float32)
    parameter.initial(random, flat)
    moved: Array = (flat + 0.1 * random.standard_normal(flat.shape)).reshape(parameter.shape)
    return moved


def player_of(
    layer: Layer, weights: Mapping[str, Array], x: Array, *, of_input: bool
) -> tuple[Player, dict[str, Array]]:
    """A player of the layer, and its parameters by the names in its code."""
    names = {name: name for name in layer.borrows} | {each.name: layer.prefix + each.name for each in layer.parameters}
    graph, own = Graph(x.shape), {name: weights[full] for name, full in names.items()}
    variables = {name: graph.parameter(name, array.shape) for name, array in own.items()}
    graph.output = layer.compute(variables, graph.input)
    plan = GraphPlan(graph, of_parameters=True, of_input=of_input)
    return Player(plan, own, Precise(allocate, layer.name), lambda _: uniform), own


def forward(layer: Layer, weights: Mapping[str, Array], x: Array) -> Array:
    """The layer's output."""
    return player_of(layer, weights, x, of_input=False)[0].forward(x.copy())[0]


def backward(
    layer: Layer, weights: Mapping[str, Array], x: Array, upstream: Array, *, of_input: bool
) -> dict[str, Array]:
    """The gradients of the parameters by name and, if requested, that of the input under ""."""
    player, own = player_of(layer, weights, x, of_input=of_input)
    _, kept = player.forward(x.copy())
    contribution = Contribution(np.empty(0), {name: np.empty_like(array) for name, array in own.items()})
    of_x = player.backward(kept, upstream.copy(), contribution)
    contribution.finished()
    return {**contribution.views, **({"": of_x[0]} if of_input else {})}


def uniform(array: Array) -> None:
    """Fill with the random numbers of dropout, which are always the same."""
    array[...] = np.random.default_rng(19).random(array.shape)


def slope(
    layer: Layer, weights: Mapping[str, Array], x: Array, upstream: Array, name: str, direction: Array
) -> float:
    """The slope of Σ upstream · y along a direction of a parameter or of the input, by central differences."""
    full, found = name if name in layer.borrows else layer.prefix + name, []
    for step in (STEP * direction, -STEP * direction):
        moved = {**weights, full: weights[full] + step} if name else weights
        y = forward(layer, moved, x if name else x + step)
        found.append(float(np.sum(upstream * y)))
    return (found[0] - found[1]) / (2 * STEP)
