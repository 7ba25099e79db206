"""Writes tests/golden/rerank/demo.json: what Hugging Face transformers has as scores of documents by models/demo, read as rerankers are read (float32,
CPU): the share of one token's logit of two, and the sigmoid of a head of one row, by Qwen3ForSequenceClassification.

Run from the repository's root, in the root that holds transformers:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/rerank.py

{tokens: [no, yes], head: [...], cases: [{query, instruction, document, ids, by_tokens, by_head}]}. The prompt is that of Qwen3-Reranker's model card.
"""
import json
import pathlib

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3ForSequenceClassification

OUT = pathlib.Path("tests/golden/rerank")
PREFIX = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer '
          'can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PAIRS = [(None, "Where is the dog?", "The dog is in the park."), (None, "Where is the dog?", "The red ball was big."),
         (None, "Where is the dog?", "Tom was sad. " * 20), ("Find a story", "a cat", "Once upon a time there was a cat.")]


def main():
    tokenizer = AutoTokenizer.from_pretrained("models/demo")
    model = AutoModelForCausalLM.from_pretrained("models/demo", torch_dtype=torch.float32).eval()
    config = AutoConfig.from_pretrained("models/demo", num_labels=1)
    classifier = Qwen3ForSequenceClassification(config).float().eval()
    classifier.model.load_state_dict(model.model.state_dict())
    torch.manual_seed(7)
    with torch.no_grad():
        classifier.score.weight.copy_(torch.randn(1, config.hidden_size).bfloat16().float() * 0.125)
    tokens = [tokenizer.convert_tokens_to_ids("No"), tokenizer.convert_tokens_to_ids("Yes")]
    cases = []
    for instruction, query, document in PAIRS:
        text = PREFIX + f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}" + SUFFIX
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            logits = model(ids).logits[0, -1].double()
            row = classifier.model(ids).last_hidden_state[0, -1]
            score = classifier.score(row).double()
        share = torch.softmax(logits[tokens], 0)[1]
        cases.append({"query": query, "instruction": instruction, "document": document, "ids": ids[0].tolist(),
                      "by_tokens": float(f"{share:.9g}"), "by_head": float(f"{torch.sigmoid(score)[0]:.9g}")})
    OUT.mkdir(exist_ok=True)
    head = [float(x) for x in classifier.score.weight[0]]
    (OUT / "demo.json").write_text(json.dumps({"tokens": tokens, "head": head, "cases": cases}) + "\n")


main()
