"""Text through Qwen3-VL models, dense and with experts: the ids of Hugging Face transformers (tests/oracles/vision_text.py), also with
the experts in the layout of published files and with the layers in two processes."""
import concurrent.futures
import json
import struct

import pytest

from harness import Server
from vision_model import GOLDEN, vision_model

LAYERS = 4


def read_tensors(path):
    """The header of a safetensors file and its data."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def golden_cases(model):
    header, data = read_tensors(GOLDEN / model / "text.safetensors")

    def ids(name):
        begin, end = header[name]["data_offsets"]
        return list(struct.unpack(f"<{(end - begin) // 4}i", data[begin:end]))

    count = sum(name.startswith("prompt_") for name in header)
    return [(ids(f"prompt_{k}"), ids(f"greedy_{k}")) for k in range(count)]


def transpose_experts(path):
    """From the layout that transformers 5 saves to that of published files."""
    header, data = read_tensors(path)
    out = bytearray(data)
    stacks = [entry for name, entry in header.items() if ".mlp.experts." in name]
    assert len(stacks) == 2 * LAYERS
    for entry in stacks:
        assert entry["dtype"] == "BF16"
        experts, rows, columns = entry["shape"]
        begin, end = entry["data_offsets"]
        values = memoryview(data[begin:end]).cast("H")
        size = rows * columns
        moved = [values[e * size + r * columns + c] for e in range(experts) for c in range(columns) for r in range(rows)]
        out[begin:end] = struct.pack(f"<{len(moved)}H", *moved)
        entry["shape"] = [experts, columns, rows]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + out)


def check(folder, model, *arguments):
    cases = golden_cases(model)
    assert len(cases) == 5
    with Server(*arguments, model=folder) as server:
        def answer(prompt):
            return server.post("/generate", {"input_ids": prompt, "sampling_params": {
                "temperature": 0, "max_new_tokens": 64, "ignore_eos": True}})
        with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
            answers = list(pool.map(answer, [prompt for prompt, _ in cases]))
        for (prompt, greedy), (status, _, body) in zip(cases, answers):
            assert status == 200, body
            assert body["output_ids"] == greedy, len(prompt)
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []


@pytest.mark.parametrize("model", ["dense", "moe"])
def test_text_has_the_ids_of_transformers(tmp_path, model):
    check(vision_model(tmp_path / "vl", model), model)


def test_experts_in_the_layout_of_published_files(tmp_path):
    folder = vision_model(tmp_path / "vl", "moe")
    transpose_experts(folder / "model.safetensors")
    check(folder, "moe")
    check(folder, "moe", "--pp", "2")
