"""Writes tests/golden/vision/positions.json: random prompts with pictures and videos, and the positions that transformers
5.12 gives their rows (Qwen3VLModel.get_rope_index).

Run from the repository's root: OMP_NUM_THREADS=1 oracle python3 tests/oracles/vision_positions.py [COUNT [SEED [OUT]]]

One object a prompt: "rows"; "spans": [begin, height, width] of each picture and of each frame group of a video, in merged
patches; "delta"; "hash": FNV-1a, 64 bits, of the positions as little-endian int32, time, height and width of row after
row.
"""
import json
import pathlib
import random
import sys
import types

import torch
from transformers import Qwen3VLModel

OUT = "tests/golden/vision/positions.json"
MERGE = 2
START, END, IMAGE, VIDEO = 1, 2, 3, 4
SELF = types.SimpleNamespace(config=types.SimpleNamespace(
    vision_config=types.SimpleNamespace(spatial_merge_size=MERGE)))
SELF.get_vision_position_ids = types.MethodType(Qwen3VLModel.get_vision_position_ids, SELF)


def extent(draw):
    return draw.choice([1, 2, draw.randint(1, 6), draw.randint(1, 24), draw.randint(1, 24)])


def layout(draw):
    """ids, grids of pictures, grids of videos (patches), spans."""
    ids, pictures, videos, spans = [], [], [], []

    def text(most):
        ids.extend(10 + draw.randrange(90) for _ in range(draw.randint(0, most)))

    def block(token, height, width):
        ids.append(START)
        spans.append([len(ids), height, width])
        ids.extend([token] * (height * width))
        ids.append(END)

    text(draw.choice([0, 3, 60]))
    for _ in range(draw.choice([0, 1, 1, 2, 3, 5])):
        height, width = extent(draw), extent(draw)
        if draw.random() < 0.6:
            pictures.append([1, height * MERGE, width * MERGE])
            block(IMAGE, height, width)
        else:
            frames = draw.randint(1, 5)
            videos.append([frames, height * MERGE, width * MERGE])
            for _ in range(frames):  # "<0.3 seconds>" stands before each
                ids.extend(10 + draw.randrange(90) for _ in range(draw.randint(1, 7)))
                block(VIDEO, height, width)
        text(draw.choice([0, 1, 12]))
    if not spans or draw.random() < 0.2:  # a prompt may end with a picture's rows too
        text(9)
    elif draw.random() < 0.2:
        del ids[spans[-1][0] + spans[-1][1] * spans[-1][2]:]
    return ids or [10], pictures, videos, spans


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def row_of(draw):
    ids, pictures, videos, spans = layout(draw)
    x = torch.tensor([ids])
    kinds = (x == IMAGE).int() + 2 * (x == VIDEO).int()
    positions, delta = Qwen3VLModel.get_rope_index(
        SELF, x, mm_token_type_ids=kinds, attention_mask=torch.ones_like(x),
        image_grid_thw=torch.tensor(pictures) if pictures else None,
        video_grid_thw=torch.tensor(videos) if videos else None)
    values = positions[:, 0].T.contiguous().to(torch.int32).numpy().astype("<i4").tobytes()
    return {"rows": len(ids), "spans": spans, "delta": int(delta), "hash": fnv1a(values)}


count, seed, out = (sys.argv[1:] + ["300", "1", OUT][len(sys.argv) - 1:])[:3]
draw = random.Random(int(seed))
rows = [row_of(draw) for _ in range(int(count))]
pathlib.Path(out).write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")
print(len(rows), "prompts,", sum(len(row["spans"]) for row in rows), "spans,", sum(row["rows"] for row in rows), "rows")
