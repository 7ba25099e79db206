"""Writes tests/golden/omni/{vocoder,vocoder_odd}: small deterministic random vocoders of Qwen3-Omni and the sound that Hugging
Face transformers makes of random codes, all at once (float32, CPU, eager attention).

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/omni_code2wav.py

golden.safetensors, for each length K: codes_K i32 [frames, quantizers]; samples_K f32. config.json has code2wav_config alone.
"""
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

OUT = pathlib.Path("tests/golden/omni")
# Strides and upsampling of published models, with a window that is shorter than the sounds; other strides, biases of
# attention, keys shared by heads.
VOCODERS = {
    "vocoder": (dict(codebook_size=40, hidden_size=32, num_attention_heads=4, num_key_value_heads=4, sliding_window=4,
                     intermediate_size=48, num_hidden_layers=2, num_quantizers=4, upsample_rates=[8, 5, 4, 3],
                     upsampling_ratios=[2, 2], decoder_dim=32, max_position_embeddings=1000), [1, 6], 0.15),
    "vocoder_odd": (dict(codebook_size=17, hidden_size=20, head_dim=6, num_attention_heads=3, num_key_value_heads=1,
                         sliding_window=72, intermediate_size=28, num_hidden_layers=3, num_quantizers=3,
                         upsample_rates=[5, 2], upsampling_ratios=[3], decoder_dim=28, attention_bias=True,
                         rms_norm_eps=1e-4, rope_parameters=dict(rope_type="default", rope_theta=500.0)), [1, 2, 7, 110], 0.3),
}


def write(name, fields, lengths, loudness, seed):
    config = Qwen3OmniMoeCode2WavConfig(**fields)
    model = Qwen3OmniMoeCode2Wav._from_config(config, attn_implementation="eager").float().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in sorted(model.named_parameters()):
            if key.endswith((".alpha", ".beta")):
                values = 0.3 * torch.randn(p.shape, generator=draw)
            elif key.endswith(("scale", "gamma")):
                values = 0.5 + 0.2 * torch.randn(p.shape, generator=draw)
            elif p.dim() >= 2:
                # of a transposed convolution the inputs come first, and each output sees two of its taps
                fan_in = p.shape[0] * 2 if ".block.1." in key else p[0].numel()
                values = torch.randn(p.shape, generator=draw) * (0.6 / max(1, fan_in)) ** 0.5
            elif "norm" in key and key.endswith("weight"):
                values = 1 + 0.2 * torch.randn(p.shape, generator=draw)
            else:
                values = 0.05 * torch.randn(p.shape, generator=draw)
            if key.startswith(f"decoder.{len(config.upsample_rates) + 2}."):
                values = loudness * values  # little of the sound is clamped
            p.copy_(values.bfloat16().float())  # what is stored
        golden = {}
        for k, frames in enumerate(lengths):
            codes = torch.randint(0, fields["codebook_size"], (1, fields["num_quantizers"], frames), generator=draw)
            samples = model(codes)[0, 0]
            golden |= {f"codes_{k}": codes[0].T.int().contiguous(), f"samples_{k}": samples.contiguous()}
            print(name, frames, "frames", len(samples), "samples, root of mean square", float(samples.square().mean().sqrt()),
                  "clamped", float((samples.abs() == 1).float().mean()))
            assert 0.05 < float(samples.std()) and float((samples.abs() == 1).float().mean()) < 0.2
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(golden, folder / "golden.safetensors")
    save_file({f"code2wav.{k}": v.bfloat16().contiguous() for k, v in model.state_dict().items()},
              folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"code2wav_config": fields}, indent=1) + "\n")
    print(name, "bytes", sum(f.stat().st_size for f in folder.iterdir()))


torch.set_num_threads(1)
for number, (name, (fields, lengths, loudness)) in enumerate(VOCODERS.items()):
    write(name, fields, lengths, loudness, number)
