"""`millrace serve` on a broken model: one clear line with the path, what was seen and what was wanted, and exit code 2."""
import json
import shutil
import struct
import subprocess

import pytest

from harness import DEMO, WAIT_S, placement, program


@pytest.fixture
def model(tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(DEMO, copy)
    return copy


def serve(path, *more):
    result = subprocess.run([program(), "serve", "--model", str(path), "--port", "0", "--placement", placement(), *more],
                            capture_output=True, text=True, timeout=WAIT_S)
    lines = [line for line in result.stderr.splitlines() if line.startswith("millrace: error:")]
    return result.returncode, lines, result.stderr


def expect(path, *parts, more=()):
    code, lines, everything = serve(path, *more)
    assert code == 2, everything
    assert len(lines) == 1, everything
    for part in parts:
        assert part in lines[0], lines[0]


def edit_config(model, **fields):
    path = model / "config.json"
    config = json.loads(path.read_text())
    config.update(fields)
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def read_weights(model):
    data = (model / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_weights(model, header, payload):
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + payload)


def test_missing_folder(tmp_path):
    expect(tmp_path / "nothing", "nothing", "No such file or directory", "wanted")


def total_memory():
    """Bytes of the machine, within which every control group's limit lies."""
    with open("/proc/meminfo") as file:
        sizes = dict(line.split(":") for line in file)
    return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))


def test_more_pages_than_the_machine_can_ever_have():
    wanted = total_memory() // 2**30 + 2
    expect(DEMO, f"--kv-gib is {wanted}", "in all", more=("--kv-gib", str(wanted)))


def test_a_file_that_is_no_model(model):
    expect(model / "tokenizer.json", "tokenizer.json", "*.gguf")


def test_missing_config(model):
    (model / "config.json").unlink()
    expect(model, "config.json")


def test_unknown_architecture(model):
    edit_config(model, architectures=["FrobForCausalLM"])
    expect(model, "config.json", "FrobForCausalLM", "Qwen3ForCausalLM")


@pytest.mark.parametrize("field,value", [("hidden_size", 0), ("num_attention_heads", 7), ("num_hidden_layers", 10**9), ("rope_theta", 0),
                                         ("vocab_size", -1), ("hidden_size", "big"), ("hidden_act", "gelu")])
def test_bad_config_values(model, field, value):
    config = json.loads((model / "config.json").read_text())
    if field == "rope_theta" and "rope_parameters" in config:
        edit_config(model, rope_parameters={**config["rope_parameters"], "rope_theta": value})
    else:
        edit_config(model, **{field: value})
    expect(model, "config.json")


def test_truncated_weights(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    expect(model, "model.safetensors")


def test_huge_header(model):
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])
    expect(model, "model.safetensors", str(1 << 60))


def test_overlapping_offsets(model):
    header, payload = read_weights(model)
    names = sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
    write_weights(model, header, payload)
    expect(model, "model.safetensors")


def test_missing_tensor(model):
    header, payload = read_weights(model)
    header["model.other.weight"] = header.pop("model.norm.weight")
    write_weights(model, header, payload)
    expect(model, "model.norm.weight")


def test_wrong_shape(model):
    header, payload = read_weights(model)
    shape = header["model.embed_tokens.weight"]["shape"]
    header["model.embed_tokens.weight"]["shape"] = shape[::-1]
    write_weights(model, header, payload)
    expect(model, "model.embed_tokens.weight", str(shape[0]))


def test_wrong_dtype(model):
    header, payload = read_weights(model)
    header["model.norm.weight"]["dtype"] = "I16"
    write_weights(model, header, payload)
    expect(model, "model.norm.weight", "I16")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {"type": "WordPiece"}}', '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}'])
def test_broken_tokenizer(model, text):
    (model / "tokenizer.json").write_text(text)
    expect(model, "tokenizer.json")


def test_missing_tokenizer(model):
    (model / "tokenizer.json").unlink()
    expect(model, "tokenizer.json")
