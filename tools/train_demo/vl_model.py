"""The demo of pictures: a small Qwen3-VL in plain PyTorch, for batches of pictures of one size, and its export.

Parameter names are those of Hugging Face's Qwen3VLForConditionalGeneration, whose own forward pass takes one picture after the other.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers.vision_utils import get_vision_bilinear_indices_and_weights, get_vision_position_ids

import student

TEXT = dict(model_type="qwen3_vl_text", vocab_size=576, hidden_size=192, intermediate_size=512, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=48, max_position_embeddings=1024, rms_norm_eps=1e-6,
            hidden_act="silu", attention_bias=False, attention_dropout=0.0, dtype="bfloat16",
            rope_theta=10000.0, rope_scaling=dict(rope_type="default", mrope_section=[8, 8, 8], mrope_interleaved=True))
VISION = dict(model_type="qwen3_vl", depth=4, hidden_size=128, intermediate_size=384, num_heads=4, in_channels=3, patch_size=16,
              spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=192, num_position_embeddings=36,
              deepstack_visual_indexes=[1, 2], hidden_act="gelu_pytorch_tanh")
PROCESSOR = dict(image_processor_type="Qwen2VLImageProcessorFast", patch_size=16, temporal_patch_size=2, merge_size=2,
                 image_mean=[0.5] * 3, image_std=[0.5] * 3, size=dict(shortest_edge=96 * 96, longest_edge=128 * 96))
MERGE = VISION["spatial_merge_size"]


class VisionAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["num_heads"]
        self.qkv = nn.Linear(c["hidden_size"], 3 * c["hidden_size"])
        self.proj = nn.Linear(c["hidden_size"], c["hidden_size"])

    def forward(self, x, cos, sin):
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        d = width // self.heads
        q, k = student.rope(q, cos * d ** -0.5, sin * d ** -0.5), student.rope(k, cos, sin)
        q, k, v = (y.to(v.dtype).reshape(b * self.heads, t, d) for y in (q, k, v))
        a = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1, dtype=v.dtype), v)
        return self.proj(a.view(b, self.heads, t, d).transpose(1, 2).reshape(b, t, width))


class VisionMLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.linear_fc1 = nn.Linear(c["hidden_size"], c["intermediate_size"])
        self.linear_fc2 = nn.Linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(c["hidden_size"], eps=1e-6) for _ in range(2))
        self.attn, self.mlp = VisionAttention(c), VisionMLP(c)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    def __init__(self, c, after):
        super().__init__()
        self.width, self.after = c["hidden_size"] * MERGE ** 2, after
        self.norm = nn.LayerNorm(self.width if after else c["hidden_size"], eps=1e-6)
        self.linear_fc1, self.linear_fc2 = nn.Linear(self.width, self.width), nn.Linear(self.width, c["out_hidden_size"])

    def forward(self, x):
        b = x.shape[0]
        x = self.norm(x.reshape(b, -1, self.width)) if self.after else self.norm(x).reshape(b, -1, self.width)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class PatchEmbed(nn.Module):
    def __init__(self, c):
        super().__init__()
        size = (c["temporal_patch_size"], c["patch_size"], c["patch_size"])
        self.proj = nn.Conv3d(c["in_channels"], c["hidden_size"], kernel_size=size, stride=size)

    def forward(self, patches):
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Tower(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.patch_embed = PatchEmbed(c)
        self.pos_embed = nn.Embedding(c["num_position_embeddings"], c["hidden_size"])
        self.blocks = nn.ModuleList(VisionBlock(c) for _ in range(c["depth"]))
        self.merger = Merger(c, False)
        self.deepstack_merger_list = nn.ModuleList(Merger(c, True) for _ in c["deepstack_visual_indexes"])

    def positions(self, grid):
        """Position embeddings, and cosines and sines, of the patches of one picture."""
        thw = torch.tensor([[1, *grid]])
        at, weight = get_vision_bilinear_indices_and_weights(thw, num_grid_per_side=int(self.c["num_position_embeddings"] ** 0.5),
                                                             spatial_merge_size=MERGE)
        half = self.c["hidden_size"] // self.c["num_heads"] // 2
        inverse = 1.0 / (10000.0 ** (torch.arange(0, half, 2).float() / half))
        angle = (get_vision_position_ids(thw, MERGE).unsqueeze(-1) * inverse).flatten(1)
        angle = torch.cat([angle, angle], -1)
        return (self.pos_embed(at) * weight[:, :, None]).sum(0), angle.cos(), angle.sin()

    def forward(self, patches, grid):
        """[pictures, patches, values] to the features of each picture's rows: for the embedding, then for each deepstack layer."""
        place, cos, sin = self.positions(grid)
        x, sets = self.patch_embed(patches) + place, []
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin)
            if i in self.c["deepstack_visual_indexes"]:
                sets.append(self.deepstack_merger_list[len(sets)](x))
        return [self.merger(x)] + sets


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.visual, self.model.language_model = Tower(VISION), student.Body(TEXT)

    def hidden(self, ids, positions, shown=None, sets=()):
        """ids [rows, T], positions [rows, 3, T]; `shown` [rows, T] marks the placeholders of `sets`, which the tower made."""
        half = TEXT["head_dim"] // 2
        inverse = 1.0 / (TEXT["rope_theta"] ** (torch.arange(half).float() / half))
        axis = torch.arange(half) % 3  # equal sections, interleaved
        angle = positions[:, axis].transpose(1, 2).float() * inverse
        angle = torch.cat([angle, angle], -1)[:, None]
        t, body = ids.shape[1], self.model.language_model
        mask, cos, sin = torch.full((t, t), -torch.inf).triu(1), angle.cos(), angle.sin()
        if torch.is_autocast_enabled("cpu"):
            mask, cos, sin = mask.bfloat16(), cos.bfloat16(), sin.bfloat16()
        x = body.embed_tokens(ids)
        sets = [f.flatten(0, 1).float() for f in sets]
        if sets:
            x = x.masked_scatter(shown[..., None], sets[0])
        for i, layer in enumerate(body.layers):
            x = layer(x, cos, sin, mask)
            if i + 1 < len(sets):
                x = x + torch.zeros_like(x, dtype=torch.float32).masked_scatter(shown[..., None], sets[i + 1])
        return body.norm(x)

    def head(self):
        return self.model.language_model.embed_tokens.weight


