"""GGUF files: what `millrace quantize` writes is served like the folder that it was made from, and a broken file is one clear line
and exit code 2."""
import json
import shutil
import struct
import subprocess

import pytest

from harness import DATA, DEMO, ROOT, WAIT_S, Server, placement, program

SMALL_STORIES = DATA / "stories260K"  # of architecture llama, whose rows stand in another order in GGUF
TINYSTORIES = DATA / "tinystories-656k"
K_QUANTS = ROOT / "tests" / "golden" / "e2e"  # made by tests/oracles/e2e_kquants.py
TYPES = ["f32", "bf16", "f16", "q8_0", "q4_0"]


def quantize(source, target, kind, *arguments):
    return subprocess.run([program(), "quantize", str(source), str(target), "--type", kind, *arguments], capture_output=True, text=True,
                          timeout=300)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    made = {}
    for kind in TYPES:
        made[kind] = folder / f"demo-{kind}.gguf"
        result = quantize(DEMO, made[kind], kind)
        assert result.returncode == 0, result.stderr
    return made


def answers(model):
    """Text, tokens and logprobs of a few requests, greedy and sampled, and of a chat. Logprobs show any other bit in the logits."""
    out = []
    with Server(model=model) as server:
        for body in ({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "logprobs": 3},
                     {"prompt": "A dog and a <|im_end|> cat", "max_tokens": 24, "seed": 5, "temperature": 0.9, "logprobs": 3, "echo": True}):
            status, _, found = server.post("/v1/completions", body)
            assert status == 200, found
            choice = found["choices"][0]
            out.append((choice["text"], choice["finish_reason"], choice["logprobs"]))
        status, _, found = server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Tell me of the moon."}], "max_tokens": 40, "temperature": 0})
        if status == 200:
            out.append((found["choices"][0]["message"]["content"], found["choices"][0]["finish_reason"], found["usage"]))
        else:
            out.append(status)
        return out, server.model


def test_the_same_bits_as_the_folder(files):
    folder, name = answers(DEMO)
    assert len(folder) == 3 and folder[2] != 400
    seen, name = answers(files["bf16"])
    assert seen == folder
    assert name == "demo-bf16"


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
def test_other_types_are_served(files, kind):
    (first, _, chat), _ = answers(files[kind])
    assert len(first[0]) > 20 and len(chat[0]) > 20


def test_llama_rows_and_sentencepiece(tmp_path):
    target = tmp_path / "stories.gguf"
    result = quantize(SMALL_STORIES, target, "f32")
    assert result.returncode == 0, result.stderr
    assert answers(target)[0] == answers(SMALL_STORIES)[0]


def test_k_quants():
    """Q4_K, Q5_K and Q6_K of another project's making give the tokens of transformers over the same weights as floats."""
    with Server(model=K_QUANTS / "kquants.gguf") as server:
        for case in json.loads((K_QUANTS / "kquants.json").read_text()):
            status, _, found = server.post("/generate", {
                "input_ids": case["prompt"], "sampling_params": {"temperature": 0, "max_new_tokens": len(case["greedy"]), "ignore_eos": True}})
            assert status == 200, found
            assert found["output_ids"] == case["greedy"]
    result = subprocess.run([program(), "inspect", str(K_QUANTS / "kquants.gguf")], capture_output=True, text=True, timeout=WAIT_S)
    assert all(kind in result.stdout for kind in ("Q4_K", "Q5_K", "Q6_K")), result.stdout + result.stderr


def test_a_gguf_becomes_another(files, tmp_path):
    """By way of GGUF, the same bytes as straight from the folder; and a folder with one such file is a model."""
    again = tmp_path / "demo-q8_0.gguf"
    assert quantize(files["bf16"], again, "q8_0").returncode == 0
    straight, way = files["q8_0"].read_bytes(), again.read_bytes()
    assert straight[-1000000:] == way[-1000000:]
    result = subprocess.run([program(), "inspect", str(tmp_path)], capture_output=True, text=True, timeout=WAIT_S)
    assert result.returncode == 0, result.stderr
    assert "Q8_0" in result.stdout and "Qwen3ForCausalLM" in result.stdout and "chat template          yes" in result.stdout


