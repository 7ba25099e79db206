"""Writes tests/golden/vision/{dense,moe}/text.safetensors: prompts without pictures for the models that vision_tiny.py
made, with the logits and greedy continuations of Hugging Face transformers. The format is that of golden.safetensors in
tests/golden/models/README.md, with the logits of the last position alone. One prompt has the ids of the vision tokens,
which are text there.

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/vision_text.py

Also checks that transformers reads stacked experts in the layout of published files, each matrix transposed, as the same
model.
"""
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from models_tiny import PROMPT_LENGTHS, golden_case, logits_of

OUT = pathlib.Path("tests/golden/vision")


def load(folder):
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.config.vocab_size = model.config.text_config.vocab_size
    return model.eval()


def check_published_layout(model, source):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source / "config.json", folder)
        tensors = {name: value.transpose(1, 2).contiguous() if ".mlp.experts." in name else value
                   for name, value in load_file(source / "model.safetensors").items()}
        save_file(tensors, pathlib.Path(folder, "model.safetensors"), {"format": "pt"})
        ids = list(range(3, 60))
        if not torch.equal(logits_of(load(folder), ids), logits_of(model, ids)):
            raise SystemExit("the published layout is another model to transformers")


for number, name in enumerate(("dense", "moe")):
    model = load(OUT / name)
    out = {}
    for k, length in enumerate(PROMPT_LENGTHS):
        vision_tokens = list(range(3072, 3076)) if length == 16 else []
        print(name, golden_case(model, length, 7000 + 100 * number + k, out, k, vision_tokens), flush=True)
        out[f"positions_{k}"], out[f"logits_{k}"] = out[f"positions_{k}"][-1:].clone(), out[f"logits_{k}"][-1:].clone()
        out[f"range_{k}"] = (out[f"logits_{k}"].max() - out[f"logits_{k}"].min()).reshape(1)
    save_file(out, OUT / name / "text.safetensors")
    if name == "moe":
        check_published_layout(model, OUT / name)
