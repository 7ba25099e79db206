"""Trains the demo model's tokenizer: byte-level BPE with the Qwen pre-tokenizer, ChatML control tokens and chat template.

    python tokenizer.py --stories FILE [FILE ...] --out DIR [--vocab 3072]
"""

import argparse
import json
import os
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from chat import conversations

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The published Qwen pattern, so that the demo model walks the same path through a tokenizer as the real models do.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def train(texts, vocab):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    t.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    # The control tokens take the highest ids, as in Qwen.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab - len(CONTROL), initial_alphabet=alphabet, special_tokens=[],
                                                     show_progress=False))
    t.add_special_tokens(CONTROL)
    return t


def save(tokenizer, folder, context):
    os.makedirs(folder, exist_ok=True)
    # Merges as strings and no indentation keep the file small.
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
    added = {str(tokenizer.token_to_id(c)): {"content": c, "lstrip": False, "normalized": False, "rstrip": False,
                                             "single_word": False, "special": True} for c in CONTROL}
    config = {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None, "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": context,
        "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--stories", nargs="+", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--vocab", type=int, default=3072)
    a.add_argument("--context", type=int, default=1024)
    a = a.parse_args()
    stories = [json.loads(line) for name in a.stories for line in open(name)]
    # Every story once, and a tenth of that in chat scaffolding, so that the words of the requests get tokens too.
    texts = [s["text"] for s in stories]
    for c in conversations(stories[:len(stories) // 10], random.Random(0)):
        texts += [m["content"] for m in c["messages"]]
    t = train(texts, a.vocab)
    save(t, a.out, a.context)
    sample = [s["text"] for s in stories[:500]]
    tokens = sum(len(t.encode(s).ids) for s in sample)
    print(f"{t.get_vocab_size()} tokens; {sum(map(len, sample)) / tokens:.2f} characters a token")


if __name__ == "__main__":
    main()
