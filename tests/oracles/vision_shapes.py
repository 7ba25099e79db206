"""Writes tests/golden/vision/shapes: a small deterministic random tower of Qwen3-VL with deepstack and GELU by erf, with
the features that Hugging Face transformers computes for videos and for several items at once (float32, CPU, eager
attention). The rows that its mergers multiply are complete blocks of q8_0.

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/vision_shapes.py

golden.safetensors, for each case K: grids_K i32 [items, 3]; features_K f32 [sets, rows of all items, 16]: of the merger,
then of the deepstack. The patches are a formula, see patches_of(), which the test computes too.
"""
import json
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.models.qwen3_vl import Qwen3VLVisionConfig, Qwen3VLVisionModel

OUT = pathlib.Path("tests/golden/vision/shapes")
VISION = dict(depth=3, hidden_size=24, intermediate_size=36, num_heads=2, patch_size=4, spatial_merge_size=2,
              temporal_patch_size=2, out_hidden_size=16, num_position_embeddings=25, deepstack_visual_indexes=[1],
              hidden_act="gelu")
# Frames, rows, columns: videos; wider than the square of 5 x 5 learned positions; three items at once.
CASES = [[(2, 4, 4)], [(1, 2, 14)], [(3, 6, 2)], [(1, 2, 2), (2, 8, 6), (1, 12, 10)]]



def patches_of(count, width):
    """Multiples of 1 / 128 in [-1, 1): the upper byte of i * 2654435761 modulo 2^32 for the element i of all patches."""
    i = np.arange(count * width, dtype=np.uint64)
    upper = ((i * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
    return torch.from_numpy((upper.astype(np.float32) / 128 - 1).reshape(count, width))


torch.set_num_threads(1)
torch.manual_seed(1)
tower = Qwen3VLVisionModel._from_config(Qwen3VLVisionConfig(**VISION), attn_implementation="eager").float().eval()
draw = torch.Generator().manual_seed(2)
with torch.no_grad():
    for name, p in sorted(tower.named_parameters()):
        if p.dim() >= 2:
            values = torch.randn(p.shape, generator=draw) * (1.5 / max(1, p[0].numel())) ** 0.5
        elif "norm" in name and name.endswith("weight"):
            values = 1 + 0.2 * torch.randn(p.shape, generator=draw)
        else:
            values = 0.05 * torch.randn(p.shape, generator=draw)
        p.copy_(values.bfloat16().float())  # what is stored

shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir(parents=True)
golden = {}
for k, grids in enumerate(CASES):
    thw = torch.tensor(grids)
    patches = patches_of(int(thw.prod(1).sum()), 3 * 2 * 4 * 4)
    with torch.no_grad():
        seen = tower(patches, grid_thw=thw)
    rows = seen.pooler_output
    rows = rows if torch.is_tensor(rows) else torch.cat(list(rows))
    golden |= {f"grids_{k}": thw.int(),
               f"features_{k}": torch.stack([rows] + list(seen.deepstack_features)).contiguous()}
save_file(golden, OUT / "golden.safetensors")
save_file({"model.visual." + k: v.bfloat16().contiguous() for k, v in tower.state_dict().items()},
          OUT / "model.safetensors")
ids = dict(image_token_id=3, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6)
(OUT / "config.json").write_text(json.dumps({**ids, "vision_config": {**VISION, "model_type": "qwen3_vl"}}, indent=1)
                                 + "\n")
print(sum(f.stat().st_size for f in OUT.iterdir()), "bytes")
