"""Writes tests/golden/formats/configs.json: config.json texts in old and new spellings and what transformers 5.12 reads
from them (AutoConfig, and the modules of a model built on the meta device). Of a vision-language model: of its language
model, and "vision"; of Qwen3-Omni: of its thinker, and "audio" too.

Run from the repository's root: OMP_NUM_THREADS=1 oracle python3 tests/oracles/formats_config.py
"""
import json
import pathlib
import tempfile

import torch
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig,
                          Qwen3OmniMoeThinkerForConditionalGeneration)

OUT = pathlib.Path("tests/golden/formats/configs.json")
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
           "qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
           "qwen3_omni_moe": "Qwen3OmniMoeForConditionalGeneration",
           "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerForConditionalGeneration"}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 300}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

TOKENS = {"image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293}
MROPE = {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
TOWER = {"out_hidden_size": 64}  # the defaults of the class, but for the width of the language model


def nested(text=None, vision=None, **fields):
    """Fields of a vision-language model's file; those of SMALL go into text_config."""
    top = dict.fromkeys(SMALL, ...)
    return {**top, **TOKENS, "text_config": {**SMALL, "head_dim": 128, **(text or {})},
            "vision_config": {**TOWER, **(vision or {})}, **fields}


def vision_language_cases():
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, **MROPE}}
    old = {"rope_theta": 5000000, "rope_scaling": {"rope_type": "default", **MROPE}}
    yield "qwen3_vl, new", "qwen3_vl", nested(new, tie_word_embeddings=True, dtype="bfloat16")
    yield "qwen3_vl, old", "qwen3_vl", nested(old, tie_word_embeddings=False, torch_dtype="bfloat16")
    yield "qwen3_vl, nothing about rope", "qwen3_vl", nested({})
    yield "qwen3_vl, no head_dim", "qwen3_vl", nested({**new, "head_dim": ...})
    yield "qwen3_vl, tied in text_config alone", "qwen3_vl", nested({**new, "tie_word_embeddings": True})
    yield "qwen3_vl, tied outside alone", "qwen3_vl", nested({**new, "tie_word_embeddings": False},
                                                              tie_word_embeddings=True)
    yield "qwen3_vl, other sections", "qwen3_vl", nested(
        {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5],
                                             "mrope_interleaved": True}})
    yield "qwen3_vl, ends in text_config", "qwen3_vl", nested({**new, "eos_token_id": [7, 8], "bos_token_id": 5,
                                                               "pad_token_id": 6})
    yield "qwen3_vl, small tower", "qwen3_vl", nested(new, {
        "depth": 5, "hidden_size": 80, "intermediate_size": 160, "num_heads": 4, "patch_size": 8,
        "spatial_merge_size": 3, "temporal_patch_size": 1, "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 2, 3], "hidden_act": "gelu"})
    yield "qwen3_vl, no deepstack", "qwen3_vl", nested(new, {"deepstack_visual_indexes": []})
    yield "qwen3_vl_moe, nothing about experts", "qwen3_vl_moe", nested(new)
    yield "qwen3_vl_moe, no kv heads, no head_dim", "qwen3_vl_moe", nested(
        {"num_key_value_heads": ..., "head_dim": ..., "hidden_size": 128, "num_attention_heads": 16,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1],
                             "mrope_interleaved": True}}, {"out_hidden_size": 128})
    yield "qwen3_vl_moe, small", "qwen3_vl_moe", nested(
        {**old, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True,
         "decoder_sparse_step": 2, "mlp_only_layers": [1]}, tie_word_embeddings=False)


AUDIO_TOKENS = {"audio_token_id": 294, "audio_start_token_id": 295, "audio_end_token_id": 296}
HEARS = {"n_window": 50, "output_dim": 64}  # the defaults of the class, but for what has none that works


def thinker(text=None, vision=None, audio=None, **fields):
    return nested(text, vision, **AUDIO_TOKENS, audio_config={**HEARS, **(audio or {})}, **fields)


def omni(*parts, thinker_fields=None, **fields):
    return {**dict.fromkeys(SMALL, ...), "thinker_config": thinker(*parts, **(thinker_fields or {})), **fields}


