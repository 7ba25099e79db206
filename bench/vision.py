#!/usr/bin/env python3
"""Measures a served vision-language model: the tower beside the language model, pictures that come again.

    bench/vision.py PROGRAM [--folder DIR] [--small] [--rounds 3] [-- serve options]

Makes a Qwen3-VL directory of the 2B shape with random weights (--small: a tenth of it) in --folder, where it is not there yet, and prints a
Markdown table. Rates are of the server's own counters: operations of all matrix products and of attention, over the seconds of the
encoder or of the language model's steps. Pictures are PNG of noise, made here, so that no two are equal but those that are meant to be."""
import argparse
import base64
import http.client
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time
import zlib

from served import start

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from vision_model import write_text_files  # noqa: E402

PATCH = 16
SHAPES = {  # of the vision tower and the text model: Qwen3-VL-2B's
    "2b": ({"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16}, {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}),
    "small": ({"depth": 12, "hidden_size": 512, "intermediate_size": 2048, "num_heads": 8}, {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 7}),
}
HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, POSITIONS = 16, 8, 128, 3080, 2304


def config_of(shape):
    vision, text = SHAPES[shape]
    deepstack = [vision["depth"] // 4 - 1, vision["depth"] // 2 - 1, 3 * vision["depth"] // 4 - 1]
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 3072, "video_token_id": 3073,
        "vision_start_token_id": 3074, "vision_end_token_id": 3075, "tie_word_embeddings": True,
        "text_config": {**text, "vocab_size": VOCABULARY, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
                        "max_position_embeddings": 16384, "model_type": "qwen3_vl_text", "rms_norm_eps": 1e-6, "dtype": "bfloat16", "eos_token_id": 2,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}},
        "vision_config": {**vision, "patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": text["hidden_size"],
                          "num_position_embeddings": POSITIONS, "deepstack_visual_indexes": deepstack, "model_type": "qwen3_vl_vision",
                          "hidden_act": "gelu_pytorch_tanh"}}


def tensors_of(config):
    """[(name, shape)]"""
    text, vision = config["text_config"], config["vision_config"]
    hidden, middle, tower, up = text["hidden_size"], text["intermediate_size"], vision["hidden_size"], vision["intermediate_size"]
    out = [("model.language_model.embed_tokens.weight", [VOCABULARY, hidden]), ("model.language_model.norm.weight", [hidden])]
    for i in range(text["num_hidden_layers"]):
        prefix = f"model.language_model.layers.{i}."
        out += [(prefix + name + ".weight", shape) for name, shape in (
            ("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]), ("self_attn.q_norm", [HEAD_DIM]), ("self_attn.k_norm", [HEAD_DIM]),
            ("self_attn.q_proj", [HEADS * HEAD_DIM, hidden]), ("self_attn.k_proj", [KV_HEADS * HEAD_DIM, hidden]),
            ("self_attn.v_proj", [KV_HEADS * HEAD_DIM, hidden]), ("self_attn.o_proj", [hidden, HEADS * HEAD_DIM]),
            ("mlp.gate_proj", [middle, hidden]), ("mlp.up_proj", [middle, hidden]), ("mlp.down_proj", [hidden, middle]))]
    linear = [("patch_embed.proj", [tower, 3, 2, PATCH, PATCH])]
    norms = []
    for i in range(vision["depth"]):
        prefix = f"blocks.{i}."
        linear += [(prefix + "attn.qkv", [3 * tower, tower]), (prefix + "attn.proj", [tower, tower]),
                   (prefix + "mlp.linear_fc1", [up, tower]), (prefix + "mlp.linear_fc2", [tower, up])]
        norms += [(prefix + "norm1", tower), (prefix + "norm2", tower)]
    for prefix, width in [("merger.", tower)] + [(f"deepstack_merger_list.{i}.", 4 * tower) for i in range(3)]:
        linear += [(prefix + "linear_fc1", [4 * tower, 4 * tower]), (prefix + "linear_fc2", [hidden, 4 * tower])]
        norms.append((prefix + "norm", width))
    out.append(("model.visual.pos_embed.weight", [POSITIONS, tower]))
    for name, shape in linear:
        out += [(f"model.visual.{name}.weight", shape), (f"model.visual.{name}.bias", shape[:1])]
    for name, width in norms:
        out += [(f"model.visual.{name}.weight", [width]), (f"model.visual.{name}.bias", [width])]
    return out


def count(shape):
    product = 1
    for each in shape:
        product *= each
    return product


def make_model(folder, config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    normalization = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "patch_size": PATCH, "temporal_patch_size": 2, "merge_size": 2, **normalization, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}))
    write_text_files(folder)
    write_weights(folder, tensors_of(config))


def write_weights(folder, tensors, zero_rows=None):
    """[(name, shape)], bf16 of either sign between 2^-7 and 2^-5: the high byte is one of two, the low one is random. zero_rows: {name: row}"""
    noise = bytearray(1 << 24)
    generator = random.Random(1)
    noise[0::2] = generator.randbytes(1 << 23)
    noise[1::2] = generator.randbytes(1 << 23).translate(bytes([0x3C, 0xBC] * 128))
    ones, header, at = b"\x80\x3f", {}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count(shape)]}
        at += 2 * count(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            left = 2 * count(shape)
            norm = "norm" in name and name.endswith("weight")
            while left > 0:
                block = ones * (min(left, 1 << 20) // 2) if norm else bytes(left) if name.endswith("bias") else noise[:min(left, len(noise))]
                file.write(block)
                left -= len(block)
            if name in (zero_rows or {}):
                end, row = file.tell(), 2 * count(shape[1:])
                file.seek(end - 2 * count(shape) + zero_rows[name] * row)
                file.write(bytes(row))
                file.seek(end)


def png(side, seed):
    rows = random.Random(seed)
    data = b"".join(b"\0" + rows.randbytes(3 * side) for _ in range(side))
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))  # noqa: E731
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(data, 1)) + chunk(b"IEND", b"")


