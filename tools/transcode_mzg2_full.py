#!/usr/bin/env python3
"""Builds or checks the compressed expert store of a checkpoint: a wrapper of `moonshine store`.

    transcode_mzg2_full.py --model DIR --out DIR [--jobs N] [--resume] [--verify-only]

Works in OUT.partial and publishes OUT at once; what was ended there goes on with --resume.  $MOONSHINE names the program
(default: build/moonshine beside this folder).
"""

import argparse
import os
import subprocess
import sys


def program():
    return os.environ.get("MOONSHINE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "moonshine")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True, help="checkpoint folder")
    p.add_argument("--out", required=True, help="folder of the store")
    p.add_argument("--jobs", type=int, help="layers worked on at a time")
    p.add_argument("--resume", action="store_true", help="go on with an unfinished build")
    p.add_argument("--verify-only", action="store_true", help="only check a finished store against the checkpoint")
    a = p.parse_args()
    jobs = ["--jobs", str(a.jobs)] if a.jobs is not None else []
    verify = [program(), "store", "verify", a.out, a.model] + jobs
    if a.verify_only:
        return subprocess.call(verify)
    partial = a.out.rstrip("/") + ".partial"
    if os.path.exists(partial) and not a.resume:
        print(f"{partial}: an unfinished build is there: give --resume to go on with it, or remove it", file=sys.stderr)
        return 2
    return subprocess.call([program(), "store", "build", a.model, a.out] + jobs) or subprocess.call(verify)


if __name__ == "__main__":
    sys.exit(main())
