"""Writes tests/golden/media/patches.json: grids and patches by transformers' Qwen2VLImageProcessorPil, which Qwen3-VL uses.

Run from the repository's root, in the root that holds transformers 5.12 and Pillow 13:
    oracle python3 tests/oracles/media_patches.py

"images": seeded noise (media_resize.py has the generator) by several configurations; the CRC-32 is that of the f32 rows,
little-endian. "complete" holds all numbers of one small image. "sizes": smart_resize of random and extreme sizes as
[width, height, factor, min_pixels, max_pixels, new width, new height]; the last two are null where it refuses.
"""
import json
import pathlib
import zlib

import numpy as np
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

OUT = "tests/golden/media/patches.json"
scope = {}
exec(pathlib.Path(__file__).with_name("media_resize.py").read_text().split("with open")[0], scope)
noise_image = scope["noise_image"]

HALF = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
QWEN3 = dict(patch_size=16, temporal_patch_size=2, merge_size=2, min_pixels=65536, max_pixels=16777216, **HALF)
SMALL = dict(QWEN3, min_pixels=4 * 32 * 32, max_pixels=64 * 32 * 32)
CONFIGS = [
    (QWEN3, [(1, 1), (256, 256), (300, 200), (640, 480), (33, 517)]),
    (SMALL, [(112, 80), (1, 200), (200, 1), (97, 100), (512, 300), (48, 80), (300, 900), (16, 16)]),
    (dict(SMALL, patch_size=14, **CLIP), [(112, 80), (199, 333)]),
    (dict(SMALL, temporal_patch_size=1, merge_size=1), [(112, 80)]),
    (dict(SMALL, temporal_patch_size=3, merge_size=3, patch_size=8), [(112, 80)]),
    (dict(SMALL, do_normalize=False), [(112, 80)]),
    (dict(SMALL, do_rescale=False, **CLIP), [(112, 80)]),
    (dict(SMALL, rescale_factor=1 / 127.5, **CLIP), [(112, 80)]),
    (dict(SMALL, do_resize=False), [(96, 64)]),
]


def run(width, height, seed, config):
    out = Qwen2VLImageProcessorPil(**config)(images=[noise_image(width, height, seed)], return_tensors="np")
    values = out["pixel_values"]
    assert values.dtype == np.float32
    return values, out["image_grid_thw"][0].tolist()


images = []
for config, sizes in CONFIGS:
    for width, height in sizes:
        seed = 3000 + len(images)
        values, grid = run(width, height, seed, config)
        images.append(dict(width=width, height=height, seed=seed, config=config, grid=grid, row_size=values.shape[1], crc=zlib.crc32(values.tobytes())))
tiny = dict(QWEN3, patch_size=2, min_pixels=1, max_pixels=64)
values, grid = run(9, 5, 4000, tiny)
complete = dict(width=9, height=5, seed=4000, config=tiny, grid=grid, values=[float(f"{v:.9g}") for v in values.reshape(-1)])

random = np.random.default_rng(3)
sizes = []
cases = [(w, h, 32, 65536, 16777216) for w, h in ((1, 200), (1, 201), (200, 1), (201, 1), (48, 48), (80, 80), (16, 16), (112, 144), (65500, 65500), (65500, 400), (4000, 3000))]
for _ in range(3000):
    factor = int(random.choice([28, 32, 32, 64]))
    least = int(random.choice([1, 3136, 4096, 65536]))
    most = least * int(random.choice([1, 16, 256]))
    limit = int(random.choice([100, 700, 5000, 65500]))
    w, h = (int(n) for n in random.integers(1, limit, 2))
    if random.random() < 0.3:  # halves, where rounding to even shows
        w, h = (max(1, n // factor) * factor + factor // 2 for n in (w, h))
    cases.append((w, h, factor, least, most))
for w, h, factor, least, most in cases:
    try:
        new_h, new_w = smart_resize(h, w, factor, least, most)
    except ValueError:
        new_h = new_w = None
    sizes.append([w, h, factor, least, most, new_w, new_h])
with open(OUT, "w") as file:
    file.write('{"images": [\n' + ",\n".join(json.dumps(i) for i in images) + '],\n"complete": ' + json.dumps(complete))
    file.write(',\n"sizes": [\n' + ",\n".join(json.dumps(s) for s in sizes) + "]}\n")
print(len(images), "images", len(sizes), "sizes", sum(s[-1] is None for s in sizes), "refused")
