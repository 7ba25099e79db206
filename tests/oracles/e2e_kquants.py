"""Writes tests/golden/e2e/kquants.gguf, a tiny random Llama whose matrices are Q4_K, Q5_K and Q6_K, and kquants.json, prompts with
the tokens that greedy decoding gives.

llama-quantize makes the blocks and writes the file. The tokens are those of transformers in float32 over the weights as the gguf
package dequantizes them; prompts are taken where the best token leads by MIN_GAP of the logits' range at every step, more than what
8-bit activations cost, and where llama.cpp, which has such activations too, says the same.

Run from the repository's root: oracle python3 tests/oracles/e2e_kquants.py
"""
import json
import pathlib
import subprocess
import tempfile
import time
import urllib.request

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path("tests/golden/e2e")
HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS = 256, 256, 8, 2, 32, 2
MERGES = ["t h", "h e", "i n", "a n", "e r", "o n", "r e", "a t", "e n", "n d", "t i", "e s", "o r", "t e", "o f", "e d", "i s", "i t",
          "a l", "a r", "s t", "t o", "n t", "n g", "s e", "h a", "a s", "o u", "i o"]
SPECIAL = ["<|begin|>", "<|end|>", "<|pad|>"]
VOCAB = 256 + len(MERGES) + len(SPECIAL)
TYPES = {"token_embd": "q6_k", "blk.0.attn_q": "q4_k", "blk.0.attn_k": "q5_k", "blk.0.attn_v": "q6_k", "blk.0.attn_output": "q4_k",
         "blk.0.ffn_gate": "q4_k", "blk.0.ffn_up": "q5_k", "blk.0.ffn_down": "q6_k", "blk.1.attn_q": "q5_k", "blk.1.attn_k": "q6_k",
         "blk.1.attn_v": "q4_k", "blk.1.attn_output": "q5_k", "blk.1.ffn_gate": "q4_k", "blk.1.ffn_up": "q4_k",
         "blk.1.ffn_down": "q5_k"}
STEPS, PROMPTS, MIN_GAP = 10, 4, 0.02
PORT = 18231


def byte_tokens():
    """GPT-2's letters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in letters:
            letters[b], spare = chr(spare), spare + 1
    return [letters[b] for b in range(256)]


def unpermuted(weights, heads):
    """From the file's order of rows, interleaved for RoPE, to Hugging Face's."""
    return weights.reshape(heads, HEAD // 2, 2, -1).swapaxes(1, 2).reshape(weights.shape)


def tensors():
    random = np.random.default_rng(1)
    rows = {"attn_q": HEADS * HEAD, "attn_k": KV_HEADS * HEAD, "attn_v": KV_HEADS * HEAD, "attn_output": HIDDEN, "ffn_gate": INNER,
            "ffn_up": INNER, "ffn_down": HIDDEN}
    normal = lambda *shape: random.standard_normal(shape).astype(np.float32)
    yield "token_embd", 0.5 * normal(VOCAB, HIDDEN)
    for i in range(LAYERS):
        yield f"blk.{i}.attn_norm", 1 + 0.2 * normal(HIDDEN)
        yield f"blk.{i}.ffn_norm", 1 + 0.2 * normal(HIDDEN)
        for name, count in rows.items():
            yield f"blk.{i}.{name}", 0.15 * normal(count, 256)
    yield "output_norm", 1 + 0.2 * normal(HIDDEN)


def write_floats(path):
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("kquants")
    w.add_block_count(LAYERS)
    w.add_context_length(256)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(INNER)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(HEAD)
    w.add_vocab_size(VOCAB)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(byte_tokens() + [m.replace(" ", "") for m in MERGES] + SPECIAL)
    w.add_token_types([gguf.TokenType.NORMAL] * (256 + len(MERGES)) + [gguf.TokenType.CONTROL] * len(SPECIAL))
    w.add_token_merges(MERGES)
    w.add_bos_token_id(VOCAB - 3)
    w.add_eos_token_id(VOCAB - 2)
    w.add_pad_token_id(VOCAB - 1)
    w.add_add_bos_token(False)
    for name, array in tensors():
        w.add_tensor(f"{name}.weight", array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def hugging_face(path):
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for i in range(LAYERS):
        for ours, theirs in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_q", "self_attn.q_proj"),
                             ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
                             ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")):
            names[f"blk.{i}.{ours}.weight"] = f"model.layers.{i}.{theirs}.weight"
    state, types = {}, {}
    for tensor in gguf.GGUFReader(path).tensors:
        types[tensor.name] = tensor.tensor_type.name
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if "attn_q." in tensor.name:
            values = unpermuted(values, HEADS)
        if "attn_k." in tensor.name:
            values = unpermuted(values, KV_HEADS)
        state[names[tensor.name]] = torch.tensor(np.ascontiguousarray(values, np.float32))
    wanted = {f"{name}.weight": kind.replace("_k", "_K").upper() for name, kind in TYPES.items()}
    assert {k: v for k, v in types.items() if v != "F32"} == wanted, types
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=HEAD, vocab_size=VOCAB, rms_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attn_implementation="eager"))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def greedy(model, prompt):
    ids, gap = list(prompt), 1.0
    for _ in range(STEPS):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2)
        gap = min(gap, float((best.values[0] - best.values[1]) / (logits.max() - logits.min())))
        ids.append(int(best.indices[0]))
        if gap < MIN_GAP:
            break
    return ids[len(prompt):], gap


def peer(prompt):
    body = json.dumps({"prompt": prompt, "n_predict": STEPS, "temperature": 0, "return_tokens": True, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/completion", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["tokens"]


def prompts(model):
    random = np.random.default_rng(2)
    found, tried = [], 0
    while len(found) < PROMPTS:
        prompt = random.integers(0, VOCAB - 3, int(random.integers(3, 30))).tolist()
        tokens, gap = greedy(model, prompt)
        tried += 1
        if gap < MIN_GAP or len(set(tokens)) < STEPS // 2 or max(tokens) >= VOCAB - 3:
            continue
        agrees = peer(prompt) == tokens
        print(f"{tried} tried: gap {gap:.3f}, {len(set(tokens))} distinct, llama.cpp {'agrees' if agrees else 'differs'}", flush=True)
        if agrees:
            found.append({"prompt": prompt, "greedy": tokens})
    return found


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        floats = pathlib.Path(folder) / "floats.gguf"
        write_floats(floats)
        chosen = [argument for name, kind in TYPES.items() if name != "token_embd" for argument in ("--tensor-type", f"{name}={kind}")]
        subprocess.run(["llama-quantize", "--token-embedding-type", TYPES["token_embd"], *chosen, floats, OUT / "kquants.gguf", "Q4_K"],
                       check=True, capture_output=True)
    server = subprocess.Popen(["llama-server", "-m", OUT / "kquants.gguf", "--port", str(PORT), "-t", "2", "-c", "256", "--no-warmup"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
                break
            except OSError:
                time.sleep(0.2)
        found = prompts(hugging_face(OUT / "kquants.gguf"))
    finally:
        server.terminate()
        server.wait()
    (OUT / "kquants.json").write_text(json.dumps(found) + "\n")
