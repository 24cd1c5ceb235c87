"""Kimi K3 at nano size: KDA and MLA attention, mixed residual blocks, and routed experts on a narrower stream.

KDA runs in chunks of 16 tokens in float32: the decay of a step is at least exp(-5), so that within a chunk nothing
leaves exp(+-80).
"""
import torch
import torch.nn.functional as F
from torch import nn

from parts import Experts, Model, RMSNorm, Router, causal_attention, projection

CONFIG = {
    "vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 9, "num_attention_heads": 4, "head_dim": 64,
    "short_conv_kernel_size": 4, "gate_lower_bound": -5.0, "full_attn_layers": [4, 8, 9],  # counted from one
    "q_lora_rank": 128, "kv_lora_rank": 96, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "attn_res_block_size": 3, "num_experts": 32, "num_experts_per_token": 4, "num_shared_experts": 2,
    "routed_expert_hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": 512,
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.0,
}
CHUNK = 16


def situ(c):
    beta, linear = c["activation_situ_beta"], c["activation_situ_linear_beta"]

    def act(gate, up):
        gate, up = gate.float(), up.float()
        return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear * torch.tanh(up / linear))
    return act


def kda(q, k, v, decay, beta):
    """[batch, tokens, heads, width] each, beta [batch, tokens, heads], all of one type.

    Within a chunk the updates that depend on each other are solved at once: (1 + L)^-1 by repeated squaring, since a
    strictly lower triangle of 16 rows vanishes at the 16th power.
    """
    batch, tokens, heads, width = q.shape
    pad = -tokens % CHUNK
    q, k, v, decay = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v, decay))
    beta = F.pad(beta, (0, 0, 0, pad))
    shape = batch, -1, CHUNK, heads
    q, k, v, decay = (x.reshape(*shape, width).permute(0, 3, 1, 2, 4) for x in (q, k, v, decay))
    beta = beta.reshape(shape).permute(0, 3, 1, 2).unsqueeze(-1)
    total = decay.cumsum(-2)
    grown, shrunk, asked = k * total.exp(), k * (-total).exp(), q * total.exp()
    lower = torch.tril(beta * (grown @ shrunk.transpose(-1, -2)), -1)
    one = torch.eye(CHUNK, device=q.device, dtype=q.dtype)
    square = lower @ lower
    fourth = square @ square
    solve = (one - lower) @ (one + square) @ (one + fourth) @ (one + fourth @ fourth)
    values, keys = solve @ (beta * v), solve @ (beta * grown)
    inside = torch.tril(asked @ shrunk.transpose(-1, -2))
    last = total[..., -1:, :]
    carried = (k * (last - total).exp()).transpose(-1, -2)
    kept = last.exp().transpose(-1, -2)
    state, outs = q.new_zeros(batch, heads, width, width), []
    for value, key, ask, own, carry, keep in zip(*(x.unbind(2) for x in (values, keys, asked, inside, carried, kept))):
        update = value - key @ state
        outs.append(ask @ state + own @ update)
        state = keep * state + carry @ update
    out = torch.stack(outs, 2).permute(0, 2, 3, 1, 4)
    return out.reshape(batch, tokens + pad, heads, width)[:, :tokens]


