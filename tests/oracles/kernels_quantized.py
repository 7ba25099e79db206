"""Golden data for quantized blocks: their bytes and the floats that they stand for, and floats with the blocks that they become.

    python3 tests/oracles/kernels_quantized.py tests/golden/kernels/quantized.txt      (needs python3-gguf)

Each case is one line: "dequantize TYPE <bytes of a block> <float32 bits>" or "quantize TYPE <float32 bits> <bytes>", all in
hexadecimal, little-endian as in a file. Blocks are random bytes, with scales put in their place that are small, zero, subnormal,
huge, infinite or NaN. The last quantized cases hold what is not finite: there the project's own rule stands (f16 NaN and zeros).
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

SIZES = {"Q8_0": (32, 34, [0]), "Q4_0": (32, 18, [0]), "Q4_K": (256, 144, [0, 2]), "Q5_K": (256, 176, [0, 2]), "Q6_K": (256, 210, [208])}
SCALES = [0.0123, -0.75, 1.0, 0.0, 6e-8, 65504.0, np.inf, np.nan]


def hexed(array):
    return array.tobytes().hex()


def dequantized(random):
    for name, (_, size, places) in SIZES.items():
        for i, scale in enumerate(SCALES[: 8 if size < 100 else 5]):
            block = random.integers(0, 256, size, dtype=np.uint8)
            for j, place in enumerate(places):
                value = np.float16(scale if j == 0 else SCALES[(i + 1) % 4])
                block[place : place + 2] = np.frombuffer(value.tobytes(), np.uint8)
            with np.errstate(invalid="ignore", over="ignore"):
                floats = quants.dequantize(block, T[name]).astype(np.float32)
            yield f"dequantize {name} {hexed(block)} {hexed(floats)}"
    every = np.arange(256, dtype=np.uint8)  # all bytes as data: eight blocks of Q8_0, sixteen of Q4_0
    one = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for name, size in [("Q8_0", 32), ("Q4_0", 16)]:
        for part in every.reshape(-1, size):
            block = np.concatenate([one, part])
            yield f"dequantize {name} {hexed(block)} {hexed(quants.dequantize(block, T[name]).astype(np.float32))}"


def rows(random):
    for scale in [1.0, 0.02, 1e-3, 1e4, 1e-8, 1e-20, 3e9]:
        for _ in range(3):
            yield random.standard_normal(32) * scale
    yield np.concatenate([[127.0], np.arange(-15.5, 15.5)])  # Q8_0: ties; Q4_0: many of one value
    yield np.concatenate([[-127.0], np.arange(31) + 0.5])
    yield np.concatenate([[-8.0], (np.arange(31) - 15) / 2])  # Q4_0: ties
    yield np.concatenate([[8.0], (np.arange(31) - 15) / 2])
    yield np.concatenate([[4.0, -4.0], np.ones(30)])  # the first of two extremes gives the sign
    yield np.concatenate([[-4.0, 4.0], np.ones(30)])
    yield np.zeros(32)
    yield -np.zeros(32)
    yield np.concatenate([np.zeros(31), [1e-35]])
    yield np.concatenate([np.zeros(31), [-3e38]])
    yield np.arange(32) * 2.0**-24


def quantized(random):
    for row in rows(random):
        row = row.astype(np.float32)
        for name in ["Q8_0", "Q4_0"]:
            with np.errstate(over="ignore"):
                yield f"quantize {name} {hexed(row)} {hexed(quants.quantize(row, T[name]))}"
    for bad in [np.nan, np.inf, -np.inf]:
        row = np.linspace(-1, 1, 32).astype(np.float32)
        row[17] = bad
        for name in ["Q8_0", "Q4_0"]:
            block = np.zeros(SIZES[name][1], np.uint8)
            block[1] = 0x7E
            yield f"quantize {name} {hexed(row)} {hexed(block)}"


def main():
    random = np.random.default_rng(11)
    with open(sys.argv[1], "w") as file:
        for case in [*dequantized(random), *quantized(random)]:
            file.write(case + "\n")


if __name__ == "__main__":
    main()
