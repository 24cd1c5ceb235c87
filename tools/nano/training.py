"""The training itself: steps in recorded graphs, what is saved on the way, and what came out of it."""
import math
import os
import random
import time

import torch

import conversations
from optimizers import Optimizer
from segments import REPLY

PEAK_RATE, WARM_UP, HOLD, LAST_RATE = 3e-3, 100, 0.15, 0.01
ROUND_FROM = 0.6  # from here on products see weights as they will be stored
BIAS_RATE, BIAS_RATE_LATE, BIAS_LATE_FROM = 1e-3, 1e-4, 0.8
EVALUATIONS = (("short", None, 600), ("40 to 60 records", (40, 60), 60), ("100 to 110 records", (100, 110), 40))


def learning_rate(part, step):
    """Full until HOLD, then a cosine to LAST_RATE of it."""
    warm = min(1.0, (step + 1) / WARM_UP)
    if part < HOLD:
        return PEAK_RATE * warm
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, (part - HOLD) / (1 - HOLD))))
    return PEAK_RATE * warm * max(LAST_RATE, fall)


class Trainer:
    def __init__(self, layout, device):
        self.device = device
        self.model = layout.new().to(device)
        self.rate = torch.tensor(0.0, device=device)
        self.bias_rate = torch.tensor(BIAS_RATE, device=device)
        self.optimizer = Optimizer(self.model, self.rate)
        self.routers = self.model.routers()
        self.forget_graphs()

    def forget_graphs(self):
        self.graphs, self.memory = {}, torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def work(self, ids, weights):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = self.model.loss(ids[:, :-1], ids[:, 1:], weights[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            for router in self.routers:
                router.balance(self.bias_rate)
        return loss.detach()

    def record(self, ids, weights):
        """One graph a shape; they share memory, since only one runs at a time."""
        ids, weights = ids.clone(), weights.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.optimizer.forget_gradients()
            self.work(ids, weights)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.forget_gradients()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.memory):
            loss = self.work(ids, weights)
        return graph, ids, weights, loss

    def step(self, ids, weights):
        ids = torch.from_numpy(ids).pin_memory().to(self.device, non_blocking=True)
        weights = torch.from_numpy(weights).pin_memory().to(self.device, non_blocking=True)
        shape = tuple(ids.shape)
        if shape not in self.graphs:
            self.graphs[shape] = self.record(ids, weights)
        graph, its_ids, its_weights, loss = self.graphs[shape]
        its_ids.copy_(ids)
        its_weights.copy_(weights)
        graph.replay()
        return loss.clone()

    def round_weights(self):
        self.model.round_weights(True)
        self.optimizer.forget_gradients()
        self.forget_graphs()


def save_state(model, path):
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, path + ".new")
    os.replace(path + ".new", path)


def train(layout, batches, args):
    start = time.monotonic()
    torch.manual_seed(args.seed)
    trainer = Trainer(layout, "cuda")
    model, losses, waited, tokens, step, saved, rounded = trainer.model, [], 0.0, 0, 0, start, False
    while (now := time.monotonic()) < start + args.seconds:
        part = (now - start) / args.seconds
        trainer.rate.fill_(learning_rate(part, step))
        trainer.bias_rate.fill_(BIAS_RATE if part < BIAS_LATE_FROM else BIAS_RATE_LATE)
        if part > ROUND_FROM and not rounded:
            rounded = True
            trainer.round_weights()
        ids, weights = batches.next()
        waited += time.monotonic() - now
        losses.append(trainer.step(ids, weights))
        step += 1
        tokens += ids.size
        if step % args.log_every == 0:
            loss = torch.stack(losses).mean().item()
            losses.clear()
            seconds = time.monotonic() - start
            print(f"{seconds:6.1f} s  step {step}  loss {loss:.4f}  rate {trainer.rate.item():.1e}  "
                  f"{tokens / 1e6:.1f} M tokens, {tokens / seconds / 1e6:.3f} M/s  waited {waited:.1f} s  "
                  f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB", flush=True)
        if now - saved > args.save_every:
            saved = now
            save_state(model, os.path.join(args.out, "state.pt"))
    save_state(model, os.path.join(args.out, "state.pt"))
    print(f"{time.monotonic() - start:6.1f} s  trained {step} steps, {tokens / 1e6:.1f} M tokens", flush=True)
    return model


@torch.no_grad()
def evaluate(layout, model, tokenizer, device, batch=20):
    """Fresh conversations of which every reply token is the likeliest one after the right ones before it."""
    model.eval()
    model.round_weights(True)
    r = random.Random(10 ** 9)
    for name, records, count in EVALUATIONS:
        rows = [tokenizer.encode(layout.render(conversations.draw(r, layout.bag, layout.options,
                                                                  records and r.randint(*records))))
                for _ in range(count)]
        rows.sort(key=lambda row: len(row[0]))
        right = wrong_tokens = reply_tokens = 0
        for at in range(0, count, batch):
            some = rows[at:at + batch]
            width = max(len(ids) for ids, _ in some)
            ids = torch.zeros(len(some), width, dtype=torch.long)
            trained = torch.zeros(len(some), width, dtype=torch.bool)
            for i, (row, parts) in enumerate(some):
                ids[i, :len(row)] = torch.tensor(row)
                trained[i, :len(row)] = torch.tensor(parts) == REPLY
            with torch.autocast(device, torch.bfloat16):
                said = model(ids.to(device)).argmax(-1).cpu()
            wrong = (said[:, :-1] != ids[:, 1:]) & trained[:, 1:]
            right += (~wrong.any(1)).sum().item()
            wrong_tokens += wrong.sum().item()
            reply_tokens += trained[:, 1:].sum().item()
        print(f"{name}: {right} of {count} conversations right, {wrong_tokens} of {reply_tokens} reply tokens wrong",
              flush=True)
