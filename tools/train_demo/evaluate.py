"""Measures the demo model next to the story model it learned from, and prints samples.

    python evaluate.py --model DIR --teacher DIR --stories FILE --out eval.json [--samples samples.txt] [--parts text story_words free_words]
        [--how greedy t0.8]

Held-out text: the first 400 stories of FILE (train.py never trains on these when FILE is its first one).  Vocabularies differ, so
bits per byte are compared; perplexity is given per word.  The model is loaded by transformers from the exported folder.
"""

import argparse
import json
import math
import random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat import ASK_WORDS, fill
from teacher import Teacher
from train import HELD_OUT, read
from words import content_words, uses

# Words that a visitor may think of.  They are drawn at random, so most combinations are in no training story.
WISHES = """dog cat ball red moon boat brave tree bird flower cake rain sun star fish king queen castle dragon bear rabbit frog train
car truck box hat shoe garden forest river lake beach snow wind cloud storm house door key book picture song drum apple banana
cookie soup bread milk table chair bed blanket doll robot kite swing slide bike horse cow pig duck hen farm barn zoo lion tiger
monkey elephant mouse squirrel butterfly bee ant spider magic wish treasure map ship island sand shell bridge road hill mountain
happy sad scared angry kind gentle funny quiet loud shiny soft warm cold big tiny old new lost hungry sleepy jump run climb sing
dance swim fly hide share help paint cook clean build fix laugh cry sleep blue green yellow purple golden""".split()

PROMPTS = ["Tell me a short story about a dog and a red ball.", "Write a story with the words: moon, boat, brave.",
           "Tell me a story about a little girl who finds a key.", "Write a story with the words \"castle\" and \"cake\".",
           "Tell me a story about a bear and a bee.", "Story about a rainy day", "Write a story with the word lion.", "Tell me a story."]
CHATS = [["Hello!", "Tell me a story about a cat and a boat.", "What was the story about?", "Tell me another one."],
         ["Who are you and what can you do?", "Write a story with the words: king, apple, kind.", "Continue.", "Thank you!"],
         ["What is the capital of Spain?", "OK, then tell me a story about a small robot.", "What happened next?", "Give it a title."]]


@torch.no_grad()
def student_nats(model, tokenizer, stories):
    """Sum of -ln p of the stories as answers to a plain request, without the end token."""
    head = tokenizer.apply_chat_template([{"role": "user", "content": "Tell me a story."}], add_generation_prompt=True, tokenize=False)
    head = tokenizer(head, add_special_tokens=False).input_ids
    total = count = 0
    for s in stories:
        body = tokenizer(s, add_special_tokens=False).input_ids
        logits = model(input_ids=torch.tensor([head + body])).logits[0, len(head) - 1:-1]
        total += F.cross_entropy(logits.float(), torch.tensor(body), reduction="sum").item()
        count += len(body)
    return total, count


@torch.no_grad()
def teacher_nats(teacher, tokenizer, stories):
    total = count = 0
    for s in stories:
        body = tokenizer.encode(s, add_special_tokens=False).ids
        ids = [teacher.bos] + body
        logits = F.linear(teacher.forward(torch.tensor([ids]))[0, :-1], teacher.w["model.embed_tokens.weight"])
        total += F.cross_entropy(logits.float(), torch.tensor(body), reduction="sum").item()
        count += len(body)
    return total, count


def figures(nats, tokens, stories):
    size, words = sum(len(s.encode()) for s in stories), sum(len(s.split()) for s in stories)
    return {"bits_per_byte": round(nats / math.log(2) / size, 4), "perplexity_per_word": round(math.exp(nats / words), 3),
            "perplexity_per_token": round(math.exp(nats / tokens), 3), "tokens": tokens}


@torch.no_grad()
def answer(model, tokenizer, chats, batch=200, limit=360, **how):
    """The assistant's next message in each conversation; also whether it ended by itself."""
    out = []
    tokenizer.padding_side = "left"
    order = sorted(range(len(chats)), key=lambda i: len(str(chats[i])))
    for at in range(0, len(chats), batch):
        part = order[at:at + batch]
        texts = [tokenizer.apply_chat_template(chats[i], add_generation_prompt=True, tokenize=False) for i in part]
        x = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        y = model.generate(input_ids=x.input_ids, attention_mask=x.attention_mask, max_new_tokens=limit, **how)
        for i, row in zip(part, y[:, x.input_ids.shape[1]:].tolist()):
            end = next((n for n, t in enumerate(row) if t in (tokenizer.eos_token_id, tokenizer.pad_token_id)), None)
            out.append((i, tokenizer.decode(row[:end]), end is not None))
    return [(text, ended) for _, text, ended in sorted(out)]


