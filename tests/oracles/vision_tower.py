"""Writes tests/golden/vision/tower: a small deterministic random tower of Qwen3-VL, of the shape that published towers
have and vision_tiny.py's have not (head_dim 72, which fills no vector; GELU by erf; no deepstack), with the features that
Hugging Face transformers computes for odd grids (float32, CPU, eager attention).

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/vision_tower.py

golden.safetensors: grids_0 i32 [items, 3]; features_0 f32 [rows of all items, hidden]. The patches are a formula, see
patches_of(), which the test computes too.
"""
import json
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

OUT = pathlib.Path("tests/golden/vision/tower")
IDS = dict(image_token_id=50, video_token_id=51, vision_start_token_id=52, vision_end_token_id=53)
TEXT = dict(vocab_size=60, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=64, model_type="qwen3_vl_text",
            rms_norm_eps=1e-6, dtype="bfloat16", eos_token_id=2,
            rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[2, 1, 1], mrope_interleaved=True))
VISION = dict(depth=2, hidden_size=72, intermediate_size=52, num_heads=1, patch_size=4, spatial_merge_size=2,
              temporal_patch_size=2, out_hidden_size=16, num_position_embeddings=25, deepstack_visual_indexes=[],
              hidden_act="gelu", model_type="qwen3_vl_vision")
# The least, 16 patches, tall, wide, more than a side of the learned positions, more than a range of keys (128); videos.
GRIDS = [(1, 2, 2), (1, 4, 4), (1, 14, 2), (1, 2, 18), (1, 6, 10), (1, 12, 14), (2, 4, 6), (5, 2, 2)]


def patches_of(count, width):
    """Multiples of 1 / 128 in [-1, 1): the upper byte of i * 2654435761 modulo 2^32 for the element i of all patches."""
    i = np.arange(count * width, dtype=np.uint64)
    upper = ((i * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
    return torch.from_numpy((upper.astype(np.float32) / 128 - 1).reshape(count, width))


torch.set_num_threads(1)
config = Qwen3VLVisionConfig(**{k: v for k, v in VISION.items() if k != "model_type"})
config._attn_implementation = "eager"
model = Qwen3VLVisionModel(config).float().eval()
draw = torch.Generator().manual_seed(0)
with torch.no_grad():
    for name, p in sorted(model.named_parameters()):
        if p.dim() >= 2:
            values = torch.randn(p.shape, generator=draw) * (1.5 / max(1, p[0].numel())) ** 0.5
        elif "norm" in name and name.endswith("weight"):
            values = 1 + 0.2 * torch.randn(p.shape, generator=draw)
        else:
            values = 0.2 * torch.randn(p.shape, generator=draw)
        p.copy_(values.bfloat16().float())  # what is stored
    thw = torch.tensor(GRIDS)
    patches = patches_of(int(thw.prod(1).sum()), 3 * 2 * 4 * 4)
    features = model(patches, grid_thw=thw).pooler_output
features = features if torch.is_tensor(features) else torch.cat(list(features))
shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir(parents=True)
save_file({"grids_0": thw.int(), "features_0": features.contiguous()}, OUT / "golden.safetensors")
save_file({f"model.visual.{k}": v.bfloat16().contiguous() for k, v in model.state_dict().items()},
          OUT / "model.safetensors")
stored = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", **IDS,
          "tie_word_embeddings": False, "text_config": TEXT, "vision_config": VISION}
(OUT / "config.json").write_text(json.dumps(stored, indent=1) + "\n")
print("features", tuple(features.shape), "greatest", float(features.abs().max()))
