"""Inverse frequencies of rotary embeddings by Hugging Face transformers, for src/models/rope_test.cc.

Run in the oracle root, from the repository: python3 tests/oracles/rope_inv_freq.py > tests/golden/rope/inv_freq.json
Values are printed with 9 digits, which is exact for float32.
"""
import json
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [  # head_dim, rope_parameters
    (8, dict(rope_type="default", rope_theta=10000.0)),
    (48, dict(rope_type="default", rope_theta=10000.0)),
    (128, dict(rope_type="default", rope_theta=1000000.0)),
    (6, dict(rope_type="default", rope_theta=12345.678)),
    (64, dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    (20, dict(rope_type="linear", rope_theta=500000.0, factor=2.5)),
    (128, dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=8192)),
    (64, dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)),
    (16, dict(rope_type="llama3", rope_theta=10000.0, factor=3.0, low_freq_factor=1.5, high_freq_factor=6.0,
              original_max_position_embeddings=64)),
]
lines = []
for head_dim, rope in CASES:
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, rope_parameters=dict(rope),
                         max_position_embeddings=131072)
    embedding = LlamaRotaryEmbedding(config)
    assert embedding.attention_scaling == 1.0
    values = [float(f"{x:.9g}") for x in embedding.inv_freq.tolist()]
    lines.append(json.dumps(dict(head_dim=head_dim, **rope, inv_freq=values)))
print("[\n" + ",\n".join(lines) + "\n]")
