#!/usr/bin/env python3
"""Do the trainer and the engine agree?  Needs PyTorch (1.13 is enough) and the built programs.

    make all
    tools/nano/test_engine.py

Logits: a random model, and the trained ones in models/, through PyTorch's float32 and through `moonshine logits` in
the reference arithmetic.  Text: drawn conversations, whose ids must be those of `moonshine text render`, and whose
replies must come back from `moonshine text parse`.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch  # noqa: E402

import conversations  # noqa: E402
from layouts import LAYOUTS  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAM = os.path.join(os.environ.get("MOONSHINE_BIN", os.path.join(ROOT, "build")), "moonshine")
TOLERANCE = 1e-3  # of a logit: both sum in float32, in different orders
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


def compare(test, model, folder, ids):
    model.eval()
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0]
    found = engine_logits(folder, ids)
    worst = (found - expected).abs().max().item()
    print(f"{folder}: {len(ids)} tokens, largest difference {worst:.2e}, "
          f"spread of logits {expected.std().item():.2f}", file=sys.stderr)
    test.assertEqual(found.shape, expected.shape)
    test.assertLess(worst, TOLERANCE)


class Logits(unittest.TestCase):
    def random_model(self, layout):
        torch.manual_seed(5)
        model = layout.new()
        disturb(model)
        tokenizer = layout.tokenizer(model_folder(layout))
        with tempfile.TemporaryDirectory() as folder:
            layout.write(model, folder, tokenizer)
            ids = random.Random(3).choices(range(2048), k=200)
            compare(self, layout.read(folder), folder, ids)

    def trained_model(self, layout):
        folder = model_folder(layout)
        tokenizer = layout.tokenizer(folder)
        ids = [i for c in drawn(layout, 6) for i in tokenizer.encode(layout.render(c))[0]][:600]
        compare(self, layout.read(folder), folder, ids)


class Text(unittest.TestCase):
    def text(self, layout):
        folder = model_folder(layout)
        tokenizer = layout.tokenizer(folder)
        talks = drawn(layout, CONVERSATIONS)
        prompts = engine_text(folder, "render", [conversations.request(c) for c in talks])
        replies = []
        for talk, prompt in zip(talks, prompts):
            ids, trained = tokenizer.encode(layout.render(talk))
            at = len(prompt["ids"])
            self.assertEqual(ids[:at], prompt["ids"])
            self.assertTrue(all(trained[at:]))
            self.assertFalse(trained[at - 1])
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
    setattr(Text, f"test_{each.name}", lambda self, layout=each: self.text(layout))


if __name__ == "__main__":
    unittest.main()
