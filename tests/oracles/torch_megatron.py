"""Megatron-Core's layers and loss in the models of `splits`, on CPUs and in float64.

Megatron-Core takes buffers from CUDA's current device, and computes its loss in float32. Both names are replaced here;
nothing else of it is changed. Its layers take (sequence, samples, width), the models of PyTorch have samples first.
Gradients of weights that ranks use on pieces of a sequence are added here, as its trainer adds them after backward.
"""

from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from torch import nn
from torch.nn import functional

from tests.oracles import functions, splits, torch_functions, torch_parallel

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


class Piece(nn.Module):
    """A piece of a pipeline, as Megatron-Core's schedules call it: of activations (1, samples, width)."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, layers, config):
        super().__init__()
        self.layers, self.config, self.given = layers, config, None

    def set_input_tensor(self, given):
        (self.given,) = given

    def forward(self, x):
        return self.layers(x if self.given is None else self.given)


def of_pipeline(split):
    """The loss and the gradients by Megatron-Core's 1F1B, or interleaved 1F1B.

    On two ranks it needs exchanges that are not batched, and these know no shape but one.
    """
    case, chunks = split.model, 2 if split.how == "interleaved_1f1b" else 1
    virtual = chunks if chunks > 1 else None
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(1, splits.RANKS, virtual)
    config = ModelParallelConfig(
        pipeline_model_parallel_size=splits.RANKS, virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=torch.float64, params_dtype=torch.float64, overlap_p2p_comm=chunks > 1,
        batch_p2p_comm=chunks == 1)
    config.hidden_size, config.fine_grained_activation_offloading = case.widths[1], False
    built = torch_functions.module(case, case.parameter).double()
    pieces = torch_parallel.stages_of(built, splits.RANKS * chunks)
    mine = [Piece(each, config) for each in pieces[dist.get_rank()::splits.RANKS]]
    batches = [*zip(*(torch.from_numpy(np.stack(np.split(each, splits.MICRO_BATCHES))) for each in case.batch()),
                    strict=True)]

    def step(batch, model):
        x, targets = next(batch)

        def judged(y):
            loss = torch_functions.loss_of(case.loss, y[0], targets)
            return loss, loss.detach().clone()
        return model(x.double()[None]), judged

    zeros = torch.zeros
    with (mock.patch("torch.cuda.current_device", return_value="cpu"), mock.patch("torch.cuda.synchronize"),
          mock.patch("torch.zeros", lambda *shape, **named: zeros(*shape, **(named | {"device": "cpu"})))):
        losses = get_forward_backward_func()(
            forward_step_func=step, data_iterator=[iter(batches) for _ in mine] if chunks > 1 else iter(batches),
            model=mine if chunks > 1 else mine[0], num_microbatches=splits.MICRO_BATCHES, seq_length=1,
            micro_batch_size=len(batches[0][0]))
    parallel_state.destroy_model_parallel()
    return torch_parallel.all_of(built, losses)


def answers(split):
    """The loss, and each gradient of the whole parameter."""
    if split.how:
        return of_pipeline(split)
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
