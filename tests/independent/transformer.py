"""Transformers by hand, forward and backward, from `docs/computation.md` alone; the rest is as in `independent`.

Functions compute in the dtype of what they are given; `Rounding` widens it and rounds what they return.
"""

import math
from types import SimpleNamespace

import numpy as np

from tests.independent import mlp as independent

F32 = np.float32
DEFAULTS = {
    "architecture": "gpt2", "layers": 2, "width": 64, "heads": 4, "key_value_heads": 0, "head_size": 0, "inner": 0,
    "dropout": 0,
}

# Parameters


def inner_of(keys):
    return keys.inner or (4 * keys.width if keys.architecture == "gpt2" else math.ceil(8 * keys.width / 3))


def shapes(keys, vocabulary, sequence):
    """(name, shape, σ or constant) of every parameter of each layer; a constant is an int."""
    d, e, s = keys.width, inner_of(keys), keys.head_size or keys.width // keys.heads
    a, k = keys.heads * s, (keys.key_value_heads or keys.heads) * s
    head = [] if keys.tied_embeddings else [("lm_head.weight", (vocabulary, d), 0.02)]
    if keys.architecture == "llama":
        embedding = [("model.embed_tokens.weight", (vocabulary, d), 0.02)]
        block = [
            ("self_attn.q_proj.weight", (a, d), 0.02), ("self_attn.k_proj.weight", (k, d), 0.02),
            ("self_attn.v_proj.weight", (k, d), 0.02), ("self_attn.o_proj.weight", (d, a), 0.02),
            ("mlp.gate_proj.weight", (e, d), 0.02), ("mlp.up_proj.weight", (e, d), 0.02),
            ("mlp.down_proj.weight", (d, e), 0.02),
            ("input_layernorm.weight", (d,), 1), ("post_attention_layernorm.weight", (d,), 1),
        ]
        prefix, head = "model.layers", [("model.norm.weight", (d,), 1), *head]
    else:
        embedding = [("wte.weight", (vocabulary, d), 0.02), ("wpe.weight", (sequence, d), 0.01)]
        towards_h = 0.02 / math.sqrt(2 * keys.layers)
        block = [
            ("ln_1.weight", (d,), 1), ("ln_1.bias", (d,), 0),
            ("attn.c_attn.weight", (d, 3 * a), 0.02), ("attn.c_attn.bias", (3 * a,), 0),
            ("attn.c_proj.weight", (a, d), towards_h), ("attn.c_proj.bias", (d,), 0),
            ("ln_2.weight", (d,), 1), ("ln_2.bias", (d,), 0),
            ("mlp.c_fc.weight", (d, e), 0.02), ("mlp.c_fc.bias", (e,), 0),
            ("mlp.c_proj.weight", (e, d), towards_h), ("mlp.c_proj.bias", (d,), 0),
        ]
        prefix, head = "h", [("ln_f.weight", (d,), 1), ("ln_f.bias", (d,), 0), *head]
    blocks = [[(f"{prefix}.{n}.{name}", *rest) for name, *rest in block] for n in range(keys.layers)]
    return [embedding, *blocks, head]


def initial_layers(keys, vocabulary, sequence):
    """The parameters of each layer, float32, by name."""
    layers = []
    for i, layer in enumerate(shapes(keys, vocabulary, sequence)):
        random, values = np.random.default_rng([keys.seed, i]), {}
        for name, shape, size in layer:
            p = values[name] = np.full(shape, size, F32)
            if isinstance(size, float):
                random.standard_normal(out=p, dtype=F32)
                p *= size
        layers.append(values)
    return layers


# Operations


def rows(a):
    return a.reshape(-1, a.shape[-1])


def affine(x, w, b):
    y = np.matmul(rows(x), w)
    y += b
    return y.reshape(*x.shape[:-1], -1)