def omni_cases():
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, **MROPE}}
    old = {"rope_theta": 1000000, "rope_scaling": {"interleaved": True, "rope_type": "default", "type": "default",
                                                   **MROPE}}
    small = {"d_model": 96, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 160,
             "downsample_hidden_size": 24, "num_mel_bins": 80, "n_window_infer": 850, "conv_chunksize": 3,
             "max_source_positions": 99, "activation_function": "gelu_pytorch_tanh"}
    yield "omni, nothing more", "qwen3_omni_moe", omni()
    yield "omni, published spelling", "qwen3_omni_moe", omni(
        {**old, "norm_topk_prob": True, "num_experts": 16, "num_experts_per_tok": 8, "sliding_window": None,
         "use_sliding_window": False}, {"hidden_act": "gelu_pytorch_tanh"}, {"scale_embedding": False},
        thinker_fields={"position_id_per_seconds": 13, "seconds_per_chunk": 2, "user_token_id": 272},
        dtype="bfloat16", im_end_token_id=280, talker_config={"num_code_groups": 16}, code2wav_config={})
    yield "omni, other sizes", "qwen3_omni_moe", omni(
        {"head_dim": ..., "num_key_value_heads": ..., "norm_topk_prob": False, "num_experts": 6,
         "num_experts_per_tok": 2, "moe_intermediate_size": 40, "mlp_only_layers": [1, 2], "eos_token_id": [7, 8],
         "rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "mrope_section": [4, 2, 2],
                             "mrope_interleaved": True}}, {"deepstack_visual_indexes": [0, 2]}, small,
        im_end_token_id=8, dtype="float16")
    yield "omni, tied in thinker_config", "qwen3_omni_moe", omni(new, thinker_fields={"tie_word_embeddings": True})
    yield "omni, tied outside", "qwen3_omni_moe", omni(new, tie_word_embeddings=True)
    yield "omni, a thinker alone", "qwen3_omni_moe_thinker", thinker(new, {}, small, dtype="bfloat16")


