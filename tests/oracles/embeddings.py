"""Writes tests/golden/embeddings/demo.json: what Hugging Face transformers has as embeddings of texts by models/demo (float32, CPU): the last
token's row of last_hidden_state, which is behind the final norm, as it is and scaled to length 1; and the mean of all rows.

Run from the repository's root, in the root that holds transformers:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/embeddings.py

A list of {text, ids, row, embedding, mean}. The texts' ids are the tokenizer's with its special tokens.
"""
import json
import pathlib

import torch
from transformers import AutoModel, AutoTokenizer

OUT = pathlib.Path("tests/golden/embeddings")
TEXTS = ["Once upon a time", "Once upon a time there was a small dog who liked to run in the park.", "The red ball", "a",
         "Tom was sad. " * 40]


def main():
    tokenizer = AutoTokenizer.from_pretrained("models/demo")
    model = AutoModel.from_pretrained("models/demo", torch_dtype=torch.float32).eval()
    cases = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        with torch.no_grad():
            rows = model(torch.tensor([ids])).last_hidden_state[0].double()
        row = rows[-1]
        cases.append({"text": text, "ids": ids, "row": [float(f"{x:.8g}") for x in row], "embedding": [float(f"{x:.8g}") for x in row / row.norm()],
                      "mean": [float(f"{x:.8g}") for x in rows.mean(0)]})
    OUT.mkdir(exist_ok=True)
    (OUT / "demo.json").write_text(json.dumps(cases) + "\n")


main()
