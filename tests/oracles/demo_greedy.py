"""Golden data for the demo model: 20 chat prompts, their token ids and the greedy continuation of 64 tokens in float32.

    python3 tests/oracles/demo_greedy.py models/demo tests/golden/demo/greedy.json      (needs PyTorch and transformers)

The bfloat16 weights are converted to float32 before anything is computed.  The continuation does not stop at the end token, so that
every case has 64 ids.  min_gap is the smallest distance between the best and the second logit along the continuation: where it is
tiny, another order of summation may rightly choose the other token.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS = 64
PROMPTS = [
    ["Tell me a short story about a dog and a red ball."],
    ["Write a story with the words: moon, boat, brave."],
    ["Hello!"],
    ["Who are you?"],
    ["What can you do?"],
    ["Tell me a story."],
    ["Write a story with the words \"castle\" and \"cake\"."],
    ["Tell me a story about a bear who is hungry."],
    ["words: river, stone, jump"],
    ["Write a short story about a little girl named Anna and a big tree."],
    ["What is 2 + 2?"],
    ["Thank you!"],
    ["Tell me a story about a caf\u00e9 \u2615 with na\u00efve mice."],
    ["\u4f60\u597d"],
    ["Use the word \"train\" in a story."],
    ["Tell me a bedtime story about a star."],
    ["Hi!", "Hello! Would you like to hear a story?", "Yes, about a cat."],
    ["Tell me a story about a frog.", "Once upon a time, there was a frog named Fred. Fred liked to jump. One day, he jumped into a big "
     "pond and met a fish. They became good friends.", "What was the story about?"],
    ["Tell me a story about a frog.", "Once upon a time, there was a frog named Fred. Fred liked to jump. One day, he jumped into a big "
     "pond and met a fish. They became good friends.", "Tell me another one."],
    ["Start a story about a kite.", "Once upon a time, there was a boy named Sam. He had a blue kite.", "Continue."],
]


@torch.no_grad()
def main():
    folder, out = sys.argv[1:3]
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()
    cases = []
    for turns in PROMPTS:
        messages = [{"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(turns)]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        made, gap, past, step = [], float("inf"), None, torch.tensor([ids])
        for _ in range(STEPS):
            y = model(input_ids=step, past_key_values=past, use_cache=True)
            past, logits = y.past_key_values, y.logits[0, -1]
            top = torch.topk(logits, 2)
            gap = min(gap, float(top.values[0] - top.values[1]))
            made.append(int(top.indices[0]))
            step = torch.tensor([[made[-1]]])
        cases.append({"messages": messages, "prompt_text": text, "prompt_ids": ids, "greedy_ids": made, "min_gap": round(gap, 6)})
    with open(out, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(f"{len(cases)} cases, smallest gap {min(c['min_gap'] for c in cases):.6f}")


if __name__ == "__main__":
    main()
