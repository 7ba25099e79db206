"""Trains the demo of pictures from nothing, in stages; each step draws new pictures and conversations about them from its number.

    python train.py --vl --model DIR --checkpoint a.pt --log vl_loss.csv

Only answers count in the loss.
"""

import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import vl_model
import vl_tokenizer
from vl_pictures import SIZES, picture
from vl_talk import conversation
from vl_tower import CELL, optimizers_of, set_rate, train_tower


class Encoder:
    """Messages to ids, weights in the loss, positions on three axes."""

    def __init__(self, folder):
        self.t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        names = ("im_start", "im_end", "endoftext", "vision_start", "vision_end", "image_pad")
        self.start, self.end, self.stop, self.open, self.close, self.pad = (self.t.token_to_id(f"<|{n}|>") for n in names)

    def ids(self, text):
        return self.t.encode(text, add_special_tokens=False).ids

    def chat(self, messages, rows):
        """`messages` as vl_talk.conversation has them; `rows` is the grid of a picture's features."""
        ids, learn, positions = [], [], []

        def add(new, weight=0, grid=None):
            at = max(positions[-1]) + 1 if positions else 0
            ids.extend(new)
            learn.extend([weight] * len(new))
            if grid:
                positions.extend([at, at + y, at + x] for y in range(grid[0]) for x in range(grid[1]))
            else:
                positions.extend([at + i] * 3 for i in range(len(new)))

        for role, parts in messages:
            weight = int(role == "assistant")
            add([self.start] + self.ids(role + "\n"))
            for part in parts:
                if part is None:
                    add([self.open])
                    add([self.pad] * (rows[0] * rows[1]), grid=rows)
                    add([self.close])
                else:
                    add(self.ids(part), weight)
            add([self.end], weight)
            add(self.ids("\n"))
        return ids, learn, positions


def padded(rows, stop):
    """What Encoder.chat returned for each row, as tensors of one width."""
    width = max(len(r[0]) for r in rows)
    ids = torch.tensor([r[0] + [stop] * (width - len(r[0])) for r in rows])
    learn = torch.tensor([r[1] + [0] * (width - len(r[1])) for r in rows])
    return ids, learn, torch.tensor([r[2] + [[0] * 3] * (width - len(r[2])) for r in rows]).transpose(1, 2)


def batch(step, encoder, count):
    """Conversations about pictures of one size, and the pictures; now and then two pictures in one, or none."""
    draw = random.Random(f"batch {step}")
    size, kind = draw.choice(SIZES), draw.random()
    shown = 0 if kind < 0.06 else 2 if kind < 0.16 else 1
    drawn = [[picture(f"{step} {i} {k}", size) for k in range(shown)] for i in range(count)]
    rows = [encoder.chat(conversation(draw, [facts for _, facts in one]), (size[0] // CELL, size[1] // CELL)) for one in drawn]
    pixels = [pixels for one in drawn for pixels, _ in one]
    return padded(rows, encoder.stop), np.stack(pixels) if pixels else None


def loss_of(model, encoder, rows, pixels, frozen):
    ids, learn, positions = rows
    ids, wanted, chosen = ids[:, :-1], ids[:, 1:], learn[:, 1:] > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.set_grad_enabled(not frozen):
            sets = () if pixels is None else model.model.visual(*vl_model.patches_of(pixels))
        h = model.hidden(ids, positions[:, :, :-1], ids == encoder.pad, sets)[chosen]
        logits = F.linear(h, model.head())
    wanted = wanted[chosen]
    right = (logits.argmax(-1) == wanted).float().mean().item()
    return F.cross_entropy(logits.float(), wanted), right


def train_talk(model, encoder, first, steps, count, lr, everything, log, save):
    model.model.visual.requires_grad_(everything)
    trained = model if everything else model.model.language_model
    optimizers = optimizers_of(trained, lr)
    begin, running = time.time(), None
    for step in range(steps):
        set_rate(optimizers, lr, step, steps)
        loss, right = loss_of(model, encoder, *batch(first + step, encoder, count), not everything)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        new = np.array([loss.item(), right])
        running = new if running is None else 0.9 * running + 0.1 * new
        if step % 20 == 19:
            log.write(f"{first + step + 1},{running[0]:.4f},{running[1]:.4f}\n")
            log.flush()
            print(f"{time.time() - begin:6.0f} s  talk {step + 1}  loss {running[0]:.4f}  right {running[1]:.4f}", flush=True)
        if step % 100 == 99 or step + 1 == steps:
            save()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--vl", action="store_true", help="train.py hands over with this")
    a.add_argument("--model", required=True, help="folder that receives the model")
    a.add_argument("--checkpoint", required=True, help="file of the parameters, written every 100 steps")
    a.add_argument("--log", required=True)
    a.add_argument("--init", help="a checkpoint to go on from")
    a.add_argument("--first", type=int, default=0, help="number of the first step about conversations: later ones draw other pictures")
    a.add_argument("--tower-steps", type=int, default=800, help="first stage: the tower alone")
    a.add_argument("--steps", type=int, default=300, help="second stage: the language model, with the tower as it is")
    a.add_argument("--joint-steps", type=int, default=500, help="third stage: both")
    a.add_argument("--batch", type=int, default=64)
    a.add_argument("--lr", type=float, default=2.5e-3)
    a = a.parse_args()
    torch.set_num_threads(1)
    if not os.path.exists(os.path.join(a.model, "tokenizer.json")):
        vl_tokenizer.make(a.model)
    encoder, model = Encoder(a.model), vl_model.fresh(1)
    if a.init:
        model.load_state_dict(torch.load(a.init))
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)

    def save():
        torch.save(model.state_dict(), a.checkpoint + ".tmp")
        os.replace(a.checkpoint + ".tmp", a.checkpoint)

    log = open(a.log, "a" if a.init else "w")
    train_tower(model.model.visual, a.tower_steps, a.batch * 3 // 2, 3e-3, save)
    train_talk(model, encoder, a.first, a.steps, a.batch, a.lr, False, log, save)
    train_talk(model, encoder, a.first + a.steps, a.joint_steps, a.batch, a.lr * 0.4, True, log, save)
    vl_model.export(model, a.model)


if __name__ == "__main__":
    main()
