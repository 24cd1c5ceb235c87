"""Two optimizers as one: matrices inside the layers move along orthogonal directions, the rest by AdamW.

All state lies in tensors, so that a step can be recorded into a graph; the learning rate is a tensor too.
"""
import torch

BETA, DECAY = 0.95, 0.1
# An odd polynomial whose iteration drives singular values towards one; five rounds are enough for a direction.
COEFFICIENTS, ROUNDS = (3.4445, -4.7750, 2.0315), 5
STEP = 0.2  # makes the mean square of an orthogonal step what AdamW's usually is


def orthogonal(g):
    """About the nearest matrix with equal singular values, for a batch [..., rows, cols]."""
    x = g.to(torch.bfloat16)
    flip = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if flip else x
    x = x / (x.float().pow(2).sum((-1, -2), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        square = x @ x.transpose(-1, -2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.transpose(-1, -2) if flip else x


class Orthogonal:
    """Momentum, made orthogonal.  Parameters of one shape are handled together."""

    def __init__(self, params, lr):
        self.lr = lr
        shapes = {}
        for p in params:
            shapes.setdefault(tuple(p.shape), []).append(p)
        self.groups = [(group, torch.zeros(len(group), *shape, device=group[0].device))
                       for shape, group in shapes.items()]

    @torch.no_grad()
    def step(self):
        for params, momentum in self.groups:
            grads = torch.stack([p.grad for p in params])
            momentum.lerp_(grads, 1 - BETA)
            direction = orthogonal(grads.lerp_(momentum, BETA))
            size = STEP * max(params[0].shape[-2:]) ** 0.5
            for p, d in zip(params, direction):
                p.mul_(1 - self.lr * DECAY).sub_(self.lr * size * d)

    def state(self):
        return [m for _, m in self.groups]


class Optimizer:
    """Layer matrices: Orthogonal.  Embedding, head, router, norms and vectors: AdamW, which decays the head alone."""

    def __init__(self, model, lr):
        inner, outer, plain = [], [], []
        for name, p in model.named_parameters():
            if p.ndim >= 2 and name.startswith("layers.") and not name.endswith(("gate.weight", "conv1d")):
                inner.append(p)
            else:
                (outer if name == "lm_head.weight" else plain).append(p)
        self.inner = Orthogonal(inner, lr)
        cuda = inner[0].is_cuda
        more = {"fused": True, "capturable": True} if cuda else {}
        self.outer = torch.optim.AdamW([{"params": outer, "weight_decay": DECAY},
                                        {"params": plain, "weight_decay": 0.0}],
                                       lr=lr if cuda else float(lr), betas=(0.9, 0.95), **more)

    def step(self):
        self.inner.step()
        self.outer.step()

    def forget_gradients(self):
        self.outer.zero_grad(set_to_none=True)
        for params, _ in self.inner.groups:
            for p in params:
                p.grad = None

    def state(self):
        return {"inner": self.inner.state(), "outer": self.outer.state_dict()}