def cases():
    """name, model_type, fields added to SMALL (a None value removes the field)."""
    yield "llama, nothing more", "llama", {}
    yield "llama, no kv heads", "llama", {"num_key_value_heads": ...}
    yield "llama, kv heads null", "llama", {"num_key_value_heads": None}
    yield "llama, old theta", "llama", {"rope_theta": 500000.0, "torch_dtype": "bfloat16"}
    yield "llama, old linear", "llama", {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}}
    yield "llama, old llama3", "llama", {"rope_theta": 500000, "max_position_embeddings": 131072,
                                         "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    yield "llama, old scaling null", "llama", {"rope_theta": 20000.0, "rope_scaling": None}
    yield "llama, old scaling default", "llama", {"rope_theta": 20000.0, "rope_scaling": {"type": "default"}}
    yield "llama, new default", "llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0},
                                          "dtype": "float16"}
    yield "llama, new linear", "llama", {"rope_parameters": {"rope_type": "linear", "factor": 3, "rope_theta": 1e6}}
    yield "llama, new llama3", "llama", {"max_position_embeddings": 65536, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}}
    yield "llama, theta in both", "llama", {"rope_theta": 777.0,
                                            "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}
    yield "llama, theta beside new", "llama", {"rope_theta": 777.0, "rope_parameters": {"rope_type": "default"}}
    yield "llama, scaling beats parameters", "llama", {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}
    yield "llama, biases", "llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    yield "llama, explicit head_dim", "llama", {"head_dim": 32, "rms_norm_eps": 1e-5}
    yield "llama, several ends", "llama", {"eos_token_id": [7, 8, 9], "bos_token_id": 5, "pad_token_id": 6}
    yield "llama, ends null", "llama", {"eos_token_id": None, "bos_token_id": None}
    yield "llama, ignored fields", "llama", {"attention_dropout": 0.5, "pretraining_tp": 2, "use_cache": False,
                                             "auto_map": {}, "sliding_window": 8}
    yield "mistral, nothing more", "mistral", {}
    yield "mistral, no kv heads", "mistral", {"num_key_value_heads": ..., "num_attention_heads": 16}
    yield "mistral, window", "mistral", {"sliding_window": 16, "rope_theta": 1e6}
    yield "mistral, window null", "mistral", {"sliding_window": None}
    yield "mistral, head_dim apart", "mistral", {"head_dim": 10, "hidden_size": 62}
    yield "qwen2, nothing more", "qwen2", {}
    yield "qwen2, window unused", "qwen2", {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 1}
    yield "qwen2, window used", "qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    yield "qwen2, window from the top layers on", "qwen2", {"use_sliding_window": True, "sliding_window": 9}
    yield "qwen2, window of its default", "qwen2", {"use_sliding_window": True, "max_window_layers": 0}
    yield "qwen2, layer types", "qwen2", {"use_sliding_window": True, "sliding_window": 9, "layer_types": [
        "full_attention", "sliding_attention", "full_attention", "sliding_attention"]}
    yield "qwen2, no kv heads", "qwen2", {"num_key_value_heads": ..., "num_attention_heads": 32}
    yield "qwen3, nothing more", "qwen3", {}
    yield "qwen3, head_dim", "qwen3", {"head_dim": 24, "attention_bias": True, "tie_word_embeddings": True,
                                       "rope_theta": 1000000}
    yield "qwen3, window used", "qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3,
                                          "head_dim": 16}
    yield "qwen3, odd hidden", "qwen3", {"hidden_size": 63, "head_dim": 16}
    yield "qwen3_moe, nothing more", "qwen3_moe", {}
    yield "qwen3_moe, no kv heads", "qwen3_moe", {"num_key_value_heads": ...}
    yield "qwen3_moe, small", "qwen3_moe", {
        "head_dim": 24, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": True, "rope_theta": 1000000}
    yield "qwen3_moe, other name", "qwen3_moe", {"num_local_experts": 6, "num_experts_per_tok": 3}
    yield "qwen3_moe, every second layer", "qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 1,
                                                         "decoder_sparse_step": 2, "attention_bias": True}
    yield "qwen3_moe, some dense layers", "qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 4,
                                                        "mlp_only_layers": [3, 0]}
    yield "qwen3_moe, window used", "qwen3_moe", {"use_sliding_window": True, "sliding_window": 5, "num_experts": 4,
                                                  "num_experts_per_tok": 1, "max_window_layers": 3}
    yield from vision_language_cases()
    yield from omni_cases()


def ids(value):
    return [] if value is None else value if isinstance(value, list) else [value]


def read_vision(config, tower):
    """Sizes from the modules where they are there."""
    return {
        "depth": len(tower.blocks),
        "hidden_size": tower.blocks[0].norm1.weight.shape[0],
        "intermediate_size": tower.blocks[0].mlp.linear_fc1.weight.shape[0],
        "heads": tower.blocks[0].attn.num_heads,
        "patch": list(tower.patch_embed.proj.weight.shape[1:]),  # channels, frames, rows, columns
        "merge_size": tower.spatial_merge_size,
        "out_hidden_size": (tower.merger.mlp[2] if hasattr(tower.merger, "mlp") else tower.merger.linear_fc2).out_features,
        "positions": tower.pos_embed.weight.shape[0],
        "deepstack": list(tower.deepstack_visual_indexes),
        "tanh": type(tower.blocks[0].mlp.act_fn).__name__ == "GELUTanh",
        "tokens": [getattr(config, name) for name in TOKENS],
    }


def read_audio(config, tower):
    layer = tower.layers[0]
    return {
        "mel_bins": tower.num_mel_bins,
        "layers": len(tower.layers),
        "heads": layer.self_attn.num_heads,
        "ffn": layer.fc1.out_features,
        "d_model": layer.embed_dim,
        "windows": [tower.n_window, tower.n_window_infer, tower.conv_chunksize],
        "output_dim": tower.proj2.out_features,
        "channels": tower.conv2d3.out_channels,
        "positions": tower.max_source_positions,
        "tanh": type(layer.activation_fn).__name__ == "GELUTanh",
        "positions_per_second": config.position_id_per_seconds,
        "tokens": [getattr(config, name) for name in AUDIO_TOKENS],
    }


