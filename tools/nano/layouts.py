"""The layouts that can be trained: what the trainer and the tests ask of each.

Models and checkpoints need PyTorch, which is imported when one is asked for: the rest does without.
"""
import importlib
import os

import chat_k3
import chat_mimo
import conversations
import pretoken
import questions
import tokenizer


def late(module, name):
    return staticmethod(lambda *args: getattr(importlib.import_module(module), name)(*args))


class K3:
    name = "k3"
    options = conversations.K3_OPTIONS
    bag = questions.bag("Kimi K3")
    tokens = 3840  # what the tokenizer learns, control tokens not counted
    tokenizer_files = ("tiktoken.model", "tokenizer_config.json")
    pattern = staticmethod(pretoken.cased)
    render = staticmethod(chat_k3.render)
    new = late("model_k3", "new")
    read = late("checkpoint_k3", "read")
    write = late("checkpoint_k3", "write")

    @staticmethod
    def tokenizer(folder):
        return tokenizer.read_ranks(os.path.join(folder, "tiktoken.model"))

    @staticmethod
    def write_tokenizer(folder, merges):
        tokenizer.write_ranks(os.path.join(folder, "tiktoken.model"), merges)


class Mimo:
    name = "mimo"
    options = conversations.MIMO_OPTIONS
    bag = questions.bag("MiMo V2.6 Flash")
    tokens = 2048
    tokenizer_files = ("tokenizer.json",)
    pattern = staticmethod(pretoken.plain)
    render = staticmethod(chat_mimo.render)
    new = late("model_mimo", "new")
    read = late("checkpoint_mimo", "read")
    write = late("checkpoint_mimo", "write")

    @staticmethod
    def tokenizer(folder):
        return tokenizer.read_json(os.path.join(folder, "tokenizer.json"))

    @staticmethod
    def write_tokenizer(folder, merges):
        tokenizer.write_json(os.path.join(folder, "tokenizer.json"), merges)


LAYOUTS = {layout.name: layout for layout in (K3, Mimo)}
