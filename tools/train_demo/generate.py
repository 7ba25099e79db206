"""Samples short stories from a story model into a JSON-lines file: {"words": [...], "text": "..."} a line.

Seven stories in ten are nudged towards one to three random words (a logit bias that ends once the word is used), so that the
student later sees unusual combinations of words in stories that the teacher still finds natural.

About half of the batches open with a hero of their own ("Once upon a time, there was a brave boat"): left alone, the teacher tells
of a little girl named Lily three times in five.

    python generate.py --teacher DIR --out FILE [--seed N] [--minutes M]
"""

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from teacher import Teacher
from words import HEROES, QUALITIES, STOP, uses


def good(text):
    """A story that ends in a sentence, has a sensible length, and does not go round in circles."""
    text = text.strip()
    if not 250 <= len(text) <= 1400 or text[-1] not in '.!?"' or not text[0].isupper() or not text.isascii():
        return False
    words = text.split()
    four = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
    sentences = [s.strip() for s in text.replace("!", ".").replace("?", ".").split(".") if len(s) > 20]
    return len(set(four)) > 0.93 * len(four) and len(set(sentences)) == len(sentences) and text.count('"') % 2 == 0


def survey(teacher, tokenizer, generator, batches=2, batch=256, keep=6000):
    """The `keep` tokens that the teacher gives most probability on average, and the probability of each single-token word."""
    v = teacher.w["model.embed_tokens.weight"].shape[0]
    every, mass, rows = torch.arange(v), torch.zeros(v), 0
    none = torch.full((batch, 1), -1)
    for _ in range(batches):
        stories = [s for s in teacher.sample([[teacher.bos]] * batch, none, every, generator, temperature=1.0) if s]
        for s in stories[:100]:
            with torch.no_grad():
                h = teacher.forward(torch.tensor([[teacher.bos] + s]))[0]
                mass += torch.softmax(F.linear(h, teacher.w["model.embed_tokens.weight"]).float(), -1).sum(0)
            rows += len(s) + 1
    mass /= rows
    allowed = torch.topk(mass, keep).indices
    allowed = torch.unique(torch.cat([allowed, torch.tensor([teacher.bos])]))
    words = {}
    for i in allowed.tolist():
        piece = tokenizer.id_to_token(i)
        w = piece[1:]
        if piece.startswith("\u2581") and w.isascii() and w.isalpha() and w.islower() and len(w) > 2 and w not in STOP:
            words[w] = (i, float(mass[i]))
    return allowed, words


OPENINGS = ["Once upon a time, there was a {h}", "Once upon a time, there was a {q} {h}", "Once upon a time, there was a little {h} named",
            "One day, a {q} {h}", "Once upon a time, there was a {h} named", "Once upon a time, there was a {h} and a {o}",
            "Once there was a {q} {h} who", "A {h} and a {o} were", "Once upon a time, there lived a {q} {h}"]


def openings(teacher, tokenizer, rng, batch):
    """One opening for each row of a batch, all of one length in tokens, with the words that each holds."""
    template, rows, shown = rng.choice(OPENINGS), {}, {}
    while max(map(len, rows.values()), default=0) < batch:
        h, o = rng.sample(HEROES, 2)
        q = rng.choice(QUALITIES)
        text = template.format(h=h, o=o, q=q)
        for vowel in "aeiou":
            text = text.replace(f" a {vowel}", f" an {vowel}").replace(f"A {vowel}", f"An {vowel}")
        ids = [teacher.bos] + tokenizer.encode(text, add_special_tokens=False).ids
        rows.setdefault(len(ids), []).append(ids)
        shown.setdefault(len(ids), []).append([w for w in (h, o, q) if w in text.split()])
    length = max(rows, key=lambda n: len(rows[n]))
    return rows[length][:batch], shown[length][:batch]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--teacher", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--minutes", type=float, default=15)
    a.add_argument("--batch", type=int, default=256)
    a.add_argument("--heroes", type=float, default=0.5, help="share of batches with an opening of their own")
    a = a.parse_args()
    torch.set_num_threads(1)
    rng, gen = random.Random(a.seed), torch.Generator().manual_seed(a.seed)
    teacher, tokenizer = Teacher(a.teacher), Tokenizer.from_file(a.teacher + "/tokenizer.json")
    allowed, words = survey(teacher, tokenizer, torch.Generator().manual_seed(0))
    ranked = sorted(words, key=lambda w: -words[w][1])[:1500]
    weight = [words[w][1] ** 0.4 for w in ranked]
    print(f"{len(allowed)} tokens, {len(words)} words; commonest {ranked[:12]}, rarest kept {ranked[-12:]}", flush=True)

    start = time.time()
    made = kept = asked = used = 0
    with open(a.out, "w") as out:
        while time.time() - start < 60 * a.minutes:
            wishes = [list(dict.fromkeys(rng.choices(ranked, weight, k=rng.choice([1, 2, 3])))) if rng.random() < 0.7 else []
                      for _ in range(a.batch)]
            wanted = torch.tensor([([words[w][0] for w in ws] + [-1] * 3)[:3] for ws in wishes])
            prompts, heroes = [[teacher.bos]] * a.batch, [[]] * a.batch
            if rng.random() < a.heroes:
                prompts, heroes = openings(teacher, tokenizer, rng, a.batch)
            stories = teacher.sample(prompts, wanted, allowed, gen, temperature=0.85, min_p=0.02, bias=8.0)
            for ids, ws, hs in zip(stories, wishes, heroes):
                made += 1
                text = tokenizer.decode(ids).strip() if ids else ""
                if not good(text):
                    continue
                have = [w for w in ws if uses(text, w)]
                kept, asked, used = kept + 1, asked + len(ws), used + len(have)
                out.write(json.dumps({"words": hs + have, "text": text}) + "\n")
            out.flush()
            print(f"{time.time() - start:6.0f} s  {made} made, {kept} kept, words used {used / max(asked, 1):.2f}", flush=True)


if __name__ == "__main__":
    main()
