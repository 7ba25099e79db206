"""The demo model in plain PyTorch: Qwen3 with the parameter names of its Hugging Face folder, so that they can be sent as they are."""
import json
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

from millrace_trainer import read_safetensors


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, c["hidden_size"], bias=False)
        self.q_norm, self.k_norm = (RMSNorm(self.size, c["rms_norm_eps"]) for _ in range(2))

    def forward(self, x, cos, sin):
        def split(y, heads):
            return y.view(*x.shape[:2], heads, self.size)

        q = rotate(self.q_norm(split(self.q_proj(x), self.heads)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(split(self.k_proj(x), self.kv_heads)).transpose(1, 2), cos, sin)
        v = split(self.v_proj(x), self.kv_heads).transpose(1, 2)
        repeat = self.heads // self.kv_heads
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1), is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Qwen3(nn.Module):
    """Tied: the head is the embedding, and is sent once."""

    def __init__(self, c):
        super().__init__()
        self.model = Body(c)
        frequencies = 1.0 / c["rope_theta"] ** (torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angles = torch.outer(torch.arange(c["max_position_embeddings"]).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def load(folder):
    """The folder's model in float32."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    if config["model_type"] != "qwen3" or not config["tie_word_embeddings"]:
        raise SystemExit(f"{folder} is {config['model_type']}; wanted a qwen3 with a tied head, such as models/demo")
    model, state = Qwen3(config), {}
    for tensor in read_safetensors(folder):
        data = bytearray(tensor.nbytes)
        tensor.write_into(memoryview(data))
        state[tensor.name] = torch.frombuffer(data, dtype=getattr(torch, tensor.dtype)).reshape(tensor.shape).float()
    model.load_state_dict(state)
    return model
