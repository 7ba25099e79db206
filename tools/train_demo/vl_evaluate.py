"""How often the demo of pictures is right about pictures that it never saw, by the kind of question.

    python vl_evaluate.py --model DIR [--pictures 500] [--out DIR/eval.json]

An answer counts where the whole greedy text is the right one.
"""

import argparse
import json
import random

import numpy as np
import torch

import vl_model
from vl_pictures import SIZES, picture
from vl_talk import ASK, answer, check_question
from vl_tower import CELL
from vl_train import Encoder, padded

UNSEEN = 10 ** 9  # seeds of training are texts


def questions(draw, facts):
    out = {kind: (draw.choice(asks).format(**facts), answer(kind, facts)) for kind, asks in ASK.items()}
    return out | {"check": check_question(draw, facts)}


def right(model, encoder, sets, rows, asked):
    """Of pictures of one size: whether each of the answers (question, answer) is the greedy one."""
    chats = [encoder.chat([["user", [None, text]], ["assistant", [reply]]], rows) for text, reply in asked]
    ids, learn, positions = padded(chats, encoder.stop)
    logits = model.hidden(ids, positions, ids == encoder.pad, sets) @ model.head().T
    return ((logits[:, :-1].argmax(-1) == ids[:, 1:]) | (learn[:, 1:] == 0)).all(1)


@torch.no_grad()
def evaluate(model, encoder, count, low=False, batch=50):
    score, total = {}, 0
    for size in sorted(set(SIZES)):
        share = sum(SIZES[i % len(SIZES)] == size for i in range(count))
        for begin in range(0, share, batch):
            drawn = [picture(UNSEEN + total + i, size) for i in range(min(batch, share - begin))]
            draw = random.Random(f"unseen {total}")
            asked = [questions(draw, facts) for _, facts in drawn]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                sets = model.model.visual(*vl_model.patches_of(np.stack([p for p, _ in drawn])))
                for kind in asked[0]:
                    good = right(model, encoder, sets, (size[0] // CELL, size[1] // CELL), [one[kind] for one in asked])
                    score[kind] = score.get(kind, 0) + int(good.sum())
            total += len(drawn)
    return {"pictures": total, "right": {kind: round(n / total, 4) for kind, n in score.items()}}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", required=True)
    a.add_argument("--checkpoint", help="of vl_train.py, in place of the weights in --model")
    a.add_argument("--pictures", type=int, default=500)
    a.add_argument("--low", action="store_true", help="bfloat16, which is faster on some CPUs")
    a.add_argument("--out")
    a = a.parse_args()
    torch.set_num_threads(1)
    if a.checkpoint:
        model = vl_model.fresh(1)
        model.load_state_dict(torch.load(a.checkpoint))
    else:
        model = vl_model.load(a.model)
    result = {"parameters": sum(p.numel() for p in model.parameters()), **evaluate(model.eval(), Encoder(a.model), a.pictures, a.low)}
    print(json.dumps(result))
    if a.out:
        with open(a.out, "w") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
