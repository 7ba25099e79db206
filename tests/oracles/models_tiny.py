"""Writes tests/golden/models/tiny_*: small deterministic random models with the logits and greedy continuations that
Hugging Face transformers computes from those very folders (float32, CPU, eager attention, no KV cache).

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/models_tiny.py [NAME ...]
The format is described in tests/golden/models/README.md.
"""
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig)

OUT = pathlib.Path("tests/golden/models")
PROMPT_LENGTHS = (1, 7, 16, 33, 80)
STEPS = 64
MIN_RELATIVE_GAP = 1e-3
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
COMMON = {"max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2}

# name: (config class, its arguments, stored dtype, old spelling of config.json, largest shard)
CASES = {
    "llama_mha": (LlamaConfig, dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                                    num_key_value_heads=3, vocab_size=97, rms_norm_eps=1e-5),
                  torch.float32, True, None),
    "llama_gqa2_tied": (LlamaConfig, dict(hidden_size=48, intermediate_size=72, num_hidden_layers=2,
                                          num_attention_heads=6, num_key_value_heads=3, vocab_size=131,
                                          tie_word_embeddings=True),
                        torch.float16, False, None),
    "llama3_scaled": (LlamaConfig, dict(hidden_size=64, intermediate_size=80, num_hidden_layers=2, head_dim=16,
                                        num_attention_heads=8, num_key_value_heads=2, vocab_size=151,
                                        rope_parameters={**LLAMA3, "rope_theta": 500000.0}),
                      torch.bfloat16, True, None),
    "llama3_odd": (LlamaConfig, dict(hidden_size=40, intermediate_size=56, num_hidden_layers=3, head_dim=12,
                                     num_attention_heads=5, num_key_value_heads=5, vocab_size=113,
                                     tie_word_embeddings=True, rope_parameters={**LLAMA3, "rope_theta": 10000.0}),
                   torch.float32, False, None),
    "llama_linear": (LlamaConfig, dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
                                       num_key_value_heads=1, vocab_size=101,
                                       rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
                     torch.float16, True, None),
    "llama_bias": (LlamaConfig, dict(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=3,
                                     num_key_value_heads=1, vocab_size=127, attention_bias=True, mlp_bias=True),
                   torch.bfloat16, False, None),
    "mistral_window": (MistralConfig, dict(hidden_size=48, intermediate_size=64, num_hidden_layers=3, head_dim=10,
                                           num_attention_heads=4, num_key_value_heads=2, vocab_size=109,
                                           sliding_window=16),
                       torch.float32, True, None),
    "mistral_full": (MistralConfig, dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=1, vocab_size=103,
                                         sliding_window=None, tie_word_embeddings=True),
                     torch.float16, False, None),
    "qwen2": (Qwen2Config, dict(hidden_size=56, intermediate_size=64, num_hidden_layers=2, num_attention_heads=7,
                                num_key_value_heads=1, vocab_size=211, tie_word_embeddings=True,
                                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
              torch.bfloat16, True, None),
    "qwen2_window": (Qwen2Config, dict(hidden_size=40, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
                                       num_key_value_heads=2, vocab_size=107, use_sliding_window=True,
                                       sliding_window=12, max_window_layers=1),
                     torch.float32, False, None),
    "qwen3": (Qwen3Config, dict(hidden_size=40, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                num_key_value_heads=2, head_dim=16, vocab_size=157, tie_word_embeddings=True,
                                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
              torch.float32, False, None),
    "qwen3_sharded": (Qwen3Config, dict(hidden_size=36, intermediate_size=60, num_hidden_layers=3,
                                        num_attention_heads=8, num_key_value_heads=1, head_dim=8, vocab_size=139,
                                        attention_bias=True),
                      torch.bfloat16, False, "20KB"),
    "qwen3_moe": (Qwen3MoeConfig, dict(hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=3,
                                       num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=149,
                                       num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, mlp_only_layers=[1]),
                  torch.float32, False, None),
    "qwen3_moe_raw": (Qwen3MoeConfig, dict(hidden_size=32, intermediate_size=40, moe_intermediate_size=24,
                                           num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                           head_dim=16, vocab_size=137, num_experts=5, num_experts_per_tok=2,
                                           norm_topk_prob=False, decoder_sparse_step=2),
                      torch.bfloat16, False, None),
}


def randomize(model, seed):
    """Larger weights than a fresh model has: its logits must not be flat."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1.0 + 0.2 * noise if "norm" in name else 0.25 * noise)


def respell(folder):
    """config.json as transformers 4 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] == "linear":
        rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    config["transformers_version"] = "4.40.0"
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, prompt):
    ids, gap = list(prompt), float("inf")
    for _ in range(STEPS):
        best = torch.topk(logits_of(model, ids)[-1], 2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt):], gap


def golden_case(model, length, seed, out, k, begin=()):
    """A random prompt of so many tokens, the first of them `begin`, whose greedy continuation is clear."""
    vocab = model.config.vocab_size
    for attempt in range(1000):
        generator = torch.Generator().manual_seed(seed * 1000 + attempt)
        prompt = torch.randint(0, vocab, (length,), generator=generator).tolist()
        prompt[:len(begin)] = begin
        positions = sorted({0, length // 3, length // 2, max(length - 2, 0), length - 1})
        logits = logits_of(model, prompt)[positions].contiguous()
        spread = float(logits.max() - logits.min())
        continuation, gap = greedy(model, prompt)
        if gap > MIN_RELATIVE_GAP * spread and len(set(continuation)) > 3:
            break
    else:
        raise SystemExit(f"no prompt of {length} tokens with a clear greedy path")
    out[f"prompt_{k}"] = torch.tensor(prompt, dtype=torch.int32)
    out[f"positions_{k}"] = torch.tensor(positions, dtype=torch.int32)
    out[f"logits_{k}"] = logits.float()
    out[f"greedy_{k}"] = torch.tensor(continuation, dtype=torch.int32)
    out[f"gap_{k}"] = torch.tensor([gap])
    out[f"range_{k}"] = torch.tensor([spread])
    return f"{length}: gap {gap / spread:.1e} ({attempt + 1} tried, {len(set(continuation))} distinct)"


def make(name, number):
    config_class, arguments, dtype, old, shard = CASES[name]
    folder = OUT / f"tiny_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(config_class(**COMMON, **arguments))
    randomize(model, 1000 + number)
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if old:
        respell(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    out = {}
    for k, length in enumerate(PROMPT_LENGTHS):
        print(name, golden_case(model, length, 100 * number + k, out, k), flush=True)
    save_file(out, folder / "golden.safetensors")


if __name__ == "__main__":
    for number, name in enumerate(CASES):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(name, number)
