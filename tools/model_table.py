#!/usr/bin/env python3
"""The table of docs/models.md "What fits": sizes and the arithmetic of docs/performance.md for published models.

    tools/model_table.py             print it
    tools/model_table.py --write     put it into docs/models.md
    tools/model_table.py --check     fail where the page has another one

Nothing here is measured. Shapes are those of the models' config.json.
"""
import argparse
import pathlib
import sys
from dataclasses import dataclass

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "models.md"
BYTES = {"bf16": 2, "q8_0": 34 / 32, "q4_K_M": 4.85 / 8}  # of a weight; the last one is a mixture of types, about so large
BANDWIDTHS = (40, 80, 300)  # GB/s
DEPTH = 1024  # tokens in the cache while one is decoded
CONTEXT = 8192


@dataclass
class Shape:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    tied: bool
    experts: int = 0
    used_experts: int = 0

    def layer(self, experts):
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        if not experts:
            return attention + 3 * self.hidden * self.inner
        return attention + self.hidden * self.experts + experts * 3 * self.hidden * self.inner

    def parameters(self):
        return self.layers * self.layer(self.experts) + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def read(self):
        """Of one token: the used experts, and the head."""
        return self.layers * self.layer(self.used_experts) + self.vocabulary * self.hidden

    def kv(self):
        return 2 * self.layers * self.kv_heads * self.head_dim * 2  # f16


MODELS = (
    Shape("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936, True),
    Shape("Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256, True),
    Shape("Qwen3-1.7B", 28, 2048, 16, 8, 128, 6144, 151936, True),
    Shape("Llama-3.2-3B", 28, 3072, 24, 8, 128, 8192, 128256, True),
    Shape("Qwen3-4B", 36, 2560, 32, 8, 128, 9728, 151936, True),
    Shape("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, False),
    Shape("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936, False),
    Shape("Qwen3-14B", 40, 5120, 40, 8, 128, 17408, 151936, False),
    Shape("Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 768, 151936, False, 128, 8),
    Shape("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936, False),
)


def size(count):
    return f"{count / 1e9:.1f}"


def rate(model, form, bandwidth):
    tokens = bandwidth * 1e9 / (model.read() * BYTES[form] + DEPTH * model.kv())
    return f"{tokens:.0f}" if tokens >= 10 else f"{tokens:.1f}"


def table():
    columns = [f"tokens/s by {bandwidth} GB/s" for bandwidth in BANDWIDTHS]
    lines = ["| model | billions of parameters (read a token) | GB of weights | GB of KV, " + " | ".join(["8192 tokens", *columns]) + " |", "|" + "---|" * (4 + len(columns))]
    for model in MODELS:
        used = f" ({size(model.read())})" if model.experts else ""
        weights = " / ".join(size(model.parameters() * each) for each in BYTES.values())
        rates = [" / ".join(rate(model, form, bandwidth) for form in BYTES) for bandwidth in BANDWIDTHS]
        lines.append("| " + " | ".join([model.name, size(model.parameters()) + used, weights, size(CONTEXT * model.kv()), *rates]) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    wanted = parser.parse_args()
    if not wanted.write and not wanted.check:
        return print(table(), end="")
    text = PAGE.read_text()
    begin = text.index("| model | billions of parameters")
    end = text.index("\n\n", begin) + 1
    if wanted.write:
        PAGE.write_text(text[:begin] + table() + text[end:])
    elif text[begin:end] != table():
        sys.exit(f"{PAGE}: the table differs from that of tools/model_table.py; wanted: tools/model_table.py --write")


if __name__ == "__main__":
    main()
