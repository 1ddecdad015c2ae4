"""A mixture of experts: a router sends each sample to a few experts, each of which has room for so many and no more.

Lepikhin et al., "GShard" (2020); Fedus, Zoph and Shazeer, "Switch transformers" (2021), which is `choices = 1`. Room is
their capacity: `slack` times an even share. It bounds the load of every expert and makes every shape known beforehand,
so a plan is exact. A sample that finds an expert full is not sent to it, and the residual connection alone carries it.

Left to itself a router favours few experts. These papers add a term to the loss; a model here has one loss, so experts
are chosen by chances that are balanced first: each expert's sum to 1 over the samples of a micro-batch. That is one
normalisation of the Sinkhorn router of Clark et al., "Unified scaling laws for routed language models" (2022). What an
expert gives is weighed by the router's chances as they are, which is how the router learns.
"""

from math import ceil

from zerosim.extend import (
    Layer,
    Parameter,
    constant,
    gather_rows,
    layer_norm,
    linear,
    matmul,
    queue_slots,
    relu,
    reshape,
    scatter_rows,
    softmax,
    take_along,
    top_k,
    transpose,
    uniform,
)


def routed(w, x, *, choices, slack):
    """y = x + Σ pₑ relu(norm(x) Uₑ) Vₑ, over the chosen experts e that have room; p = softmax(R norm(x))."""
    (samples, d), (experts, _, _) = x.shape, w["inner"].shape
    capacity = ceil(slack * choices * samples / experts)
    h = layer_norm(x, w["scale"], w["shift"])
    logits = linear(h, w["router"])
    _, chosen = top_k(turned(softmax(turned(logits))), choices)  # each expert's over the samples
    chances = take_along(softmax(logits), chosen)
    slots = queue_slots(chosen, queues=experts, capacity=capacity)

    queues = reshape(scatter_rows(h, slots, count=experts * capacity), shape=(experts, capacity, d))
    served = matmul(relu(matmul(queues, w["inner"])), w["outer"])

    back = gather_rows(reshape(served, shape=(experts * capacity, d)), slots)
    weighed = matmul(reshape(chances, shape=(samples, 1, choices)), back)
    return x + reshape(weighed, shape=(samples, d))


def turned(x):
    """The transpose of a matrix."""
    return transpose(x, axes=(1, 0))


def head(w, x):
    """One output for each class."""
    return linear(x, w["weight"], w["bias"])


def mixture(task, *, blocks=1, experts=4, width=32, choices=2, slack=1.5):
    """Blocks of experts, as wide at both ends as the data, and a head."""
    d, begins = task.inputs, uniform(task.inputs**-0.5)

    def block(w, x):
        return routed(w, x, choices=choices, slack=slack)

    parameters = (
        Parameter("scale", (d,), constant(1.0), decays=False),
        Parameter("shift", (d,), constant(0.0), decays=False),
        Parameter("router", (experts, d), begins),
        Parameter("inner", (experts, d, width), begins),
        Parameter("outer", (experts, width, d), uniform(width**-0.5)),
    )
    last = (Parameter("weight", (task.outputs, d), begins), Parameter("bias", (task.outputs,), begins, decays=False))
    return [
        *(Layer(f"experts.{n}", f"experts.{n}.", parameters, block) for n in range(blocks)),
        Layer("head", "head.", last, head),
    ]
