"""Transformers by hand, from `docs/computation.md` alone: parameters, and operations forward and backward.

Functions compute in the dtype of what they are given; `tape` widens it and rounds what they return.
"""

import math

import numpy as np

F32 = np.float32
DEFAULTS = {
    "architecture": "gpt2", "layers": 2, "width": 64, "heads": 4, "key_value_heads": 0, "head_size": 0, "inner": 0,
    "dropout": 0, "kind": "transformer", "latent": 0, "query_latent": 0, "rotary_size": 0, "experts": 4,
    "experts_per_token": 1, "capacity_factor": 1.25, "queue_tokens": 0, "shared_inner": 0, "dense_layers": 0,
    "dense_inner": 0, "norm_epsilon": 1e-5, "gelu": "tanh",
}

# Parameters


def usual_inner(keys):
    return 4 * keys.width if keys.architecture == "gpt2" else math.ceil(8 * keys.width / 3)


def perceptron_inner(keys, n):
    """e of block n's perceptron, 0 if it has none."""
    if keys.kind != "mixture":
        return keys.inner or usual_inner(keys)
    return keys.dense_inner or usual_inner(keys) if n < keys.dense_layers else keys.shared_inner


def gpt2_block(keys, d, e, s):
    a, towards_h = keys.heads * s, 0.02 / math.sqrt(2 * keys.layers)
    block = [
        ("ln_1.weight", (d,), 1), ("ln_1.bias", (d,), 0),
        ("attn.c_attn.weight", (d, 3 * a), 0.02), ("attn.c_attn.bias", (3 * a,), 0),
        ("attn.c_proj.weight", (a, d), towards_h), ("attn.c_proj.bias", (d,), 0),
        ("ln_2.weight", (d,), 1), ("ln_2.bias", (d,), 0),
    ]
    return block + [
        ("mlp.c_fc.weight", (d, e), 0.02), ("mlp.c_fc.bias", (e,), 0),
        ("mlp.c_proj.weight", (e, d), towards_h), ("mlp.c_proj.bias", (d,), 0)] * bool(e)


def llama_block(keys, d, e, s):
    a, k, c, r = keys.heads * s, (keys.key_value_heads or keys.heads) * s, keys.latent, keys.rotary_size
    of_queries = keys.query_latent or d
    down = [("q_down_proj", (of_queries, d), 0.02), ("q_norm", (of_queries,), 1)] * bool(keys.query_latent)
    latent = [
        *down, ("q_up_proj", (a, of_queries), 0.02), ("q_rotary_proj", (keys.heads * r, of_queries), 0.02),
        ("kv_down_proj", (c, d), 0.02),
        ("kv_norm", (c,), 1), ("k_rotary_proj", (r, d), 0.02), ("k_up_proj", (a, c), 0.02), ("v_up_proj", (a, c), 0.02)]
    plain = [("q_proj", (a, d), 0.02), ("k_proj", (k, d), 0.02), ("v_proj", (k, d), 0.02)]
    attended = [*(latent if c else plain), ("o_proj", (d, a), 0.02)]
    perceptron = [("gate_proj", (e, d), 0.02), ("up_proj", (e, d), 0.02), ("down_proj", (d, e), 0.02)] * bool(e)
    return [
        *((f"self_attn.{name}.weight", *rest) for name, *rest in attended),
        *((f"mlp.{name}.weight", *rest) for name, *rest in perceptron),
        ("input_layernorm.weight", (d,), 1), ("post_attention_layernorm.weight", (d,), 1)]


def experts(keys, d, e):
    """The last parameters of a block with experts."""
    gate = [("gate", (keys.experts, d, e), 0.02)] * (keys.architecture == "llama")
    return [("router.weight", (keys.experts, d), 0.02), *gate, ("inner", (keys.experts, d, e), 0.02),
            ("outer", (keys.experts, e, d), 0.02 / math.sqrt(2 * keys.layers))]


def shapes(keys, vocabulary, sequence):
    """(name, shape, σ or constant) of every parameter of each layer; a constant is an int."""
    d, s = keys.width, keys.head_size or keys.width // keys.heads
    head = [] if keys.tied_embeddings else [("lm_head.weight", (vocabulary, d), 0.02)]
    if keys.architecture == "llama":
        embedding, block = [("model.embed_tokens.weight", (vocabulary, d), 0.02)], llama_block
        prefix, head = "model.layers", [("model.norm.weight", (d,), 1), *head]
    else:
        embedding = [("wte.weight", (vocabulary, d), 0.02), ("wpe.weight", (sequence, d), 0.01)]
        prefix, head, block = "h", [("ln_f.weight", (d,), 1), ("ln_f.bias", (d,), 0), *head], gpt2_block
    blocks = []
    for n in range(keys.layers):
        named = block(keys, d, perceptron_inner(keys, n), s)
        if keys.kind == "mixture" and n >= keys.dense_layers:
            named += experts(keys, d, keys.inner or usual_inner(keys))
        blocks.append([(f"{prefix}.{n}.{name}", *rest) for name, *rest in named])
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


def scale(x, epsilon=1e-5):
    r = np.mean(np.square(x), axis=-1, keepdims=True)
    r += epsilon
    r = np.sqrt(r)
    return 1.0 / r


def centred(x, epsilon=1e-5):
    """x̂ and r of ln."""
    hat = x - np.mean(x, axis=-1, keepdims=True)
    r = scale(hat, epsilon)
    hat *= r
    return hat, r


def ln(x, w, b, epsilon=1e-5):
    y = centred(x, epsilon)[0] * w
    y += b
    return y


def rms(x, w, epsilon=1e-5):
    return x * scale(x, epsilon) * w


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


def ln_backward(u, x, w, epsilon=1e-5):
    """dx, dw, db."""
    return *norm_backward(u, w, *centred(x, epsilon), centre=True), np.sum(rows(u), axis=0)


def rms_backward(u, x, w, epsilon=1e-5):
    r = scale(x, epsilon)
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


def dropping(keys, places, step, layer, operation, shape):
    """What a drop does, forward and backward: a function of one array; `places` are those of samples in the batch."""
    probability = keys.dropout
    draws = []
    for n in places:
        bits = np.random.Philox(key=[keys.seed, step], counter=[0, operation, layer, n])
        draws.append(np.random.Generator(bits).random(shape, dtype=F32))
    mask = np.stack(draws) >= F32(probability)
    return lambda x: x * (1.0 / (1.0 - probability)) * mask


def embed_backward(u, x, vocabulary):
    table = np.zeros((vocabulary, u.shape[-1]), u.dtype)
    np.add.at(table, x.ravel(), rows(u))
    return table


def positions_backward(u, sequence):
    table = np.zeros((sequence, u.shape[-1]), u.dtype)
    table[: u.shape[1]] = np.sum(u, axis=0)
    return table
