"""Writes tests/golden/sampling/edits.json: rows of logits before and after penalties, bans and biases, by the logits
processors of Hugging Face transformers (float32, CPU) in the order that src/runner/sampler.h documents.

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/sampling_edits.py

The additive penalties are those of OpenAI's API reference, x - c * frequency - [c > 0] * presence with c the count among
the generated tokens; transformers has no processor for them, so they are plain PyTorch here. -inf is written as null.
"""
import json

import torch
from transformers.generation.logits_process import (LogitsProcessorList, RepetitionPenaltyLogitsProcessor,
                                                    SequenceBiasLogitsProcessor, SuppressTokensLogitsProcessor)

OUT = "tests/golden/sampling/edits.json"
VOCAB = 32


def short(values):
    """Nine digits tell a float32 exactly."""
    return [None if x == float("-inf") else float(f"{x:.9g}") for x in values]


def additive(row, generated, frequency, presence):
    counts = torch.bincount(torch.tensor(generated, dtype=torch.int64), minlength=VOCAB).to(torch.float32)
    return row - frequency * counts - presence * (counts > 0)


def make_case(generator, frequency, presence, repetition, banned, biases):
    row = torch.randn(VOCAB, generator=generator) * 4
    length = int(torch.randint(1, 30, (1,), generator=generator))
    generated = torch.randint(0, VOCAB, (length,), generator=generator).tolist()
    scores = additive(row, generated, frequency, presence).unsqueeze(0)
    chain = LogitsProcessorList()
    if banned:
        chain.append(SuppressTokensLogitsProcessor(banned, device="cpu"))
    if repetition != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(repetition))
    if biases:
        chain.append(SequenceBiasLogitsProcessor({(t,): b for t, b in biases}))
    scores = chain(torch.tensor([generated]), scores)[0]
    return {
        "logits": short(row.tolist()), "generated": generated, "frequency_penalty": frequency, "presence_penalty": presence,
        "repetition_penalty": repetition, "banned": banned, "logit_bias": biases,
        "edited": short(scores.tolist()),
    }


def main():
    generator = torch.Generator().manual_seed(20)
    cases = []
    for frequency in (0.0, 0.7, -2.0, 2.0):
        for presence in (0.0, 1.5, -0.3):
            for repetition in (1.0, 1.3, 0.5, 2.0):
                pick = torch.randperm(VOCAB, generator=generator).tolist()
                banned = sorted(pick[:3]) if len(cases) % 2 else []
                values = short((torch.rand(5, generator=generator) * 200 - 100).tolist())
                # Every third case biases a banned token too.
                biased = pick[2:7] if len(cases) % 3 == 0 else []
                cases.append(make_case(generator, frequency, presence, repetition, banned,
                                       [[t, b] for t, b in zip(biased, values)]))
    with open(OUT, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