def affine_backward(u, x, w):
    """dx, dW, db."""
    dw, db = np.matmul(rows(x).T, rows(u)), np.sum(rows(u), axis=0)
    return np.matmul(rows(u), w.T).reshape(x.shape), dw, db


def project(x, w):
    return np.matmul(rows(x), w.T).reshape(*x.shape[:-1], -1)


def project_backward(u, x, w):
    """dx, dW."""
    dw = np.matmul(rows(u).T, rows(x))
    return np.matmul(rows(u), w).reshape(x.shape), dw


def scale(x):
    r = np.mean(np.square(x), axis=-1, keepdims=True)
    r += 1e-5
    r = np.sqrt(r)
    return 1.0 / r


def centred(x):
    """x̂ and r of ln."""
    hat = x - np.mean(x, axis=-1, keepdims=True)
    r = scale(hat)
    hat *= r
    return hat, r


def ln(x, w, b):
    y = centred(x)[0] * w
    y += b
    return y


def rms(x, w):
    return x * scale(x) * w


def norm_backward(u, w, hat, r, *, centre):
    """dx, dw."""
    dw = np.sum(rows(u * hat), axis=0)
    g = u * w
    hat = hat * np.mean(g * hat, axis=-1, keepdims=True)
    if centre:
        g -= np.mean(g, axis=-1, keepdims=True)
    g -= hat
    g *= r
    return g, dw


def ln_backward(u, x, w):
    """dx, dw, db."""
    return *norm_backward(u, w, *centred(x), centre=True), np.sum(rows(u), axis=0)


def rms_backward(u, x, w):
    r = scale(x)
    return norm_backward(u, w, x * r, r, centre=False)


def sigmoid(x):
    t = 0.5 * x
    t = np.tanh(t)
    t += 1.0
    t *= 0.5
    return t


def silu(x):
    return sigmoid(x) * x


def silu_backward(u, x):
    t = sigmoid(x)
    q = 1.0 - t
    q *= x
    q += 1.0
    q *= t
    return u * q


def turned(x, heads, *, base=10000.0, back=False):
    """Rotary embedding of x (samples, T, heads · s), or its backward."""
    samples, tokens, width = x.shape
    s = width // heads
    half = s // 2
    angle = np.arange(tokens)[:, np.newaxis] * base ** (-2.0 * np.arange(half) / s)
    cos, sin = (np.tile(f(angle), 2).astype(x.dtype)[:, np.newaxis] for f in (np.cos, np.sin))
    x = x.reshape(samples, tokens, heads, s)
    w = x * (-sin if back else sin)
    y = x * cos
    y[..., :half] -= w[..., half:]
    y[..., half:] += w[..., :half]
    return y.reshape(samples, tokens, width)


def by_heads(a, groups, each):
    """(T, groups · each · s) seen as (groups, each, T, s)."""
    return a.reshape(len(a), groups, each, -1).transpose(1, 2, 0, 3)


def by_tokens(a):
    """The way back."""
    return a.transpose(2, 0, 1, 3).reshape(a.shape[2], -1)


def first_to_last(a):
    """The sum over heads of a group: (groups, each, T, s) to (groups, 1, T, s)."""
    total = a[:, :1].copy()
    for head in range(1, a.shape[1]):
        total += a[:, head : head + 1]
    return total


