"""Writes tests/golden/formats/configs.json: config.json texts in old and new spellings and what transformers 5.12 reads
from them (AutoConfig, and the modules of a model built on the meta device).

Run from the repository's root: OMP_NUM_THREADS=1 oracle python3 tests/oracles/formats_config.py
"""
import json
import pathlib
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM

OUT = pathlib.Path("tests/golden/formats/configs.json")
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 300}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


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


def ids(value):
    return [] if value is None else value if isinstance(value, list) else [value]


def read(text):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(text)
        config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layer = model.model.layers[0]
    attention = layer.self_attn
    rope = config.rope_parameters
    windows = [config.sliding_window or 0 if config.model_type == "mistral" else
               getattr(item.self_attn, "sliding_window", None) or 0 for item in model.model.layers]
    return {
        "head_dim": attention.head_dim,
        "kv_heads": attention.k_proj.weight.shape[0] // attention.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "tie": config.tie_word_embeddings,
        "qkv_bias": attention.q_proj.bias is not None,
        "o_bias": attention.o_proj.bias is not None,
        "mlp_bias": getattr(getattr(layer.mlp, "gate_proj", None), "bias", None) is not None,
        "moe": [{"experts": item.mlp.gate.weight.shape[0], "top": item.mlp.gate.top_k, "norm": item.mlp.gate.norm_topk_prob,
                 "inner": item.mlp.experts.down_proj.shape[2]} if hasattr(item.mlp, "experts") else {}
                for item in model.model.layers] if config.model_type == "qwen3_moe" else [],
        "qk_norm": hasattr(attention, "q_norm"),
        "windows": windows,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rope_type": rope["rope_type"],
        "rope_theta": rope["rope_theta"],
        "factor": rope.get("factor", 1.0),
        "original": rope.get("original_max_position_embeddings", 0) if rope["rope_type"] == "llama3" else 0,
        "attention_factor": model.model.rotary_emb.attention_scaling,
        "eos": ids(config.eos_token_id),
        "bos": ids(config.bos_token_id),
        "pad": ids(config.pad_token_id),
        "dtype": str(config.dtype).removeprefix("torch.") if config.dtype is not None else "",
    }


if __name__ == "__main__":
    rows = []
    for name, model_type, fields in cases():
        config = {"architectures": [CLASSES[model_type]], "model_type": model_type, **SMALL, **fields}
        text = json.dumps({key: value for key, value in config.items() if value is not ...})
        try:
            rows.append({"name": name, "config": text, "read": read(text)})
        except Exception as error:
            print("refused:", name, str(error)[:300])
    OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(len(rows), "configs")