def expect(path, *parts):
    result = subprocess.run([program(), "serve", "--model", str(path), "--port", "0", "--placement", placement()],
                            capture_output=True, text=True, timeout=WAIT_S)
    lines = [line for line in result.stderr.splitlines() if line.startswith("millrace: error:")]
    assert result.returncode == 2, result.stderr
    assert len(lines) == 1, result.stderr
    for part in parts:
        assert part in lines[0], lines[0]


def edited(files, tmp_path, kind, edit):
    path = tmp_path / "broken.gguf"
    path.write_bytes(edit(files[kind].read_bytes()))
    return path


def replaced(old, new):
    assert len(old) == len(new)

    def edit(data):
        assert data.count(old) >= 1, old
        return data.replace(old, new)
    return edit


def test_broken_files(files, tmp_path):
    expect(tmp_path / "nothing.gguf", "nothing.gguf")
    cases = [
        (lambda data: b"", "not a GGUF file"),
        (lambda data: b"GGUF" + struct.pack("<I", 1) + data[8:], "version 1"),
        (lambda data: data[:100000], "wanted"),
        (lambda data: data[:-1000], "takes", "bytes of data in the file"),
        (replaced(b"qwen3.block_count", b"qwen3.block_cnots"), "qwen3.block_cnots"),
        (replaced(b"blk.3.attn_q.weight", b"blk.3.attn_x.weight"), "model.layers.3.self_attn.q_proj.weight"),
        (replaced(struct.pack("<Q", 5) + b"qwen2", struct.pack("<Q", 5) + b"qwen9"), "tokenizer.ggml", "qwen9", "wanted one of gpt-2"),
        (replaced(struct.pack("<Q", 5) + b"qwen3", struct.pack("<Q", 5) + b"qwenX"), "qwenX", "llama, qwen2, qwen3, qwen3moe"),
    ]
    for edit, *parts in cases:
        expect(edited(files, tmp_path, "q8_0", edit), "broken.gguf", *parts)


def test_quantize_refuses(files, tmp_path):
    result = quantize(DEMO, files["bf16"], "bf16")
    assert result.returncode == 2 and "--overwrite" in result.stderr
    assert quantize(DEMO, files["bf16"], "bf16", "--overwrite").returncode == 0
    # SentencePiece merges in another order than its pieces.
    result = quantize(TINYSTORIES, tmp_path / "a.gguf", "bf16")
    assert result.returncode == 2 and not (tmp_path / "a.gguf").exists()
    for part in ("merge 10 is", "wanted", "serve the folder itself"):
        assert part in result.stderr, result.stderr
    result = quantize(DEMO, tmp_path / "model.bin", "bf16")
    assert result.returncode == 2 and ".gguf" in result.stderr
    result = quantize(tmp_path / "nothing", tmp_path / "a.gguf", "bf16")
    assert result.returncode == 2 and "nothing" in result.stderr and not (tmp_path / "a.gguf").exists()
    result = quantize(DEMO, tmp_path / "no" / "folder.gguf", "bf16")
    assert result.returncode == 2 and "folder.gguf" in result.stderr
    copy = tmp_path / "model"
    shutil.copytree(DEMO, copy)
    text = (copy / "tokenizer.json").read_text()
    assert '"NFC"' in text
    (copy / "tokenizer.json").write_text(text.replace('"NFC"', '"NFKC"'))
    result = quantize(copy, tmp_path / "a.gguf", "bf16")
    assert result.returncode == 2 and "normalizer" in result.stderr, result.stderr
    assert not (tmp_path / "a.gguf").exists() and not list(tmp_path.glob("*.part"))
