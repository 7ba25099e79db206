"""Writes tests/golden/formats/gguf/: GGUF files made by the format's own Python package, and what they hold.

  all_types.gguf, .json    every type of metadata, alone and in arrays, and a tensor of every type that is read
  NAME/ and NAME.gguf      one tiny model as a Hugging Face folder and as GGUF, for each architecture; names from the
                           package's table, rows of q and k permuted as its converter does
  llama-0000N-of-00003.gguf  the same in shards

Run from the repository's root: oracle python3 tests/oracles/formats_gguf.py
"""
import json
import math
import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

OUT = pathlib.Path("tests/golden/formats/gguf")
SCALARS = [("uint8", 200, np.uint8), ("int8", -100, np.int8), ("uint16", 60000, np.uint16), ("int16", -30000, np.int16),
           ("uint32", 4000000000, np.uint32), ("int32", -2000000000, np.int32), ("float32", 1.5, np.float32),
           ("uint64", 2**63 + 5, np.uint64), ("int64", -2**62, np.int64), ("float64", 0.1, np.float64),
           ("bool", True, np.bool_), ("string", "Grüße\n\u2581", None)]
TYPES = gguf.GGUFValueType


def all_types():
    writer = gguf.GGUFWriter(OUT / "all_types.gguf", "llama")
    writer.add_custom_alignment(64)
    values = {"general.architecture": "llama", "general.alignment": 64}
    for name, value, _ in SCALARS:
        getattr(writer, f"add_{name}")(f"one.{name}", value)
        values[f"one.{name}"] = value
        kind = TYPES[name.upper()]
        items = [value] * 3 if name != "string" else ["", "a", value]
        writer.add_key_value(f"many.{name}", items, TYPES.ARRAY, sub_type=kind)
        values[f"many.{name}"] = items
    random = np.random.default_rng(1)
    tensors = {}

    def tensor(name, array, raw=None):
        writer.add_tensor(name, array, raw_dtype=raw)
        shape = list(array.shape)
        if raw is not None and raw != Q.BF16:
            block, size = gguf.GGML_QUANT_SIZES[raw]
            shape[-1] = shape[-1] // size * block
        if raw == Q.BF16:
            shape[-1] //= 2
        tensors[name] = {"type": (raw or {np.float32: Q.F32, np.float16: Q.F16, np.float64: Q.F64, np.int8: Q.I8,
                                          np.int16: Q.I16, np.int32: Q.I32, np.int64: Q.I64}[array.dtype.type]).name,
                         "shape": shape, "hex": array.tobytes().hex()}

    for kind in (np.float32, np.float16, np.float64):
        tensor(f"t.{np.dtype(kind).name}", random.standard_normal((2, 3)).astype(kind))
    for kind in (np.int8, np.int16, np.int32, np.int64):
        tensor(f"t.{np.dtype(kind).name}", random.integers(-100, 100, (3,)).astype(kind))
    floats = random.standard_normal((2, 256)).astype(np.float32)
    for kind in (Q.BF16, Q.Q8_0, Q.Q4_0):
        tensor(f"t.{kind.name}", gguf.quants.quantize(floats, kind), kind)
    for kind in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
        tensor(f"t.{kind.name}", random.integers(0, 256, (1, gguf.GGML_QUANT_SIZES[kind][1])).astype(np.uint8), kind)
    finish(writer)
    (OUT / "all_types.json").write_text(json.dumps({"values": values, "tensors": tensors}, indent=1) + "\n")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=40, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, bos_token_id=1,
             eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
MODELS = {
    "llama": ("LlamaForCausalLM", gguf.MODEL_ARCH.LLAMA, dict(SMALL, head_dim=8, rope_scaling=LLAMA3, tie_word_embeddings=True)),
    "llama_bias": ("LlamaForCausalLM", gguf.MODEL_ARCH.LLAMA, dict(SMALL, attention_bias=True, mlp_bias=True, rope_scaling=dict(
        type="linear", factor=2.5))),
    "qwen2": ("Qwen2ForCausalLM", gguf.MODEL_ARCH.QWEN2, dict(SMALL)),
    "qwen3": ("Qwen3ForCausalLM", gguf.MODEL_ARCH.QWEN3, dict(SMALL, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True)),
    "qwen3moe": ("Qwen3MoeForCausalLM", gguf.MODEL_ARCH.QWEN3MOE, dict(
        SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)),
    # The language models of Qwen3-VL, which the folders hold alone.
    "qwen3vl": ("Qwen3ForCausalLM", gguf.MODEL_ARCH.QWEN3VL, dict(SMALL, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True)),
    "qwen3vlmoe": ("Qwen3MoeForCausalLM", gguf.MODEL_ARCH.QWEN3VLMOE, dict(
        SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)),
}


