#!/usr/bin/env python3
"""Asks Hugging Face tokenizers 0.23 what the tests expect. Run in the oracle, from the repository's top, after tokenizer_corpus.py:

    ORACLE_BIND=<folder beside the repository with tokenizers/ and models/> oracle python3 tests/oracles/tokenizer_golden.py SHARED

Writes tests/golden/tokenizer/<name>.json for each tokenizer: the ids of each string of corpus.json, what they decode to where that
is not the string itself, and 64-bit hashes over big inputs which the tests make again with the same generator.
"""
import json
import os
import sys

from tokenizers import Tokenizer

GOLDEN = "tests/golden/tokenizer"
MASK = (1 << 64) - 1
PRIME = 0x100000001B3
BLOCKS = 64  # of all code points, so that a difference can be found
SHARED = {"qwen3": "tokenizers/qwen3", "qwen2_5": "tokenizers/qwen2_5", "llama3": "tokenizers/llama3", "gpt2": "tokenizers/gpt2", "gpt4o": "tokenizers/gpt4o",
          "deepseek_v3": "tokenizers/deepseek_v3", "mistral_nemo": "tokenizers/mistral_nemo", "stories15m": "models/stories15M",
          "tinystories_656k": "models/tinystories-656k"}


class SplitMix:
    """Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014)."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, limit):
        return self.next() % limit


def fold(values, state=0xCBF29CE484222325):
    for value in values:
        state = ((state ^ value) * PRIME) & MASK
    return state


def hash_ids(encodings):
    state = 0xCBF29CE484222325
    for encoding in encodings:
        state = fold(encoding, state)
        state = ((state ^ 0xFFFFFFFF) * PRIME) & MASK  # the end of one text
    return "%016x" % state


def mixed(corpus):
    """Texts of one to eight strings of the corpus, side by side."""
    random = SplitMix(1)
    return ["".join(corpus[random.below(len(corpus))] for _ in range(1 + random.below(8))) for _ in range(3000)]


def random_text():
    """Code points of all kinds, next to each other as no writer would put them."""
    random = SplitMix(2)
    blocks = [(0x20, 0x60), (0x20, 0x60), (0, 0x100), (0x300, 0x70), (0x370, 0x600), (0x900, 0x500), (0x1100, 0x100), (0x1E00, 0x200), (0x2000, 0x300), (0x3040, 0xC0), (0x4E00, 0x5200),
              (0xAC00, 0x2BA4), (0xA640, 0x200), (0x10000, 0x4000), (0x1D000, 0x800), (0x1F300, 0x700), (0x20000, 0x12000), (0, 0xD800), (0xE000, 0x102000)]
    texts = []
    for _ in range(3000):
        text = ""
        for _ in range(1 + random.below(40)):
            first, count = blocks[random.below(len(blocks))]
            text += chr(first + random.below(count))
        texts.append(text)
    return texts


def random_ids(size):
    random = SplitMix(3)
    return [[random.below(size) for _ in range(1 + random.below(24))] for _ in range(2000)]


def code_points(block):
    first, last = block * 0x110000 // BLOCKS, (block + 1) * 0x110000 // BLOCKS
    return [chr(c) for c in range(first, last) if not 0xD800 <= c <= 0xDFFF]


def golden(path, corpus, big):
    tokenizer = Tokenizer.from_file(path)

    def ids(texts, special=False):
        return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=special)]

    plain, with_special = ids(corpus), ids(corpus, True)
    extra = with_special[0]  # of the first string, what stands around its ids
    at = next(i for i in range(len(extra) + 1) if extra[i:i + len(plain[0])] == plain[0])
    prefix, suffix = extra[:at], extra[at + len(plain[0]):]
    assert all(prefix + a + suffix == b for a, b in zip(plain, with_special))
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    # Version 0.23 does not skip a special token that it decodes in normalized form ("\u2581<unk>"): it is gone from its set of names.
    # Skipping means leaving the special ids out; everywhere else both ways agree.
    skips = all(not t.normalized for t in tokenizer.get_added_tokens_decoder().values() if t.special)

    def decode(ids, skip):
        if not skip:
            return tokenizer.decode(ids, skip_special_tokens=False)
        text = tokenizer.decode([i for i in ids if i not in special], skip_special_tokens=False)
        assert not skips or text == tokenizer.decode(ids, skip_special_tokens=True)
        return text

    decoded, skipped = {}, {}
    for i, (text, one) in enumerate(zip(corpus, plain)):
        keep, skip = decode(one, False), decode(one, True)
        if keep != text:
            decoded[i] = keep
        if skip != keep:
            skipped[i] = skip
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    result = {"vocab_size": size, "prefix": prefix, "suffix": suffix, "ids": plain, "decoded": decoded, "skipped": skipped,
              "mixed": hash_ids(ids(mixed(corpus))), "random": hash_ids(ids(random_text()))}
    for skip in (False, True):
        texts = [decode(one, skip) for one in random_ids(size)]
        result["decode_skipping" if skip else "decode"] = hash_ids([text.encode() for text in texts])
    if big:
        result["alone"] = [hash_ids(ids(code_points(b))) for b in range(BLOCKS)]
        result["between"] = [hash_ids(ids(["a" + c + "b" for c in code_points(b)])) for b in range(BLOCKS)]
    return result


def write(name, result):
    with open(f"{GOLDEN}/{name}.json", "w") as file:
        file.write(json.dumps(result, ensure_ascii=True, separators=(",", ":")).replace('],[', '],\n[').replace('","', '",\n"') + "\n")


def main():
    corpus = json.load(open(f"{GOLDEN}/corpus.json"))
    names = sys.argv[2:]
    for name, folder in SHARED.items():
        if not names or name in names:
            write(name, golden(f"{sys.argv[1]}/{folder}/tokenizer.json", corpus, True))
            print(name, flush=True)
    for name in sorted(os.listdir(GOLDEN)):
        path = f"{GOLDEN}/{name}/tokenizer.json"
        if os.path.exists(path) and (not names or name in names):
            write(name, golden(path, corpus, True))
            print(name, flush=True)


if __name__ == "__main__":
    main()
