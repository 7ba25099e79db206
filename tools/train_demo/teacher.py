"""A batched sampler for a Llama story model, written for throughput on one CPU core.

transformers' own generate() spends most of its time on bookkeeping for a model this small.  This sampler keeps one static
key/value cache per batch, runs the matrix products in bfloat16 and computes the output head only for the tokens that the
model really uses (a few thousand of 32000 for children's stories).
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def rms_norm(x, weight, eps):
    """x * weight / rms(x), computed in float32 and returned in the type of x."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * weight.float()).to(x.dtype)


class Cache:
    """Keys and values [batch, heads, length, head_dim] per layer; contiguous, grown 32 positions at a time.

    A view into a longer cache would be copied by every batched product; growing seldom is much cheaper.
    """

    def __init__(self, model, batch):
        self.length = 0
        shape = (batch, model.heads, 0, model.head_dim)
        self.keys = [torch.zeros(shape, dtype=model.dtype) for _ in range(model.layers)]
        self.values = [torch.zeros(shape, dtype=model.dtype) for _ in range(model.layers)]

    def reserve(self, length):
        while self.length < length:
            self.length += 32
            self.keys = [F.pad(k, (0, 0, 0, 32)) for k in self.keys]
            self.values = [F.pad(v, (0, 0, 0, 32)) for v in self.values]


class Teacher:
    """A Llama checkpoint in Hugging Face layout: tied head, rotate-half RoPE, no biases."""

    def __init__(self, folder, dtype=torch.bfloat16):
        with open(os.path.join(folder, "config.json")) as f:
            c = json.load(f)
        self.layers = c["num_hidden_layers"]
        self.heads = c["num_attention_heads"]
        self.head_dim = c["head_dim"]
        self.hidden = c["hidden_size"]
        self.eps = c["rms_norm_eps"]
        self.context = c["max_position_embeddings"]
        self.bos = c["bos_token_id"]
        self.dtype = dtype
        self.w = {k: v.to(dtype) for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
        inv = 1.0 / (c["rope_theta"] ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        angle = torch.outer(torch.arange(self.context).float(), inv)
        angle = torch.cat([angle, angle], -1)
        self.cos, self.sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def rope(self, x, cos, sin):
        half = self.head_dim // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def block(self, x, i, start, cache):
        """One layer for x [batch, steps, hidden] at positions start..; cache.keys[i] and cache.values[i] are filled."""
        b, t, _ = x.shape
        p = f"model.layers.{i}."
        h = rms_norm(x, self.w[p + "input_layernorm.weight"], self.eps)
        cos, sin = self.cos[start:start + t], self.sin[start:start + t]

        def split(name):
            return F.linear(h, self.w[p + f"self_attn.{name}.weight"]).view(b, t, self.heads, self.head_dim).transpose(1, 2)

        q, k, v = self.rope(split("q_proj"), cos, sin), self.rope(split("k_proj"), cos, sin), split("v_proj")
        if cache is not None:
            cache.keys[i][:, :, start:start + t] = k
            cache.values[i][:, :, start:start + t] = v
        if t == 1:
            k, v = cache.keys[i].flatten(0, 1), cache.values[i].flatten(0, 1)
            s = torch.bmm(q.reshape(b * self.heads, 1, -1), k.transpose(1, 2)).float() * self.head_dim ** -0.5
            s[:, :, start + 1:] = -torch.inf
            a = torch.bmm(torch.softmax(s, -1).to(self.dtype), v).view(b, self.heads, 1, -1)
        else:
            assert start == 0
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(a.transpose(1, 2).reshape(b, t, -1), self.w[p + "self_attn.o_proj.weight"])
        h = rms_norm(x, self.w[p + "post_attention_layernorm.weight"], self.eps)
        g = F.silu(F.linear(h, self.w[p + "mlp.gate_proj.weight"])) * F.linear(h, self.w[p + "mlp.up_proj.weight"])
        return x + F.linear(g, self.w[p + "mlp.down_proj.weight"])

    def forward(self, ids, start=0, cache=None):
        """Final hidden states [batch, steps, hidden], normalised."""
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.layers):
            x = self.block(x, i, start, cache)
        return rms_norm(x, self.w["model.norm.weight"], self.eps)

    @torch.no_grad()
    def sample(self, prompts, wanted, allowed, generator, temperature=0.9, min_p=0.02, bias=8.0):
        """Samples one story for each prompt; all prompts must have one length (they start with BOS).

        wanted  [batch, n] token ids that are made more likely by `bias` until they have been used (-1: none)
        allowed the sorted token ids that may be sampled; BOS among them ends a story
        Returns a list of id lists without BOS, or None where the story did not end within the context.
        """
        ids = torch.tensor(prompts)
        b, t = ids.shape
        cache = Cache(self, b)
        head = self.w["model.embed_tokens.weight"][allowed]
        place = torch.full((self.w["model.embed_tokens.weight"].shape[0],), -1, dtype=torch.long)
        place[allowed] = torch.arange(len(allowed))
        column = torch.where(wanted >= 0, place[wanted.clamp(min=0)], -1)
        strength = torch.where(column >= 0, bias, 0.0)
        column = column.clamp(min=0)
        done = torch.zeros(b, dtype=torch.bool)
        length = torch.zeros(b, dtype=torch.long)
        x, out, start = ids, [ids], 0
        while start + x.shape[1] < self.context and not bool(done.all()):
            cache.reserve(start + x.shape[1])
            h = self.forward(x, start, cache)[:, -1]
            start += x.shape[1]
            logits = F.linear(h, head).float() / temperature
            # The nudge grows along the story: a word first gets the chance of a place that suits it, and is pressed later.
            logits.scatter_add_(1, column, strength * min(1.0, start / 120))
            p = torch.softmax(logits, -1)
            p[p < min_p * p.amax(-1, keepdim=True)] = 0
            cut = p.cumsum(-1)
            draw = torch.rand(b, 1, generator=generator) * cut[:, -1:]
            nxt = torch.searchsorted(cut, draw).clamp(max=len(allowed) - 1)
            strength = torch.where(column == nxt, 0.0, strength)
            x = allowed[nxt]
            out.append(x)
            ended = (x[:, 0] == self.bos) & ~done
            length[ended] = start
            done |= ended
        every = torch.cat(out, 1).tolist()
        return [every[i][1:int(length[i])] if done[i] else None for i in range(b)]
