"""Writes a model as a Kimi K3 checkpoint, and reads one back."""
import json
import os

import torch

import quant
from model_k3 import CONFIG, K3
from safetensors_file import bf16, f32, read_all, u8, write_all, write_json
from tokenizer import K3_CONTROL, K3_CONTROLS

PREFIX = "language_model.model."
DENSE = ("gate_proj", "up_proj", "down_proj")
MLA = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "g_proj", "o_proj")
KDA = ("q_proj", "k_proj", "v_proj", "f_a_proj", "f_b_proj", "b_proj", "g_proj", "o_proj")
CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")
LATENT = ("routed_expert_down_proj", "routed_expert_norm", "routed_expert_up_proj")
KDA_FIELDS = ("head_dim", "short_conv_kernel_size", "gate_lower_bound", "full_attn_layers")


def plain_tensors(c, layer):
    """(stored name, name in model_k3.Layer, shape as stored) of what is BF16."""
    vector = (1, c["hidden_size"])
    for n in ("input_layernorm", "post_attention_layernorm"):
        yield f"{n}.weight", f"{n}.weight", None
    for n in ("self_attention_res", "mlp_res"):
        yield f"{n}_norm.weight", f"{n}.norm.weight", None
        yield f"{n}_proj.weight", f"{n}.proj", vector
    attention = MLA if layer + 1 in c["full_attn_layers"] else KDA
    for n in attention:
        yield f"self_attn.{n}.weight", f"self_attn.{n}.weight", None
    if layer == 0:
        for n in DENSE:
            yield f"mlp.{n}.weight", f"mlp.{n}.weight", None
        return
    for n in ("gate", *LATENT, *(f"shared_experts.{d}" for d in DENSE)):
        yield f"block_sparse_moe.{n}.weight", f"mlp.{n}.weight", None


def put_kda(out, at, attention, c):
    for n in CONVOLUTIONS:
        out[f"{at}{n}.weight"] = f32(getattr(attention, n).unsqueeze(1))
    padded = torch.zeros(max(c["head_dim"], c["num_attention_heads"]))
    padded[:c["num_attention_heads"]] = attention.A_log.detach().cpu()
    out[at + "A_log"] = f32(padded)
    out[at + "dt_bias"] = f32(attention.dt_bias)
    out[at + "o_norm.weight"] = f32(attention.o_norm.weight)


def put_experts(out, at, routed):
    out[at + "gate.e_score_correction_bias"] = f32(routed.gate.e_score_correction_bias)
    for e in range(routed.experts.down.shape[0]):
        gate, up = routed.experts.gate_up[e].chunk(2, 0)
        for n, weight in (("w1", gate), ("w2", routed.experts.down[e]), ("w3", up)):
            packed, scales = quant.mxfp4_encode(weight)
            out[f"{at}experts.{e}.{n}.weight_packed"] = u8(packed)
            out[f"{at}experts.{e}.{n}.weight_scale"] = u8(scales)


def layer_tensors(model, i):
    c, layer, at = model.config, model.layers[i], f"{PREFIX}layers.{i}."
    state, out = dict(layer.named_parameters()), {}
    for stored, name, shape in plain_tensors(c, i):
        out[at + stored] = bf16(state[name].reshape(shape) if shape else state[name])
    if not layer.is_mla:
        put_kda(out, at + "self_attn.", layer.self_attn, c)
    if i:
        put_experts(out, at + "block_sparse_moe.", layer.mlp)
    return dict(sorted(out.items(), key=lambda item: (item[1][0] == "U8", item[0])))


def outer_tensors(model):
    return {PREFIX + "embed_tokens.weight": bf16(model.embed_tokens.weight),
            "language_model.lm_head.weight": bf16(model.lm_head.weight),
            PREFIX + "norm.weight": bf16(model.norm.weight),
            PREFIX + "output_attn_res_norm.weight": bf16(model.output_attn_res.norm.weight),
            PREFIX + "output_attn_res_proj.weight": bf16(model.output_attn_res.proj.unsqueeze(0))}


def quantization():
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
               "dynamic": False, "scale_dtype": "torch.uint8", "zp_dtype": None}
    group = {"format": "mxfp4-pack-quantized", "input_activations": None, "output_activations": None,
             "targets": ["Linear"], "weights": weights}
    ignored = ["self_attn.*", "shared_experts.*", r"mlp\.(gate|up|gate_up|down)_proj.*", "lm_head.*",
               "vision_tower.*", "mm_projector.*"]
    return {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "quantization_status": "compressed", "kv_cache_scheme": None, "global_compression_ratio": None,
            "ignore": [f"re:.*{part}" for part in ignored], "config_groups": {"group_0": group}}


