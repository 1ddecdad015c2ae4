"""GPT-2 and Llama as PyTorch modules, with the names that Hugging Face's classes give their parameters."""

import torch
from torch import nn
from torch.nn import functional


class Conv1D(nn.Module):
    """GPT-2's linear map, whose weight is stored inputs × outputs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


def epsilon_of(case):
    return getattr(case, "norm_epsilon", 1e-5)


def attend(q, k, v, heads, key_value_heads):
    """Causal attention of (B, T, heads · s)."""
    b, t, _ = q.shape
    q, k, v = (
        x.view(b, t, count, -1).transpose(1, 2)
        for x, count in ((q, heads), (k, key_value_heads), (v, key_value_heads))
    )
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).reshape(b, t, -1)


def rotated(x, size, base):
    """Rotary positions, as Llama's class applies them: x cos + rotate_half(x) sin."""
    b, t, width = x.shape
    angles = torch.outer(torch.arange(t), base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size))
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    wide = x.view(b, t, width // size, size)
    wide = wide if wide.dtype.itemsize >= 4 else wide.float()
    first, second = wide.chunk(2, dim=-1)
    half_turned = torch.cat([-second, first], dim=-1)
    turned = wide * angles.cos().to(wide.dtype) + half_turned * angles.sin().to(wide.dtype)
    return turned.to(x.dtype).view(b, t, width)


class Attention(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.heads = case.heads
        self.c_attn, self.c_proj = Conv1D(case.width, 3 * case.width), Conv1D(case.width, case.width)

    def forward(self, x):
        q, k, v = self.c_attn(x).chunk(3, dim=-1)
        return self.c_proj(attend(q, k, v, self.heads, self.heads))


class Perceptron(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.exact = getattr(case, "gelu", "tanh") == "exact"
        self.c_fc, self.c_proj = Conv1D(case.width, case.inner), Conv1D(case.inner, case.width)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="none" if self.exact else "tanh"))


class Block(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(case.width, epsilon_of(case)), Attention(case)
        self.ln_2, self.mlp = nn.LayerNorm(case.width, epsilon_of(case)), Perceptron(case)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.wte = nn.Embedding(case.vocabulary, case.width)
        self.wpe = nn.Embedding(case.sequence, case.width)
        self.h = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.ln_f = nn.LayerNorm(case.width, epsilon_of(case))
        if not case.tied_embeddings:
            self.lm_head = nn.Linear(case.width, case.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return functional.linear(self.ln_f(x), getattr(self, "lm_head", self.wte).weight)


class LlamaAttention(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.heads, self.key_value_heads, self.size = case.heads, case.key_value_heads, case.width // case.heads
        keys = self.key_value_heads * self.size
        self.q_proj = nn.Linear(case.width, case.width, bias=False)
        self.k_proj = nn.Linear(case.width, keys, bias=False)
        self.v_proj = nn.Linear(case.width, keys, bias=False)
        self.o_proj = nn.Linear(case.width, case.width, bias=False)

    def forward(self, x):
        q, k = (rotated(project(x), self.size, 10000.0) for project in (self.q_proj, self.k_proj))
        return self.o_proj(attend(q, k, self.v_proj(x), self.heads, self.key_value_heads))


class LlamaPerceptron(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.gate_proj = nn.Linear(case.width, case.inner, bias=False)
        self.up_proj = nn.Linear(case.width, case.inner, bias=False)
        self.down_proj = nn.Linear(case.inner, case.width, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(case), LlamaPerceptron(case)
        self.input_layernorm = nn.RMSNorm(case.width, epsilon_of(case))
        self.post_attention_layernorm = nn.RMSNorm(case.width, epsilon_of(case))

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(case.vocabulary, case.width)
        self.model.layers = nn.ModuleList(LlamaBlock(case) for _ in range(case.layers))
        self.model.norm = nn.RMSNorm(case.width, epsilon_of(case))
        if not case.tied_embeddings:
            self.lm_head = nn.Linear(case.width, case.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x)
        return functional.linear(self.model.norm(x), getattr(self, "lm_head", self.model.embed_tokens).weight)


FAMILIES = {"gpt2": GPT2, "llama": Llama}
