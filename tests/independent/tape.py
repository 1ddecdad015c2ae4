"""Models by a tape that adds gradients in the order of backward, from `docs/computation.md` alone.

The operations of one layer follow each other as on the page, so that a model is its formula: self-attention and latent
attention, perceptrons and mixtures of experts, in both architectures. Formulas of single operations are in
`transformer`; here are rounding, casts, and the order in which gradients are added.
"""

import math
from types import SimpleNamespace

import numpy as np

from tests.independent import mlp as independent
from tests.independent import transformer as by_page

F32 = np.dtype(np.float32)


class Value:
    """An array that operations read or give, in the dtype in which it is kept."""

    def __init__(self, array):
        self.array = array


class Tape:
    """One micro-batch forward: every operation widens what it reads, and rounds what it gives."""

    def __init__(self, keys, places, step):
        self.keys, self.places, self.step = keys, places, step
        self.recorded, self.layer, self.number = [], 0, 0

    def begin(self, layer):
        self.layer, self.number = layer, 0

    def give(self, y, inputs, backward, *, dtype=None, counts=True):
        """The value y; `backward(u)` gives the gradient of each input."""
        self.number += counts
        widest = dtype or max((value.array.dtype for value in inputs), key=lambda dtype: dtype.itemsize)
        value = Value(y.astype(widest))
        self.recorded.append((value, inputs, backward))
        return value

    def wide(self, value):
        array = value.array
        return array if array.dtype.kind in "iu" else array.astype(self.keys.wide)

    def cast(self, dtype, *values):
        """The values in `dtype`, by casts under autocast, which count as no operation; else as they are."""
        if self.keys.products == self.keys.computed:
            return values
        return [value if value.array.dtype == dtype else
                self.give(value.array, [value], lambda u: [u], dtype=np.dtype(dtype), counts=False) for value in values]

    def product(self, forward, backward, *values):
        values = self.cast(self.keys.products, *values)
        arrays = [self.wide(value) for value in values]
        return self.give(forward(*arrays), values, lambda u: backward(u, *arrays[:2]))

    def linear(self, x, w):
        return self.product(by_page.project, by_page.project_backward, x, w)

    def affine(self, x, w, b):
        return self.product(by_page.affine, by_page.affine_backward, x, w, b)

    def matmul(self, x, w):
        return self.product(np.matmul, lambda u, x, w: (u @ w.swapaxes(-1, -2), x.swapaxes(-1, -2) @ u), x, w)

    def pointwise(self, forward, backward, *values):
        arrays = [self.wide(value) for value in values]
        return self.give(forward(*arrays), values, lambda u: backward(u, *arrays))

    def gelu(self, x):
        name = "gelu" if self.keys.gelu == "tanh" else "gelu_exact"
        return self.pointwise(getattr(independent, name),
                              lambda u, x: [getattr(independent, f"{name}_backward")(u, x)], x)

    def silu(self, x):
        return self.pointwise(by_page.silu, lambda u, x: [by_page.silu_backward(u, x)], x)

    def times(self, a, b):
        return self.pointwise(np.multiply, lambda u, a, b: (u * b, u * a), a, b)

    def plus(self, a, b):
        return self.pointwise(np.add, lambda u, *_: (u, u), a, b)

    def embed(self, table, x):
        size = len(table.array)
        return self.give(table.array[x], [table], lambda u: [by_page.embed_backward(u, x=x, vocabulary=size)])

    def positions(self, h, wpe):
        size = len(wpe.array)
        return self.pointwise(lambda h, wpe: h + wpe[: h.shape[1]],
                              lambda u, *_: (u, by_page.positions_backward(u, sequence=size)), h, wpe)

    def norm(self, x, *parameters):
        """ln with a bias, rms without."""
        forward, backward = ((by_page.ln, by_page.ln_backward) if len(parameters) > 1 else
                             (by_page.rms, by_page.rms_backward))
        epsilon = self.keys.norm_epsilon
        return self.pointwise(lambda *arrays: forward(*arrays, epsilon), lambda u, x, w, *_: backward(u, x, w, epsilon),
                              *self.cast(F32, x, *parameters))

    def softmax(self, x):
        (x,) = self.cast(F32, x)
        y = np.exp(self.wide(x) - np.max(self.wide(x), axis=-1, keepdims=True))
        kept = self.give(y / np.sum(y, axis=-1, keepdims=True), [x], lambda u: [
            (u - np.sum(u * self.wide(kept), axis=-1, keepdims=True)) * self.wide(kept)])
        return kept

    def rotary(self, x, size):
        heads = x.array.shape[-1] // size
        return self.pointwise(lambda x: by_page.turned(x, heads),
                              lambda u, x: [by_page.turned(u, heads, back=True)], x)

    def attention(self, q, k, v, groups):
        q, k, v = self.cast(self.keys.products, q, k, v)
        arrays, heads = [self.wide(value) for value in (q, k, v)], self.keys.heads
        y, p = by_page.attention(*arrays, heads=heads, groups=groups)
        p = p.astype(q.array.dtype)
        return self.give(y, [q, k, v], lambda u: by_page.attention_backward(
            u, *arrays, p.astype(self.keys.wide), heads, groups))

    def self_attention(self, x):
        (x,) = self.cast(self.keys.products, x)
        heads, wide = self.keys.heads, self.wide(x)
        y, p = by_page.self_attention(wide, heads)
        p = p.astype(x.array.dtype)
        return self.give(y, [x], lambda u: [
            by_page.self_attention_backward(u, wide, p.astype(self.keys.wide), heads)])

    def drop(self, x):
        if not self.keys.dropout:
            return x
        dropped = by_page.dropping(
            self.keys, self.places, self.step, self.layer, self.number, x.array.shape[1:])
        return self.pointwise(dropped, lambda u, _: [dropped(u)], x)

    def beside(self, a, b):
        """b beside each head of a; if b is one head for all, its gradient is added head by head."""
        heads = self.keys.heads
        shape, own = a.array.shape[:2], a.array.shape[-1] // heads
        shared = b.array.shape[-1] != heads * self.keys.rotary_size or heads == 1

        def joined(a, b):
            b = b.reshape(*shape, 1 if shared else heads, -1)
            b = np.broadcast_to(b, (*shape, heads, b.shape[-1]))
            return np.concatenate([a.reshape(*shape, heads, own), b], axis=-1).reshape(*shape, -1)

        def parted(u, a, b):
            u = u.reshape(*shape, heads, -1)
            of_b = u[..., own:]
            if shared:
                of_b = by_page.first_to_last(of_b.swapaxes(1, 2)).swapaxes(1, 2)
            return u[..., :own].reshape(a.shape), of_b.reshape(b.shape)

        return self.pointwise(joined, parted, a, b)

    def moved(self, x, at, back):
        """Rows of x (·, d) at places `at`, zeros where a place is −1; `back` has the places of each row in the result,
        in the order in which their gradients are added."""
        d, found = x.array.shape[-1], at.ravel()
        rows = x.array.reshape(-1, d)

        def backward(u):
            total, u = np.zeros(rows.shape, self.keys.wide), u.reshape(-1, d)
            for places in back.T:
                total[places >= 0] = total[places >= 0] + u[places[places >= 0]]
            return [total.reshape(x.array.shape)]

        taken = np.where((found >= 0)[:, np.newaxis], rows[found], rows.dtype.type(0))
        return self.give(taken.reshape(*at.shape, d), [x], backward)

    def gradients(self, output, u):
        """The gradient of every value, the last use first, in the dtype of the value."""
        found = {id(output): u}
        for value, inputs, backward in reversed(self.recorded):
            if id(value) not in found:
                continue
            upstream = found.pop(id(value)).astype(self.keys.wide)
            for source, gradient in zip(inputs, backward(upstream), strict=False):
                rounded = gradient.astype(source.array.dtype)
                found[id(source)] = found[id(source)] + rounded if id(source) in found else rounded
        return found