def config_of(c):
    base = c["vocab_size"] - K3_CONTROLS
    ids = {"bos_token_id": base + K3_CONTROL["[BOS]"], "eos_token_id": base + K3_CONTROL["<|end_of_msg|>"],
           "pad_token_id": base + K3_CONTROL["[PAD]"]}
    layers = range(1, c["num_hidden_layers"] + 1)
    linear = {**{k: c[k] for k in KDA_FIELDS}, "num_heads": c["num_attention_heads"], "use_full_rank_gate": True,
              "kda_layers": [i for i in layers if i not in c["full_attn_layers"]]}
    text = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
            **{k: v for k, v in c.items() if k not in KDA_FIELDS}, **ids,
            "num_key_value_heads": c["num_attention_heads"], "hidden_act": "situ", "first_k_dense_replace": 1,
            "moe_layer_freq": 1, "latent_moe_use_norm": True, "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
            "topk_method": "noaux_tc", "use_grouped_topk": True, "mla_use_nope": True, "mla_use_output_gate": True,
            "num_nextn_predict_layers": 0, "max_position_embeddings": 131072, "tie_word_embeddings": False,
            "use_cache": True, "linear_attn_config": linear, "quantization_config": quantization()}
    return {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "dtype": "bfloat16", **ids,
            "tie_word_embeddings": False, "text_config": text}


def write(model, folder, tokenizer):
    """Everything but the tokenizer's files.  Returns the bytes of weights."""
    layers = len(model.layers)
    parts = [layer_tensors(model, i) for i in range(layers)] + [outer_tensors(model)]
    shards = {f"model-{i:05d}-of-{len(parts):06d}.safetensors": p for i, p in enumerate(parts, 1)}
    write_json(os.path.join(folder, "config.json"), config_of(model.config))
    return write_all(folder, shards, {})


def layer_state(tensors, c, i):
    """Parameters of a layer by their names in model_k3.Layer."""
    at, attention = f"{PREFIX}layers.{i}.", f"{PREFIX}layers.{i}.self_attn."
    out = {name: tensors[at + stored].reshape(-1) if shape else tensors[at + stored]
           for stored, name, shape in plain_tensors(c, i)}
    if i + 1 not in c["full_attn_layers"]:
        for n in CONVOLUTIONS:
            out["self_attn." + n] = tensors[f"{attention}{n}.weight"].squeeze(1)
        out["self_attn.A_log"] = tensors[attention + "A_log"][:c["num_attention_heads"]]
        out["self_attn.dt_bias"] = tensors[attention + "dt_bias"]
        out["self_attn.o_norm.weight"] = tensors[attention + "o_norm.weight"]
    if i:
        moe = at + "block_sparse_moe."
        out["mlp.gate.e_score_correction_bias"] = tensors[moe + "gate.e_score_correction_bias"]
        w1, w2, w3 = (torch.stack([quant.mxfp4_decode(tensors[f"{moe}experts.{e}.{n}.weight_packed"],
                                                      tensors[f"{moe}experts.{e}.{n}.weight_scale"])
                                   for e in range(c["num_experts"])]) for n in ("w1", "w2", "w3"))
        out["mlp.experts.gate_up"], out["mlp.experts.down"] = torch.cat([w1, w3], 1), w2
    return out


def read(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        stored = json.load(f)["text_config"]
    c = {k: stored["linear_attn_config"][k] if k in KDA_FIELDS else stored[k] for k in CONFIG}
    tensors = read_all(folder)
    state = {"embed_tokens.weight": tensors[PREFIX + "embed_tokens.weight"],
             "lm_head.weight": tensors["language_model.lm_head.weight"], "norm.weight": tensors[PREFIX + "norm.weight"],
             "output_attn_res.norm.weight": tensors[PREFIX + "output_attn_res_norm.weight"],
             "output_attn_res.proj": tensors[PREFIX + "output_attn_res_proj.weight"].reshape(-1)}
    for i in range(c["num_hidden_layers"]):
        state.update({f"layers.{i}.{name}": tensor for name, tensor in layer_state(tensors, c, i).items()})
    model = K3(c)
    model.load_state_dict(state)
    return model