def patches_of(pixels):
    """uint8 [pictures, height, width, 3] to patches as the processor lays them out, both frames equal."""
    p = VISION["patch_size"]
    n, height, width, _ = pixels.shape
    x = (torch.from_numpy(pixels).float() / 255 - 0.5) / 0.5
    x = x.permute(0, 3, 1, 2).reshape(n, 3, height // p // MERGE, MERGE, p, width // p // MERGE, MERGE, p)
    x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None].expand(-1, -1, -1, -1, -1, -1, VISION["temporal_patch_size"], -1, -1)
    return x.reshape(n, height * width // p // p, -1), (height // p, width // p)


def fresh(seed):
    torch.manual_seed(seed)
    model = Model()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed" in name and "proj" not in name:
                p.normal_(0, 0.02)
            elif p.dim() > 1:
                p.normal_(0, p.flatten(1).shape[1] ** -0.5 * (0.3 if "o_proj" in name or "down_proj" in name else 0.7))
            elif name.endswith("bias"):
                p.zero_()
    return model


def export(model, folder):
    """Weights in bfloat16, config.json and what else a folder that is served holds; the tokenizer is there already."""
    ids = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).token_to_id
    eos, pad = ids("<|im_end|>"), ids("<|endoftext|>")
    save_file({k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()},
              os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    config = dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", tie_word_embeddings=True,
                  image_token_id=ids("<|image_pad|>"), video_token_id=ids("<|video_pad|>"), vision_start_token_id=ids("<|vision_start|>"),
                  vision_end_token_id=ids("<|vision_end|>"), text_config=dict(TEXT, eos_token_id=eos, bos_token_id=pad, pad_token_id=pad),
                  vision_config=VISION)
    files = {"config.json": config, "preprocessor_config.json": PROCESSOR,
             "generation_config.json": dict(bos_token_id=pad, eos_token_id=[eos, pad], pad_token_id=pad, do_sample=False)}
    for name, data in files.items():
        with open(os.path.join(folder, name), "w") as f:
            json.dump(data, f, indent=2)
            f.write("\n")


def load(folder):
    """The exported model in float32."""
    model = Model()
    model.load_state_dict({k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()})
    return model