def read(text):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(text)
        config = AutoConfig.from_pretrained(folder)
    full, tower = config, None
    complete = hasattr(config, "thinker_config")
    thinks = config.thinker_config if complete else config if hasattr(config, "audio_config") else None
    with torch.device("meta"):
        if thinks is not None:
            model = Qwen3OmniMoeThinkerForConditionalGeneration._from_config(thinks)
            decoder, tower, config = model.model, model.visual, thinks.text_config
        elif "vision_config" in config:
            model = AutoModelForImageTextToText.from_config(config)
            decoder, tower, config = model.model.language_model, model.model.visual, config.text_config
        else:
            model = AutoModelForCausalLM.from_config(config)
            decoder = model.model
    ends = GenerationConfig.from_model_config(full)
    layer = decoder.layers[0]
    attention = layer.self_attn
    rope = config.rope_parameters
    windows = [config.sliding_window or 0 if config.model_type == "mistral" else
               getattr(item.self_attn, "sliding_window", None) or 0 for item in decoder.layers]
    out = {
        "head_dim": attention.head_dim,
        "kv_heads": attention.k_proj.weight.shape[0] // attention.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "tie": model.lm_head.weight is decoder.embed_tokens.weight,
        "qkv_bias": attention.q_proj.bias is not None,
        "o_bias": attention.o_proj.bias is not None,
        "mlp_bias": getattr(getattr(layer.mlp, "gate_proj", None), "bias", None) is not None,
        "moe": [{"experts": item.mlp.gate.weight.shape[0], "top": item.mlp.gate.top_k,
                 # Qwen3-VL-MoE's router has no choice
                 "norm": getattr(item.mlp.gate, "norm_topk_prob", True),
                 "inner": item.mlp.experts.down_proj.shape[2]} if hasattr(item.mlp, "experts") else {}
                for item in decoder.layers] if any(hasattr(item.mlp, "experts") for item in decoder.layers) else [],
        "qk_norm": hasattr(attention, "q_norm"),
        "windows": windows,
        "parameters": sum(p.numel() for p in {*decoder.parameters(), *model.lm_head.parameters()}),
        "rope_type": rope["rope_type"],
        "rope_theta": rope["rope_theta"],
        "factor": rope.get("factor", 1.0),
        "original": rope.get("original_max_position_embeddings", 0) if rope["rope_type"] == "llama3" else 0,
        "attention_factor": decoder.rotary_emb.attention_scaling,
        "eos": ids(ends.eos_token_id if tower is not None else config.eos_token_id),
        "bos": ids(ends.bos_token_id if tower is not None else config.bos_token_id),
        "pad": ids(ends.pad_token_id if tower is not None else config.pad_token_id),
        "dtype": next((str(c.dtype).removeprefix("torch.") for c in (full, config) if c.dtype is not None), ""),
    }
    if thinks is not None:
        out["audio"] = read_audio(thinks, model.audio_tower)
        # Of the complete model: generate() has the end of a turn in its signature.
        ends = [full.im_end_token_id] if complete and full.im_end_token_id < config.vocab_size else []
        out["eos"] = list(dict.fromkeys(ids(config.eos_token_id) + ends))
        out["bos"], out["pad"] = ids(config.bos_token_id), ids(config.pad_token_id)
    if tower is not None:
        out["vision"] = read_vision(thinks or full, tower)
        out["mrope_section"] = list(decoder.rotary_emb.mrope_section)
    return out


def without_removed(fields):
    return {key: without_removed(value) if isinstance(value, dict) else value
            for key, value in fields.items() if value is not ...}


if __name__ == "__main__":
    rows = []
    for name, model_type, fields in cases():
        config = {"architectures": [CLASSES[model_type]], "model_type": model_type, **SMALL, **fields}
        text = json.dumps(without_removed(config))
        try:
            rows.append({"name": name, "config": text, "read": read(text)})
        except Exception as error:
            print("refused:", name, str(error)[:300])
    OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(len(rows), "configs")
