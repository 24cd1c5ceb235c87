"""Parts that both model families have: norms, projections, routed experts, the loss.

On a GPU with a current PyTorch the parts use its fused attention and grouped products; elsewhere (tests, the CPU) the
same sums are written out.
"""
import torch
import torch.nn.functional as F
from torch import nn

import quant


def fused(x):
    return x.is_cuda and hasattr(torch, "_grouped_mm")


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        if fused(x):
            return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).to(x.dtype)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def projection(inputs, outputs, gain=1.0):
    m = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(m.weight, std=gain * inputs ** -0.5)
    return m


def matrices(count, rows, cols, gain=1.0):
    return nn.Parameter(torch.randn(count, rows, cols) * gain * cols ** -0.5)


def causal_attention(q, k, v, scale):
    """[batch, heads, tokens, width]; k and v may have fewer heads, and v another width."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if fused(q):
        width = v.shape[-1]
        v = F.pad(v, (0, q.shape[-1] - width))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[..., :width]
    scores = (q @ k.transpose(-1, -2)).float() * scale
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~visible, -torch.inf).softmax(-1).to(v.dtype) @ v


class Permute(torch.autograd.Function):
    """Rows in another order, and back on the way back: no sums, so no order of sums."""

    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.save_for_backward(inverse, order)
        return x[order]

    @staticmethod
    def backward(ctx, grad):
        inverse, _ = ctx.saved_tensors
        return grad[inverse], None, None


class Router(nn.Module):
    """Sigmoid scores; a bias that is moved by the load, never by a gradient, takes part in the choice alone."""

    def __init__(self, hidden, experts, top_k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden) * hidden ** -0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))
        self.top_k = top_k
        self.load = None

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(F.linear(x.float(), self.weight.float()))
        chosen = torch.topk(scores + self.e_score_correction_bias, self.top_k, -1)[1]
        if self.training:
            with torch.no_grad():
                count = torch.zeros_like(scores).scatter_(-1, chosen, 1.0).mean(0)
                self.load = count * scores.shape[-1] / self.top_k
        weights = scores.gather(-1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20)

    def balance(self, rate):
        self.e_score_correction_bias += rate * torch.sign(1 - self.load)


class Experts(nn.Module):
    """`gate_up` holds gate and up of every expert below each other; `act(gate, up)` joins their outputs."""

    def __init__(self, count, width, inner, act):
        super().__init__()
        self.gate_up = matrices(count, 2 * inner, width)
        self.down = matrices(count, width, inner, 0.5)
        self.act = act
        self.rounded = False

    def weights(self):
        if not self.rounded:
            return self.gate_up, self.down
        return quant.mxfp4_round(self.gate_up), quant.mxfp4_round(self.down)

    def forward(self, x, chosen, weights):
        """x [tokens, width], chosen and weights [tokens, top_k]"""
        gate_up, down = self.weights()
        if fused(x):
            return self.grouped(x, chosen, weights, gate_up, down)
        out = torch.zeros_like(x, dtype=torch.float32)
        for e in range(gate_up.shape[0]):
            token, place = (chosen == e).nonzero(as_tuple=True)
            if len(token):
                gate, up = F.linear(x[token], gate_up[e]).chunk(2, -1)
                y = F.linear(self.act(gate, up), down[e])
                out.index_add_(0, token, y.float() * weights[token, place].unsqueeze(-1))
        return out

    def grouped(self, x, chosen, weights, gate_up, down):
        tokens, top_k = chosen.shape
        flat = chosen.reshape(-1)
        expert, order = torch.sort(flat, stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        bounds = torch.arange(gate_up.shape[0], device=x.device)
        ends = torch.searchsorted(expert, bounds, right=True).to(torch.int32)
        rows = x.to(torch.bfloat16).unsqueeze(1).expand(tokens, top_k, -1).reshape(tokens * top_k, -1)
        rows = Permute.apply(rows, order, inverse)
        hidden = torch._grouped_mm(rows, gate_up.to(torch.bfloat16).transpose(-1, -2), offs=ends)
        inner = self.act(*hidden.chunk(2, -1)) * Permute.apply(weights.reshape(-1, 1), order, inverse)
        inner = inner.to(torch.bfloat16)
        out = torch._grouped_mm(inner, down.to(torch.bfloat16).transpose(-1, -2), offs=ends)
        out = Permute.apply(out, inverse, order).view(tokens, top_k, -1)
        return out.sum(1, dtype=torch.float32)


class Model(nn.Module):
    """What the trainer needs of a model: `hidden(ids)`, a head, and routers."""

    def forward(self, ids):
        return self.lm_head(self.hidden(ids)).float()

    def loss(self, ids, targets, weights):
        logits = self(ids)
        each = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")
        return (each * weights.reshape(-1)).sum() / weights.sum().clamp(min=1)

    def routers(self):
        return [m for m in self.modules() if isinstance(m, Router)]

    def round_weights(self, on):
        """Whether products see weights as the checkpoint will store them."""
        for m in self.modules():
            if hasattr(m, "rounded"):
                m.rounded = on
