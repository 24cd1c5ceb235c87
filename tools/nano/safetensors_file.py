"""Checkpoint files: SafeTensors shards and their index."""
import json
import os
import struct

import torch


def bf16(t):
    return "BF16", t.detach().to(torch.bfloat16)


def f32(t):
    return "F32", t.detach().float()


def u8(t):
    return "U8", t


def fp8(t):
    return "F8_E4M3", t


def data_of(tensor):
    t = tensor.cpu().contiguous()
    return (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()


def write_shard(path, tensors):
    """`tensors`: name -> (dtype name, tensor), written in this order.  Returns the bytes of data."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (dtype, tensor) in tensors.items():
        blobs.append(data_of(tensor))
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(blobs)
    return at


def write_all(folder, shards, metadata):
    """`shards`: file name -> tensors; writes them and the index."""
    places, total = {}, 0
    for name, tensors in shards.items():
        total += write_shard(os.path.join(folder, name), tensors)
        places.update(dict.fromkeys(tensors, name))
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total, **metadata}, "weight_map": dict(sorted(places.items()))}, indent=0)
    return total


def write_json(path, doc, indent=1):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(doc, f, indent=indent, ensure_ascii=False)
        f.write("\n")


DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8, "F8_E4M3": torch.uint8}


def read_all(folder):
    """Every tensor of a checkpoint by name; FP8 as its bytes."""
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    tensors = {}
    for file in files:
        with open(os.path.join(folder, file), "rb") as f:
            size, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(size))
            data = f.read()
        header.pop("__metadata__", None)
        for name, t in header.items():
            begin, end = t["data_offsets"]
            raw = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[t["dtype"]])
            tensors[name] = raw.reshape(t["shape"])
    return tensors
