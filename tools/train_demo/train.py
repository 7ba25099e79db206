"""Trains the demo model: a warm start from the story model (or from a checkpoint), then chat data made from stories.

    python train.py --teacher DIR --stories FILE [FILE ...] --model DIR --tokens 6 --log loss.csv [--init CHECKPOINT] [--lr 1e-3]

--model is the folder that holds tokenizer.json and receives the weights.  The loss counts what the assistant says (and the whole
of the plain stories that are mixed in).  The first HELD_OUT stories of the first file are never trained on.
"""

import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import student
from chat import conversations

HELD_OUT = 400
PLAIN = 0.10  # this share of the stories is also seen as plain text that ends with <|endoftext|>


def read(files):
    stories, seen = [], set()
    for name in files:
        for line in open(name):
            s = json.loads(line)
            if s["text"] not in seen:
                seen.add(s["text"])
                stories.append(s)
    return stories[HELD_OUT:], stories[:HELD_OUT]


class Encoder:
    def __init__(self, folder):
        self.t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.start, self.end, self.stop = (self.t.token_to_id(f"<|{n}|>") for n in ("im_start", "im_end", "endoftext"))

    def ids(self, text):
        return self.t.encode(text, add_special_tokens=False).ids

    def chat(self, messages, limit):
        """Ids and, for each, whether it is learnt; whole exchanges beyond the limit are left out."""
        ids, learn = [], []
        for m in messages:
            head, body, says = [self.start] + self.ids(m["role"] + "\n"), self.ids(m["content"]) + [self.end], m["role"] == "assistant"
            if len(ids) + len(head) + len(body) + 1 > limit:
                break
            ids += head + body + self.ids("\n")
            learn += [False] * len(head) + [says] * len(body) + [False]
        return ids, learn

    def plain(self, text):
        ids = self.ids(text) + [self.stop]
        return ids, [True] * len(ids)


def batches(stories, encoder, rng, limit, tokens):
    """One pass over the stories in batches of about `tokens` tokens, rows of like length together, in random order."""
    rows = [encoder.chat(c["messages"], limit) for c in conversations(stories, rng)]
    rows += [encoder.plain(s["text"]) for s in stories if rng.random() < PLAIN]
    rows = [r for r in rows if any(r[1])]
    rows.sort(key=lambda r: len(r[0]) + rng.random() * 16)
    out, at = [], 0
    while at < len(rows):
        n = 1
        while at + n < len(rows) and (n + 1) * max(len(r[0]) for r in rows[at:at + n + 1]) <= tokens:
            n += 1
        out.append(rows[at:at + n])
        at += n
    rng.shuffle(out)
    for rows in out:
        width = max(len(r[0]) for r in rows)
        ids = torch.tensor([r[0] + [encoder.stop] * (width - len(r[0])) for r in rows])
        learn = torch.tensor([r[1] + [False] * (width - len(r[1])) for r in rows])
        yield ids, learn


def loss_of(model, ids, learn):
    """Mean loss over the learnt tokens, and their number."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = model.hidden(ids[:, :-1])[learn[:, 1:]]
        logits = F.linear(h, model.model.embed_tokens.weight)
    return F.cross_entropy(logits.float(), ids[:, 1:][learn[:, 1:]]), int(learn[:, 1:].sum())


@torch.no_grad()
def validate(model, rows):
    total = count = 0
    for ids, learn in rows:
        loss, n = loss_of(model, ids, learn)
        total, count = total + loss.item() * n, count + n
    return total / count


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--teacher", required=True)
    a.add_argument("--stories", nargs="+", required=True)
    a.add_argument("--model", required=True)
    a.add_argument("--log", required=True)
    a.add_argument("--init")
    a.add_argument("--checkpoint", default="checkpoint.pt")
    a.add_argument("--tokens", type=float, default=6, help="how many million tokens to train on")
    a.add_argument("--batch", type=int, default=4096, help="tokens a step")
    a.add_argument("--lr", type=float, default=1e-3)
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    rng = random.Random(a.seed)
    stories, held = read(a.stories)
    encoder = Encoder(a.model)
    limit = student.CONFIG["max_position_embeddings"]
    check = list(batches(held[:200], encoder, random.Random(0), limit, a.batch))
    if a.init:
        model = student.Student()
        model.load_state_dict(torch.load(a.init)["model"])
    else:
        model = student.warm_start(a.teacher, a.model, [s["text"] for s in held[:60]])
    print(f"{len(stories)} stories, {sum(p.numel() for p in model.parameters())} parameters, start {validate(model, check):.4f}", flush=True)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": gains, "weight_decay": 0.0}], lr=a.lr, betas=(0.9, 0.95))
    begin, goal, seen, step, shown, running = time.time(), a.tokens * 1e6, 0, 0, 0, None
    saved = begin
    log = open(a.log, "w")
    log.write("tokens,train_loss,heldout_loss,lr\n")
    while seen < goal:
        for ids, learn in batches(stories, encoder, rng, limit, a.batch):
            part = seen / goal
            lr = a.lr * min(1.0, (step + 1) / 60) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(part, 1.0))))
            for g in opt.param_groups:
                g["lr"] = lr
            loss, _ = loss_of(model, ids, learn)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            seen, step = seen + ids.numel(), step + 1
            running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
            if seen - shown >= 100_000 or seen >= goal:
                shown = seen
                v = validate(model, check[::4]) if seen < goal else validate(model, check)
                log.write(f"{seen},{running:.4f},{v:.4f},{lr:.6f}\n")
                log.flush()
                print(f"{time.time() - begin:6.0f} s  step {step}  {seen / 1e6:.2f}M tokens  loss {running:.4f}  held out {v:.4f}  lr {lr:.2e}", flush=True)
            if time.time() - saved > 120 or seen >= goal:
                saved = time.time()
                torch.save({"model": model.state_dict(), "tokens": seen}, a.checkpoint + ".tmp")
                os.replace(a.checkpoint + ".tmp", a.checkpoint)
            if seen >= goal:
                break
    student.export(model, a.model)


if __name__ == "__main__":
    main()
