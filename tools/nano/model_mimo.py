"""MiMo V2.6 at nano size: grouped-query attention, full or in a sliding window with sinks, and SwiGLU experts.

The fused matrix of an attention is kept in its stored order, `chunks` pieces of [Q; K; V], so that its FP8 blocks are
the stored ones; heads come out in order all the same.
"""
import torch
import torch.nn.functional as F
from torch import nn

import quant
from parts import Experts, Model, RMSNorm, Router, causal_attention, projection

CONFIG = {
    "vocab_size": 2112, "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128,
    "num_attention_heads": 16, "num_key_value_heads": 4, "swa_num_key_value_heads": 8, "head_dim": 48,
    "v_head_dim": 32, "partial_rotary_factor": 0.334, "rope_theta": 1e7, "swa_rope_theta": 1e4,
    "attention_value_scale": 0.707, "sliding_window": 64, "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1, 0, 1, 0],
    "n_routed_experts": 32, "num_experts_per_tok": 4, "layernorm_epsilon": 1e-6, "max_position_embeddings": 131072,
    "tp_size": 4,
}


HIDDEN = -1e30  # the score of a key that is out of sight
PAD = 8  # columns behind the keys: the sink, and some that round the width


def swiglu(gate, up):
    return F.silu(gate) * up


def rotate(x, angles):
    """The first 2 * angles.shape[-1] dimensions of every head, in pairs (j, j + half); x [..., tokens, width]."""
    half = angles.shape[-1]
    cos, sin = angles.cos(), angles.sin()
    a, b, rest = x[..., :half].float(), x[..., half:2 * half].float(), x[..., 2 * half:]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def angles(tokens, rotary, theta, device):
    frequency = theta ** (-torch.arange(0, rotary, 2, device=device, dtype=torch.float32) / rotary)
    return torch.arange(tokens, device=device, dtype=torch.float32).unsqueeze(1) * frequency


def window_bias(sink, groups, blocks, window, dtype):
    """[1, kv heads, group, blocks, window, 2 * window + PAD]: what is added to scores; the sink is one more column."""
    row = torch.arange(window, device=sink.device).unsqueeze(1)
    column = torch.arange(2 * window, device=sink.device)
    first = torch.arange(blocks, device=sink.device).view(-1, 1, 1) == 0
    visible = (column > row) & (column <= row + window) & ~(first & (column < window))
    hidden = F.pad((~visible).to(dtype) * HIDDEN, (0, PAD), value=HIDDEN)
    at_sink = F.pad(torch.ones(1, device=sink.device, dtype=dtype), (2 * window, PAD - 1))
    heads = sink.to(dtype).view(1, groups, -1, 1, 1, 1)
    return torch.where(at_sink > 0, heads, hidden)


def window_attention(q, k, v, sink, window, scale):
    """Each query sees the last `window` keys, itself included, and a sink that has no value.

    Queries go in blocks of the window's size, which see their own block and the one before.
    """
    batch, heads, tokens, _ = q.shape
    groups = k.shape[1]
    q, k, v = (F.pad(x, (0, 0, 0, -tokens % window)) for x in (q, k, v))
    blocks = q.shape[2] // window
    q = q.reshape(batch, groups, -1, blocks, window, q.shape[-1])

    def with_previous(x):
        x = F.pad(x, (0, 0, window, 0)).reshape(batch, groups, 1, blocks + 1, window, -1)
        return F.pad(torch.cat([x[:, :, :, :-1], x[:, :, :, 1:]], -2), (0, 0, 0, PAD))

    k, v = with_previous(k), with_previous(v)
    scores = q @ k.transpose(-1, -2)
    with torch.autocast(q.device.type, enabled=False):
        bias = window_bias(sink, groups, blocks, window, scores.dtype)
        weights = torch.add(bias, scores, alpha=scale).softmax(-1)
    out = weights @ v
    return out.reshape(batch, heads, blocks * window, -1)[:, :, :tokens]


class Attention(nn.Module):
    def __init__(self, c, sliding):
        super().__init__()
        self.c, self.sliding, self.rounded = c, sliding, False
        self.heads, self.chunks = c["num_attention_heads"], c["tp_size"]
        self.kv_heads = c["swa_num_key_value_heads" if sliding else "num_key_value_heads"]
        self.key, self.value = c["head_dim"], c["v_head_dim"]
        self.rotary = int(self.key * c["partial_rotary_factor"])
        rows = self.heads * self.key + self.kv_heads * (self.key + self.value)
        self.qkv = nn.Parameter(torch.randn(rows, c["hidden_size"]) * c["hidden_size"] ** -0.5)
        self.o_proj = projection(self.heads * self.value, c["hidden_size"], 0.5)
        if sliding:
            self.sink = nn.Parameter(torch.zeros(self.heads))

    def split(self, y):
        """Heads first: [batch, heads, tokens, width] of q, k, v."""
        batch, tokens, _ = y.shape
        widths = [self.heads // self.chunks * self.key, self.kv_heads // self.chunks * self.key,
                  self.kv_heads // self.chunks * self.value]
        parts = y.view(batch, tokens, self.chunks, -1).split(widths, -1)
        return [p.reshape(batch, tokens, -1, width).transpose(1, 2)
                for p, width in zip(parts, (self.key, self.key, self.value))]

    def forward(self, x):
        c = self.c
        weight = quant.fp8_round(self.qkv, self.chunks) if self.rounded else self.qkv
        q, k, v = self.split(F.linear(x, weight))
        theta = c["swa_rope_theta" if self.sliding else "rope_theta"]
        turn = angles(x.shape[1], self.rotary, theta, x.device)
        q, k, v = rotate(q, turn), rotate(k, turn), v * c["attention_value_scale"]
        scale = self.key ** -0.5
        if self.sliding:
            out = window_attention(q, k, v, self.sink, c["sliding_window"], scale)
        else:
            out = causal_attention(q, k, v, scale)
        return self.o_proj(out.transpose(1, 2).reshape(*x.shape[:2], -1))


class Dense(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj = projection(hidden, inner), projection(hidden, inner)
        self.down_proj = projection(inner, hidden, 0.5)
        self.rounded = False

    def forward(self, x):
        gate, up, down = (quant.fp8_round(p.weight) if self.rounded else p.weight
                          for p in (self.gate_proj, self.up_proj, self.down_proj))
        return F.linear(swiglu(F.linear(x, gate), F.linear(x, up)), down)


class Routed(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate = Router(c["hidden_size"], c["n_routed_experts"], c["num_experts_per_tok"])
        self.experts = Experts(c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"], swiglu)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        return self.experts(rows, *self.gate(rows)).view(x.shape)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        hidden, eps = c["hidden_size"], c["layernorm_epsilon"]
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.self_attn = Attention(c, c["hybrid_layer_pattern"][index] == 1)
        self.mlp = Routed(c) if index else Dense(hidden, c["intermediate_size"])

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x)).float()
        return x + self.mlp(self.post_attention_layernorm(x)).float()


class Mimo(Model):
    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(len(config["hybrid_layer_pattern"])))
        self.norm = RMSNorm(hidden, config["layernorm_epsilon"])
        self.lm_head = projection(hidden, config["vocab_size"])

    def hidden(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def new():
    return Mimo(CONFIG)
