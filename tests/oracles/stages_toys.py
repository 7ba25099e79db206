#!/usr/bin/env python3
"""What examples/pipelines/fanin.yaml must answer, by the formulas of examples/workers/ written down once more.

    python3 tests/oracles/stages_toys.py > tests/golden/stages/fanin.json
"""
import array
import json
import struct

M = (1 << 64) - 1


def fnv(data, h=0xCBF29CE484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & M
    return h


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M
    return x ^ (x >> 31)


def hex16(x):
    return "%016x" % x


def image_hash(image, size):
    w, h, seed = image["width"], image["height"], image["seed"]
    pixels = [mix(seed + i) >> 56 for i in range(w * h * 3)]
    out = bytearray()
    for y in range(size):
        ys = range(y * h // size, max(y * h // size + 1, (y + 1) * h // size))
        for x in range(size):
            xs = range(x * w // size, max(x * w // size + 1, (x + 1) * w // size))
            for c in range(3):
                values = [pixels[(sy * w + sx) * 3 + c] for sy in ys for sx in xs]
                out.append(sum(values) // len(values))
    return hex16(fnv(out))


def audio_hash(audio, window):
    n, seed = audio["samples"], audio["seed"]
    samples = [struct.unpack("<h", struct.pack("<H", mix(seed + i) >> 48))[0] for i in range(n)]
    sums = [sum(s * s for s in samples[i:i + window]) for i in range(0, n, window)]
    return hex16(fnv(struct.pack("<%dq" % len(sums), *sums)))


def trunc_div(a, b):
    return abs(a) // b * (1 if a >= 0 else -1)


def tone(codes, samples):
    step, loud = (codes[0] + 1) * 64, codes[1] % 8 + 1
    return [trunc_div(((n * step & 0xFFFF) - 32768) * loud, 8) for n in range(samples)]


def answer(inputs, size=16, window=160, steps=24, width=32, samples=240):
    text = inputs.get("text", "")
    modalities = inputs.get("modalities", ["text"])
    image = image_hash(inputs["image"], size) if "image" in inputs else ""
    audio = audio_hash(inputs["audio"], window) if "audio" in inputs else ""
    key = hex16(fnv((text + "|" + image + "|" + audio).encode()))
    seed = fnv(key.encode())
    steps = inputs.get("max_tokens", steps)
    tokens = [mix((seed + i) & M) % 26 for i in range(steps)]
    out = {"inputs": inputs, "key": key, "modalities": modalities}
    out["text"] = "".join(chr(97 + t) for t in tokens)
    pcm = array.array("h")
    for i, token in enumerate(tokens):
        row = [mix((seed + i * 1000003 + j) & M) >> 56 for j in range(width)]
        codes = [(token * 31 + sum(row) + k * 17 + seed % 97) % 1024 for k in range(4)]
        pcm.extend(tone(codes, samples))
    out["samples"] = len(pcm)
    out["pcm_hash"] = hex16(fnv(pcm.tobytes()))
    out["first_samples"] = list(pcm[:8])
    return out


CASES = [
    {"text": "hello"},
    {},
    {"text": "hello", "modalities": ["audio"]},
    {"text": "hello", "modalities": ["text", "audio"]},
    {"text": "a picture", "image": {"width": 37, "height": 23, "seed": 5}},
    {"text": "small", "image": {"width": 3, "height": 2, "seed": 9}, "max_tokens": 3},
    {"text": "sound", "audio": {"samples": 1000, "seed": 77}, "modalities": ["text", "audio"]},
    {"text": "both", "image": {"width": 64, "height": 48, "seed": 1}, "audio": {"samples": 321, "seed": 2},
     "modalities": ["audio", "text"], "max_tokens": 7},
    {"text": "nothing to say", "max_tokens": 0, "modalities": ["text", "audio"]},
    {"text": "gr\u00fc\u00dfe", "max_tokens": 40, "modalities": ["audio"]},
]

print(json.dumps([answer(c) for c in CASES], indent=1, ensure_ascii=True))