def mixture(t, w, n):
    """m of the page: the rows of n through the experts that they chose, as far as there is room."""
    keys, (samples, tokens, _) = t.keys, n.array.shape
    count, k, run = samples * tokens, keys.experts_per_token, keys.queue_tokens or tokens
    room = min(math.ceil(keys.capacity_factor * (run * k / keys.experts)), run)
    p = t.softmax(t.linear(n, w["router.weight"]))
    chances = t.wide(p).reshape(count, keys.experts)
    chosen = np.argsort(-chances, axis=-1, kind="stable")[:, :k]
    queues, places = np.full((keys.experts, count // run * room), -1), np.full((count, k), -1)
    for first in range(0, count, run):
        filled = [0] * keys.experts
        for choice in range(k):
            for row in range(first, first + run):
                expert = chosen[row, choice]
                if filled[expert] < room:
                    slot = first // run * room + filled[expert]
                    queues[expert, slot], places[row, choice] = row, expert * queues.shape[1] + slot
                filled[expert] += 1
    queue = t.moved(n, queues, places)
    back = np.full((queues.size, 1), -1)
    back[places[places >= 0], 0] = np.flatnonzero(places >= 0)
    if keys.architecture == "llama":
        inner = t.times(t.silu(t.matmul(queue, w["gate"])), t.matmul(queue, w["inner"]))
    else:
        inner = t.gelu(t.matmul(queue, w["inner"]))
    served = t.moved(t.matmul(inner, w["outer"]), places, back)

    def spread(u):
        of_p = np.zeros((count, keys.experts), keys.wide)
        np.put_along_axis(of_p, chosen, u.reshape(count, k), axis=1)
        return [of_p.reshape(p.array.shape)]

    weights = np.take_along_axis(p.array.reshape(count, -1), chosen, axis=1).reshape(count, 1, k)
    m = t.matmul(t.give(weights, [p], spread), served)
    return t.give(m.array.reshape(n.array.shape), [m], lambda u: [u.reshape(m.array.shape)])


def gpt2_block(t, w, h):
    def both(name):
        return w[f"{name}.weight"], w[f"{name}.bias"]

    n = t.affine(t.norm(h, *both("ln_1")), *both("attn.c_attn"))
    h = t.plus(h, t.drop(t.affine(t.self_attention(n), *both("attn.c_proj"))))
    n = t.norm(h, *both("ln_2"))
    return after_attention(t, w, h, n, lambda n: t.affine(
        t.gelu(t.affine(n, *both("mlp.c_fc"))), *both("mlp.c_proj")), "mlp.c_fc.weight")


def llama_block(t, w, h):
    keys, of = t.keys, lambda name: w[f"{name}.weight"]
    n = t.norm(h, of("input_layernorm"))

    def part(name, x):
        return t.linear(x, of(f"self_attn.{name}_proj"))

    if keys.latent:
        g = t.norm(part("q_down", n), of("self_attn.q_norm")) if keys.query_latent else n
        latent, z = t.norm(part("kv_down", n), of("self_attn.kv_norm")), part("k_rotary", n)
        q = t.beside(part("q_up", g), t.rotary(part("q_rotary", g), keys.rotary_size))
        k = t.beside(part("k_up", latent), t.rotary(z, keys.rotary_size))
        y = t.attention(q, k, part("v_up", latent), keys.heads)
    else:
        groups, size = keys.key_value_heads or keys.heads, keys.head_size or keys.width // keys.heads
        q, k, v = (part(name, n) for name in "qkv")
        y = t.attention(t.rotary(q, size), t.rotary(k, size), v, groups)
    h = t.plus(h, t.drop(part("o", y)))

    def perceptron(n):
        gate = t.silu(t.linear(n, of("mlp.gate_proj")))
        return t.linear(t.times(gate, t.linear(n, of("mlp.up_proj"))), of("mlp.down_proj"))

    return after_attention(t, w, h, t.norm(h, of("post_attention_layernorm")), perceptron, "mlp.gate_proj.weight")


def after_attention(t, w, h, n, perceptron, its_weight):
    """h + perceptron(n), or h + m, or h + (m + perceptron(n)), for which n has two gradients that are added last."""
    if "router.weight" not in w:
        return t.plus(h, t.drop(perceptron(n)))
    if its_weight not in w:
        return t.plus(h, mixture(t, w, n))
    for_experts, for_perceptron = (t.give(n.array, [n], lambda u: [u], counts=False) for _ in range(2))
    return t.plus(h, t.plus(mixture(t, w, for_experts), perceptron(for_perceptron)))


BLOCKS = {"gpt2": gpt2_block, "llama": llama_block}


def contribution(keys, layers, x, targets, batch):
    """The loss of a micro-batch, and of each layer its gradients, as computed.

    `batch` has the step, the places of these samples in it, how many of its tokens are judged, and the loss scale.
    """
    values = [{parameter.name: Value(parameter.computed) for parameter in layer} for layer in layers]
    short = [{name.split(".", 3 if name.startswith("model.layers") else 2)[-1]: value
              for name, value in layer.items()} for layer in values[1:-1]]
    t, (table, *others) = Tape(keys, batch.places, batch.step), values[0].values()
    t.begin(0)
    h = t.embed(table, x)
    h = t.drop(t.positions(h, others[0]) if others else h)
    for number, w in enumerate(short, start=1):
        t.begin(number)
        h = BLOCKS[keys.architecture](t, w, h)
    t.begin(len(layers) - 1)
    *norm, matrix = [*values[-1].values(), table] if keys.tied_embeddings else values[-1].values()
    output = t.linear(t.norm(h, *norm), matrix)

    wide, labels = by_page.rows(output.array.astype(keys.output).astype(keys.wide)), targets.ravel()
    judged = labels != -1
    loss, of_judged = independent.cross_entropy(wide[judged], labels[judged], batch.judged)
    u = np.zeros_like(wide)
    u[judged] = of_judged
    if batch.scale != 1.0:
        u *= batch.scale
    u = u.astype(keys.output).astype(output.array.dtype).reshape(output.array.shape)
    found = t.gradients(output, u)
    return loss, {number: [found[id(value)] for value in layer.values()] for number, layer in enumerate(values)}


def train(x, y, **given):
    """As `independent.train`, of tokens below `vocabulary`."""
    keys = independent.settled(**by_page.DEFAULTS | given)

    def contributions(layers, step, batch, scale):
        judged, found = int(np.sum(y[batch] != -1)), []
        for m, at in enumerate(batch):
            places = range(m * keys.micro_batch, (m + 1) * keys.micro_batch)
            here = SimpleNamespace(step=step, places=places, judged=judged, scale=scale)
            found.append(contribution(keys, layers, x[at], y[at], here))
        return found

    initial = by_page.initial_layers(keys, keys.vocabulary, x.shape[1])
    return independent.trained(keys, len(x), initial, contributions)
