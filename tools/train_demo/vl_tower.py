"""First stage of the demo of pictures: the tower learns to see, before the language model learns to talk.

A linear head reads from the features of a 32 x 32 cell the shape, its colour and the digit in it (or none), where the digit is, and
the background. Through the language model alone the same takes several times as long: it must find out where to look first.
"""

import math
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import vl_model
from train import Muon
from vl_pictures import BACKGROUNDS, COLOURS, SHAPES, SIZES, picture

CELL = vl_model.VISION["patch_size"] * vl_model.MERGE
WHERE = ["left", "right", "above", "below"]
CLASSES = {"shape": len(SHAPES) + 1, "colour": len(COLOURS) + 1, "digit": 11, "where": len(WHERE) + 1, "background": len(BACKGROUNDS)}
IGNORED = -100


def optimizers_of(model, lr):
    matrix = lambda n, p: p.dim() == 2 and "embed" not in n  # noqa: E731
    inside = [p for n, p in model.named_parameters() if matrix(n, p)]
    others = [p for n, p in model.named_parameters() if not matrix(n, p)]
    return [Muon(inside, lr), torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)]


def set_rate(optimizers, lr, step, steps):
    """Up to lr in 40 steps, then down along a cosine."""
    lr *= min(1.0, (step + 1) / 40) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    for group in (g for o in optimizers for g in o.param_groups):
        group["lr"] = lr


def share_of(at, y, x):
    """How much of the cell at row y, column x is covered by the square with this centre and half extent."""
    cx, cy, r = at
    over = [max(0.0, min(c + r, (i + 1) * CELL) - max(c - r, i * CELL)) for c, i in ((cx, x), (cy, y))]
    return over[0] * over[1] / CELL ** 2


def labels(facts, rows):
    """Of each row of features, in their sequence: the number of each class. 0 is none, but for the background."""
    named = {"shape": 1 + SHAPES.index(facts["shape"]), "colour": 1 + list(COLOURS).index(facts["colour"]), "digit": 1 + facts["digit"],
             "where": 1 + WHERE.index(facts["where"])}
    out = {kind: [] for kind in CLASSES}
    for y in range(rows[0]):
        for x in range(rows[1]):
            out["background"].append(list(BACKGROUNDS).index(facts["background"]))
            for kind, number in named.items():
                share = share_of(facts["at"]["digit" if kind == "digit" else "shape"], y, x)
                out[kind].append(number if share > .2 else 0 if share < .05 else IGNORED)
    return out


def guess(kind, logits):
    """Of each picture the class that its rows [pictures, rows, classes] agree on."""
    odds = torch.log_softmax(logits, -1)
    if kind == "background":
        return odds.sum(1).argmax(-1)
    return 1 + (odds[:, :, 1:] - odds[:, :, :1]).logsumexp(1).argmax(-1)


def batch(step, count):
    size = random.Random(f"tower {step}").choice(SIZES)
    drawn = [picture(f"tower {step} {i}", size) for i in range(count)]
    labelled = [labels(facts, (size[0] // CELL, size[1] // CELL)) for _, facts in drawn]
    patches, grid = vl_model.patches_of(np.stack([pixels for pixels, _ in drawn]))
    return patches, grid, {kind: torch.tensor([one[kind] for one in labelled]) for kind in CLASSES}


def train_tower(tower, steps, count, lr, save):
    heads = torch.nn.ModuleList(torch.nn.Linear(vl_model.VISION["out_hidden_size"], n) for n in CLASSES.values())
    optimizers = optimizers_of(tower, lr) + [torch.optim.AdamW(heads.parameters(), lr=lr, weight_decay=0.0)]
    begin, seen = time.time(), {}
    for step in range(steps):
        set_rate(optimizers, lr, step, steps)
        patches, grid, wanted = batch(step, count)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            sets = tower(patches, grid)
            logits = [[head(features).float() for head in heads] for features in sets]
        loss = 0
        for weight, outs in zip([1.0] + [0.25] * (len(sets) - 1), logits):  # the deepstack's features learn the same, at a lower weight
            loss = loss + weight * sum(F.cross_entropy(out.flatten(0, 1), wanted[kind].flatten()) for kind, out in zip(CLASSES, outs))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        for kind, out in zip(CLASSES, logits[0]):
            right = float((guess(kind, out.detach()) == wanted[kind].max(1).values).float().mean())
            seen[kind] = right if kind not in seen else 0.9 * seen[kind] + 0.1 * right
        if step % 20 == 19:
            print(f"{time.time() - begin:6.0f} s  tower {step + 1}  loss {loss.item():.3f}", {k: round(v, 3) for k, v in seen.items()}, flush=True)
        if step % 100 == 99 or step + 1 == steps:
            save()
