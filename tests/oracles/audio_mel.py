"""Writes tests/golden/audio/mel.json: log-mel spectrograms by transformers' WhisperFeatureExtractor, called as Qwen3-Omni's processor does.

Run from the repository's root, in the root that holds transformers 5.12 (it computes with torch, in f32):
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/audio_mel.py SPEECH.wav

SPEECH.wav holds the samples of tests/golden/audio/speech.flac (audio_files.py). The other signals are formulas, see
signal_of(), which the test computes too. A case has the signal, the configuration where it is not Qwen3-Omni's, the number of
frames by the attention mask, some rows as little-endian f32 (base64), and the means of all frames and of all bins. "refused": the
lengths that transformers fails for.
"""
import base64
import json
import math
import sys
import wave

import numpy as np
import torch
from transformers import WhisperFeatureExtractor

OUT = "tests/golden/audio/mel.json"
QWEN3_OMNI = dict(bins=128, n_fft=400, hop=160, rate=16000)
with wave.open(sys.argv[1]) as file:
    SPEECH = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def mix_bits(x):  # base/hash.h
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def signal_of(kind, count, value, scale):
    """All values are multiples of a power of two, or such a multiple times `scale`: equal in every language."""
    i = np.arange(count, dtype=np.uint64)
    if kind == "speech":
        values = SPEECH[:count]
    elif kind == "noise":  # value: the seed
        values = (mix_bits(np.uint64(value << 32) + i) >> np.uint64(56)).astype(np.float32) / 128 - 1
    elif kind == "tone":  # value: Hz at 16000 samples a second
        values = np.array([round(16384 * math.sin(2 * math.pi * value * n / 16000)) for n in range(count)], np.float32) / 32768
    elif kind == "constant":
        values = np.full(count, value, np.float32)
    elif kind == "click":  # value: where
        values = (i == value).astype(np.float32)
    elif kind == "late noise":  # value: where it begins
        values = np.where(i < value, 0, (mix_bits(i) >> np.uint64(56)).astype(np.float32) / 128 - 1).astype(np.float32)
    return values.astype(np.float32) * np.float32(scale)


def extractor_of(config):
    return WhisperFeatureExtractor(feature_size=config["bins"], sampling_rate=config["rate"], hop_length=config["hop"], chunk_length=300,
                                   n_fft=config["n_fft"], padding_value=0.0, dither=0.0, return_attention_mask=True)


def run(samples, config):
    out = extractor_of(config)([samples], sampling_rate=config["rate"], padding=True, truncation=False, return_attention_mask=True, return_tensors="np")
    frames = int(out["attention_mask"].sum())
    values = out["input_features"][0].T
    assert values.dtype == np.float32 and values.shape == (frames, config["bins"])
    return values


def case(kind, count, value=0, scale=1.0, every=11, **config):
    values = run(signal_of(kind, count, value, scale), QWEN3_OMNI | config)
    rows = sorted({*range(0, len(values), every), len(values) - 1})
    means = lambda axis: [float(f"{v:.8g}") for v in values.astype(np.float64).mean(axis)]
    return dict(kind=kind, count=count, value=value, scale=scale, config=config, frames=len(values), rows=rows,
                values=base64.b64encode(values[rows].astype("<f4").tobytes()).decode(), frame_means=means(1), bin_means=means(0))


torch.set_num_threads(1)
cases = [case("speech", len(SPEECH), every=7), case("speech", 24000, scale=2.0 ** -13, every=29), case("speech", 20001, scale=0.3, every=31)]
cases += [case("noise", n, n) for n in (201, 202, 239, 240, 319, 320, 321, 399, 400, 401, 479, 480, 799, 800, 1601)]
cases += [case("noise", 16077, 5), case("noise", 8000, 6, 1000.0), case("noise", 4003, 7, 2.0 ** -24)]
cases += [case("tone", 8000, f) for f in (40, 440, 1000, 3333, 7000, 7990)]
cases += [case("constant", n, v) for n, v in ((3000, 0), (3000, 1), (201, 0), (1999, -0.25))]
cases += [case("click", 4000, at) for at in (0, 1, 2000, 3839, 3999)] + [case("late noise", 6400, 3333)]
cases += [case("speech", 12345, bins=80), case("noise", 5000, 8, bins=64, n_fft=512, hop=128), case("noise", 5000, 9, bins=40, n_fft=480, hop=240, rate=24000),
          case("noise", 4000, 10, bins=13, n_fft=54, hop=50), case("noise", 4000, 11, bins=20, n_fft=250, hop=250, rate=48000)]
refused = []
for count in (0, 1, 100, 159, 160, 161, 199, 200):
    try:
        run(signal_of("noise", count, 1, 1), QWEN3_OMNI)
    except (RuntimeError, ValueError, IndexError):
        refused.append(count)
with open(OUT, "w") as file:
    file.write('{"refused": ' + json.dumps(refused) + ',\n"cases": [\n' + ",\n".join(json.dumps(one) for one in cases) + "]}\n")
print(len(cases), "cases", sum(len(one["rows"]) for one in cases), "rows; refused", refused)
