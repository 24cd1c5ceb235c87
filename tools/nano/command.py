"""Command lines of the programs here: what is wrong is one line and exit status 2, before anything is written."""
import argparse
import math
import os


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def whole(least):
    """The type of an argument: digits, for a number of at least `least`."""
    def read(text):
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, found {text!r}")
        return int(text)
    return read


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return value


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def tokenizer(parser, layout, folder):
    """The layout's tokenizer, out of the files of a folder."""
    for name in layout.tokenizer_files:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            parser.error(f"--tokenizer: {path}: expected a file that make_tokenizer.py writes for layout {layout.name}")
    try:
        return layout.tokenizer(folder)
    except Exception as e:  # whatever a damaged file makes of it
        parser.error(f"--tokenizer {folder}: expected a tokenizer of layout {layout.name}: "
                     f"{type(e).__name__}: {first_line(e)}")


def check_out(parser, path):
    """A folder to write to, or a place where one can be made."""
    there = os.path.abspath(path)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        parser.error(f"{path}: expected a folder, but {there} is none")
    if not os.access(there, os.W_OK | os.X_OK):
        parser.error(f"{path}: {there} may not be written to")


def check_pytorch(parser, gpu):
    """PyTorch, and where a GPU is to be used NumPy as well."""
    try:
        import torch
        if gpu:
            import numpy  # noqa: F401
    except ImportError as e:
        parser.error(f"needs PyTorch, and NumPy for training: {first_line(e)}")
    if gpu and not torch.cuda.is_available():
        parser.error("training needs a GPU that PyTorch can use; --export does not")
