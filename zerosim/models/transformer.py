"""Transformers that predict the next token, in the shapes of GPT-2 and Llama, made of the same parts.

    tokens -> embedding -> block -> … -> block -> head -> a score for each token of the vocabulary

With `latent`, Llama's blocks have multi-head latent attention (MLA): keys and values are products of one latent for
each token, and with `query_latent` queries of another. Rotary positions then turn only `rotary_size` further numbers of
each query, and of one key that all heads share. Tensor ranks cut the products of latents by heads, and compute the same
latents, with sequence parallelism each those of its piece.

Sources: Radford et al., "Language models are unsupervised multitask learners" (2019), section 2.3; Touvron et al.,
"LLaMA: open and efficient foundation language models" (2023), section 2.2; DeepSeek-AI, "DeepSeek-V2" (2024), section
2.1. Parameters have the names of Hugging Face's classes, so that other programs can read the weights, except those of
latent attention: its matrices are those of the paper, of which Hugging Face's class stores pairs in one.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operations.attention import beside, rotary
from zerosim.autograd.operations.dropout import dropout
from zerosim.autograd.operations.elementwise import gelu, silu
from zerosim.autograd.operations.embedding import positions
from zerosim.autograd.operations.linear import add_bias, affine, linear
from zerosim.autograd.operations.normalization import layer_norm, rms_norm
from zerosim.autograd.tape_collectives import Direction
from zerosim.core.errors import ZerosimError
from zerosim.models.parallel import (
    IN_ONE_PIECE,
    ModelParallel,
    attention,
    column_input,
    head_input,
    looked_up,
    of_pieces,
    on_pieces,
    row_output,
    self_attention,
    to_pieces,
)
from zerosim.models.parameters import Cut, Parameter, constant, normal
from zerosim.models.units import Layer, Model, ModelKind, Task, grouped


@dataclass(frozen=True)
class TransformerShape:
    """The sizes of a transformer; `inner` is the width within a block's perceptron."""

    family: str
    layers: int
    width: int
    heads: int
    key_value_heads: int
    inner: int
    vocabulary: int
    sequence: int
    tied_embeddings: bool
    dropout: float = 0.0
    parallel: ModelParallel = IN_ONE_PIECE
    own_head_size: int = 0
    """The width of a head, if it is not the heads' share of the width."""
    latent: int = 0
    """The width of the latent of keys and values; 0 for keys and values of the ordinary attention."""
    query_latent: int = 0
    """The width of the latent of queries; 0 for queries of the activation itself."""
    rotary_size: int = 0
    """The further numbers of each query, and of the heads' shared key, that positions turn; 0 without a latent."""

    @property
    def head_size(self) -> int:
        return self.own_head_size or self.width // self.heads

    @property
    def attended(self) -> int:
        """The width of all heads."""
        return self.heads * self.head_size

    @property
    def loss_over(self) -> dict[str, Direction]:
        """The directions over which the outputs are cut, by the names that the loss has for them."""
        parallel = self.parallel
        of_rows = {"batch": parallel.expert, "sequence": parallel.context}
        return {**of_rows, **({"vocabulary": parallel.tensor} if parallel.vocabulary else {})}

    @property
    def cut(self) -> list[tuple[str, int, int]]:
        """The keys of the sizes that are cut, with the size and the number of pieces."""
        parallel, tensor, context = self.parallel, self.parallel.tensor.size, self.parallel.context.size
        of_heads = tensor * (context if parallel.context_by == "all_to_all" else 1)
        return [
            *((key, getattr(self, key), of_heads) for key in ("heads", "key_value_heads")),
            ("inner", self.inner, tensor), ("vocabulary", self.vocabulary, tensor if parallel.vocabulary else 1),
            ("sequence", self.sequence, context * (tensor if parallel.sequence else 1))]


def gpt2_embedding(w: Weights, tokens: Variable, s: TransformerShape) -> Variable:
    w = on_pieces(w, s.parallel.expert)
    x = dropped(positions(looked_up(tokens, w["wte.weight"], s.parallel), w["wpe.weight"]), s)
    return to_pieces(x, s.parallel)


