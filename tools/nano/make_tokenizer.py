#!/usr/bin/env python3
"""Learns a layout's tokenizer from drawn conversations and the product's own documents.

    tools/nano/make_tokenizer.py --layout mimo models/mimo-nano
"""
import glob
import os
import random

import bpe
import command
import conversations
from layouts import LAYOUTS

SEED, CONVERSATIONS = 7, 12000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def texts(layout):
    r = random.Random(SEED)
    for _ in range(CONVERSATIONS):
        segments = layout.render(conversations.draw(r, layout.bag, layout.options))
        yield from (text for text, control, _ in segments if not control)
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))):
        with open(path, encoding="utf-8") as f:
            yield from f.read().split("\n\n")


def main():
    parser = command.Parser(description="Learns a layout's tokenizer.")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), required=True)
    parser.add_argument("folder")
    args = parser.parse_args()
    command.check_out(parser, args.folder)
    layout = LAYOUTS[args.layout]
    os.makedirs(args.folder, exist_ok=True)
    merges = bpe.learn(texts(layout), layout.pattern(), layout.tokens)
    layout.write_tokenizer(args.folder, merges)
    print(f"{len(bpe.vocabulary(merges))} tokens, {len(merges)} merges")


if __name__ == "__main__":
    main()
