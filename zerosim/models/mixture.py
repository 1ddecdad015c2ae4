"""A mixture of experts: blocks of GPT-2 or Llama, in which each token is sent to a few of many perceptrons.

    tokens -> embedding -> block -> … -> block -> head

    e         the `experts_per_token` experts with the largest chances, p = softmax(R norm(x))
    y         x + Σₑ pₑ gelu(norm(x) Uₑ) Vₑ; in Llama's blocks x + Σₑ pₑ (silu(norm(x) Gₑ) · norm(x) Uₑ) Vₑ
    shared    with `shared_inner`, plus a shared expert of this width, a perceptron which every token passes
    dense     the first `dense_layers` blocks are the transformer's own, with perceptrons of `dense_inner`
    queue     `queue_tokens` neighbouring tokens of a sequence, by default all, share a queue of each expert
    capacity  tokens of a queue that an expert takes: `capacity_factor` times an even share, rounded up; at most all

A token that finds its queue full is dropped: it keeps x. As queues serve sequences, dropped tokens do not depend on the
micro-batch or on the number of ranks, and every shape is known beforehand. Nothing balances the load: the sources add
a term to the loss for that, and a model has one loss here.

All ranks with tokens of their own share the experts: `expert_ranks` with shares of the samples, `context_ranks` with
pieces of the sequences, and `tensor_ranks` with `sequence_parallel`. They are one joined direction, over which
Megatron's parallel folding lays experts too. `queue_tokens` must divide a rank's piece of a sequence. Weights that are
not experts' are used on pieces, and their gradients are sums. The shared expert is cut over tensor ranks as a
transformer's perceptron. Two all-to-alls a block carry the queues to the experts and back, and two more the gradients.
Tensor ranks without `sequence_parallel` have the same tokens, and compute the same experts; a parameter has one cut.

Sources: Lepikhin et al., "GShard" (2020), algorithm 1; Fedus, Zoph and Shazeer, "Switch transformers" (2021),
section 2; Jiang et al., "Mixtral of experts" (2024), section 2, which divides the chances by their sum; Dai et al.,
"DeepSeekMoE" (2024), sections 3.2 and 4.1.2, with shared experts, of which several are one perceptron of their widths
together; Liu et al., "MoE parallel folding" (2025), section 3.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operations.attention import softmax
from zerosim.autograd.operations.elementwise import GELUS, silu
from zerosim.autograd.operations.linear import linear, matmul
from zerosim.autograd.operations.routing import gather_rows, queue_slots, scatter_rows, top_k
from zerosim.autograd.operations.shapes import reshape, transpose
from zerosim.autograd.tape_collectives import Direction, all_to_all
from zerosim.models.parallel import of_pieces, on_pieces
from zerosim.models.parameters import Cut, Parameter, normal
from zerosim.models.transformer import (
    FAMILIES,
    SIZES,
    TransformerShape,
    attended,
    next_token_model,
    normed,
    shape_of,
    undivided,
    unused,
    usual_inner,
)
from zerosim.models.transformer import KIND as TRANSFORMER
from zerosim.models.transformer import layers_of as transformer_layers
from zerosim.models.transformer import problem as problem_of_shape
from zerosim.models.units import Layer, Model, Task

EXPERTS = ("gate", "inner", "outer")
"""The weights of the experts, of which each rank has those of its own."""


@dataclass(frozen=True)
class MixtureShape:
    """The sizes of a mixture: of its transformer, whose `inner` is the width within an expert, and of its experts."""

    transformer: TransformerShape
    experts: int
    capacity_factor: float
    experts_per_token: int = 1
    queue_tokens: int = 0
    shared_inner: int = 0
    """The width of the shared expert, which every token passes beside its own; 0 for none."""
    dense_layers: int = 0
    """The number of first blocks with a perceptron instead of experts."""
    dense_inner: int = 0

    @property
    def over(self) -> Direction:
        """The ranks over which tokens and experts are cut."""
        return self.transformer.parallel.tokens

    @property
    def served_together(self) -> int:
        """The neighbouring tokens of a sequence that a queue serves."""
        return self.queue_tokens or self.transformer.sequence

    @property
    def capacity(self) -> int:
        """The tokens that an expert takes of those that a queue serves."""
        even = self.served_together * self.experts_per_token / self.experts
        return min(math.ceil(self.capacity_factor * even), self.served_together)


PERCEPTRONS: dict[str, tuple[tuple[str, ...], Callable[[Weights, Variable, TransformerShape], Variable]]] = {
    "gpt2": (("inner",), lambda w, queues, s: GELUS[s.gelu](matmul(queues, w["inner"]))),
    "llama": (("gate", "inner"), lambda w, queues, _: silu(matmul(queues, w["gate"])) * matmul(queues, w["inner"])),
}
"""An architecture's experts up to their second product, of queues (experts, rows, width), an array (experts, rows,
inner), with the names of their weights."""


def used_on_pieces(w: Weights, m: MixtureShape) -> Weights:
    """The weights of a layer, used on this rank's pieces: gradients of all but experts are sums over the ranks."""
    others = {name: weight for name, weight in w.items() if name not in EXPERTS}
    return {**w, **on_pieces(others, m.transformer.parallel.pieces)}


