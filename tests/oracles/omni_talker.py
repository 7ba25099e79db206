"""Writes tests/golden/omni/talker: a small deterministic random talker of Qwen3-Omni with its code predictor, and what Hugging
Face transformers computes for random rows (float32, CPU, eager attention).

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/omni_talker.py

golden.safetensors
    the talker: rows_0 f32 [T, hidden], positions_0 i32 [3, T]; logits_0 f32 [T, vocabulary]; embedded_0 f32 [IDS, hidden] of
    the ids 0, 1, ...
    its projections: thinker_0 f32 [R, thinker's hidden]; text_0, media_0 f32 [R, hidden]
    its code predictor, greedily, each frame alone: hidden_0, first_0 f32 [frames, hidden]; codes_0 i32 [frames, groups - 1];
    predicted_0 f32 [groups - 1, frames, codebook], the logits; sum_0 f32 [frames, hidden]: first and the codes' embeddings
config.json has talker_config alone; model.safetensors is in the layout of published directories, each expert apart.
"""
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerForConditionalGeneration as Talker

OUT = pathlib.Path("tests/golden/omni/talker")
ROWS, FRAMES, GROUPS = 23, 7, 6
MIN_GAP = 5e-3
TEXT = dict(vocab_size=40, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
            shared_expert_intermediate_size=20, norm_topk_prob=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[4, 2, 2], mrope_interleaved=True))
PREDICTOR = dict(vocab_size=26, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=10, num_code_groups=GROUPS, rms_norm_eps=1e-5,
                 rope_parameters=dict(rope_type="default", rope_theta=1e6))
TALKER = dict(num_code_groups=GROUPS, thinker_hidden_size=30, accept_hidden_layer=2, codec_eos_token_id=30,
              codec_nothink_id=31, codec_think_bos_id=32, codec_think_eos_id=33, codec_pad_id=34, codec_bos_id=35,
              speaker_id={"Ethan": 36, "chelsie": 37})


def randomize(model, draw):
    for key, p in sorted(model.named_parameters()):
        if p.dim() >= 2:
            values = torch.randn(p.shape, generator=draw) * (1.5 / p.shape[-1]) ** 0.5
        else:
            values = (0 if key.endswith("bias") else 1) + 0.2 * torch.randn(p.shape, generator=draw)
        p.copy_(values.bfloat16().float())  # what is stored


def predict(predictor, hidden, first):
    codes, logits = [], []
    for a, b in zip(hidden, first):
        found = predictor.generate(inputs_embeds=torch.stack([a, b])[None], max_new_tokens=GROUPS - 1, do_sample=False,
                                   pad_token_id=0, eos_token_id=None, return_dict_in_generate=True, output_scores=True)
        codes.append(found.sequences[0])
        logits.append(torch.cat(found.scores))
    return torch.stack(codes), torch.stack(logits, 1)


def published(state):
    out = {}
    for name, value in state.items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            out["talker." + name] = value
            continue
        layer, kind = name.rsplit(".", 1)
        for e, matrix in enumerate(value):
            parts = {"down_proj": matrix} if kind == "down_proj" else dict(zip(("gate_proj", "up_proj"), matrix.chunk(2)))
            out |= {f"talker.{layer}.{e}.{part}.weight": rows for part, rows in parts.items()}
    return out


torch.set_num_threads(1)
config = Qwen3OmniMoeTalkerConfig(text_config=TEXT, code_predictor_config=PREDICTOR, **TALKER)
config.spatial_merge_size = 2
model = Talker._from_config(config, attn_implementation="eager").float().eval()
with torch.no_grad():
    for seed in range(100):
        draw = torch.Generator().manual_seed(seed)
        randomize(model, draw)
        hidden, first = torch.randn(2, FRAMES, TEXT["hidden_size"], generator=draw)
        codes, predicted = predict(model.code_predictor, hidden, first)
        gap = float(torch.topk(predicted, 2).values.diff().abs().min()) / float(predicted.max() - predicted.min())
        if gap >= MIN_GAP:
            break
    embeddings = model.code_predictor.get_input_embeddings()
    total = first + sum(embeddings[g](codes[:, g]) for g in range(GROUPS - 1))
    rows = torch.randn(ROWS, TEXT["hidden_size"], generator=draw)
    # text, a picture of 3 x 4 rows, text
    axes = [(i, i, i) for i in range(5)] + [(5, 5 + y, 5 + x) for y in range(3) for x in range(4)]
    axes += [(i, i, i) for i in range(9, 9 + ROWS - len(axes))]
    positions = torch.tensor(axes).T
    out = model.model(inputs_embeds=rows[None], position_ids=positions[:, None].float(),
                      attention_mask=torch.ones(1, ROWS, dtype=torch.long))
    logits = model.codec_head(out.last_hidden_state)[0]
    thinker = torch.randn(5, TALKER["thinker_hidden_size"], generator=draw)
    golden = dict(rows_0=rows, positions_0=positions.int(), logits_0=logits,
                  embedded_0=model.get_input_embeddings().weight[:TEXT["vocab_size"]].clone(),
                  thinker_0=thinker, text_0=model.text_projection(thinker), media_0=model.hidden_projection(thinker),
                  hidden_0=hidden, first_0=first, codes_0=codes.int(), predicted_0=predicted, sum_0=total)
shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir(parents=True)
save_file({k: v.contiguous() for k, v in golden.items()}, OUT / "golden.safetensors")
save_file({k: v.bfloat16().contiguous() for k, v in published(model.state_dict()).items()}, OUT / "model.safetensors")
stored = {"talker_config": {**TALKER, "text_config": TEXT, "code_predictor_config": PREDICTOR}}
(OUT / "config.json").write_text(json.dumps(stored, indent=1) + "\n")
print("seed", seed, "gap", gap, "bytes", sum(f.stat().st_size for f in OUT.iterdir()))
