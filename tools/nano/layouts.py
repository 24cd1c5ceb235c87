"""The layouts that can be trained: what the trainer and the tests ask of each."""
import os

import chat_k3
import chat_mimo
import checkpoint_k3
import checkpoint_mimo
import conversations
import model_k3
import model_mimo
import pretoken
import questions
import tokenizer


class K3:
    name = "k3"
    options = conversations.K3_OPTIONS
    bag = questions.bag("Kimi K3")
    tokens = 3840  # what the tokenizer learns, control tokens not counted
    tokenizer_files = ("tiktoken.model", "tokenizer_config.json")
    pattern = staticmethod(pretoken.cased)
    render = staticmethod(chat_k3.render)
    read = staticmethod(checkpoint_k3.read)
    write = staticmethod(checkpoint_k3.write)

    @staticmethod
    def new():
        return model_k3.K3(model_k3.CONFIG)

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
    read = staticmethod(checkpoint_mimo.read)
    write = staticmethod(checkpoint_mimo.write)

    @staticmethod
    def new():
        return model_mimo.Mimo(model_mimo.CONFIG)

    @staticmethod
    def tokenizer(folder):
        return tokenizer.read_json(os.path.join(folder, "tokenizer.json"))

    @staticmethod
    def write_tokenizer(folder, merges):
        tokenizer.write_json(os.path.join(folder, "tokenizer.json"), merges)


LAYOUTS = {layout.name: layout for layout in (K3, Mimo)}
