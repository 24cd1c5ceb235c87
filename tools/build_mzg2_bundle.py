#!/usr/bin/env python3
"""Makes or checks a standalone bundle: a wrapper of `moonshine bundle`.

    build_mzg2_bundle.py build --model DIR --out DIR [--jobs N] [--reuse-mzg2 STORE]
    build_mzg2_bundle.py verify BUNDLE [--jobs N]

$MOONSHINE names the program (default: build/moonshine beside this folder).
"""

import argparse
import os
import subprocess
import sys


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = p.add_subparsers(dest="command", required=True)
    b = commands.add_parser("build", help="make a bundle of a checkpoint")
    b.add_argument("--model", required=True, help="checkpoint folder")
    b.add_argument("--out", required=True, help="folder of the bundle")
    b.add_argument("--reuse-mzg2", metavar="STORE", help="link the files of this finished store")
    v = commands.add_parser("verify", help="check every file and tile of a bundle")
    v.add_argument("bundle")
    for c in (b, v):
        c.add_argument("--jobs", type=int, help="layers worked on at a time")
    a = p.parse_args()
    root = os.path.dirname(os.path.abspath(__file__))
    call = [os.environ.get("MOONSHINE") or os.path.join(root, "..", "build", "moonshine"), "bundle", a.command]
    call += [a.model, a.out] if a.command == "build" else [a.bundle]
    if a.jobs is not None:
        call += ["--jobs", str(a.jobs)]
    if a.command == "build" and a.reuse_mzg2:
        call += ["--reuse-mzg2", a.reuse_mzg2]
    return subprocess.call(call)


if __name__ == "__main__":
    sys.exit(main())