class KDA(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        hidden, heads, width = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
        wide, taps = heads * width, c["short_conv_kernel_size"]
        self.q_proj, self.k_proj, self.v_proj = (projection(hidden, wide) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (self.taps(wide, taps) for _ in range(3))
        self.f_a_proj, self.f_b_proj = projection(hidden, width), projection(width, wide)
        self.b_proj, self.g_proj = projection(hidden, heads), projection(hidden, wide)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.empty(wide).uniform_(-6.0, -1.0))
        self.o_norm = RMSNorm(width, c["rms_norm_eps"])
        self.o_proj = projection(wide, hidden, 0.5)

    @staticmethod
    def taps(width, count):
        w = torch.randn(width, count) * 0.3
        w[:, -1] += 0.7
        return nn.Parameter(w)

    @staticmethod
    def convolve(x, weight):
        count, tokens = weight.shape[1], x.shape[1]
        padded = F.pad(x.float(), (0, 0, count - 1, 0))
        return F.silu(sum(padded[:, j:j + tokens] * weight[:, j] for j in range(count)))

    def forward(self, x):
        heads = (*x.shape[:2], self.c["num_attention_heads"], self.c["head_dim"])
        q = self.convolve(self.q_proj(x), self.q_conv1d).view(heads)
        k = self.convolve(self.k_proj(x), self.k_conv1d).view(heads)
        v = self.convolve(self.v_proj(x), self.v_conv1d).view(heads)
        q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * heads[-1] ** -0.5
        k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
        step = (self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias).view(heads)
        decay = self.c["gate_lower_bound"] * torch.sigmoid(self.A_log.exp().unsqueeze(-1) * step)
        beta = torch.sigmoid(self.b_proj(x).float())
        with torch.autocast(x.device.type, enabled=False):
            out = kda(q, k, v, decay, beta)
        out = self.o_norm(out) * torch.sigmoid(self.g_proj(x).float().view(heads))
        return self.o_proj(out.flatten(2).to(x.dtype))


class MLA(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        hidden, heads, eps = c["hidden_size"], c["num_attention_heads"], c["rms_norm_eps"]
        self.plain, self.shared, self.value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.q_a_proj, self.q_a_layernorm = projection(hidden, c["q_lora_rank"]), RMSNorm(c["q_lora_rank"], eps)
        self.q_b_proj = projection(c["q_lora_rank"], heads * (self.plain + self.shared))
        self.kv_a_proj_with_mqa = projection(hidden, c["kv_lora_rank"] + self.shared)
        self.kv_a_layernorm = RMSNorm(c["kv_lora_rank"], eps)
        self.kv_b_proj = projection(c["kv_lora_rank"], heads * (self.plain + self.value))
        self.g_proj, self.o_proj = projection(hidden, heads * self.value), projection(heads * self.value, hidden, 0.5)

    def forward(self, x):
        c = self.c
        heads = (*x.shape[:2], c["num_attention_heads"], -1)
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(heads).transpose(1, 2)
        rows, shared = self.kv_a_proj_with_mqa(x).split((c["kv_lora_rank"], self.shared), -1)
        both = self.kv_b_proj(self.kv_a_layernorm(rows)).view(heads).transpose(1, 2)
        shared = shared.unsqueeze(1).expand(-1, c["num_attention_heads"], -1, -1)
        k = torch.cat([both[..., :self.plain], shared.to(both.dtype)], -1)
        out = causal_attention(q, k, both[..., self.plain:], (self.plain + self.shared) ** -0.5)
        out = out.transpose(1, 2).flatten(2).float() * torch.sigmoid(self.g_proj(x).float())
        return self.o_proj(out.to(x.dtype))


class Dense(nn.Module):
    def __init__(self, c, inner):
        super().__init__()
        hidden = c["hidden_size"]
        self.gate_proj, self.up_proj = projection(hidden, inner), projection(hidden, inner)
        self.down_proj, self.act = projection(inner, hidden, 0.5), situ(c)

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x), self.up_proj(x)).to(x.dtype))


class Routed(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, latent, inner = c["hidden_size"], c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        self.scale = c["routed_scaling_factor"]
        self.gate = Router(hidden, c["num_experts"], c["num_experts_per_token"])
        self.experts = Experts(c["num_experts"], latent, inner, situ(c))
        self.routed_expert_down_proj = projection(hidden, latent)
        self.routed_expert_norm = RMSNorm(latent, c["rms_norm_eps"])
        self.routed_expert_up_proj = projection(latent, hidden, 0.5)
        self.shared_experts = Dense(c, c["num_shared_experts"] * inner)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        chosen, weights = self.gate(rows)
        routed = self.experts(self.routed_expert_down_proj(rows), chosen, weights * self.scale)
        routed = self.routed_expert_up_proj(self.routed_expert_norm(routed).to(x.dtype))
        return routed.view(x.shape) + self.shared_experts(x)


class Mix(nn.Module):
    """A weighted mean of the banked blocks and the current sum, with weights from their own contents."""

    def __init__(self, hidden, eps):
        super().__init__()
        self.norm = RMSNorm(hidden, eps)
        self.proj = nn.Parameter(torch.zeros(hidden))

    def forward(self, blocks, current):
        values = torch.stack([*blocks, current]).float()
        keys = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.norm.eps)
        weights = (keys * (self.norm.weight * self.proj)).sum(-1).softmax(0)
        return (weights.unsqueeze(-1) * values).sum(0)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.is_mla = index + 1 in c["full_attn_layers"]
        self.self_attn = MLA(c) if self.is_mla else KDA(c)
        self.mlp = Routed(c) if index else Dense(c, c["intermediate_size"])
        self.self_attention_res, self.mlp_res = Mix(hidden, eps), Mix(hidden, eps)


class K3(Model):
    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        self.norm, self.output_attn_res = RMSNorm(hidden, eps), Mix(hidden, eps)
        self.lm_head = projection(hidden, config["vocab_size"])

    def hidden(self, ids):
        current, blocks = self.embed_tokens(ids), []
        for i, layer in enumerate(self.layers):
            x = layer.self_attention_res(blocks, current) if blocks else current
            banked = i % self.config["attn_res_block_size"] == 0
            if banked:
                blocks.append(current)
            branch = layer.self_attn(layer.input_layernorm(x)).float()
            current = branch if banked else current + branch
            x = layer.mlp_res(blocks, current)
            current = current + layer.mlp(layer.post_attention_layernorm(x)).float()
        return self.norm(self.output_attn_res(blocks, current))


def new():
    return K3(CONFIG)
