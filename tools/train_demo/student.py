"""The demo model: a small Qwen3 in plain PyTorch, its warm start from a Llama story model, and its export.

Parameter names are those of Hugging Face's Qwen3ForCausalLM.  Attention is written out with batched products: on a CPU these run
in bfloat16 at full speed, while the fused attention's backward pass does not.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from tokenizers import Tokenizer

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 288,
    "initializer_range": 0.02,
    "intermediate_size": 640,
    "max_position_embeddings": 1024,
    "num_attention_heads": 6,
    "num_hidden_layers": 6,
    "num_key_value_heads": 3,
    "head_dim": 48,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 3072,
}


class Normalise(torch.autograd.Function):
    """x * weight / rms(x) with its backward pass written out: composed of single operations it takes four times the memory traffic."""

    @staticmethod
    def forward(ctx, x, weight, low):
        y = x.float()
        inverse = torch.rsqrt(torch.linalg.vector_norm(y, dim=-1, keepdim=True).square_().div_(y.shape[-1]).add_(CONFIG["rms_norm_eps"]))
        y = y * inverse
        ctx.save_for_backward(y, inverse, weight)
        ctx.kind = x.dtype
        out = y * weight
        return out.bfloat16() if low else out

    @staticmethod
    def backward(ctx, grad):
        y, inverse, weight = ctx.saved_tensors
        grad = grad.float()
        product = grad * y
        dweight = product.flatten(0, -2).sum(0)
        inner = torch.matmul(product.bfloat16(), weight.bfloat16()).float().div_(y.shape[-1])[..., None]
        dx = (grad * weight).addcmul_(y, inner, value=-1).mul_(inverse)
        return dx.to(ctx.kind), dweight, None


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        # In mixed precision every reader is a matrix product and takes bfloat16.
        return Normalise.apply(x, self.weight, torch.is_autocast_enabled("cpu"))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.h * self.d, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, c["hidden_size"], bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.d), RMSNorm(self.d)

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, t, self.h, self.d)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, self.kv, self.d)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.d).transpose(1, 2)
        q, k = rope(q, cos * self.d ** -0.5, sin * self.d ** -0.5), rope(k, cos, sin)
        # Query heads of one key head are stacked along the rows, so no key is repeated.
        q = q.to(v.dtype).reshape(b * self.kv, self.h // self.kv * t, self.d)
        k, v = k.to(v.dtype).reshape(b * self.kv, t, self.d), v.reshape(b * self.kv, t, self.d)
        s = torch.bmm(q, k.transpose(1, 2)).view(b * self.kv, self.h // self.kv, t, t).add_(mask)
        a = torch.bmm(torch.softmax(s, -1, dtype=v.dtype).view(b * self.kv, -1, t), v)
        return self.o_proj(a.view(b, self.h, t, self.d).transpose(1, 2).reshape(b, t, -1))


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
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c["hidden_size"]), RMSNorm(c["hidden_size"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])


class Student(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.c, self.model = c, Body(c)
        inv = 1.0 / (c["rope_theta"] ** (torch.arange(0, c["head_dim"], 2).float() / c["head_dim"]))
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).float(), inv)
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def hidden(self, ids):
        t = ids.shape[1]
        mask, cos, sin = torch.full((t, t), -torch.inf).triu(1), self.cos[:t], self.sin[:t]
        if torch.is_autocast_enabled("cpu"):
            mask, cos, sin = mask.bfloat16(), cos.bfloat16(), sin.bfloat16()
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.model.norm(x)

    def forward(self, ids):
        return F.linear(self.hidden(ids), self.model.embed_tokens.weight)


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


# ---- the warm start -------------------------------------------------------------------------------------------------------------


def embeddings(old, old_tokenizer, new_tokenizer, vocab):
    """Rows for the new vocabulary: the mean of the teacher's rows for the pieces of each token's text."""
    from tokenizers import normalizers
    old_tokenizer.normalizer = normalizers.Replace(" ", "\u2581")  # no space is put in front
    rows = torch.empty(vocab, old.shape[1])
    for i in range(vocab):
        text = new_tokenizer.decode([i], skip_special_tokens=False)
        if text.startswith("<|"):  # the teacher separates its stories by one control token
            rows[i] = old[1] + 0.01 * torch.randn(old.shape[1])
            continue
        pieces = old_tokenizer.encode(text, add_special_tokens=False).ids
        rows[i] = old[pieces].mean(0) if pieces and "\ufffd" not in text else 0.02 * torch.randn(old.shape[1])
    return rows


def turn(rows, angle):
    """Rotates every RoPE pair (j, j + d/2) of the rows [d, hidden] by the angle [d/2]; scores keep their value if q and k turn."""
    half = rows.shape[0] // 2
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    a, b = rows[:half], rows[half:]
    return torch.cat([a * c - b * s, a * s + b * c])


def best_angle(k1, k2):
    """The angle of each pair by which k2 has to be turned to come closest to k1."""
    half = k1.shape[0] // 2
    a = torch.complex(k1[:half], k1[half:])
    b = torch.complex(k2[:half], k2[half:])
    return (a * b.conj()).sum(-1).angle()


def pairings(items):
    """All ways to split the items into pairs."""
    if not items:
        yield []
        return
    for other in items[1:]:
        rest = [i for i in items[1:] if i != other]
        for tail in pairings(rest):
            yield [(items[0], other)] + tail


def merge_heads(q, k, v, o):
    """Six heads [6, 48, hidden] share three key/value heads: the best pairs, keys turned onto each other, values by SVD."""
    def likeness(i, j):
        return F.cosine_similarity(k[i].flatten(), turn(k[j], best_angle(k[i], k[j])).flatten(), dim=0)

    pairs = max(pairings(list(range(len(k)))), key=lambda ps: sum(likeness(i, j) for i, j in ps))
    nq, nk, nv, no = [], [], [], []
    for i, j in pairs:
        angle = best_angle(k[i], k[j])
        # Each head is brought to a common key scale first; the query takes the inverse so that the scores stay.
        si, sj = k[i].norm(), k[j].norm()
        nk.append((k[i] / si + turn(k[j], angle) / sj) / 2 * (si * sj).sqrt())
        nq += [q[i] * (si / sj).sqrt(), turn(q[j], angle) * (sj / si).sqrt()]
        # o_i v_i and o_j v_j through one shared basis of 48 rows: the best in the least-squares sense.
        u, s, vt = torch.linalg.svd(torch.cat([o[i] @ v[i], o[j] @ v[j]]), full_matrices=False)
        d, root = k.shape[1], s[:k.shape[1]].sqrt()
        nv.append(vt[:d] * root[:, None])
        both = u[:, :d] * root
        no += [both[:o.shape[1]], both[o.shape[1]:]]
    return torch.cat(nq), torch.cat(nk), torch.cat(nv), torch.cat(no, 1)


def importance(teacher, stories, old_tokenizer):
    """For each layer, how much each MLP channel contributes on the stories: rms(activation) * |down column|."""
    sums = [torch.zeros(teacher.w["model.layers.0.mlp.gate_proj.weight"].shape[0]) for _ in range(teacher.layers)]
    norms = []
    original = F.silu
    seen = []

    def spy(x):
        seen.append(x)
        return original(x)

    F.silu = spy
    try:
        with torch.no_grad():
            for s in stories:
                ids = ([teacher.bos] + old_tokenizer.encode(s, add_special_tokens=False).ids)[:teacher.context]
                seen.clear()
                teacher.forward(torch.tensor([ids]))
                for i, x in enumerate(seen):
                    sums[i] += original(x.float()).pow(2).sum((0, 1))
    finally:
        F.silu = original
    for i in range(teacher.layers):
        down = teacher.w[f"model.layers.{i}.mlp.down_proj.weight"].float().norm(dim=0)
        up = teacher.w[f"model.layers.{i}.mlp.up_proj.weight"].float().norm(dim=1)
        norms.append(sums[i].sqrt() * down * up)
    return norms


def warm_start(folder, tokenizer_folder, stories):
    """A student that computes roughly what the teacher in `folder` does."""
    from teacher import Teacher
    torch.manual_seed(0)
    t, s = Teacher(folder), Student()
    old_tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    new_tokenizer = Tokenizer.from_file(os.path.join(tokenizer_folder, "tokenizer.json"))
    w = {k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
    scores = importance(t, stories, old_tokenizer)
    state = {"model.embed_tokens.weight": embeddings(w["model.embed_tokens.weight"], old_tokenizer, new_tokenizer, CONFIG["vocab_size"]),
             "model.norm.weight": w["model.norm.weight"]}
    h, d, hidden = CONFIG["num_attention_heads"], CONFIG["head_dim"], CONFIG["hidden_size"]
    for i in range(CONFIG["num_hidden_layers"]):
        p = f"model.layers.{i}."
        q, k, v = (w[p + f"self_attn.{n}_proj.weight"].view(h, d, hidden) for n in "qkv")
        o = w[p + "self_attn.o_proj.weight"].view(hidden, h, d).transpose(0, 1)
        q, k, v, o = merge_heads(q, k, v, o)
        gain = w[p + "input_layernorm.weight"]
        for name, m in (("q", q), ("k", k), ("v", v), ("o", o)):
            state[p + f"self_attn.{name}_proj.weight"] = m
        # A normalised input has rms 1, so a head's rms is about that of its weights times the gain.
        for name, m in (("q", q), ("k", k)):
            state[p + f"self_attn.{name}_norm.weight"] = torch.full((d,), float((m * gain).pow(2).sum(1).mean().sqrt()))
        keep = torch.topk(scores[i], CONFIG["intermediate_size"]).indices.sort().values
        state[p + "mlp.gate_proj.weight"] = w[p + "mlp.gate_proj.weight"][keep]
        state[p + "mlp.up_proj.weight"] = w[p + "mlp.up_proj.weight"][keep]
        state[p + "mlp.down_proj.weight"] = w[p + "mlp.down_proj.weight"][:, keep]
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            state[p + name] = w[p + name]
    s.load_state_dict(state)
    return s


def export(student, folder):
    """Writes weights (bfloat16), config.json and generation_config.json."""
    os.makedirs(folder, exist_ok=True)
    ids = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    eos, pad = ids.token_to_id("<|im_end|>"), ids.token_to_id("<|endoftext|>")
    state = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in student.state_dict().items()}
    save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    generation = {"bos_token_id": pad, "eos_token_id": [eos, pad], "pad_token_id": pad, "do_sample": True,
                  "temperature": 0.7, "top_p": 0.9, "top_k": 40}
    config = dict(CONFIG, bos_token_id=pad, eos_token_id=eos, pad_token_id=pad)
    for name, data in (("config.json", config), ("generation_config.json", generation)):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(data, f, indent=2)
            f.write("\n")


def load(folder):
    """The exported student in float32."""
    s = Student()
    s.load_state_dict({k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()})
    return s
