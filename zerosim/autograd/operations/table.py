"""The public operations, by name, with an example of each: shapes of its inputs, integers as arrays, and settings.

Examples have the form of `EXAMPLES` in a user's file. `zerosim check` tests every operation on its example, and prints
what each keeps and costs there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zerosim.autograd.operation import Operation
from zerosim.autograd.operations import (
    attention,
    dropout,
    elementwise,
    embedding,
    linear,
    normalization,
    routing,
    shapes,
)

OperationExample = Sequence[Any]
"""A shape for each input, or an array of integers; the settings last, if there are any, in a dict."""

TOKENS = np.arange(24).reshape(2, 12) % 5
CHOICES = np.arange(8).reshape(4, 2) % 3

EXAMPLES: Mapping[str, OperationExample] = {
    "linear": ((4, 16), (8, 16), (8,)),
    "affine": ((4, 16), (16, 8), (8,)),
    "matmul": ((3, 4, 16), (3, 16, 8)),
    "add_bias": ((4, 16), (16,)),
    "add": ((4, 16), (4, 16)),
    "multiply": ((4, 16), (4, 16)),
    "scale": ((4, 16), {"factor": 0.5}),
    **dict.fromkeys(("relu", "tanh", "sigmoid", "gelu", "gelu_exact", "silu", "softmax"), ((4, 16),)),
    "layer_norm": ((4, 16), (16,), (16,)),
    "rms_norm": ((4, 16), (16,)),
    "embedding": (TOKENS, (5, 8)),
    "positions": ((2, 12, 8), (12, 8)),
    "causal_attention": ((2, 12, 8), (2, 12, 4), (2, 12, 4), {"heads": 4, "key_value_heads": 2}),
    "causal_self_attention": ((2, 12, 24), {"heads": 4}),
    "rotary": ((2, 12, 8), {"size": 4, "base": 10000.0}),
    "join_heads": ((2, 12, 8), (2, 12, 4), {"heads": 4, "other_heads": 2}),
    "dropout": ((4, 16), {"probability": 0.1}),
    "reshape": ((4, 16), {"shape": (8, 8)}),
    "transpose": ((4, 16), {"axes": (1, 0)}),
    "top_indices": ((4, 16), {"count": 2}),
    "take_along": ((4, 16), CHOICES),
    "gather_rows": ((6, 16), CHOICES),
    "scatter_rows": ((4, 16), CHOICES, {"count": 6}),
    "queue_slots": (CHOICES, {"queues": 3, "capacity": 2}),
    "one_hot": (CHOICES, {"count": 3}),
}

OPERATIONS: Mapping[str, Operation] = {
    name: getattr(module, name)
    for name in EXAMPLES
    for module in (attention, dropout, elementwise, embedding, linear, normalization, routing, shapes)
    if isinstance(getattr(module, name, None), Operation)}
"""The public operations, by name: those of the other files that have an example."""
