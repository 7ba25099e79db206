"""Writes tests/golden/sampling/logprobs.json: the logprobs of the demo model by Hugging Face transformers (float32, CPU,
eager attention; log softmax in float64): of every prompt token but the first with its rivals, and of a greedy
continuation with its rivals and some chosen ids.

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/sampling_logprobs.py models/demo

min_gap is the smallest distance between the best and the second logit along the continuation.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM

OUT = "tests/golden/sampling/logprobs.json"
STEPS = 12
TOP = 5
NEAR = 4e-4
CHOSEN = [0, 17, 1000, 3071]


def entry(logits, token):
    logprobs = torch.log_softmax(logits.to(torch.float64), dim=-1)
    top = torch.topk(logprobs, TOP + 1)  # one more, so that a tie at the end is seen
    return {"token": token, "logprob": round(float(logprobs[token]), 9), "top_ids": top.indices.tolist(),
            "top": [round(x, 9) for x in top.values.tolist()],
            # The rank, where logits that differ by less than NEAR may be in either order.
            "rank": [int((logprobs > logprobs[token] + NEAR).sum()) + 1, int((logprobs > logprobs[token] - NEAR).sum())],
            "of_ids": [round(float(logprobs[i]), 9) for i in CHOSEN]}


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, attn_implementation="eager")
    model = model.float().eval()
    prompts = json.load(open("tests/golden/demo/greedy.json"))
    cases = []
    for prompt in [prompts[k]["prompt_ids"] for k in (0, 2, 13)]:
        logits = model(torch.tensor([prompt])).logits[0]
        scored = [entry(logits[i], prompt[i + 1]) for i in range(len(prompt) - 1)]
        ids, made, gap = list(prompt), [], float("inf")
        for _ in range(STEPS):
            last = model(torch.tensor([ids])).logits[0, -1]
            best = torch.topk(last, 2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            made.append(entry(last, int(best.indices[0])))
            ids.append(int(best.indices[0]))
        cases.append({"prompt": prompt, "chosen": CHOSEN, "scored": scored, "made": made, "min_gap": round(gap, 6)})
    with open(OUT, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(len(cases), "cases", [len(c["prompt"]) for c in cases], "smallest gap", min(c["min_gap"] for c in cases))


if __name__ == "__main__":
    main()