def mixture_block(w: Weights, x: Variable, m: MixtureShape) -> Variable:
    w, s, family = used_on_pieces(w, m), m.transformer, FAMILIES[m.transformer.family]
    x = attended(w, x, s)
    h = normed(w, x, family.norms[1], s)
    y = routed(w, h, m)
    return x + (y + family.perceptron(w, h, s) if m.shared_inner else y)


def routed(w: Weights, x: Variable, m: MixtureShape) -> Variable:
    """The sum over a token's experts of their outputs times their chances; 0 for those that find their queue full."""
    samples, tokens, d = x.shape
    rows, count = reshape(x, shape=(samples * tokens, d)), m.experts_per_token
    _, experts = PERCEPTRONS[m.transformer.family]
    runs = samples * tokens // m.served_together
    chances, chosen = top_k(softmax(linear(rows, of_pieces(w["router.weight"], m.transformer.parallel))), count)
    slots = queue_slots(chosen, queues=m.experts, capacity=m.capacity, sequences=runs)
    queues = to_experts(scatter_rows(rows, slots, count=m.experts * runs * m.capacity), m)
    served = from_experts(matmul(experts(w, queues, m.transformer), w["outer"]), m)
    weighed = matmul(reshape(chances, shape=(samples * tokens, 1, count)), gather_rows(served, slots))
    return reshape(weighed, shape=(samples, tokens, d))


def to_experts(queues: Variable, m: MixtureShape) -> Variable:
    """The queues of this rank's experts, those of all ranks side by side, from this rank's queues of all experts."""
    ranks, own, d = m.over.size, m.over.of(m.experts), queues.shape[1]
    length = queues.shape[0] // m.experts
    arrived = reshape(all_to_all(queues, group=m.over), shape=(ranks, own, length, d))
    return reshape(transpose(arrived, axes=(1, 0, 2, 3)), shape=(own, ranks * length, d))


