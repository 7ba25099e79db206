"""The peer of perplexity.py: transformers with the weights quantized and widened again by the gguf package, computed in f32: what rounding
the weights alone costs, with exact activations. python3 perplexity_peer.py MODEL_DIR [TEXT]"""
import math
import pathlib
import sys

import torch
from gguf import GGMLQuantizationType as Type, quants
from transformers import AutoModelForCausalLM, AutoTokenizer

where = sys.argv[1]
text = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).with_name("heldout.txt")).read_text(encoding="utf-8")
paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
tokenizer = AutoTokenizer.from_pretrained(where)
first = None
for name in ("none", "q8_0", "q4_0"):
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
    if name != "none":
        with torch.no_grad():
            for parameter, value in model.named_parameters():
                if value.dim() != 2:
                    continue
                every_token = "embed_tokens" in parameter or "lm_head" in parameter
                kind = Type.Q8_0 if name == "q8_0" or every_token else Type.Q4_0
                value.copy_(torch.from_numpy(quants.dequantize(quants.quantize(value.numpy(), kind), kind)))
    total = count = 0
    for part in paragraphs:
        ids = tokenizer(part, return_tensors="pt").input_ids
        with torch.no_grad():
            scores = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
        picked = scores.gather(1, ids[0, 1:, None])
        total -= picked.sum().item()
        count += picked.numel()
    value = math.exp(total / count)
    first = first or value
    print(f"{name:<6} perplexity {value:.4f} over {count} tokens, {100 * (value / first - 1):+.3f} %")
