"""Trains the demo model: a warm start from the story model (or from a checkpoint), then chat data made from stories.

    python train.py --teacher DIR --stories FILE [FILE ...] --model DIR --tokens 6 --log loss.csv [--init CHECKPOINT] [--lr 1e-3]

--model is the folder that holds tokenizer.json and receives the weights.  The loss counts what the assistant says (and the whole
of the plain stories that are mixed in).  The first HELD_OUT stories of the first file are never trained on.
"""

import argparse
import copy
import json
import math
import os
import random
import sys
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import student
from chat import conversations, mixed, varied
from openings import KIND
from words import STOP, words_of

HELD_OUT = 400
REQUEST = set("story stories word words write short using uses use contains children child bedtime please hear another".split())
WORDS = set(KIND)  # everyday words count as asked for even where words.py calls them too common
PLAIN = 0.03  # this share of the stories is also seen as plain text that ends with <|endoftext|>


def read(files):
    stories, seen = [], set()
    for name in files:
        for line in open(name):
            s = json.loads(line)
            if s["text"] not in seen:
                seen.add(s["text"])
                stories.append(s)
    return stories[HELD_OUT:], stories[:HELD_OUT]


def read_fresh(files):
    """All whole lines of files that may still be growing."""
    return [json.loads(line) for name in files for line in open(name) if line.endswith("\n")]


class Encoder:
    def __init__(self, folder, asked=5.0):
        self.asked = asked  # the weight of the first use of a word that the user asked for
        self.t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.start, self.end, self.stop = (self.t.token_to_id(f"<|{n}|>") for n in ("im_start", "im_end", "endoftext"))

    def ids(self, text):
        return self.t.encode(text, add_special_tokens=False).ids

    def chat(self, messages, limit):
        """Ids and, for each, its weight in the loss; whole exchanges beyond the limit are left out."""
        ids, learn, asked = [], [], set()
        for m in messages:
            head, body, says = [self.start] + self.ids(m["role"] + "\n"), self.ids(m["content"]) + [self.end], m["role"] == "assistant"
            if len(ids) + len(head) + len(body) + 1 > limit:
                break
            ids += head + body + self.ids("\n")
            learn += [0.0] * len(head)
            for t in body:
                learn.append((self.asked if t in asked else 1.0) if says else 0.0)
                if says:
                    asked.discard(t)
            learn.append(0.0)
            asked = {self.ids(" " + w)[0] for w in words_of(m["content"]) if (w not in STOP or w in WORDS) and w not in REQUEST} if not says else set()
        return ids, learn

    def plain(self, text):
        ids = self.ids(text) + [self.stop]
        return ids, [1.0] * len(ids)


def opening(ids, learn, length):
    """A conversation cut after the first `length` ids that count in the loss."""
    at = next((i for i, w in enumerate(learn) if w), 0) + length
    return ids[:at], learn[:at]


def batches(stories, encoder, rng, limit, tokens, vary=True, share=None, short=0.0):
    """One pass over the stories in batches of about `tokens` tokens, rows of like length together, in random order."""
    stories = varied(stories, rng) if vary else stories
    stories = mixed(stories, rng) if vary and share else stories
    rows = [encoder.chat(c["messages"], limit) for c in conversations(stories, rng, share)]
    rows = [opening(*r, rng.choice([60, 80, 100])) if rng.random() < short else r for r in rows]
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
        learn = torch.tensor([r[1] + [0.0] * (width - len(r[1])) for r in rows])
        yield ids, learn


def loss_of(model, ids, learn, weighted=True):
    """Mean loss over the learnt tokens, and their number."""
    weight = learn[:, 1:] if weighted else (learn[:, 1:] > 0).float()
    chosen = weight > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = model.hidden(ids[:, :-1])[chosen]
        logits = F.linear(h, model.model.embed_tokens.weight)
    each = F.cross_entropy(logits.float(), ids[:, 1:][chosen], reduction="none")
    return (each * weight[chosen]).sum() / weight.sum(), int(chosen.sum())


@torch.no_grad()
def validate(model, rows):
    total = count = 0
    for ids, learn in rows:
        loss, n = loss_of(model, ids, learn, weighted=False)
        total, count = total + loss.item() * n, count + n
    return total / count


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal by a Newton-Schulz iteration (Jordan et al. 2024), scaled to the step size of
    Adam as in "Muon is Scalable for LLM Training" (Liu et al. 2025).  For the matrices inside the layers."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.05):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"].mul_(group["momentum"]).add_(p.grad)
                x = p.grad.add(m, alpha=group["momentum"]).bfloat16()
                tall = x.shape[0] > x.shape[1]
                x = x.T.contiguous() if tall else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    g = x @ x.T
                    x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
                x = (x.T if tall else x).float()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(x, alpha=-0.2 * group["lr"] * max(p.shape) ** 0.5)


