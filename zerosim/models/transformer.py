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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operation import Operation
from zerosim.autograd.operations.attention import join_heads, rotary
from zerosim.autograd.operations.dropout import dropout
from zerosim.autograd.operations.elementwise import GELUS, silu
from zerosim.autograd.operations.embedding import embedding, positions
from zerosim.autograd.operations.linear import add_bias, affine, linear
from zerosim.autograd.operations.normalization import EPSILON, layer_norm, rms_norm
from zerosim.autograd.operations.routing import gather_rows
from zerosim.autograd.tape_collectives import Direction, join_from, own_rows, own_samples, reduce_from, scatter_to
from zerosim.core.errors import ZerosimError
from zerosim.models.parallel import (
    IN_ONE_PIECE,
    SAMPLES,
    SEQUENCE,
    ModelParallel,
    attention,
    column_input,
    of_pieces,
    on_pieces,
    row_output,
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
    unused_parameters: tuple[int, ...] = ()
    """The parameters of a block that no operation reads, and further ones of a block with experts."""
    norm_epsilon: float = EPSILON
    gelu: str = "tanh"
    """The form of GPT-2's activation, a key of `GELUS`."""

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


@dataclass(frozen=True)
class Family:
    """The parts in which GPT-2's and Llama's shapes differ, and the names of their parameters."""

    title: str
    prefix: str
    """The prefix of all names but those of GPT-2's tables and of the outputs."""
    tokens: str
    """The table of the embedding; `lm_head.weight` is that of the outputs unless they are tied."""
    positions: str
    """The table of learned positions; empty for rotary ones."""
    blocks: str
    norm: Operation
    norm_weights: tuple[str, ...]
    norms: tuple[str, str, str]
    """The norms before attention, before the perceptron, and before the outputs."""
    attention: Callable[[Weights, Variable, TransformerShape], Variable]
    """The attention of a normed input, up to the projection."""
    perceptron: Callable[[Weights, Variable, TransformerShape], Variable]
    parameters: Callable[[TransformerShape], Iterable[Parameter]]
    """The parameters of a block."""


def embedded(w: Weights, tokens: Variable, s: TransformerShape) -> Variable:
    """This rank's pieces of the embeddings of its share of the samples.

    With `vocabulary` each tensor rank has a piece of the rows, and gives zeros for others. Context ranks have pieces of
    the sequence, and with `sequence` tensor ranks as well.
    """
    parallel, family = s.parallel, FAMILIES[s.family]
    w, tensor = on_pieces(w, parallel.expert), parallel.tensor
    tokens, table = own_samples(tokens, group=parallel.expert, axis=SAMPLES), w[family.tokens]
    if parallel.vocabulary:
        numbers = own_rows(tokens, group=tensor, count=table.shape[0])
        x = reduce_from(gather_rows(table, numbers), group=tensor)
    else:
        x = embedding(tokens, table)
    if family.positions:
        x = positions(x, w[family.positions])
    x = scatter_to(dropped(x, s), group=parallel.context, axis=SEQUENCE)
    return scatter_to(x, group=tensor, axis=SEQUENCE) if parallel.sequence else x


def block(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    w, family = on_pieces(w, s.parallel.pieces), FAMILIES[s.family]
    x = attended(w, x, s)
    return x + family.perceptron(w, normed(w, x, family.norms[1], s), s)


def attended(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    """x with the attention of its norm added, the first half of a block."""
    family = FAMILIES[s.family]
    return x + family.attention(w, normed(w, x, family.norms[0], s), s)


def normed(w: Weights, x: Variable, name: str, s: TransformerShape) -> Variable:
    family = FAMILIES[s.family]
    weights = (of_pieces(w[f"{name}.{weight}"], s.parallel) for weight in family.norm_weights)
    return family.norm(x, *weights, epsilon=s.norm_epsilon)


def head(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    """The outputs of all tokens of the vocabulary for whole sequences, or with `vocabulary` of this rank's tokens."""
    parallel, family = s.parallel, FAMILIES[s.family]
    w = on_pieces(w, parallel.pieces)
    if parallel.vocabulary:
        x = column_input(normed(w, x, family.norms[2], s), parallel)
    else:
        x = join_from(x, group=parallel.tensor, axis=SEQUENCE) if parallel.sequence else x
        weights = (w[f"{family.norms[2]}.{weight}"] for weight in family.norm_weights)
        x = family.norm(x, *weights, epsilon=s.norm_epsilon)
    return linear(x, w[family.tokens if s.tied_embeddings else "lm_head.weight"])


def gpt2_projection(w: Weights, x: Variable, name: str, s: TransformerShape) -> Variable:
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    if s.parallel.tensor.alone:
        return dropped(affine(x, weight, bias), s)
    return add_bias(row_output(affine(x, weight), s.parallel), of_pieces(bias, s.parallel))


def gpt2_attention(w: Weights, h: Variable, s: TransformerShape) -> Variable:
    h = affine(column_input(h, s.parallel), w["attn.c_attn.weight"], w["attn.c_attn.bias"])
    heads = s.parallel.tensor.of(s.heads)
    h = attention([h], heads, heads, s.parallel)
    return gpt2_projection(w, h, "attn.c_proj", s)


def gpt2_perceptron(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    h = GELUS[s.gelu](affine(column_input(x, s.parallel), w["mlp.c_fc.weight"], w["mlp.c_fc.bias"]))
    return gpt2_projection(w, h, "mlp.c_proj", s)


def llama_attention(w: Weights, h: Variable, s: TransformerShape) -> Variable:
    tensor = s.parallel.tensor
    inputs = qkv_of_latents(w, h, s) if s.latent else qkv(w, column_input(h, s.parallel), s)
    h = attention(inputs, tensor.of(s.heads), tensor.of(s.key_value_heads), s.parallel)
    return dropped(row_output(linear(h, w["self_attn.o_proj.weight"]), s.parallel), s)


def qkv(w: Weights, h: Variable, s: TransformerShape) -> tuple[Variable, Variable, Variable]:
    """Queries, keys and values; queries and keys are turned by their positions."""
    q, k, v = (linear(h, w[f"self_attn.{letter}_proj.weight"]) for letter in "qkv")
    return turned(q, s.head_size, s), turned(k, s.head_size, s), v


def qkv_of_latents(w: Weights, h: Variable, s: TransformerShape) -> tuple[Variable, Variable, Variable]:
    """Queries, keys and values of latents; with pieces of the sequence, latents are gathered and not activations."""
    heads, parallel = s.parallel.tensor.of(s.heads), s.parallel

    def down(name: str) -> Variable:
        return linear(h, of_pieces(w[f"self_attn.{name}_proj.weight"], parallel))

    def latent(name: str) -> Variable:
        return column_input(normed(w, down(f"{name}_down"), f"self_attn.{name}_norm", s), parallel)

    def up(x: Variable, name: str) -> Variable:
        return linear(x, w[f"self_attn.{name}_proj.weight"])

    of_queries = latent("q") if s.query_latent else column_input(h, parallel)
    of_keys, key = latent("kv"), column_input(down("k_rotary"), parallel)
    q = join_heads(up(of_queries, "q_up"), turned(up(of_queries, "q_rotary"), s.rotary_size, s), heads=heads,
               other_heads=heads)
    k = join_heads(up(of_keys, "k_up"), turned(key, s.rotary_size, s), heads=heads, other_heads=1)
    return q, k, up(of_keys, "v_up")


def turned(x: Variable, size: int, s: TransformerShape) -> Variable:
    return rotary(x, size=size, base=10000.0, group=s.parallel.context)


def llama_perceptron(w: Weights, x: Variable, s: TransformerShape) -> Variable:
    h = column_input(x, s.parallel)
    h = silu(linear(h, w["mlp.gate_proj.weight"])) * linear(h, w["mlp.up_proj.weight"])
    return dropped(row_output(linear(h, w["mlp.down_proj.weight"]), s.parallel), s)


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
    words = f"{FAMILIES[s.family].title} of {s.layers} blocks, width {s.width}, {s.heads} heads"
    return next_token_model(s, problem(s), lambda: layers_of(s), words, groups, frozen)


def next_token_model(
    s: TransformerShape, wrong: tuple[str, str] | None, layers: Callable[[], list[Layer]], words: str,
    groups: Sequence[Sequence[int]] | None, frozen: Collection[int],
) -> Model:
    """The model of these layers, in which tied embeddings share a unit.

    Raises `ZerosimError` if its shape is `wrong`, and for groups that separate tied layers.
    """
    if wrong is not None:
        raise ZerosimError(wrong[1])
    last = s.layers + 1
    if groups is None and s.tied_embeddings:
        groups = [[0, last], *([number] for number in range(1, last))]
    if s.tied_embeddings and not any({0, last} <= set(group) for group in groups or ()):
        raise ZerosimError(f"tied embeddings are in one unit: name layers 0 and {last} together, or untie them")
    task = Task(s.sequence, s.vocabulary, "cross_entropy", tokens=True, parallel=s.parallel)
    return Model(grouped(layers(), groups, frozen), task, words, s.loss_over)


def shape_of(settings: Any, task: Task) -> TransformerShape:
    """The shape of a transformer with a scenario's [model], by default for a task's sequence length and vocabulary."""
    own = {key: getattr(settings, key) for key in (*SIZES, "dropout")}
    own |= {"family": own.pop("architecture"), "own_head_size": own.pop("head_size"), "parallel": task.parallel}
    usual = {"key_value_heads": settings.heads, "inner": usual_inner(settings), "vocabulary": task.outputs,
             "sequence": task.inputs}
    return TransformerShape(**own | {key: own[key] or value for key, value in usual.items()})


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
    if s.family == "llama" and s.gelu != "tanh":
        return "gelu", "Llama's blocks have SiLU and no GELU; leave the key out"
    latent = s.latent or s.query_latent or s.rotary_size
    if latent and not s.latent:
        return "latent", "queries have a latent and numbers for positions only beside that of keys; set it above 0"
    if latent and (s.family != "llama" or s.key_value_heads != s.heads):
        return "latent", "each head of Llama's blocks has a key of the latent; leave key_value_heads out, and set " \
                         'architecture to "llama"'
    if latent and (s.rotary_size % 2 or not s.rotary_size):
        return "rotary_size", f"positions turn pairs of numbers, found {s.rotary_size}; give it an even number above 0"
    if latent and not s.parallel.context.alone and s.parallel.context_by == "ring":
        return "latent", 'a ring has keys as wide as values; set parallel.context_by to "all_to_all"'
    if not latent and s.family == "llama" and s.head_size % 2:
        return "heads", f"rotary positions need an even head size, found {s.head_size}; give it an even number"
    if s.family == "gpt2" and s.key_value_heads != s.heads:
        return "key_value_heads", 'GPT-2 has one per head; leave it out, or set architecture to "llama"'
    return None


def undivided(cut: Iterable[tuple[str, int, int]]) -> tuple[str, str] | None:
    """The first key of those with a size and a number of pieces which does not divide it, and the reason."""
    for key, count, size in cut:
        if count % size:
            return key, f"the {size} ranks that cut it must divide {key} = {count}; set it to a multiple of {size}"
    return None


def layers_of(s: TransformerShape) -> list[Layer]:
    """The embedding, the blocks and the head."""
    family = FAMILIES[s.family]
    parameters, compute = (*family.parameters(s), *unused(sum(s.unused_parameters[:1]))), partial(block, s=s)
    tensor, cut = s.parallel.tensor, s.parallel.vocabulary
    rows = tensor.of(s.vocabulary) if cut else s.vocabulary
    of_tokens = partial(
        Parameter, shape=(rows, s.width), initial=normal(0.02), cut=Cut(tensor, 0) if cut else None)
    tables, own = [of_tokens(family.tokens)], [] if s.tied_embeddings else [of_tokens("lm_head.weight")]
    if family.positions:
        tables.append(Parameter(family.positions, (s.sequence, s.width), normal(0.01)))
    return [
        Layer("embedding", "", tuple(tables), partial(embedded, s=s)),
        *(Layer(name, f"{family.prefix}{name}.", parameters, compute)
          for name in (f"{family.blocks}.{n}" for n in range(s.layers))),
        Layer("head", "", (*norm_parameters(s, family.norms[2]), *own), partial(head, s=s),
              (family.tokens,) if s.tied_embeddings else ()),
    ]


def unused(count: int, name: str = "unused") -> list[Parameter]:
    """So many parameters in one, if there are any, that are kept and updated and that no operation reads."""
    return [Parameter(name, (count,), constant(0.0), decays=False)] if count else []


def norm_parameters(s: TransformerShape, name: str) -> list[Parameter]:
    return [Parameter(f"{name}.{weight}", (s.width,), constant(1.0 if weight == "weight" else 0.0), decays=False)
            for weight in FAMILIES[s.family].norm_weights]


def gpt2_parameters(s: TransformerShape) -> Iterable[Parameter]:
    """Those of a block of GPT-2; its matrices are stored inputs × outputs."""
    d, tensor, begins, ends = s.width, s.parallel.tensor, normal(0.02), normal(0.02 / math.sqrt(2 * s.layers))

    def column(name: str, outputs: int, blocks: int = 1) -> list[Parameter]:
        own, (of_weight, of_bias) = tensor.of(outputs), (Cut(tensor, axis, blocks) for axis in (1, 0))
        return [Parameter(f"{name}.weight", (d, own), begins, cut=of_weight),
                Parameter(f"{name}.bias", (own,), constant(0.0), decays=False, cut=of_bias)]

    def row(name: str, inputs: int) -> list[Parameter]:
        return [Parameter(f"{name}.weight", (tensor.of(inputs), d), ends, cut=Cut(tensor, 0)),
                Parameter(f"{name}.bias", (d,), constant(0.0), decays=False)]

    return (
        *norm_parameters(s, "ln_1"), *column("attn.c_attn", 3 * s.attended, blocks=3), *row("attn.c_proj", s.attended),
        *norm_parameters(s, "ln_2"), *column("mlp.c_fc", s.inner), *row("mlp.c_proj", s.inner),
    )


def llama_parameters(s: TransformerShape) -> Iterable[Parameter]:
    """Those of a block of Llama; its matrices are stored outputs × inputs, without biases."""
    d, tensor, begins = s.width, s.parallel.tensor, normal(0.02)

    def column(name: str, outputs: int, inputs: int = d) -> Parameter:
        return Parameter(f"{name}.weight", (tensor.of(outputs), inputs), begins, cut=Cut(tensor, 0))

    def row(name: str, inputs: int) -> Parameter:
        return Parameter(f"{name}.weight", (d, tensor.of(inputs)), begins, cut=Cut(tensor, 1))

    def latent(name: str, size: int) -> list[Parameter]:
        return [Parameter(f"self_attn.{name}_down_proj.weight", (size, d), begins),
                Parameter(f"self_attn.{name}_norm.weight", (size,), constant(1.0), decays=False)]

    keys, turned = s.key_value_heads * s.head_size, s.heads * s.rotary_size
    of_queries = latent("q", s.query_latent) if s.query_latent else []
    of_attention = (
        *of_queries, column("self_attn.q_up_proj", s.attended, s.query_latent or d),
        column("self_attn.q_rotary_proj", turned, s.query_latent or d), *latent("kv", s.latent),
        Parameter("self_attn.k_rotary_proj.weight", (s.rotary_size, d), begins),
        column("self_attn.k_up_proj", keys, s.latent), column("self_attn.v_up_proj", keys, s.latent),
    ) if s.latent else (
        column("self_attn.q_proj", s.attended), column("self_attn.k_proj", keys), column("self_attn.v_proj", keys))
    return (
        *of_attention, row("self_attn.o_proj", s.attended),
        column("mlp.gate_proj", s.inner), column("mlp.up_proj", s.inner), row("mlp.down_proj", s.inner),
        *norm_parameters(s, "input_layernorm"), *norm_parameters(s, "post_attention_layernorm"),
    )


def attention_of(settings: Any) -> int:
    """layers · width of attention, with a scenario's [model]: that of queries and that of values in the mean."""
    of_both = 2 * (settings.heads * settings.head_size or settings.width) + settings.heads * settings.rotary_size
    return int(settings.layers * of_both // 2)


FAMILIES = {
    "gpt2": Family(
        "GPT-2-shaped transformer", "", "wte.weight", "wpe.weight", "h", layer_norm, ("weight", "bias"),
        ("ln_1", "ln_2", "ln_f"), gpt2_attention, gpt2_perceptron, gpt2_parameters),
    "llama": Family(
        "Llama-shaped transformer", "model.", "model.embed_tokens.weight", "", "layers", rms_norm, ("weight",),
        ("input_layernorm", "post_attention_layernorm", "model.norm"), llama_attention, llama_perceptron,
        llama_parameters),
}
SIZES = (
    "architecture", "layers", "width", "heads", "key_value_heads", "head_size", "inner", "vocabulary", "sequence",
    "latent", "query_latent", "rotary_size", "tied_embeddings", "norm_epsilon", "gelu",
    "unused_parameters")
"""The keys of sizes and of what layers share; three are those of latent attention."""

KIND = ModelKind(
    "transformer",
    own_keys=(*SIZES, "dropout"),
    for_task=lambda settings, task, groups, frozen: transformer(shape_of(settings, task), groups=groups, frozen=frozen),
    layer_count=lambda settings: settings.layers + 2,
    tied=lambda settings: bool(settings.tied_embeddings),
    reads_tokens=True,
    problem=lambda settings, task: problem(shape_of(settings, task)),
    attention=attention_of,
)
