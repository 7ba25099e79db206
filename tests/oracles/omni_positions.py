"""Writes tests/golden/omni/positions.json: random prompts with sounds and still pictures, and the positions that transformers
5.12 gives their rows (get_rope_index of Qwen3-Omni).

Run from the repository's root: OMP_NUM_THREADS=1 oracle python3 tests/oracles/omni_positions.py [COUNT [SEED [OUT]]]

One object a prompt: "rows"; "pictures": [begin, height, width] in merged patches; "sounds": [begin, rows]; "delta"; "hash":
FNV-1a, 64 bits, of the positions as little-endian int32, time, height and width of row after row. transformers' positions
are floats; that they are integers is checked here.
"""
import json
import pathlib
import random
import sys
import types

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration as Model, _get_feat_extract_output_lengths)

OUT = "tests/golden/omni/positions.json"
MERGE = 2
V_START, V_END, IMAGE, VIDEO, A_START, A_END, AUDIO = 1, 2, 3, 4, 5, 6, 7
SELF = types.SimpleNamespace(spatial_merge_size=MERGE, config=types.SimpleNamespace(
    image_token_id=IMAGE, video_token_id=VIDEO, audio_token_id=AUDIO, vision_start_token_id=V_START,
    audio_start_token_id=A_START, position_id_per_seconds=13))
SELF.get_llm_pos_ids_for_vision = types.MethodType(Model.get_llm_pos_ids_for_vision, SELF)


def extent(draw):
    return draw.choice([1, 2, draw.randint(1, 6), draw.randint(1, 24), draw.randint(1, 24)])


def layout(draw):
    """ids, grids of pictures (patches), frames of sounds, pictures, sounds."""
    ids, grids, frames, pictures, sounds = [], [], [], [], []

    def text(most):
        ids.extend(10 + draw.randrange(90) for _ in range(draw.randint(0, most)))

    text(draw.choice([0, 3, 60]))
    for _ in range(draw.choice([0, 1, 2, 2, 3, 5])):
        if draw.random() < 0.5:
            height, width = extent(draw), extent(draw)
            grids.append([1, height * MERGE, width * MERGE])
            pictures.append([len(ids) + 1, height, width])
            ids.extend([V_START] + [IMAGE] * (height * width) + [V_END])
        else:
            frames.append(draw.choice([draw.randint(1, 120), draw.randint(1, 120), draw.randint(100, 1500)]))
            rows = int(_get_feat_extract_output_lengths(torch.tensor(frames[-1])))
            sounds.append([len(ids) + 1, rows])
            ids.extend([A_START] + [AUDIO] * rows + [A_END])
        text(draw.choice([0, 1, 12]))
    return ids or [10], grids, frames, pictures, sounds


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def row_of(draw):
    ids, grids, frames, pictures, sounds = layout(draw)
    x = torch.tensor([ids])
    positions, delta = Model.get_rope_index(
        SELF, x, torch.tensor(grids) if grids else None, None, torch.ones_like(x), False,
        torch.tensor(frames) if frames else None)
    assert torch.equal(positions, positions.round())
    values = positions[:, 0].T.contiguous().to(torch.int32).numpy().astype("<i4").tobytes()
    return {"rows": len(ids), "pictures": pictures, "sounds": sounds, "delta": int(delta), "hash": fnv1a(values)}


count, seed, out = (sys.argv[1:] + ["400", "1", OUT][len(sys.argv) - 1:])[:3]
draw = random.Random(int(seed))
rows = [row_of(draw) for _ in range(int(count))]
pathlib.Path(out).write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")
print(len(rows), "prompts,", sum(len(row["pictures"]) for row in rows), "pictures,",
      sum(len(row["sounds"]) for row in rows), "sounds,", sum(row["rows"] for row in rows), "rows")
