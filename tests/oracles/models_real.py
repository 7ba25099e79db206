"""Writes tests/golden/models/real_*.safetensors: greedy continuations of trained story models by Hugging Face
transformers (float32, CPU, eager attention), twenty prompts each.

Run from the repository's root, in the root that holds transformers 5.12; the models lie beside the checkout:
    OMP_NUM_THREADS=1 ORACLE_BIND=$(realpath ../shared/models) oracle python3 tests/oracles/models_real.py \
        $(realpath ../shared/models)
The format is described in tests/golden/models/README.md. Prompts whose greedy path comes too close to a tie for
float32 (top-1 to top-2 under MIN_GAP) are passed over.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

OUT = pathlib.Path("tests/golden/models")
NAMES = ("stories260K", "tinystories-656k", "stories15M")
STEPS = 64
WANTED = 20
MIN_GAP = 2e-3  # logits of these models span about 20 to 30

PROMPTS = [
    "", "Once", "Once upon a time", "One day, a little girl named Lily", "Tom and his dog Max went to the park.",
    "The big red ball rolled down the hill and", "\"Hello!\" said the cat.", "It was a sunny day. The birds were",
    "Lucy had a small box. In the box there was a", "Mom said, \"Do not touch the hot stove.\" But Ben",
    "There was a tree in the garden. The tree was very old. Every day a boy came to",
    "Sara liked to draw. She drew a house, a sun and a", "The frog jumped into the water. Splash!",
    "Dad and Tim made a cake. They put in eggs, milk and", "A bird was sad because it could not fly.",
    "Once upon a time, there was a little boat. The boat was happy on the blue sea. One night, the wind came and",
    "The king had a shiny crown. He", "\"Can I play with you?\" asked", "In the dark forest, a bear was looking for",
    "Anna found a key. The key was gold. She", "They all laughed and", "The end of the story was", "A b c d e f",
    "1 2 3 4 5", "Ella\nwent\nhome.", "The moon was bright and the stars", "Jack was very, very, very tired.",
    "Once upon a time, in a small house near the sea, there lived an old man and his cat. The cat was black and white. "
    "Every morning, the old man went to the beach with a bag. He looked for shells. The cat looked for fish. One "
    "morning, the old man found a big, green bottle. In the bottle there was a letter. He opened the bottle and",
    "The dog saw a bone. He wanted the bone. But the bone was under a big rock. The dog pushed and pushed. Then",
    "She smiled and said, \"Thank you, my friend.\" After that day, they",
]


def greedy(model, prompt):
    """The continuation and the least distance between the best and the second best logit on its way."""
    ids, past, chunk, gap = [], None, list(prompt), float("inf")
    for _ in range(STEPS):
        with torch.no_grad():
            out = model(torch.tensor([chunk]), past_key_values=past, use_cache=True)
        best = torch.topk(out.logits[0, -1], 2)
        past, chunk = out.past_key_values, [int(best.indices[0])]
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids += chunk
    return ids, gap


def make(models, name):
    folder = models / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    limit = model.config.max_position_embeddings - STEPS
    out, k = {}, 0
    for text in PROMPTS:
        prompt = [1] + [i for i in tokenizer.encode(text, add_special_tokens=False).ids]
        if len(prompt) > limit or k == WANTED:
            continue
        continuation, gap = greedy(model, prompt)
        print(name, k, len(prompt), f"gap {gap:.1e}", repr(tokenizer.decode(continuation))[:100], flush=True)
        if gap < MIN_GAP:
            continue
        out[f"prompt_{k}"] = torch.tensor(prompt, dtype=torch.int32)
        out[f"greedy_{k}"] = torch.tensor(continuation, dtype=torch.int32)
        out[f"gap_{k}"] = torch.tensor([gap])
        out[f"text_{k}"] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        k += 1
    if k < WANTED:
        raise SystemExit(f"{name}: only {k} prompts with a clear greedy path; wanted {WANTED}")
    save_file(out, OUT / f"real_{name}.safetensors")


if __name__ == "__main__":
    for model_name in NAMES:
        make(pathlib.Path(sys.argv[1]), model_name)
