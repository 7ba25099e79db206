#!/usr/bin/env python3
"""Answers that Hugging Face transformers speaks, for bench/speech.py, which starts this with an interpreter that has transformers and PyTorch.

    speech_peer.py MODEL_DIR THREADS

Reads a line of JSON {"ids", "tokens", "frames"} for each answer, writes {"seconds", "frames", "samples"}; first {"ready": true}."""
import json
import sys
import time

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration


def answer(model, ids, tokens, frames):
    """It speaks no last frame before its limit. The shortest length is the longest, so that both ends are where they are asked for."""
    prompt = torch.tensor([ids])
    began = time.monotonic()
    with torch.no_grad():
        _, samples = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), speaker="Ethan", thinker_max_new_tokens=tokens,
                                    thinker_min_new_tokens=tokens, thinker_do_sample=False, thinker_pad_token_id=0,
                                    talker_max_new_tokens=frames + 1, talker_min_new_tokens=frames + 1)
    return time.monotonic() - began, samples.numel()


def main():
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype="auto").eval()
    decode, codes = model.code2wav.chunked_decode, []

    def recorded(given, **more):
        codes.append(given.shape[-1])
        return decode(given, **more)
    model.code2wav.chunked_decode = recorded
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        seconds, samples = answer(model, **json.loads(line))
        print(json.dumps({"seconds": seconds, "frames": codes[-1], "samples": samples}), flush=True)


if __name__ == "__main__":
    main()
