"""Writes tests/golden/omni/{sounds,windows}: small deterministic random audio encoders of Qwen3-Omni and the features that
Hugging Face transformers computes for sounds of many lengths, each alone (float32, CPU, eager attention); and
tests/golden/omni/audio_rows.json, the rows of 1 to 100,000 frames.

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/omni_audio.py

golden.safetensors, for each length K: frames_K i32 [1]; features_K f32 [rows, output_dim]. The spectrograms are a formula,
see mel_of(), which the test computes too. audio_rows.json: "first": the rows of 1 to 250 frames; "hash": FNV-1a, 64 bits,
of those of 1 to 100,000 as little-endian int32.
"""
import json
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeAudioEncoderConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (Qwen3OmniMoeAudioEncoder,
                                                                        _get_feat_extract_output_lengths)

OUT = pathlib.Path("tests/golden/omni")
IDS = dict(audio_token_id=4, audio_start_token_id=5, audio_end_token_id=6)
# head_dim 20 and an odd number of bins; head_dim 8, GELU by tanh and windows of two chunks.
ENCODERS = {
    "sounds": dict(num_mel_bins=21, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=56, d_model=40, n_window=50,
                   n_window_infer=800, output_dim=16, downsample_hidden_size=10, activation_function="gelu"),
    "windows": dict(num_mel_bins=128, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=44, d_model=32,
                    n_window=50, n_window_infer=250, output_dim=12, downsample_hidden_size=6, conv_chunksize=2,
                    max_source_positions=13, activation_function="gelu_pytorch_tanh"),
}
# Shorter than a chunk, exactly one, several with a tail of one row or more, more than a window of either.
LENGTHS = [1, 8, 9, 57, 99, 100, 101, 200, 209, 350, 800, 801, 1337]


def mel_of(frames, bins):
    """Multiples of 1 / 128 in [-1, 1): the upper byte of i * 2654435761 modulo 2^32 for the element i."""
    i = np.arange(frames * bins, dtype=np.uint64)
    upper = ((i * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
    return torch.from_numpy((upper.astype(np.float32) / 128 - 1).reshape(frames, bins))


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def write(name, fields, seed):
    config = Qwen3OmniMoeAudioEncoderConfig(**fields)
    encoder = Qwen3OmniMoeAudioEncoder._from_config(config, attn_implementation="eager").float().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in sorted(encoder.named_parameters()):
            if p.dim() >= 2:
                values = torch.randn(p.shape, generator=draw) * (1.5 / max(1, p[0].numel())) ** 0.5
            elif "norm" in key or "ln_post" in key:
                values = (1 if key.endswith("weight") else 0) + 0.2 * torch.randn(p.shape, generator=draw)
            else:
                values = 0.2 * torch.randn(p.shape, generator=draw)
            p.copy_(values.bfloat16().float())  # what is stored
        golden = {}
        for k, frames in enumerate(LENGTHS):
            features = encoder(mel_of(frames, fields["num_mel_bins"]).T, feature_lens=torch.tensor([frames])).last_hidden_state
            assert len(features) == int(_get_feat_extract_output_lengths(torch.tensor(frames)))
            golden |= {f"frames_{k}": torch.tensor([frames]).int(), f"features_{k}": features.contiguous()}
        try:
            encoder(mel_of(0, fields["num_mel_bins"]).T, feature_lens=torch.tensor([0]))
            raise SystemExit("transformers takes a sound without frames: models/omni/audio_rows.h claims that it does not")
        except IndexError:
            pass
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(golden, folder / "golden.safetensors")
    save_file({f"thinker.audio_tower.{k}": v.bfloat16().contiguous() for k, v in encoder.state_dict().items()},
              folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"audio_config": fields, **IDS}, indent=1) + "\n")
    print(name, sorted(encoder.state_dict())[:6], "bytes", sum(f.stat().st_size for f in folder.iterdir()))


torch.set_num_threads(1)
for number, (name, fields) in enumerate(ENCODERS.items()):
    write(name, fields, number)
rows = _get_feat_extract_output_lengths(torch.arange(1, 100001)).int().numpy().astype("<i4")
(OUT / "audio_rows.json").write_text(json.dumps({"first": rows[:250].tolist(), "hash": fnv1a(rows.tobytes())}) + "\n")
