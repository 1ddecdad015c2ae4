"""A multi-layer perceptron: linear maps with an activation between them.

Initial weights are PyTorch's default for Linear: uniform in ±1/√inputs, weight and bias.
"""

import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operation import Operation
from zerosim.autograd.operations.elementwise import ACTIVATIONS
from zerosim.autograd.operations.linear import add_bias, linear
from zerosim.autograd.tape_collectives import Direction
from zerosim.core.errors import ZerosimError
from zerosim.models.parallel import IN_ONE_PIECE, ModelParallel, column_input, row_output
from zerosim.models.parameters import Cut, Parameter, uniform
from zerosim.models.units import Layer, Model, ModelKind, Task, grouped


def dense(
    w: Weights, x: Variable, *, axis: int | None, activation: Operation | None, parallel: ModelParallel
) -> Variable:
    """y = f(x Wᵀ + b); with `axis` this rank's outputs (0), or the sum over the tensor ranks' pieces of inputs (1)."""
    if axis == 1:
        y = add_bias(row_output(linear(x, w["weight"]), parallel), w["bias"])
    else:
        y = linear(x if axis is None else column_input(x, parallel), w["weight"], w["bias"])
    return y if activation is None else activation(y)


def mlp(
    inputs: int,
    hidden_widths: Sequence[int],
    outputs: int,
    activation: str,
    loss: str,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    frozen: Collection[int] = (),
    parallel: ModelParallel = IN_ONE_PIECE,
) -> Model:
    """A multi-layer perceptron of `len(hidden_widths) + 1` layers, each a unit unless `groups` is given.

    `activation` is a key of `ACTIVATIONS`, `loss` one of `LOSSES`. `groups` lists the layers of each unit; the layers
    in `frozen` keep their weights. Initial weights and biases are those of PyTorch's Linear: uniform from −1/√inputs
    to 1/√inputs. Tensor ranks cut layers in pairs: the outputs of the first, the inputs of the second; the last of an
    odd number is whole. Raises `ZerosimError` for a partly frozen unit, and for widths that cannot be cut.

    >>> model = mlp(784, [1024, 1024, 1024], 10, "gelu", "cross_entropy")
    >>> [unit.name for unit in model.units], model.count
    (['layers.0', 'layers.1', 'layers.2', 'layers.3'], 2913290)
    >>> [unit.name for unit in mlp(4, [4, 4], 2, "relu", "cross_entropy", groups=[[0, 1], [2]]).units]
    ['layers.0-1', 'layers.2']
    """
    widths = [inputs, *hidden_widths, outputs]
    wrong = problem(hidden_widths, parallel)
    if wrong is not None:
        raise ZerosimError(wrong[1])
    last, tensor = len(hidden_widths), parallel.tensor
    within, at_end = ({axis: partial(dense, axis=axis, activation=function, parallel=parallel) for axis in (None, 0, 1)}
                      for function in (ACTIVATIONS[activation], None))
    layers = []
    for number, (i, o) in enumerate(pairwise(widths)):
        axis = None if tensor.alone or (number == last and number % 2 == 0) else number % 2
        compute = (at_end if number == last else within)[axis]
        layers.append(Layer(f"layers.{number}", f"layers.{number}.", parameters(i, o, tensor, axis), compute))
    task = Task(inputs, outputs, loss, parallel=parallel)
    return Model(grouped(layers, groups, frozen), task, f"{'-'.join(map(str, widths))} MLP")


def problem(hidden_widths: Sequence[int], parallel: ModelParallel) -> tuple[str, str] | None:
    """The key of a size that does not go with the ranks that share a micro-batch, and why; None if all do."""
    tensor = parallel.tensor
    if unused := parallel.unused("tensor_ranks"):
        return "kind", f"an MLP is split over tensor ranks; remove parallel.{unused}"
    for width in hidden_widths[::2]:
        if width % tensor.size:
            return "hidden", f"{tensor.size} tensor ranks must divide the width {width} between two cut layers"
    return None


def parameters(inputs: int, outputs: int, tensor: Direction, axis: int | None) -> tuple[Parameter, Parameter]:
    """The weight and the bias of one layer, of which each tensor rank has a piece along `axis`, if that is given."""
    bound, cut = uniform(1.0 / math.sqrt(inputs)), None if axis is None else Cut(tensor, axis)
    shape = [outputs, inputs] if axis is None else [*(
        tensor.of(length) if at == axis else length for at, length in enumerate((outputs, inputs)))]
    return (Parameter("weight", tuple(shape), bound, cut=cut),
            Parameter("bias", (shape[0],), bound, decays=False, cut=cut if axis == 0 else None))


KIND = ModelKind(
    "mlp", own_keys=("hidden", "activation"), layer_count=lambda settings: len(settings.hidden) + 1,
    for_task=lambda settings, task, groups, frozen: mlp(
        task.inputs, settings.hidden, task.outputs, settings.activation, task.loss, groups=groups, frozen=frozen,
        parallel=task.parallel),
    problem=lambda settings, task: problem(settings.hidden, task.parallel))