def average(model, workers, part):
    """The mean of the workers' parameters and of `part`.  They meet only every few steps, so that neither waits long for the other."""
    if workers == 1:
        return part
    flat = torch.cat([p.data.flatten() for p in model.parameters()] + [torch.tensor([part])])
    torch.distributed.all_reduce(flat)
    flat /= workers
    at = 0
    for p in model.parameters():
        p.data.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
    return flat[-1].item()


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("--teacher", required=True)
    a.add_argument("--stories", nargs="+", required=True)
    a.add_argument("--fresh", nargs="*", default=[], help="files of which every story takes part in every pass")
    a.add_argument("--chunk", type=int, default=4000, help="stories of the other files in a pass")
    a.add_argument("--longest", type=int, default=1400, help="characters of the longest story used; short ones hold more requests")
    a.add_argument("--asked", type=float, default=5.0, help="weight of the first use of a word that was asked for")
    a.add_argument("--words", type=float, help="share of the requests that give words, and draw them from the first half of the story")
    a.add_argument("--nudged", action="store_true", help="of the other files too, only stories that were nudged towards words")
    a.add_argument("--short", type=float, default=0.0, help="share of the conversations cut after the opening of the first story")
    a.add_argument("--steady", action="store_true", help="keep the step size and save a running mean of the parameters instead")
    a.add_argument("--model", required=True)
    a.add_argument("--log", required=True)
    a.add_argument("--init")
    a.add_argument("--checkpoint", default="checkpoint.pt")
    a.add_argument("--tokens", type=float, default=6, help="how many million tokens to train on")
    a.add_argument("--minutes", type=float, help="end after this time instead, whatever was seen by then")
    a.add_argument("--batch", type=int, default=4096, help="tokens a step")
    a.add_argument("--lr", type=float, default=1e-3)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--workers", type=int, default=1, help="processes that train together; start each with its own --rank")
    a.add_argument("--rank", type=int, default=0)
    a.add_argument("--meet", default="/tmp/train_demo_meet", help="a file, absent at the start, by which the workers find each other")
    a.add_argument("--every", type=int, default=10, help="steps between two means of the workers' parameters")
    return a.parse_args()


def main():
    a = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    if a.workers > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{a.meet}", rank=a.rank, world_size=a.workers)
    rng = random.Random(a.seed)
    stories, held = read(a.stories)
    encoder = Encoder(a.model, a.asked)
    limit = student.CONFIG["max_position_embeddings"]
    check = list(batches(held[:200], encoder, random.Random(0), limit, a.batch, vary=False))
    if a.init:
        model = student.Student()
        model.load_state_dict(torch.load(a.init)["model"])
    else:
        model = student.warm_start(a.teacher, a.model, [s["text"] for s in held[:60]])
    print(f"{len(stories)} stories, {sum(p.numel() for p in model.parameters())} parameters, start {validate(model, check):.4f}", flush=True)
    rng = random.Random(a.seed * 1000 + a.rank)
    inside = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() == 1 or "embed" in n]
    optimizers = [Muon(inside, a.lr), torch.optim.AdamW(others, lr=a.lr, betas=(0.9, 0.95), weight_decay=0.0)]
    begin = saved = time.time()
    goal, seen, step, shown, running, part = a.tokens * 1e6, 0, 0, 0, None, 0.0
    mean = copy.deepcopy(model) if a.steady else model
    log = open(a.log if a.rank == 0 else os.devnull, "w")
    log.write("tokens,train_loss,heldout_loss,lr\n")
    while part < 1:
        # The files are read again for each pass: what generate.py has added since takes part.
        stories = [s for s in read(a.stories)[0] if len(s["text"]) <= a.longest and (s["words"] or not a.nudged)]
        some = rng.sample(stories, min(a.chunk, len(stories))) + [s for s in read_fresh(a.fresh) if len(s["text"]) <= a.longest]
        for ids, learn in batches(some, encoder, rng, limit, a.batch, share=a.words, short=a.short):
            lr = a.lr * min(1.0, (step + 1) / 30) * (1.0 if a.steady else 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(part, 1.0))))
            for opt in optimizers:
                for g in opt.param_groups:
                    g["lr"] = lr
            loss, _ = loss_of(model, ids, learn)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for opt in optimizers:
                opt.step()
            model.zero_grad(set_to_none=True)
            if a.steady and step % 4 == 0:
                keep = min(0.96, step / (step + 8.0))
                for m, p in zip(mean.parameters(), model.parameters()):
                    m.data.lerp_(p.data, 1 - keep)
            seen, step = seen + a.batch * a.workers, step + 1
            running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
            if step % a.every:
                continue
            part = average(model, a.workers, (time.time() - begin) / 60 / a.minutes if a.minutes else seen / goal)
            if a.rank == 0 and (seen - shown >= 100_000 or part >= 1):
                shown = seen
                v = validate(mean, check[::6] if part < 1 else check)
                log.write(f"{seen},{running:.4f},{v:.4f},{lr:.6f}\n")
                log.flush()
                print(f"{time.time() - begin:6.0f} s  step {step}  {seen / 1e6:.2f}M tokens  loss {running:.4f}  held out {v:.4f}  lr {lr:.2e}", flush=True)
            if a.rank == 0 and (time.time() - saved > 90 or part >= 1):
                saved = time.time()
                torch.save({"model": mean.state_dict(), "tokens": seen}, a.checkpoint + ".tmp")
                os.replace(a.checkpoint + ".tmp", a.checkpoint)
            if part >= 1:
                break
    if a.rank == 0:
        student.export(mean, a.model)


if __name__ == "__main__":
    if "--vl" in sys.argv:
        from vl_train import main  # the demo of pictures
    main()