def from_experts(served: Variable, m: MixtureShape) -> Variable:
    """This rank's queues of all experts, from the queues of this rank's experts."""
    ranks, (own, length, d) = m.over.size, served.shape
    sent = reshape(served, shape=(own, ranks, length // ranks, d))
    sent = reshape(transpose(sent, axes=(1, 0, 2, 3)), shape=(own * length, d))
    return all_to_all(sent, group=m.over)


def layers_of(m: MixtureShape) -> list[Layer]:
    """The layers of a transformer, with experts in all but the first `dense_layers` blocks."""
    s, first = m.transformer, m.dense_layers + 1
    embedding, *dense = transformer_layers(replace(s, inner=m.dense_inner))[:first]
    *blocks, head = transformer_layers(replace(s, inner=m.shared_inner))[first:]
    d, inner, own, cut = s.width, s.inner, m.over.of(m.experts), Cut(m.over, 0)
    parameters = (
        *(parameter for parameter in blocks[0].parameters
          if m.shared_inner or not parameter.name.startswith("mlp.")),
        Parameter("router.weight", (m.experts, d), normal(0.02)),
        *(Parameter(name, (own, d, inner), normal(0.02), cut=cut) for name in PERCEPTRONS[s.family][0]),
        Parameter("outer", (own, inner, d), normal(0.02 / math.sqrt(2 * s.layers)), cut=cut),
        *unused(sum(s.unused_parameters[1:]), "unused_experts"),
    )
    block = partial(mixture_block, m=m)
    return [
        embedding, *dense,
        *(replace(layer, parameters=parameters, compute=block) for layer in blocks),
        head,
    ]


def mixture(m: MixtureShape, groups: Sequence[Sequence[int]] | None = None, frozen: Collection[int] = ()) -> Model:
    """A mixture of experts; its layers are the embedding (0), the blocks and the head, each a unit.

    Raises `ZerosimError` for sizes that do not go together.

    >>> shape = TransformerShape("gpt2", 2, 64, 4, 4, 256, 65, 32, tied_embeddings=False)
    >>> mixture(MixtureShape(shape, experts=8, capacity_factor=1.25)).count
    569600
    """
    s = m.transformer
    words = f"mixture of {m.experts} experts, {m.experts_per_token} for each token, {s.layers} blocks, " \
            f"width {s.width}, {s.heads} heads"
    return next_token_model(s, problem(m), lambda: layers_of(m), words, groups, frozen)


def mixture_shape(settings: Any, task: Task) -> MixtureShape:
    """The sizes in a scenario's [model], for a task."""
    return MixtureShape(
        shape_of(settings, task), settings.experts, settings.capacity_factor, settings.experts_per_token,
        settings.queue_tokens, settings.shared_inner, settings.dense_layers,
        settings.dense_layers and (settings.dense_inner or usual_inner(settings)))


def problem(m: MixtureShape) -> tuple[str, str] | None:
    """The key of a size that contradicts the others, and the reason; None if all agree."""
    if m.experts % m.over.size:
        return "experts", f"the {m.over.size} {m.over.name} ranks must divide experts = {m.experts}; set it to a " \
                          f"multiple of {m.over.size}"
    if m.experts_per_token > m.experts:
        return "experts_per_token", f"a token has at most experts = {m.experts}; set it to no more"
    if not m.capacity_factor:
        return "capacity_factor", "an expert with a capacity of 0 takes no token; set it above 0"
    if m.dense_layers >= m.transformer.layers:
        return "dense_layers", f"a mixture has a block with experts; set it below layers = {m.transformer.layers}"
    s, widths = m.transformer, {"shared_inner": m.shared_inner, "dense_inner": m.dense_inner}
    wrong = problem_of_shape(replace(s, inner=0, parallel=replace(s.parallel, expert=Direction("expert"))))
    wrong = wrong or undivided((key, inner, s.parallel.tensor.size) for key, inner in widths.items())
    piece = s.sequence // (s.parallel.context.size * (s.parallel.tensor.size if s.parallel.sequence else 1))
    if wrong is None and piece % m.served_together:
        return "queue_tokens", f"a queue serves {m.served_together} tokens, which do not divide the {piece} that a " \
                               f"rank has of a sequence; set it to {piece} or a divisor"
    return wrong


KIND = replace(
    TRANSFORMER,
    key="mixture",
    own_keys=(*SIZES, "experts", "experts_per_token", "capacity_factor", "queue_tokens", "shared_inner", "dense_layers",
              "dense_inner"),
    for_task=lambda settings, task, groups, frozen: mixture(mixture_shape(settings, task), groups, frozen),
    problem=lambda settings, task: problem(mixture_shape(settings, task)),
)