class Server:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def metrics(self):
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request("GET", "/metrics")
        found = {}
        for line in connection.getresponse().read().decode().splitlines():
            if not line.startswith("#"):
                name = line.split("{")[0].split(" ")[0]
                found[name] = found.get(name, 0) + float(line.rsplit(" ", 1)[1])
        return found

    def chat(self, content, tokens=2):
        """Seconds to the first event with a text or the end."""
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
        connection = http.client.HTTPConnection(self.host, self.port)
        begin, first = time.monotonic(), None
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(response.read().decode())
        for line in response:
            if line.startswith(b"data: {"):
                delta = json.loads(line[6:])["choices"]
                if delta and (delta[0]["delta"].get("content") or delta[0]["finish_reason"]):
                    first = first or time.monotonic() - begin
        connection.close()
        return first

    def measured(self, action):
        """What the counters of the stages gained by it: they come with a heartbeat."""
        before = self.settled()
        result = action()
        after = self.settled()
        return result, {name: value - before.get(name, 0) for name, value in after.items()}

    def settled(self):
        time.sleep(1.5)
        return self.metrics()


def picture_part(data):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


def question(data, text="What is it?"):
    return [picture_part(data), {"type": "text", "text": text}]


def tower_operations(config, patches):
    vision, out = config["vision_config"], config["text_config"]["hidden_size"]
    hidden, up = vision["hidden_size"], vision["intermediate_size"]
    block = 4 * hidden * hidden + 2 * hidden * up
    mergers = 4 * (patches // 4) * (16 * hidden * hidden + 4 * hidden * out)
    return 2 * (patches * (3 * 2 * PATCH * PATCH * hidden + vision["depth"] * block) + mergers) + 4 * vision["depth"] * patches * patches * hidden


def text_operations(config, rows):
    text = config["text_config"]
    hidden, width = text["hidden_size"], HEADS * HEAD_DIM
    layer = 2 * hidden * width + 2 * hidden * KV_HEADS * HEAD_DIM + 3 * hidden * text["intermediate_size"]
    return text["num_hidden_layers"] * (2 * rows * layer + 2 * rows * rows * width)


def tower_row(server, config, patches, rounds, seed):
    side = PATCH * int(patches ** 0.5)
    rates, prefills = [], []
    for i in range(rounds):
        _, gained = server.measured(lambda i=i: server.chat(question(png(side, seed + i)), tokens=1))
        rates.append(tower_operations(config, patches) / gained["millrace:media_encode_seconds_total"] / 1e9)
        words = " ".join(random.Random(seed + i).choice(["cat", "dog", "sun", "red"]) for _ in range(patches // 4))
        _, gained = server.measured(lambda words=words: server.chat(words, tokens=1))
        prefills.append(text_operations(config, gained["millrace:prefill_rows_total"]) / gained["millrace:forward_execution_seconds_total"] / 1e9)
    tower, prefill = statistics.median(rates), statistics.median(prefills)
    return f"| tower of {patches} patches over prefill of as many rows as it makes, GFLOP/s | {tower:.0f} / {prefill:.0f} = {tower / prefill:.2f} |"


def again_row(server, rounds, seed):
    ratios = []
    for i in range(rounds):
        data = png(512, seed + i)
        first = server.chat(question(data, "What is it?"))
        ratios.append(server.chat(question(data, "And its colour?")) / first)
    _, gained = server.measured(lambda: [server.chat(question(png(512, seed - 1), f"Question {i}?")) for i in range(8)])
    runs = gained["millrace:media_encoded_total"]
    return f"| first token of a second question about a picture over the first's; runs of the tower for 8 questions | {statistics.median(ratios):.3f}; {runs:.0f} |"


def model_of(folder, shape):
    """(configuration, directory): made where it is not there yet"""
    config, folder = config_of(shape), folder / shape
    if not (folder / "model.safetensors").exists():
        shutil.rmtree(folder, ignore_errors=True)
        make_model(folder, config)
    return config, folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "millrace-bench-vision")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    args, more = parser.parse_known_args()
    shape = "small" if args.small else "2b"
    config, folder = model_of(args.folder, shape)
    load = os.getloadavg()[0]
    process, host, port, _ = start(args.program, str(folder), [each for each in more if each != "--"])
    server = Server(host, port)
    try:
        server.chat(question(png(64, 0)))
        rows = [tower_row(server, config, patches, args.rounds, seed) for patches, seed in ((1024, 100), (4096, 200))]
        rows.append(again_row(server, args.rounds, 300))
    finally:
        process.terminate()
        process.wait()
    print(f"shape {shape}, load before {load:.1f}, after {os.getloadavg()[0]:.1f}")
    print("\n".join(["| what | |", "|---|---|", *rows]))


if __name__ == "__main__":
    main()
