"""The names that a file of user-defined parts imports: declarations, building blocks of models, operations, `channel`.

    from zerosim.extend import Layer, Parameter, collective, linear, model, optimizer, stage

`docs/extend.md` says how each part is written. The public operations are those named in `OPERATIONS`.
"""

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operation import Empty, Operation, Shape, refuse
from zerosim.autograd.operations.attention import causal_attention, causal_self_attention, join_heads, rotary, softmax
from zerosim.autograd.operations.dropout import dropout
from zerosim.autograd.operations.elementwise import add, gelu, gelu_exact, multiply, relu, scale, sigmoid, silu, tanh
from zerosim.autograd.operations.embedding import embedding, positions
from zerosim.autograd.operations.linear import add_bias, affine, linear, matmul
from zerosim.autograd.operations.normalization import layer_norm, rms_norm
from zerosim.autograd.operations.routing import (
    gather_rows,
    one_hot,
    queue_slots,
    scatter_rows,
    take_along,
    top_indices,
    top_k,
)
from zerosim.autograd.operations.shapes import reshape, transpose
from zerosim.autograd.operations.table import OPERATIONS
from zerosim.autograd.ring_attention import ring_attention, ring_self_attention
from zerosim.autograd.tape_collectives import (
    Direction,
    TapeCollective,
    all_to_all,
    copy_to,
    gather_from,
    join_from,
    own_rows,
    reduce_from,
    scatter_sum_to,
    scatter_to,
    shift,
)
from zerosim.collectives.own import collective
from zerosim.core.comm import Communicator, Exchange, left, right
from zerosim.models.parameters import Cut, Parameter, constant, normal, uniform
from zerosim.models.units import Layer, Task
from zerosim.models.users_model import model
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.users_optimizer import optimizer
from zerosim.stages.users_stage import stage

__all__ = [
    "OPERATIONS", "Batch", "Communicator", "Cut", "Direction", "Empty", "Exchange", "Layer", "Operation",
    "Parameter", "Replica", "Shape", "TapeCollective", "Task", "Variable", "Weights", "add", "add_bias", "affine",
    "all_to_all", "causal_attention", "causal_self_attention", "collective", "constant", "copy_to", "dropout",
    "embedding", "gather_from", "gather_rows", "gelu", "gelu_exact", "join_from", "join_heads", "layer_norm", "left",
    "linear", "matmul", "model", "multiply", "normal", "one_hot", "optimizer", "own_rows", "positions", "queue_slots",
    "reduce_from", "refuse", "relu", "reshape", "right", "ring_attention", "ring_self_attention", "rms_norm",
    "rotary", "scale", "scatter_rows", "scatter_sum_to", "scatter_to", "shift", "sigmoid", "silu", "softmax",
    "stage", "take_along", "tanh", "top_indices", "top_k", "transpose", "uniform",
]
