"""The tokenizer files of both layouts: tokenizer.json (merges) and tiktoken.model (ranks)."""
import base64
import json
import os
import unicodedata

import bpe
import pretoken

# What the engine expects to find in a tokenizer.json, and what \p{..} of pretoken.plain stands for.
PLAIN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
                 r"\s+(?!\S)|\s+")
MIMO_ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call>
</tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
</tool_response> <think> </think> <|audio_pad|> <|mimo_video_start|> <|mimo_video_end|> <|mimo_audio_eod|>
<|mimo_audio_start|> <|mimo_audio_end|>""".split()
# Offsets from the number of ranks; the other control ids up to 255 have no name.
K3_CONTROL = {"[BOS]": 0, "[EOS]": 1, "<|end_of_msg|>": 2, "<|open|>": 3, "<|close|>": 4, "<|sep|>": 5,
              "[start_header_id]": 6, "[end_header_id]": 7, "[EOT]": 9, "<|media_begin|>": 18,
              "<|media_content|>": 19, "<|media_end|>": 20, "<|media_pad|>": 21, "[UNK]": 254, "[PAD]": 255}
K3_CONTROLS = 256


class Tokenizer:
    """`control` maps names to ids; text never encodes to one."""

    def __init__(self, encoder, control):
        self.encoder, self.control = encoder, control

    def encode(self, segments):
        """Ids, and the part that each belongs to (segments.py)."""
        ids, parts = [], []
        for text, is_control, part in segments:
            some = [self.control[text]] if is_control else self.encoder.encode(text)
            ids += some
            parts += [part] * len(some)
        return ids, parts


# ---------------------------------------------------------------------------------------------- tokenizer.json


def alphabet():
    """A printable letter for every byte."""
    printing = set(b for b in range(256) if 0x21 <= b <= 0x7E or (b >= 0xA1 and b != 0xAD))
    rest = iter(range(0x100, 0x200))
    return {b: chr(b) if b in printing else chr(next(rest)) for b in range(256)}


def spell(token, letters):
    return "".join(letters[b] for b in token)


def write_json(path, merges):
    letters = alphabet()
    tokens = bpe.vocabulary(merges)
    added = [{"id": len(tokens) + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": name.startswith("<|")} for i, name in enumerate(MIMO_ADDED)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PLAIN_PATTERN}, "behavior": "Isolated", "invert": False}
    doc = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
           "normalizer": {"type": "NFC"},
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
           "post_processor": level, "decoder": level,
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                     "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                     "vocab": {spell(t, letters): i for i, t in enumerate(tokens)},
                     "merges": [f"{spell(a, letters)} {spell(b, letters)}" for a, b in merges]}}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(doc, f, ensure_ascii=False, indent=0)
        f.write("\n")


def read_json(path):
    with open(path, encoding="utf-8") as f:
        doc = json.load(f)
    byte_of = {letter: b for b, letter in alphabet().items()}

    def unspell(text):
        return bytes(byte_of[c] for c in text)

    ids = {unspell(t): i for t, i in doc["model"]["vocab"].items()}
    order = {tuple(unspell(side) for side in m.split(" ")): i for i, m in enumerate(doc["model"]["merges"])}
    encoder = bpe.Encoder(ids, lambda a, b: order.get((a, b)), pretoken.plain(),
                          lambda text: unicodedata.normalize("NFC", text))
    return Tokenizer(encoder, {a["content"]: a["id"] for a in doc["added_tokens"]})


# ---------------------------------------------------------------------------------------------- tiktoken.model


def write_ranks(path, merges):
    with open(path, "w", encoding="ascii") as f:
        for i, token in enumerate(bpe.vocabulary(merges)):
            f.write(f"{base64.b64encode(token).decode()} {i}\n")
    base = len(bpe.vocabulary(merges))
    names = {str(base + at): {"content": name, "special": True} for name, at in K3_CONTROL.items()}
    doc = {"added_tokens_decoder": names, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]",
           "unk_token": "[UNK]", "tokenizer_class": "TikTokenTokenizer", "model_max_length": 131072}
    with open(os.path.join(os.path.dirname(path), "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(doc, f, indent=1)


def read_ranks(path):
    with open(path, encoding="ascii") as f:
        rows = [line.split() for line in f if line.strip()]
    ids = {base64.b64decode(token): int(rank) for token, rank in rows}
    encoder = bpe.Encoder(ids, lambda a, b: ids.get(a + b), pretoken.cased())
    return Tokenizer(encoder, {name: len(ids) + at for name, at in K3_CONTROL.items()})
