"""Megatron-Core's layers and loss in the models of `splits`, on CPUs and in float64.

Megatron-Core takes buffers from CUDA's current device, and computes its loss in float32. Both names are replaced here;
nothing else of it is changed. Its layers take (sequence, samples, width), the models of PyTorch have samples first.
Gradients of weights that ranks use on pieces of a sequence are added here, as its trainer adds them after backward.
"""

from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from torch import nn
from torch.nn import functional

from tests.oracles import functions, splits, torch_functions

COLUMN, ROW, VOCABULARY = 0, 1, 0
"""The dimension along which a weight is cut."""
KINDS = {
    "q_proj": COLUMN, "k_proj": COLUMN, "v_proj": COLUMN, "gate_proj": COLUMN, "up_proj": COLUMN, "lm_head": COLUMN,
    "o_proj": ROW, "down_proj": ROW, "embed_tokens": VOCABULARY,
    "0": COLUMN, "1": ROW, "2": COLUMN, "3": ROW,
}


class SamplesFirst(nn.Module):
    """One of Megatron-Core's layers, between arrays of (samples, sequence, width)."""

    def __init__(self, layer, sequence):
        super().__init__()
        self.layer, self.sequence = layer, sequence

    def forward(self, x):
        y = self.layer(x.transpose(0, 1) if x.dim() == 3 else x)
        y = y[0] if isinstance(y, tuple) else y
        return y.transpose(0, 1) if x.dim() == 3 or self.sequence else y


def split_layer(name, whole, sequence):
    """The layer of Megatron-Core's that stands for a whole one, with this rank's cut of the weights."""
    config = ModelParallelConfig(
        tensor_model_parallel_size=splits.RANKS, sequence_parallel=sequence, use_cpu_initialization=True,
        perform_initialization=False, params_dtype=torch.float64)
    common, kind = {"config": config, "init_method": None}, KINDS[name]
    if isinstance(whole, nn.Embedding):
        layer = VocabParallelEmbedding(
            whole.num_embeddings, whole.embedding_dim, reduce_scatter_embeddings=sequence, **common)
    else:
        made, more = ((RowParallelLinear, {"input_is_parallel": True, "skip_bias_add": False}) if kind == ROW
                      else (ColumnParallelLinear, {}))
        layer = made(whole.in_features, whole.out_features, bias=whole.bias is not None, **common, **more)
    layer.weight.data = mine(whole.weight.data, kind)
    if getattr(whole, "bias", None) is not None:
        layer.bias.data = whole.bias.data if kind == ROW else mine(whole.bias.data, 0)
    return SamplesFirst(layer, sequence)


def mine(tensor, dimension):
    return tensor.chunk(splits.RANKS, dimension)[dist.get_rank()].clone()


def answers(split):
    """The loss, and each gradient of the whole parameter."""
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(splits.RANKS)
    model = split.model
    built = torch_functions.module(model, model.parameter).double()
    for path, part in [*built.named_modules()]:
        parent, _, name = path.rpartition(".")
        if name in KINDS and isinstance(part, nn.Linear | nn.Embedding):
            setattr(built.get_submodule(parent), name, split_layer(name, part, split.sequence))
        if hasattr(part, "key_value_heads"):
            part.heads, part.key_value_heads = part.heads // splits.RANKS, part.key_value_heads // splits.RANKS
    with (mock.patch("torch.cuda.current_device", return_value="cpu"),
          mock.patch.object(torch.Tensor, "float", torch.Tensor.double)):
        loss = loss_of(built, model)
        loss.backward()
    return {"loss": loss, **{name.replace(".layer.", "."): joined(name, each, split) for name, each
                             in built.named_parameters()}}


def loss_of(built, model):
    x, targets = map(torch.from_numpy, model.batch())
    if isinstance(model, functions.Perceptron):
        x = x.double()
        for number, layer in enumerate(built.layers):
            x = layer(x) if number == len(built.layers) - 1 else functional.gelu(layer(x), approximate="tanh")
        return torch_functions.loss_of(model.loss, x, targets)
    x = built.model.embed_tokens(x)
    for block in built.model.layers:
        x = block(x)
    each = vocab_parallel_cross_entropy(built.lm_head(built.model.norm(x)).contiguous(), targets)
    counted = targets != functions.UNCOUNTED
    return (each * counted).sum() / counted.sum()


def joined(name, parameter, split):
    """The gradient of the whole parameter."""
    kind = KINDS.get(name.split(".")[-3]) if ".layer." in name else None
    gradient = parameter.grad.contiguous()
    if kind is None or (kind == ROW and gradient.dim() == 1):
        if split.sequence:
            dist.all_reduce(gradient)
        return gradient
    pieces = [torch.empty_like(gradient) for _ in range(splits.RANKS)]
    dist.all_gather(pieces, gradient)
    return torch.cat(pieces, kind)
