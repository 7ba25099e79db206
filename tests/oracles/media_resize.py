"""Writes tests/golden/media/resize.txt: the CRC-32 of what Pillow's bicubic resize makes of seeded noise, 2,000 sizes.

Run from the repository's root, in the root that holds Pillow 13:
    oracle python3 tests/oracles/media_resize.py

A line is: width, height, new width, new height, CRC-32. The seed of an image is the number of its line, from 0
(src/media/testing/golden.h has the same generator).
"""
import zlib

import numpy as np
from PIL import Image

OUT = "tests/golden/media/resize.txt"


def mix_bits(x):  # base/hash.h
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def noise_image(width, height, seed):
    values = (mix_bits(np.uint64(seed << 32) + np.arange(width * height * 3, dtype=np.uint64)) >> np.uint64(56)).astype(np.uint8)
    if seed % 2:
        values = np.where(values < 128, 0, 255).astype(np.uint8)
    return Image.fromarray(values.reshape(height, width, 3))


def sizes():
    random = np.random.default_rng(5)
    yield from ((1, 1, 1, 1), (1, 1, 32, 32), (32, 32, 1, 1), (640, 1, 32, 32), (1, 640, 32, 64), (2000, 3, 7, 3), (3, 2000, 3, 7), (64, 64, 64, 64), (64, 64, 64, 96), (64, 64, 96, 64))
    for _ in range(1990):
        limit = int(random.choice([8, 40, 150]))
        yield tuple(int(n) for n in random.integers(1, limit, 4))


with open(OUT, "w") as file:
    for seed, (w, h, new_w, new_h) in enumerate(sizes()):
        image = noise_image(w, h, seed).resize((new_w, new_h), Image.Resampling.BICUBIC)
        file.write(f"{w} {h} {new_w} {new_h} {zlib.crc32(np.asarray(image).tobytes())}\n")