def gpt2_norm(w: Weights, x: Variable, name: str, s: TransformerShape) -> Variable:
    return layer_norm(x, *(of_pieces(w[f"{name}.{each}"], s.parallel) for each in ("weight", "bias")))


def gpt2_projection(w: Weights, x: Variable, name: str, s: TransformerShape) -> Variable:
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    if s.parallel.tensor.alone:
        return dropped(affine(x, weight, bias), s)
    return add_bias(row_output(affine(x, weight), s.parallel), of_pieces(bias, s.parallel))


def gpt2_attention(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    h = column_input(gpt2_norm(w, x, "ln_1", s), s.parallel)
    h = affine(h, w["attn.c_attn.weight"], w["attn.c_attn.bias"])
    h = self_attention(h, s.parallel.tensor.of(s.heads), s.parallel)
    return x + gpt2_projection(w, h, "attn.c_proj", s)


def gpt2_block(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    w = on_pieces(w, s.parallel.pieces)
    x = gpt2_attention(w, x, s)
    return x + gpt2_perceptron(w, gpt2_norm(w, x, "ln_2", s), s)


def gpt2_perceptron(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    h = gelu(affine(column_input(x, s.parallel), w["mlp.c_fc.weight"], w["mlp.c_fc.bias"]))
    return gpt2_projection(w, h, "mlp.c_proj", s)


def gpt2_head(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    w = on_pieces(w, s.parallel.pieces)
    x = head_input(x, layer_norm, (w["ln_f.weight"], w["ln_f.bias"]), s.parallel)
    return linear(x, w["wte.weight" if s.tied_embeddings else "lm_head.weight"])


def llama_embedding(w: Weights, tokens: Variable, s: TransformerShape) -> Variable:
    w = on_pieces(w, s.parallel.expert)
    return to_pieces(dropped(looked_up(tokens, w["model.embed_tokens.weight"], s.parallel), s), s.parallel)


def llama_norm(w: Weights, x: Variable, name: str, s: TransformerShape) -> Variable:
    return rms_norm(x, of_pieces(w[name], s.parallel))


def llama_attention(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    h, tensor = llama_norm(w, x, "input_layernorm.weight", s), s.parallel.tensor
    q, k, v = qkv_of_latents(w, h, s) if s.latent else qkv(w, column_input(h, s.parallel), s)
    h = attention(q, k, v, tensor.of(s.heads), tensor.of(s.key_value_heads), s.parallel)
    return x + dropped(row_output(linear(h, w["self_attn.o_proj.weight"]), s.parallel), s)


def qkv(w: Weights, h: Variable, s: TransformerShape) -> tuple[Variable, Variable, Variable]:
    """Queries, keys and values; queries and keys are turned by their positions."""
    q, k, v = (linear(h, w[f"self_attn.{each}_proj.weight"]) for each in "qkv")
    return turned(q, s.head_size, s), turned(k, s.head_size, s), v


def qkv_of_latents(w: Weights, h: Variable, s: TransformerShape) -> tuple[Variable, Variable, Variable]:
    """Queries, keys and values of latents; with pieces of the sequence, latents are gathered and not activations."""
    heads, parallel = s.parallel.tensor.of(s.heads), s.parallel

    def down(name: str) -> Variable:
        return linear(h, of_pieces(w[f"self_attn.{name}_proj.weight"], parallel))

    def normed(name: str) -> Variable:
        return column_input(llama_norm(w, down(f"{name}_down"), f"self_attn.{name}_norm.weight", s), parallel)

    def up(latent: Variable, name: str) -> Variable:
        return linear(latent, w[f"self_attn.{name}_proj.weight"])

    of_queries = normed("q") if s.query_latent else column_input(h, parallel)
    of_keys, key = normed("kv"), column_input(down("k_rotary"), parallel)
    q = beside(up(of_queries, "q_up"), turned(up(of_queries, "q_rotary"), s.rotary_size, s), heads=heads,
               other_heads=heads)
    k = beside(up(of_keys, "k_up"), turned(key, s.rotary_size, s), heads=heads, other_heads=1)
    return q, k, up(of_keys, "v_up")


def turned(x: Variable, size: int, s: TransformerShape) -> Variable:
    return rotary(x, size=size, base=10000.0, group=s.parallel.context)


def llama_block(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    w = on_pieces(w, s.parallel.pieces)
    x = llama_attention(w, x, s)
    return x + llama_perceptron(w, llama_norm(w, x, "post_attention_layernorm.weight", s), s)


def llama_perceptron(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    h = column_input(x, s.parallel)
    h = silu(linear(h, w["mlp.gate_proj.weight"])) * linear(h, w["mlp.up_proj.weight"])
    return dropped(row_output(linear(h, w["mlp.down_proj.weight"]), s.parallel), s)


def llama_head(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    w = on_pieces(w, s.parallel.pieces)
    x = head_input(x, rms_norm, (w["model.norm.weight"],), s.parallel)
    return linear(x, w["model.embed_tokens.weight" if s.tied_embeddings else "lm_head.weight"])


def dropped(x: Variable, s: TransformerShape) -> Variable:
    """x with dropout, if there is any, at GPT-2's positions except within attention."""
    return dropout(x, probability=s.dropout) if s.dropout else x


def transformer(
    s: TransformerShape, *, groups: Sequence[Sequence[int]] | None = None, frozen: Collection[int] = (),
) -> Model:
    """A transformer; its layers are the embedding (0), `s.layers` blocks and the head, each a unit.

    With tied embeddings the head uses the embedding's weights, so the two share a unit. Raises `ZerosimError` for
    sizes that do not go together, and for groups that separate tied layers.

    >>> gpt2 = TransformerShape("gpt2", 12, 768, 12, 12, 3072, 50257, 1024, tied_embeddings=True)
    >>> transformer(gpt2).count, [unit.name for unit in transformer(gpt2).units][:2]
    (124439808, ['embedding+head', 'h.0'])
    >>> transformer(TransformerShape("llama", 32, 4096, 32, 32, 11008, 32000, 2048, tied_embeddings=False)).count
    6738415616
    """
    wrong = problem(s)
    if wrong is not None:
        raise ZerosimError(wrong[1])
    parts = PARTS[s.family]
    last = s.layers + 1
    if groups is None and s.tied_embeddings:
        groups = [[0, last], *([number] for number in range(1, last))]
    if s.tied_embeddings and not any({0, last} <= set(group) for group in groups or ()):
        raise ZerosimError(f"tied embeddings are in one unit: name layers 0 and {last} together, or untie them")
    layers = parts(s)
    units = grouped(layers, groups, frozen)
    words = f"{TITLES[s.family]} of {s.layers} blocks, width {s.width}, {s.heads} heads"
    task = Task(s.sequence, s.vocabulary, "cross_entropy", tokens=True, parallel=s.parallel)
    return Model(units, task, words, s.loss_over)


def for_task(settings: Any, task: Task, groups: Sequence[Sequence[int]], frozen: Collection[int]) -> Model:
    """A transformer with a scenario's `settings`; vocabulary and sequence are by default those of the data."""
    return transformer(shape_of(settings, task), groups=groups, frozen=frozen)


def shape_of(settings: Any, task: Task) -> TransformerShape:
    """The shape of a transformer with a scenario's [model], for a task's sequence length and vocabulary."""
    width = settings.width
    return TransformerShape(
        family=settings.architecture,
        layers=settings.layers,
        width=width,
        heads=settings.heads,
        key_value_heads=settings.key_value_heads or settings.heads,
        inner=settings.inner or usual_inner(settings),
        vocabulary=settings.vocabulary or task.outputs,
        sequence=settings.sequence or task.inputs,
        tied_embeddings=settings.tied_embeddings,
        dropout=settings.dropout,
        parallel=task.parallel,
        own_head_size=settings.head_size,
        latent=settings.latent,
        query_latent=settings.query_latent,
        rotary_size=settings.rotary_size,
    )


def usual_inner(settings: Any) -> int:
    """The width within a perceptron that a scenario's [model] does not tell."""
    return int(4 * settings.width if settings.architecture == "gpt2" else -(-8 * settings.width // 3))


def problem(s: TransformerShape) -> tuple[str, str] | None:
    """The key of a size that contradicts the others, and the reason; None if all agree."""
    if s.width % s.heads and not s.own_head_size:
        return "heads", f"{s.heads} heads must divide a width of {s.width}"
    if s.heads % s.key_value_heads:
        return "key_value_heads", f"{s.key_value_heads} heads of keys and values must divide {s.heads} heads"
    if unused := s.parallel.unused("tensor_ranks", "context_ranks", "sequence_parallel", "vocabulary_parallel"):
        return "kind", f"a transformer is split over tensor and context ranks; remove parallel.{unused}"
    if wrong := undivided(s.cut):
        return wrong
    if s.dropout and not (s.parallel.tensor.alone and s.parallel.context.alone):
        return "dropout", "dropout is drawn for whole arrays, and these ranks have pieces of them; set it to 0"
    if s.latent or s.query_latent or s.rotary_size:
        return problem_of_latents(s)
    if s.family == "llama" and s.head_size % 2:
        return "heads", f"rotary positions need an even head size, found {s.head_size}; give it an even number"
    if s.family == "gpt2" and s.key_value_heads != s.heads:
        return "key_value_heads", 'GPT-2 has one per head; leave it out, or set architecture to "llama"'
    return None


def problem_of_latents(s: TransformerShape) -> tuple[str, str] | None:
    """The key of a size of latent attention that contradicts the others, and the reason; None if all agree."""
    if not s.latent:
        return "latent", "queries have a latent and numbers for positions only beside that of keys; set it above 0"
    if s.family != "llama" or s.key_value_heads != s.heads:
        return "latent", "each head of Llama's blocks has a key of the latent; leave key_value_heads out, and set " \
                         'architecture to "llama"'
    if s.rotary_size % 2 or not s.rotary_size:
        return "rotary_size", f"positions turn pairs of numbers, found {s.rotary_size}; give it an even number above 0"
    if not s.parallel.context.alone and s.parallel.context_by == "ring":
        return "latent", 'a ring has keys as wide as values; set parallel.context_by to "all_to_all"'
    return None


def undivided(cut: Iterable[tuple[str, int, int]]) -> tuple[str, str] | None:
    """The first key of those with a size and a number of pieces which does not divide it, and the reason."""
    for key, count, size in cut:
        if count % size:
            return key, f"the {size} ranks that cut it must divide {key} = {count}; set it to a multiple of {size}"
    return None


def gpt2(s: TransformerShape) -> list[Layer]:
    """GPT-2's layers; its matrices are stored inputs × outputs."""
    d, compute, begins, ends = s.width, partial(gpt2_block, s=s), normal(0.02), normal(0.02 / math.sqrt(2 * s.layers))
    tensor = s.parallel.tensor

    def column(name: str, outputs: int, blocks: int = 1) -> list[Parameter]:
        mine, (of_weight, of_bias) = tensor.of(outputs), (Cut(tensor, axis, blocks) for axis in (1, 0))
        return [Parameter(f"{name}.weight", (d, mine), begins, cut=of_weight),
                Parameter(f"{name}.bias", (mine,), constant(0.0), decays=False, cut=of_bias)]

    def row(name: str, inputs: int) -> list[Parameter]:
        return [Parameter(f"{name}.weight", (tensor.of(inputs), d), ends, cut=Cut(tensor, 0)),
                Parameter(f"{name}.bias", (d,), constant(0.0), decays=False)]

    def norm(name: str) -> list[Parameter]:
        shift = Parameter(f"{name}.bias", (d,), constant(0.0), decays=False)
        return [Parameter(f"{name}.weight", (d,), constant(1.0), decays=False), shift]

    block = (
        *norm("ln_1"), *column("attn.c_attn", 3 * s.attended, blocks=3), *row("attn.c_proj", s.attended),
        *norm("ln_2"), *column("mlp.c_fc", s.inner), *row("mlp.c_proj", s.inner),
    )
    tables = (of_tokens(s, "wte.weight"), Parameter("wpe.weight", (s.sequence, d), normal(0.01)))
    own = () if s.tied_embeddings else (of_tokens(s, "lm_head.weight"),)
    return [
        Layer("embedding", "", tables, partial(gpt2_embedding, s=s)),
        *(Layer(f"h.{n}", f"h.{n}.", block, compute) for n in range(s.layers)),
        Layer("head", "", (*norm("ln_f"), *own), partial(gpt2_head, s=s), borrows(s, "wte.weight")),
    ]


def llama(s: TransformerShape) -> list[Layer]:
    """Llama's layers; its matrices are stored outputs × inputs, without biases."""
    d, begins, ones = s.width, normal(0.02), constant(1.0)
    compute, tensor = partial(llama_block, s=s), s.parallel.tensor

    def column(name: str, outputs: int, inputs: int = d) -> Parameter:
        return Parameter(f"{name}.weight", (tensor.of(outputs), inputs), begins, cut=Cut(tensor, 0))

    def row(name: str, inputs: int) -> Parameter:
        return Parameter(f"{name}.weight", (d, tensor.of(inputs)), begins, cut=Cut(tensor, 1))

    def latent(name: str, size: int) -> list[Parameter]:
        return [Parameter(f"self_attn.{name}_down_proj.weight", (size, d), begins),
                Parameter(f"self_attn.{name}_norm.weight", (size,), ones, decays=False)]

    keys, turned = s.key_value_heads * s.head_size, s.heads * s.rotary_size
    of_queries = latent("q", s.query_latent) if s.query_latent else []
    attended = (
        *of_queries, column("self_attn.q_up_proj", s.attended, s.query_latent or d),
        column("self_attn.q_rotary_proj", turned, s.query_latent or d), *latent("kv", s.latent),
        Parameter("self_attn.k_rotary_proj.weight", (s.rotary_size, d), begins),
        column("self_attn.k_up_proj", keys, s.latent), column("self_attn.v_up_proj", keys, s.latent),
    ) if s.latent else (
        column("self_attn.q_proj", s.attended), column("self_attn.k_proj", keys), column("self_attn.v_proj", keys))
    block = (
        *attended, row("self_attn.o_proj", s.attended),
        column("mlp.gate_proj", s.inner), column("mlp.up_proj", s.inner), row("mlp.down_proj", s.inner),
        Parameter("input_layernorm.weight", (d,), ones, decays=False),
        Parameter("post_attention_layernorm.weight", (d,), ones, decays=False),
    )
    own = () if s.tied_embeddings else (of_tokens(s, "lm_head.weight"),)
    norm = Parameter("model.norm.weight", (d,), ones, decays=False)
    return [
        Layer("embedding", "", (of_tokens(s, "model.embed_tokens.weight"),), partial(llama_embedding, s=s)),
        *(Layer(f"layers.{n}", f"model.layers.{n}.", block, compute) for n in range(s.layers)),
        Layer("head", "", (norm, *own), partial(llama_head, s=s), borrows(s, "model.embed_tokens.weight")),
    ]


def of_tokens(s: TransformerShape, name: str) -> Parameter:
    """A parameter with a row for each token of the vocabulary."""
    tensor, cut = s.parallel.tensor, s.parallel.vocabulary
    rows = tensor.of(s.vocabulary) if cut else s.vocabulary
    return Parameter(name, (rows, s.width), normal(0.02), cut=Cut(tensor, 0) if cut else None)


def borrows(s: TransformerShape, table: str) -> tuple[str, ...]:
    return (table,) if s.tied_embeddings else ()


def attention_of(settings: Any) -> int:
    """layers · width of attention, with a scenario's [model]: that of queries and that of values in the mean."""
    of_both = 2 * (settings.heads * settings.head_size or settings.width) + settings.heads * settings.rotary_size
    return int(settings.layers * of_both // 2)


PARTS = {"gpt2": gpt2, "llama": llama}
LATENT = ("latent", "query_latent", "rotary_size")
"""The keys of latent attention."""
TITLES = {"gpt2": "GPT-2-shaped transformer", "llama": "Llama-shaped transformer"}


KIND = ModelKind(
    "transformer",
    own_keys=(
        "architecture", "layers", "width", "heads", "key_value_heads", "head_size", "inner", "vocabulary", "sequence",
        "tied_embeddings", "dropout", *LATENT,
    ),
    for_task=for_task,
    layer_count=lambda settings: settings.layers + 2,
    tied=lambda settings: bool(settings.tied_embeddings),
    reads_tokens=True,
    problem=lambda settings, task: problem(shape_of(settings, task)),
    attention=attention_of,
)
