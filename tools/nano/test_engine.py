#!/usr/bin/env python3
"""Do the trainer and the engine agree?  Needs PyTorch (1.13 is enough) and the built programs.

    make all
    tools/nano/test_engine.py

Logits: a random model, and the trained ones in models/, through PyTorch's float32 and through `moonshine logits` in
the reference arithmetic.  K3's chunks, which lose digits to exp(+-80), run in float64 there, and are compared with the
recurrence that they stand for.  Text: drawn conversations, whose ids must be those of `moonshine text render`, and whose
replies must come back from `moonshine text parse`.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import torch  # noqa: E402
except ImportError as e:
    sys.exit(f"test_engine.py: needs PyTorch: {e}")

import conversations  # noqa: E402
import model_k3  # noqa: E402
from layouts import LAYOUTS  # noqa: E402
from segments import REPLY  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAM = os.path.join(os.environ.get("MOONSHINE_BIN", os.path.join(ROOT, "build")), "moonshine")
# Of a logit: both sum in float32, in different orders.  K3 norms KDA's outputs, and makes errors of small ones large.
TOLERANCE = {"mimo": 1e-3, "k3": 5e-3}
CONVERSATIONS = 400


def model_folder(layout):
    return os.path.join(ROOT, "models", layout.name + "-nano")


def engine_logits(folder, ids):
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "logits")
        subprocess.run([PROGRAM, "logits", folder, "--ids-file", "-", "--out", out, "--precision", "reference",
                        "--static", "bf16", "--threads", "1"], input=" ".join(map(str, ids)), text=True, check=True,
                       stdout=subprocess.DEVNULL)
        with open(out, "rb") as f:
            return torch.frombuffer(bytearray(f.read()), dtype=torch.float32).reshape(len(ids), -1)


def engine_text(folder, verb, requests):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    out = subprocess.run([PROGRAM, "text", verb, folder], input=lines, text=True, check=True, stdout=subprocess.PIPE)
    return [json.loads(line) for line in out.stdout.splitlines()]


def drawn(layout, count):
    r = random.Random(20261130)
    return [conversations.draw(r, layout.bag, layout.options, r.randint(40, 60) if i % 40 == 39 else None)
            for i in range(count)]


def disturb(model):
    """Values that no part starts with, so that a part that is left out shows."""
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if p.ndim == 1:
                p += torch.randn_like(p) * (0.05 if "correction_bias" in name else 0.3)
            elif name == "embed_tokens.weight":
                p *= 0.7


def wide_kda(*values, kda=model_k3.kda):
    return kda(*(v.double() for v in values)).float()


def compare(test, layout, folder, ids):
    model = layout.read(folder).eval()
    with torch.no_grad(), unittest.mock.patch.object(model_k3, "kda", wide_kda):
        expected = model(torch.tensor([ids]))[0]
    found = engine_logits(folder, ids)
    worst = (found - expected).abs().max().item()
    print(f"{folder}: {len(ids)} tokens, largest difference {worst:.2e}, "
          f"spread of logits {expected.std().item():.2f}", file=sys.stderr)
    test.assertEqual(found.shape, expected.shape)
    test.assertLess(worst, TOLERANCE[layout.name])


class Logits(unittest.TestCase):
    def random_model(self, layout):
        torch.manual_seed(5)
        model = layout.new()
        disturb(model)
        tokenizer = layout.tokenizer(model_folder(layout))
        with tempfile.TemporaryDirectory() as folder:
            layout.write(model, folder, tokenizer)
            ids = random.Random(3).choices(range(2048), k=200)
            compare(self, layout, folder, ids)

    def trained_model(self, layout):
        folder = model_folder(layout)
        tokenizer = layout.tokenizer(folder)
        ids = [i for c in drawn(layout, 6) for i in tokenizer.encode(layout.render(c))[0]][:600]
        compare(self, layout, folder, ids)


class Chunks(unittest.TestCase):
    def test_kda_is_its_recurrence(self):
        torch.manual_seed(1)
        shape = 2, 50, 3, 8
        q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
        k = k / k.norm(dim=-1, keepdim=True)
        decay, beta = -5 * torch.rand(shape).double(), torch.rand(shape[:3]).double()
        state, rows = torch.zeros(2, 3, 8, 8).double(), []
        for t in range(shape[1]):
            key = k[:, t].unsqueeze(-1)
            state = decay[:, t].exp().unsqueeze(-1) * state
            change = v[:, t] - (state * key).sum(-2)
            state = state + beta[:, t, :, None, None] * key * change.unsqueeze(-2)
            rows.append((q[:, t].unsqueeze(-1) * state).sum(-2))
        found = model_k3.kda(q, k, v, decay, beta)
        self.assertLess((found - torch.stack(rows, 1)).abs().max().item(), 1e-9)


class Checkpoints(unittest.TestCase):
    def again(self, layout):
        """What was rounded once is not changed by being written again, but for the last bit of an FP8 scale."""
        folder = model_folder(layout)
        first = layout.read(folder)
        with tempfile.TemporaryDirectory() as place:
            layout.write(first, place, layout.tokenizer(folder))
            second = layout.read(place)
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as f, \
                    open(os.path.join(place, "config.json"), encoding="utf-8") as g:
                self.assertEqual(json.load(f), json.load(g))
        self.assertEqual(first.config, second.config)
        kept = second.state_dict()
        for name, tensor in first.state_dict().items():
            fp8 = layout.name == "mimo" and (name.endswith("qkv") or name.startswith("layers.0.mlp."))
            same = torch.allclose(tensor, kept[name], rtol=1e-6, atol=0) if fp8 else torch.equal(tensor, kept[name])
            self.assertTrue(same, name)


class Text(unittest.TestCase):
    def text(self, layout):
        folder = model_folder(layout)
        tokenizer = layout.tokenizer(folder)
        talks = drawn(layout, CONVERSATIONS)
        prompts = engine_text(folder, "render", [conversations.request(c) for c in talks])
        replies = []
        for talk, prompt in zip(talks, prompts):
            ids, parts = tokenizer.encode(layout.render(talk))
            at = len(prompt["ids"])
            self.assertEqual(ids[:at], prompt["ids"])
            self.assertTrue(all(part == REPLY for part in parts[at:]))
            self.assertNotEqual(parts[at - 1], REPLY)
            replies.append({"ids": ids[at:], "channel": "think" if talk["thinking"] else "response",
                            "tools": talk.get("tools", [])})
        for talk, read in zip(talks, engine_text(folder, "parse", replies)):
            said = talk["messages"][-1]
            self.assertFalse(read["recovered"], read)
            self.assertEqual(read["content"], said["content"])
            self.assertEqual(read["reasoning"] or "", said.get("reasoning_content", ""))
            calls = [(c["name"], json.loads(c["arguments"]) if isinstance(c["arguments"], str) else c["arguments"])
                     for c in read["tool_calls"]]
            self.assertEqual(calls, [(c["function"]["name"], c["function"]["arguments"])
                                     for c in said.get("tool_calls", ())])


for each in LAYOUTS.values():
    setattr(Logits, f"test_random_{each.name}", lambda self, layout=each: self.random_model(layout))
    setattr(Logits, f"test_trained_{each.name}", lambda self, layout=each: self.trained_model(layout))
    setattr(Checkpoints, f"test_{each.name}", lambda self, layout=each: self.again(layout))
    setattr(Text, f"test_{each.name}", lambda self, layout=each: self.text(layout))


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        sys.exit(f"test_engine.py: {PROGRAM}: expected the built program (make all, or MOONSHINE_BIN)")
    unittest.main()
