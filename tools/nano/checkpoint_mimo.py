"""Writes a model as a MiMo V2.6 checkpoint, and reads one back."""
import json
import os

import torch

import quant
from model_mimo import CONFIG, Mimo
from safetensors_file import bf16, f32, fp8, read_all, u8, write_all, write_json
from tokenizer import MIMO_ADDED

EXPERTS_A_SHARD = 4


def put_fp8(out, name, weight, chunks=1):
    codes, scales = quant.fp8_encode(weight, chunks)
    out[name + ".weight"] = fp8(codes)
    out[name + ".weight_scale_inv"] = f32(scales)


def dense_tensors(model):
    out = {"model.embed_tokens.weight": bf16(model.embed_tokens.weight), "lm_head.weight": bf16(model.lm_head.weight),
           "model.norm.weight": bf16(model.norm.weight)}
    for i, layer in enumerate(model.layers):
        at, attention = f"model.layers.{i}.", layer.self_attn
        out[at + "input_layernorm.weight"] = bf16(layer.input_layernorm.weight)
        out[at + "post_attention_layernorm.weight"] = bf16(layer.post_attention_layernorm.weight)
        put_fp8(out, at + "self_attn.qkv_proj", attention.qkv, attention.chunks)
        out[at + "self_attn.o_proj.weight"] = bf16(attention.o_proj.weight)
        if attention.sliding:
            out[at + "self_attn.attention_sink_bias"] = bf16(attention.sink)
        if i:
            out[at + "mlp.gate.weight"] = bf16(layer.mlp.gate.weight)
            out[at + "mlp.gate.e_score_correction_bias"] = f32(layer.mlp.gate.e_score_correction_bias)
        else:
            for part in ("gate_proj", "up_proj", "down_proj"):
                put_fp8(out, f"{at}mlp.{part}", getattr(layer.mlp, part).weight)
    return out


def expert_tensors(model, first):
    """A shard's experts of every layer; the six tensors of one lie together."""
    out = {}
    for i, layer in enumerate(model.layers):
        if i == 0:
            continue
        experts = layer.mlp.experts
        for e in range(first, min(first + EXPERTS_A_SHARD, experts.down.shape[0])):
            gate, up = experts.gate_up[e].chunk(2, 0)
            for part, weight in (("down_proj", experts.down[e]), ("gate_proj", gate), ("up_proj", up)):
                packed, scales = quant.mxfp4_encode(weight)
                name = f"model.layers.{i}.mlp.experts.{e}.{part}"
                out[name + ".weight"] = u8(packed)
                out[name + ".weight_scale"] = u8(scales)
    return out


def config_of(c):
    layers = len(c["hybrid_layer_pattern"])
    end = c["added_from"] + MIMO_ADDED.index("<|im_end|>")
    pad = c["added_from"] + MIMO_ADDED.index("<|endoftext|>")
    same = ("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads",
            "num_key_value_heads", "swa_num_key_value_heads", "head_dim", "v_head_dim", "partial_rotary_factor",
            "rope_theta", "swa_rope_theta", "attention_value_scale", "sliding_window", "hybrid_layer_pattern",
            "n_routed_experts", "num_experts_per_tok", "layernorm_epsilon", "max_position_embeddings")
    return {
        "architectures": ["MiMoV2ForCausalLM"], "model_type": "mimo_v2", "torch_dtype": "bfloat16",
        **{k: c[k] for k in same},
        "num_hidden_layers": layers, "moe_layer_freq": [0] + [1] * (layers - 1),
        "swa_num_attention_heads": c["num_attention_heads"], "swa_head_dim": c["head_dim"],
        "swa_v_head_dim": c["v_head_dim"], "sliding_window_size": c["sliding_window"],
        "attention_chunk_size": c["sliding_window"], "attention_projection_layout": "fused_qkv",
        "attention_bias": False, "attention_dropout": 0.0, "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True, "hidden_act": "silu", "hybrid_block_size": None, "n_shared_experts": None,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": None,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_router_dtype": "bfloat16",
        "num_nextn_predict_layers": 0, "tie_word_embeddings": False, "use_cache": True, "bos_token_id": None,
        "eos_token_id": end, "pad_token_id": pad,
        "quantization_config": {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "store_dtype": "mxfp4", "mxfp4_block_size": 32,
            "ignored_layers": [f"model.layers.{i}.self_attn.o_proj" for i in range(layers)]},
    }


def write(model, folder, tokenizer):
    """Everything but tokenizer.json.  Returns the bytes of weights."""
    c = {**model.config, "added_from": tokenizer.control["<|endoftext|>"]}
    shards = {}
    for first in range(0, c["n_routed_experts"], EXPERTS_A_SHARD):
        name = f"model_pp0_ep{first // EXPERTS_A_SHARD}_shard0.safetensors"
        shards[name] = {**({} if first else dense_tensors(model)), **expert_tensors(model, first)}
    total = write_all(folder, shards, {"tp_size": c["tp_size"]})
    config = config_of(c)
    write_json(os.path.join(folder, "config.json"), config)
    stops = [tokenizer.control[n] for n in ("<|endoftext|>", "<|im_end|>", "<|mimo_audio_eod|>")]
    write_json(os.path.join(folder, "generation_config.json"), {"do_sample": False, "eos_token_id": stops})
    return total


def get_fp8(tensors, name, chunks=1):
    return quant.fp8_decode(tensors[name + ".weight"], tensors[name + ".weight_scale_inv"], chunks)


def get_expert(tensors, name):
    return quant.mxfp4_decode(tensors[name + ".weight"], tensors[name + ".weight_scale"])


def layer_state(tensors, i, chunks, experts):
    """Parameters of a layer by their names in model_mimo.Layer."""
    at = f"model.layers.{i}."
    out = {n: tensors[at + n] for n in ("input_layernorm.weight", "post_attention_layernorm.weight",
                                        "self_attn.o_proj.weight")}
    out["self_attn.qkv"] = get_fp8(tensors, at + "self_attn.qkv_proj", chunks)
    if at + "self_attn.attention_sink_bias" in tensors:
        out["self_attn.sink"] = tensors[at + "self_attn.attention_sink_bias"]
    if i == 0:
        for part in ("gate_proj", "up_proj", "down_proj"):
            out[f"mlp.{part}.weight"] = get_fp8(tensors, f"{at}mlp.{part}")
        return out
    for n in ("mlp.gate.weight", "mlp.gate.e_score_correction_bias"):
        out[n] = tensors[at + n]
    parts = {p: torch.stack([get_expert(tensors, f"{at}mlp.experts.{e}.{p}_proj") for e in range(experts)])
             for p in ("gate", "up", "down")}
    out["mlp.experts.gate_up"] = torch.cat([parts["gate"], parts["up"]], 1)
    out["mlp.experts.down"] = parts["down"]
    return out


def read(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        stored = json.load(f)
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        chunks = json.load(f)["metadata"]["tp_size"]
    config = {**{k: stored[k] for k in CONFIG if k != "tp_size"}, "tp_size": chunks}
    tensors = read_all(folder)
    state = {"embed_tokens.weight": tensors["model.embed_tokens.weight"], "norm.weight": tensors["model.norm.weight"],
             "lm_head.weight": tensors["lm_head.weight"]}
    for i in range(stored["num_hidden_layers"]):
        for name, tensor in layer_state(tensors, i, chunks, stored["n_routed_experts"]).items():
            state[f"layers.{i}.{name}"] = tensor
    model = Mimo(config)
    model.load_state_dict(state)
    return model
