"""The layouts that can be trained: what the trainer and the tests ask of each."""
import os

import chat_mimo
import checkpoint_mimo
import conversations
import model_mimo
import pretoken
import questions
import tokenizer


class Mimo:
    name = "mimo"
    options = conversations.MIMO_OPTIONS
    bag = questions.bag("MiMo V2.6 Flash")
    tokenizer_file = "tokenizer.json"
    tokens = 2048
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


LAYOUTS = {layout.name: layout for layout in (Mimo,)}