def hf_tensors(name, c):
    random = np.random.default_rng(len(name))
    head = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    q, kv = head * c["num_attention_heads"], head * c["num_key_value_heads"]
    half = lambda *shape: random.standard_normal(shape).astype(np.float16)
    full = lambda *shape: random.standard_normal(shape).astype(np.float32)
    yield "model.embed_tokens.weight", half(c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", full(hidden)
        for part, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            yield p + f"self_attn.{part}_proj.weight", half(rows, columns)
            if c.get("attention_bias") or (name == "qwen2" and part != "o"):
                yield p + f"self_attn.{part}_proj.bias", full(rows)
        if name.startswith("qwen3"):
            yield p + "self_attn.q_norm.weight", full(head)
            yield p + "self_attn.k_norm.weight", full(head)
        yield p + "post_attention_layernorm.weight", full(hidden)
        if "num_experts" in c:
            yield p + "mlp.gate.weight", full(c["num_experts"], hidden)
            for e in range(c["num_experts"]):
                for part, shape in (("gate", (16, hidden)), ("up", (16, hidden)), ("down", (hidden, 16))):
                    yield p + f"mlp.experts.{e}.{part}_proj.weight", half(*shape)
            continue
        for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            yield p + f"mlp.{part}_proj.weight", half(*shape)
            if c.get("mlp_bias"):
                yield p + f"mlp.{part}_proj.bias", full(shape[0])
    yield "model.norm.weight", full(hidden)
    if not c.get("tie_word_embeddings"):
        yield "lm_head.weight", half(c["vocab_size"], hidden)


def permute(weights, heads):
    return (weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2)
            .reshape(weights.shape))


def rope_factors(c, head):
    s = c["rope_scaling"]
    out = []
    for i in range(0, head, 2):
        wave = 2 * math.pi * c["rope_theta"] ** (i / head)
        context = s["original_max_position_embeddings"]
        if wave < context / s["high_freq_factor"]:
            out.append(1.0)
        elif wave > context / s["low_freq_factor"]:
            out.append(s["factor"])
        else:
            smooth = (context / wave - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            out.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(out, np.float32)


def metadata(w, c):
    head = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(head)
    if "head_dim" in c:
        w.add_key_length(head)
        w.add_value_length(head)
    if c.get("rope_scaling", {}).get("type") == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(c["rope_scaling"]["factor"])
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_bos_token_id(c["bos_token_id"])
    w.add_eos_token_id(c["eos_token_id"])


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors:
        raw = array.tobytes()
        kind = {np.float32: "F32", np.float16: "F16"}[array.dtype.type]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_gguf(path, arch, name, c, tensors, **split):
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch], **split)
    metadata(writer, c)
    if name.startswith("qwen3vl"):
        writer.add_rope_dimension_sections([4, 2, 2, 0])
        writer.add_num_deepstack_layers(3)
    table = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    experts = {}
    for hf, array in tensors:
        if name.startswith("llama") and ".self_attn.q_proj" in hf:
            array = permute(array, c["num_attention_heads"])
        if name.startswith("llama") and ".self_attn.k_proj" in hf:
            array = permute(array, c["num_key_value_heads"])
        if ".mlp.experts." in hf:
            before, _, rest = hf.partition(".mlp.experts.")
            number, _, part = rest.partition(".")
            experts.setdefault(f"{before}.mlp.experts.{part}", []).append(array)
            continue
        writer.add_tensor(table.get_name(hf, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(array))
    for hf, arrays in experts.items():
        writer.add_tensor(table.get_name(hf, try_suffixes=(".weight",)), np.stack(arrays))
    if c.get("rope_scaling", {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(c, c["head_dim"]))
    finish(writer)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    all_types()
    for name, (klass, arch, config) in MODELS.items():
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        tensors = list(hf_tensors(name, config))
        (folder / "config.json").write_text(json.dumps({"architectures": [klass], **config}, indent=1) + "\n")
        write_safetensors(folder / "model.safetensors", tensors)
        write_gguf(OUT / f"{name}.gguf", arch, name, config, tensors)
        if name == "llama":
            write_gguf(OUT / "llama.gguf", arch, name, config, tensors, split_max_tensors=9)
            write_gguf(OUT / "llama.gguf", arch, name, config, tensors)
