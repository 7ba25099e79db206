"""Writes tests/golden/omni/predictor: a small deterministic random code predictor of Qwen3-Omni's talker and the codes that
Hugging Face transformers chooses greedily for random hidden rows (float32, CPU, eager attention, each frame alone).

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/omni_code_predictor.py

golden.safetensors: hidden_0, first_0 f32 [frames, hidden]; codes_0 i32 [frames, groups - 1]; logits_0 f32 [groups - 1, frames,
codebook]; sum_0 f32 [frames, hidden]: first and the embeddings of the codes. config.json has talker_config alone.
"""
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration as Predictor)

OUT = pathlib.Path("tests/golden/omni/predictor")
FRAMES, GROUPS = 7, 6
MIN_GAP = 5e-3
PREDICTOR = dict(vocab_size=26, hidden_size=24, intermediate_size=36, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=10, num_code_groups=GROUPS, rms_norm_eps=1e-5,
                 rope_parameters=dict(rope_type="default", rope_theta=1e6))
TALKER = dict(num_code_groups=GROUPS, thinker_hidden_size=32, accept_hidden_layer=2, codec_eos_token_id=30,
              codec_nothink_id=31, codec_think_bos_id=32, codec_think_eos_id=33, codec_pad_id=34, codec_bos_id=35,
              speaker_id={"Ethan": 36, "chelsie": 37})

torch.set_num_threads(1)
model = Predictor._from_config(Qwen3OmniMoeTalkerCodePredictorConfig(**PREDICTOR), attn_implementation="eager").float().eval()
for seed in range(100):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in sorted(model.named_parameters()):
            if p.dim() >= 2:
                values = torch.randn(p.shape, generator=draw) * (1.5 / p.shape[1]) ** 0.5
            else:
                values = 1 + 0.2 * torch.randn(p.shape, generator=draw)
            p.copy_(values.bfloat16().float())  # what is stored
        hidden, first = torch.randn(2, FRAMES, PREDICTOR["hidden_size"], generator=draw)
        codes, logits = [], []
        for a, b in zip(hidden, first):
            found = model.generate(inputs_embeds=torch.stack([a, b])[None], max_new_tokens=GROUPS - 1, do_sample=False,
                                   pad_token_id=0, eos_token_id=None, return_dict_in_generate=True, output_scores=True)
            codes.append(found.sequences[0])
            logits.append(torch.cat(found.scores))
        codes, logits = torch.stack(codes), torch.stack(logits, 1)
    gap = float(torch.topk(logits, 2).values.diff().abs().min()) / float(logits.max() - logits.min())
    if gap >= MIN_GAP:
        break
embeddings = model.get_input_embeddings()
total = first + sum(embeddings[g](codes[:, g]) for g in range(GROUPS - 1)).detach()
shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir(parents=True)
save_file({"hidden_0": hidden.contiguous(), "first_0": first.contiguous(), "codes_0": codes.int(),
           "logits_0": logits.contiguous(), "sum_0": total.contiguous()}, OUT / "golden.safetensors")
save_file({f"talker.code_predictor.{k}": v.bfloat16().contiguous() for k, v in model.state_dict().items()},
          OUT / "model.safetensors")
stored = {"talker_config": {**TALKER, "text_config": {"vocab_size": 40, "hidden_size": PREDICTOR["hidden_size"]},
                            "code_predictor_config": PREDICTOR}}
(OUT / "config.json").write_text(json.dumps(stored, indent=1) + "\n")
print("seed", seed, "gap", gap, codes.tolist(), "bytes", sum(f.stat().st_size for f in OUT.iterdir()))