def repeats(text):
    """Share of four-word sequences that occurred before in the text."""
    w = text.split()
    four = [tuple(w[i:i + 4]) for i in range(len(w) - 3)]
    return 1 - len(set(four)) / max(len(four), 1)


def inclusion(model, tokenizer, tasks, **how):
    """How well stories keep to the words they are given: tasks are (request, words)."""
    replies = answer(model, tokenizer, [[{"role": "user", "content": r}] for r, _ in tasks], **how)
    hits = [[uses(text, w) for w in words] for (text, _), (_, words) in zip(replies, tasks)]
    flat = [h for hs in hits for h in hs]
    return {"words_used": round(sum(flat) / len(flat), 4), "stories_with_all_words": round(sum(all(h) for h in hits) / len(hits), 4),
            "ended": round(sum(e for _, e in replies) / len(replies), 4),
            "mean_words": round(sum(len(t.split()) for t, _ in replies) / len(replies), 1),
            "repeated_4grams": round(sum(repeats(t) for t, _ in replies) / len(replies), 4)}, replies


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", required=True)
    a.add_argument("--teacher", required=True)
    a.add_argument("--stories", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--samples")
    a.add_argument("--parts", nargs="+", default=["text", "story_words", "free_words"])
    a.add_argument("--how", nargs="+", default=["greedy", "t0.8"])
    a.add_argument("--prompts", type=int, default=200)
    a.add_argument("--texts", type=int, default=HELD_OUT)
    a = a.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    held = read([a.stories])[1][:a.texts]
    texts = [s["text"] for s in held]
    result = {}
    if "text" in a.parts:
        result = {"parameters": sum(p.numel() for p in model.parameters()), "heldout_stories": len(texts),
                  "model": figures(*student_nats(model, tokenizer, texts), texts)}
        teacher = Teacher(a.teacher)
        nats = teacher_nats(teacher, Tokenizer.from_file(a.teacher + "/tokenizer.json"), texts)
        result["story_model"] = dict(figures(*nats, texts), parameters=sum(w.numel() for w in teacher.w.values()))
        print(json.dumps(result), flush=True)
    sets = {"story_words": [], "free_words": []}
    for s in held[:a.prompts]:
        words = rng.sample(content_words(s["text"]), 3)
        sets["story_words"].append((fill("Write a story with the words: {c}.", words), words))
    for _ in range(a.prompts):
        words = rng.sample(WISHES, rng.choice([1, 2, 3]))
        sets["free_words"].append((fill(rng.choice([t for t in ASK_WORDS if t != "{c}"]), words), words))
    kept = []
    for name, tasks in sets.items():
        if name not in a.parts:
            continue
        ways = {"greedy": {"do_sample": False}, "t0.8": {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0}}
        for how, options in ((how, ways[how]) for how in a.how):
            result[f"{name}_{how}"], replies = inclusion(model, tokenizer, tasks, **options)
            print(name, how, result[f"{name}_{how}"], flush=True)
            kept += [(tasks[i][0], replies[i][0]) for i in range(2)]
    with open(a.out, "w") as f:
        json.dump(result, f, indent=2)
        f.write("\n")
    if a.samples:
        with open(a.samples, "w") as f:
            for p, (text, _) in zip(PROMPTS, answer(model, tokenizer, [[{"role": "user", "content": p}] for p in PROMPTS], do_sample=False)):
                f.write(f"user: {p}\nassistant: {text}\n\n")
            for users in CHATS:
                f.write("----\n")
                chat = []
                for u in users:
                    chat.append({"role": "user", "content": u})
                    text = answer(model, tokenizer, [chat], limit=300, do_sample=True, temperature=0.7, top_p=0.9, top_k=40)[0][0]
                    chat.append({"role": "assistant", "content": text})
                    f.write(f"user: {u}\nassistant: {text}\n")
            for request, text in kept:
                f.write(f"----\nuser: {request}\nassistant: {text}\n")


if __name__ == "__main__":
    main()
