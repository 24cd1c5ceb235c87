#!/usr/bin/env python3
"""Trains a nano checkpoint on one GPU and writes it in its official layout.

    tools/nano/train.py --layout mimo --tokenizer models/mimo-nano --seconds 500 OUT

OUT gets the checkpoint, and every --save-every seconds a state that --export turns into one, so that a run that was
cut is not lost.
"""
import os
import shutil

import command
from layouts import LAYOUTS


def parse():
    parser = command.Parser(description="Trains a nano checkpoint.")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), required=True)
    parser.add_argument("--tokenizer", required=True, metavar="FOLDER", help="with the layout's tokenizer files")
    parser.add_argument("--seconds", type=command.seconds, default=500)
    parser.add_argument("--tokens", type=command.whole(1), default=32768, help="of a batch")
    parser.add_argument("--processes", type=command.whole(1), default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seed", type=command.whole(0), default=0)
    parser.add_argument("--log-every", type=command.whole(1), default=100, metavar="STEPS")
    parser.add_argument("--save-every", type=command.seconds, default=60, metavar="SECONDS")
    parser.add_argument("--export", metavar="STATE", help="only write the checkpoint of a saved state")
    parser.add_argument("out")
    return parser, parser.parse_args()


def check(parser, args):
    """The tokenizer; nothing is written before all of this holds."""
    tokenizer = command.tokenizer(parser, LAYOUTS[args.layout], args.tokenizer)
    command.check_out(parser, args.out)
    if os.path.isdir(args.out) and os.path.samefile(args.out, args.tokenizer):
        parser.error(f"{args.out}: expected another folder than --tokenizer, whose files are copied to it")
    if args.export and not os.path.isfile(args.export):
        parser.error(f"--export {args.export}: expected a file that train.py saved")
    command.check_pytorch(parser, gpu=not args.export)
    return tokenizer


def exported(parser, layout, path):
    """A model with the weights of a saved state."""
    import torch
    model = layout.new()
    try:
        model.load_state_dict(torch.load(path, map_location="cpu"))
    except Exception as e:  # whatever a damaged or foreign file makes of it
        parser.error(f"--export {path}: expected a state of layout {layout.name}: {command.first_line(e)}")
    return model


def trained(layout, args):
    import training
    from batches import Batches
    batches = Batches(layout, args.tokenizer, args.tokens, args.processes, seed=1 + 1000000 * args.seed)
    model = training.train(layout, batches, args)
    batches.close()
    return model


def main():
    parser, args = parse()
    tokenizer = check(parser, args)
    layout = LAYOUTS[args.layout]
    model = exported(parser, layout, args.export) if args.export else None
    os.makedirs(args.out, exist_ok=True)
    model = model or trained(layout, args)
    print(f"{layout.write(model, args.out, tokenizer)} bytes of weights in {args.out}", flush=True)
    for file in layout.tokenizer_files:
        shutil.copy(os.path.join(args.tokenizer, file), args.out)
    if not args.export:
        import training
        training.evaluate(layout, model, tokenizer, "cuda")


if __name__ == "__main__":
    main()