def attention(q, k, v, heads, groups):
    """y (samples, T, H s) and the softmax p (samples, groups, each, T, T)."""
    each = heads // groups
    root = math.sqrt(q.shape[-1] // heads)
    mask = np.triu(np.full((q.shape[1],) * 2, -np.inf, q.dtype), 1)
    ys, ps = [], []
    for q1, k1, v1 in zip(q, k, v, strict=True):
        p = np.matmul(by_heads(q1, groups, each), by_heads(k1, groups, 1).transpose(0, 1, 3, 2))
        p *= 1.0 / root
        p += mask
        p -= np.max(p, axis=-1, keepdims=True)
        p = np.exp(p)
        p /= np.sum(p, axis=-1, keepdims=True)
        ys.append(by_tokens(np.matmul(p, by_heads(v1, groups, 1))))
        ps.append(p)
    return np.stack(ys), np.stack(ps)


def attention_backward(u, q, k, v, p, heads, groups):
    """dq, dk, dv."""
    each = heads // groups
    root = math.sqrt(q.shape[-1] // heads)
    found = []
    for *sample, p1 in zip(u, q, k, v, p, strict=True):
        u1, q1 = (by_heads(a, groups, each) for a in sample[:2])
        k1, v1 = (by_heads(a, groups, 1) for a in sample[2:])
        dv = first_to_last(np.matmul(p1.transpose(0, 1, 3, 2), u1))
        c = np.matmul(u1, v1.transpose(0, 1, 3, 2))
        c -= np.sum(c * p1, axis=-1, keepdims=True)
        c *= p1
        c *= 1.0 / root
        dk = first_to_last(np.matmul(c.transpose(0, 1, 3, 2), q1))
        found.append([by_tokens(a) for a in (np.matmul(c, k1), dk, dv)])
    return tuple(np.stack(a) for a in zip(*found, strict=True))


def thirds(x):
    d = x.shape[-1] // 3
    return x[..., :d], x[..., d : 2 * d], x[..., 2 * d :]


def self_attention(x, heads):
    return attention(*thirds(x), heads, heads)


def self_attention_backward(u, x, p, heads):
    return np.concatenate(attention_backward(u, *thirds(x), p, heads, heads), axis=-1)


# Models


PRODUCTS = (affine, project, attention, self_attention)
BACKWARD = (affine_backward, project_backward, attention_backward, self_attention_backward)


class Rounding:
    """Calls operations: widens what they read, rounds what they return."""

    def __init__(self, keys):
        self.keys = keys

    def upstream(self, u):
        """The gradient of what a product has made."""
        return u.astype(self.keys.products)

    def __call__(self, operation, *arrays, **settings):
        if self.keys.products != self.keys.computed:
            return self.under_autocast(operation, arrays, settings)
        found = operation(*(a.astype(self.keys.wide) for a in arrays), **settings)
        if isinstance(found, tuple):
            return tuple(a.astype(self.keys.computed) for a in found)
        return found.astype(self.keys.computed)

    def under_autocast(self, operation, arrays, settings):
        half, dtypes = self.keys.products, [a.dtype for a in arrays]
        product = operation in (*PRODUCTS, *BACKWARD)
        rounded = [a.astype(half) for a in arrays] if product else arrays
        found = operation(*(a.astype(self.keys.wide) for a in rounded), **settings)
        several = found if isinstance(found, tuple) else (found,)
        if operation in BACKWARD:  # dx in the dtype of x, dW in that of W, db as well
            several = tuple(
                a.astype(half).astype(dtype) for a, dtype in zip(several, [*dtypes[1:], F32], strict=False))
        else:
            dtype = half if product else max(dtypes, key=lambda dtype: dtype.itemsize)
            several = tuple(a.astype(dtype) for a in several)
        return several if isinstance(found, tuple) else several[0]


def dropping(keys, places, step, layer, operation, shape):
    """What a drop does, forward and backward: a function of one array; `places` are those of samples in the batch."""
    probability = keys.dropout
    draws = []
    for n in places:
        bits = np.random.Philox(key=[keys.seed, step], counter=[0, operation, layer, n])
        draws.append(np.random.Generator(bits).random(shape, dtype=F32))
    mask = np.stack(draws) >= F32(probability)
    return lambda x: x * (1.0 / (1.0 - probability)) * mask


class Gpt2Block:
    def __init__(self, op, drop, weights):
        self.op, self.drop, self.w = op, drop, weights

    def forward(self, h):
        op, w = self.op, self.w
        heads = op.keys.heads
        self.h = h
        self.n = op(ln, h, w[0], w[1])
        self.qkv = op(affine, self.n, w[2], w[3])
        self.y, self.p = op(self_attention, self.qkv, heads=heads)
        a = op(affine, self.y, w[4], w[5])
        self.middle = h = op(np.add, h, self.drop(4, a))
        self.n2 = op(ln, h, w[6], w[7])
        self.f = op(affine, self.n2, w[8], w[9])
        self.g = op(independent.gelu, self.f)
        m = op(affine, self.g, w[10], w[11])
        return op(np.add, h, self.drop(10, m))

    def backward(self, u):
        """dh and the gradients of all parameters."""
        op, w = self.op, self.w
        heads = op.keys.heads
        um, d10, d11 = op(affine_backward, self.drop(10, op.upstream(u)), self.g, w[10])
        um = op(independent.gelu_backward, um, self.f)
        um, d8, d9 = op(affine_backward, um, self.n2, w[8])
        um, d6, d7 = op(ln_backward, um, self.middle, w[6])
        u = op(np.add, u, um)
        ua, d4, d5 = op(affine_backward, self.drop(4, op.upstream(u)), self.y, w[4])
        ua = op(self_attention_backward, ua, self.qkv, self.p, heads=heads)
        ua, d2, d3 = op(affine_backward, ua, self.n, w[2])
        ua, d0, d1 = op(ln_backward, ua, self.h, w[0])
        return op(np.add, u, ua), [d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, d11]


class LlamaBlock:
    def __init__(self, op, drop, weights):
        self.op, self.drop, self.w = op, drop, weights
        self.heads = op.keys.heads
        self.groups = op.keys.key_value_heads or self.heads

    def forward(self, h):
        op, (wq, wk, wv, wo, wg, wu, wd, w_in, w_post) = self.op, self.w
        self.h = h
        self.n = op(rms, h, w_in)
        q, k, self.v = op(project, self.n, wq), op(project, self.n, wk), op(project, self.n, wv)
        self.q, self.k = op(turned, q, heads=self.heads), op(turned, k, heads=self.groups)
        self.y, self.p = op(attention, self.q, self.k, self.v, heads=self.heads, groups=self.groups)
        a = op(project, self.y, wo)
        self.middle = h = op(np.add, h, self.drop(8, a))
        self.n2 = op(rms, h, w_post)
        self.gate = op(project, self.n2, wg)
        self.s = op(silu, self.gate)
        self.up = op(project, self.n2, wu)
        self.z = op(np.multiply, self.s, self.up)
        m = op(project, self.z, wd)
        return op(np.add, h, self.drop(16, m))

    def backward(self, u):
        op, (wq, wk, wv, wo, wg, wu, wd, w_in, w_post) = self.op, self.w
        uz, dwd = op(project_backward, self.drop(16, op.upstream(u)), self.z, wd)
        us, uu = op(np.multiply, uz, self.up), op(np.multiply, uz, self.s)
        from_up, dwu = op(project_backward, uu, self.n2, wu)
        from_gate, dwg = op(project_backward, op(silu_backward, us, self.gate), self.n2, wg)
        un, d_post = op(rms_backward, op(np.add, from_up, from_gate), self.middle, w_post)
        u = op(np.add, u, un)
        ua, dwo = op(project_backward, self.drop(8, op.upstream(u)), self.y, wo)
        uq, uk, uv = op(
            attention_backward, ua, self.q, self.k, self.v, self.p, heads=self.heads, groups=self.groups
        )
        uk = op(turned, uk, heads=self.groups, back=True)
        uq = op(turned, uq, heads=self.heads, back=True)
        from_v, dwv = op(project_backward, uv, self.n, wv)
        from_k, dwk = op(project_backward, uk, self.n, wk)
        from_q, dwq = op(project_backward, uq, self.n, wq)
        un = op(np.add, op(np.add, from_v, from_k), from_q)
        un, d_in = op(rms_backward, un, self.h, w_in)
        return op(np.add, u, un), [dwq, dwk, dwv, dwo, dwg, dwu, dwd, d_in, d_post]


BLOCKS = {"gpt2": Gpt2Block, "llama": LlamaBlock}


def contribution(keys, layers, x, targets, batch):
    """The loss of a micro-batch, and of each layer down to the lowest that is trained its gradients, as computed.

    `batch` has the step, the places of these samples in it, how many of its tokens are judged, and the loss scale.
    """
    op = Rounding(keys)
    weights = [[p.computed for p in layer] for layer in layers]
    last = len(layers) - 1
    gpt2 = keys.architecture == "gpt2"

    def dropper(layer):
        def drop(operation, a):
            if not keys.dropout:
                return a
            return op(dropping(keys, batch.places, batch.step, layer, operation, a.shape[1:]), a)

        return drop

    drop = dropper(0)
    h = op(lambda table: table[x], weights[0][0])
    if gpt2:
        h = op(lambda h, wpe: h + wpe[: h.shape[1]], h, weights[0][1])
    h = drop(2 if gpt2 else 1, h)
    blocks = [BLOCKS[keys.architecture](op, dropper(i), weights[i]) for i in range(1, last)]
    for block in blocks:
        h = block.forward(h)
    *norm, matrix = [*weights[last], weights[0][0]] if keys.tied_embeddings else weights[last]
    n = op(ln if gpt2 else rms, h, *norm)
    o = rows(op(project, n, matrix))

    wide, labels = o.astype(keys.output).astype(keys.wide), targets.ravel()
    judged = labels != -1
    loss, of_judged = independent.cross_entropy(wide[judged], labels[judged], batch.judged)
    u = np.zeros_like(wide)
    u[judged] = of_judged
    if batch.scale != 1.0:
        u *= batch.scale
    u = u.astype(keys.output).astype(keys.computed).reshape(*x.shape, -1)

    gradients = {}
    lowest = min(set(range(len(layers))) - set(keys.frozen), default=len(layers))
    if lowest > last:
        return loss, gradients
    u, of_matrix = op(project_backward, u, n, matrix)
    u, *of_norm = op(ln_backward if gpt2 else rms_backward, u, h, norm[0])
    gradients[last] = of_norm if keys.tied_embeddings else [*of_norm, of_matrix]
    for i in range(last - 1, max(lowest, 1) - 1, -1):
        u, gradients[i] = blocks[i - 1].backward(u)
    if lowest == 0:
        u = drop(2 if gpt2 else 1, u)
        table = op(embed_backward, u, x=x, vocabulary=len(matrix))
        if keys.tied_embeddings:
            table = op(np.add, of_matrix, table)
        gradients[0] = [table]
        if gpt2:
            gradients[0].append(op(positions_backward, u, sequence=len(weights[0][1])))
    return loss, gradients


def embed_backward(u, x, vocabulary):
    table = np.zeros((vocabulary, u.shape[-1]), u.dtype)
    np.add.at(table, x.ravel(), rows(u))
    return table


def positions_backward(u, sequence):
    table = np.zeros((sequence, u.shape[-1]), u.dtype)
    table[: u.shape[1]] = np.sum(u, axis=0)
    return table


def train(x, y, **given):
    """As `independent.train`, of tokens below `vocabulary`."""
    keys = independent.settled(**DEFAULTS | given)

    def contributions(layers, step, batch, scale):
        judged, found = int(np.sum(y[batch] != -1)), []
        for m, at in enumerate(batch):
            places = range(m * keys.micro_batch, (m + 1) * keys.micro_batch)
            here = SimpleNamespace(step=step, places=places, judged=judged, scale=scale)
            found.append(contribution(keys, layers, x[at], y[at], here))
        return found

    return independent.trained(keys, len(x), initial_layers(keys, keys.vocabulary, x.shape[1]), contributions)
