"""Writes tests/golden/omni/thinker: a small deterministic random thinker of Qwen3-Omni, in the layout of published
directories, with what Hugging Face transformers computes from those weights (float32, CPU, eager attention) for prompts with
text, sounds and pictures; and tests/golden/omni/clips, sounds for requests.

Run from the repository's root, in the root that holds transformers 5.12, after vision_tiny.py:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/omni_thinker.py

golden.safetensors, for each case K (a prompt; media in the sequence of their rows):
    prompt_K i32 [T]; frames_K i32 [sounds]; grids_K i32 [pictures, 3]
    positions_K i32 [3, T], delta_K i32 [1]; logits_K f32 [vocabulary], of the last row; greedy_K i32 [STEPS]
Spectrograms and patches are a formula, see values_of(), which the test computes too: those of sound N of a prompt begin at
element N * 1,000,003, those of picture N likewise.

model.safetensors has a few tensors of a talker and of a code2wav too, which are no model. Sounds of a prompt are encoded
each alone (models/omni/audio_tower.h says why that matters).

The directory is served with the tokenizer of models/demo and the tokens of TOKENS behind it: served.json has conversations
with pictures of tests/golden/vision/pictures and sounds of clips/, and for each the ids that the prompt must have and those
that transformers generates greedily: spectrograms by its WhisperFeatureExtractor, pixels by its Pillow image processor.
"""
import json
import pathlib
import shutil
import wave

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from transformers import (Qwen2VLImageProcessorPil, Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration,
                          WhisperFeatureExtractor)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

OUT = pathlib.Path("tests/golden/omni")
PICTURES = pathlib.Path("tests/golden/vision/pictures")
STEPS = 16
MIN_GAP = 1e-3  # of the two likeliest logits, in a greedy step
STRIDE = 1000003
# Behind the 3072 of models/demo.
TOKENS = {"<|image_pad|>": 3072, "<|video_pad|>": 3073, "<|vision_start|>": 3074, "<|vision_end|>": 3075,
          "<|audio_pad|>": 3076, "<|audio_start|>": 3077, "<|audio_end|>": 3078}
IMAGE, V_START, V_END, AUDIO, A_START, A_END = 3072, 3074, 3075, 3076, 3077, 3078
IDS = dict(image_token_id=IMAGE, video_token_id=3073, vision_start_token_id=V_START, vision_end_token_id=V_END,
           audio_token_id=AUDIO, audio_start_token_id=A_START, audio_end_token_id=A_END)
TURN_END = 3071
TEXT = dict(vocab_size=3080, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[2],
            rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[4, 2, 2], mrope_interleaved=True))
VISION = dict(depth=3, hidden_size=24, intermediate_size=40, num_heads=2, patch_size=8, spatial_merge_size=2,
              temporal_patch_size=2, out_hidden_size=32, num_position_embeddings=36, deepstack_visual_indexes=[0, 1])
HEARING = dict(num_mel_bins=128, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48, d_model=32, n_window=50,
               n_window_infer=200, output_dim=32, downsample_hidden_size=6)
# Text, then sounds (frames) and pictures (patches) in their sequence with text between them.
CASES = [[], [57], [130, 245], [160, (4, 6)], [(2, 8), 73], [9, (4, 4), (2, 2), 301, 100]]
# Those that are no model.
REST = {"talker.model.layers.0.mlp.gate.weight": (2, 3), "talker.model.layers.0.mlp.experts.gate_up_proj": (2, 4, 3),
        "talker.model.layers.0.mlp.experts.down_proj": (2, 3, 2), "talker.codec_head.weight": (5, 3),
        "talker.code_predictor.lm_head.0.weight": (4, 3), "code2wav.code_embedding.weight": (8, 3),
        "code2wav.decoder.0.conv.weight": (3, 3, 7)}


def values_of(number, rows, width):
    """Multiples of 1 / 128 in [-1, 1): the upper byte of i * 2654435761 modulo 2^32 for the element i."""
    i = np.arange(rows * width, dtype=np.uint64) + np.uint64(number * STRIDE)
    upper = ((i * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
    return torch.from_numpy((upper.astype(np.float32) / 128 - 1).reshape(rows, width))


def randomize(model, seed):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if p.dim() >= 2:
                values = torch.randn(p.shape, generator=draw) * (1.5 / max(1, p[0].numel())) ** 0.5
            elif any(part in name for part in ("norm", "ln_")) and name.endswith("weight"):
                values = 1 + 0.2 * torch.randn(p.shape, generator=draw)
            else:
                values = 0.05 * torch.randn(p.shape, generator=draw)
            p.copy_(values.bfloat16().float())  # what is stored


class AloneThinker(Qwen3OmniMoeThinkerForConditionalGeneration):
    """Encodes each sound of a prompt as if there were no other."""

    def get_audio_features(self, input_features, feature_attention_mask=None, audio_feature_lengths=None, **kwargs):
        rows = [self.audio_tower(features[:, :int(mask.sum())], feature_lens=mask.sum().reshape(1)).last_hidden_state
                for features, mask in zip(input_features, feature_attention_mask)]
        return BaseModelOutputWithPooling(last_hidden_state=torch.cat(rows))


def audio_ids(frames):
    return [A_START] + [AUDIO] * int(_get_feat_extract_output_lengths(torch.tensor(frames))) + [A_END]


def prompt_of(media, draw):
    ids = draw.integers(3, 140, 5).tolist()
    for item in media:
        ids += audio_ids(item) if isinstance(item, int) else [V_START] + [IMAGE] * (item[0] * item[1] // 4) + [V_END]
        ids += draw.integers(3, 140, 3).tolist()
    return torch.tensor([ids])


def padded(spectrograms):
    """features [sounds, bins, frames] and their mask."""
    most = max(len(mel) for mel in spectrograms)
    features = torch.zeros(len(spectrograms), spectrograms[0].shape[1], most)
    mask = torch.zeros(len(spectrograms), most, dtype=torch.long)
    for i, mel in enumerate(spectrograms):
        features[i, :, :len(mel)], mask[i, :len(mel)] = mel.T, 1
    return dict(input_features=features, feature_attention_mask=mask)


def greedy_of(model, given):
    greedy = model.generate(**given, max_new_tokens=STEPS, do_sample=False, pad_token_id=0, eos_token_id=None,
                            return_dict_in_generate=True, output_scores=True)
    gaps = [float(torch.topk(s[0], 2).values.diff().abs()) / float(s[0].max() - s[0].min()) for s in greedy.scores]
    return min(gaps), greedy.sequences[0, given["input_ids"].shape[1]:]


def run(model, media, draw):
    ids = prompt_of(media, draw)
    sounds, grids = [m for m in media if isinstance(m, int)], [m for m in media if not isinstance(m, int)]
    thw = torch.tensor([[1, h, w] for h, w in grids]).reshape(-1, 3)
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    if sounds:
        given |= padded([values_of(i, frames, HEARING["num_mel_bins"]) for i, frames in enumerate(sounds)])
    if grids:
        given |= dict(image_grid_thw=thw, pixel_values=torch.cat([values_of(i, h * w, 384) for i, (h, w) in enumerate(grids)]))
    with torch.no_grad():
        logits = model(**given).logits[0]
        positions, delta = model.get_rope_index(ids, thw if grids else None, None, torch.ones_like(ids), False,
                                                torch.tensor(sounds) if sounds else None)
        gap, greedy = greedy_of(model, given)
    return gap, dict(prompt=ids[0].int(), frames=torch.tensor(sounds).int(), grids=thw.int(),
                     positions=positions[:, 0].int(), delta=delta.flatten().int(), logits=logits[-1], greedy=greedy.int())


def published(state, prefix="thinker."):
    """Each expert apart, all names behind the prefix."""
    out = {}
    for name, value in state.items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            out[prefix + name] = value
            continue
        layer, kind = name.rsplit(".", 1)
        for e, matrix in enumerate(value):
            parts = {"down_proj": matrix} if kind == "down_proj" else dict(zip(("gate_proj", "up_proj"), matrix.chunk(2)))
            out |= {f"{prefix}{layer}.{e}.{part}.weight": rows for part, rows in parts.items()}
    return out


def write(model):
    folder = OUT / "thinker"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for seed in range(100):
        randomize(model, seed)
        draw = np.random.default_rng(seed)
        results = [run(model, media, draw) for media in CASES]
        if min(gap for gap, _ in results) >= MIN_GAP and serve(folder, model):
            break
    else:
        raise SystemExit("no seed has clear greedy steps")
    save_file({f"{key}_{k}": value.contiguous() for k, (_, case) in enumerate(results) for key, value in case.items()
               if value.numel() > 0}, folder / "golden.safetensors")
    draw = torch.Generator().manual_seed(1000)
    tensors = published(model.state_dict()) | {name: torch.randn(shape, generator=draw) for name, shape in REST.items()}
    save_file({k: v.bfloat16().contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    thinker = {"model_type": "qwen3_omni_moe_thinker", **IDS, "position_id_per_seconds": 13, "user_token_id": 21,
               "text_config": {**TEXT, "model_type": "qwen3_omni_moe_text", "rms_norm_eps": 1e-6, "sliding_window": None},
               "vision_config": {**VISION, "model_type": "qwen3_omni_moe_vision_encoder", "hidden_act": "gelu_pytorch_tanh"},
               "audio_config": {**HEARING, "model_type": "qwen3_omni_moe_audio_encoder", "activation_function": "gelu"}}
    stored = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe", "dtype": "bfloat16",
              "im_end_token_id": TURN_END, "thinker_config": thinker}
    (folder / "config.json").write_text(json.dumps(stored, indent=1) + "\n")
    print("seed", seed, "gap", min(gap for gap, _ in results), "bytes", sum(f.stat().st_size for f in folder.iterdir()))


PIXELS = dict(patch_size=8, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
              size=dict(shortest_edge=4 * 16 * 16, longest_edge=16 * 16 * 16))
SOUND = dict(feature_size=128, sampling_rate=16000, hop_length=160, n_fft=400, chunk_length=300)
SYSTEM = "You tell of sounds."
# Texts and names of files, in their sequence, of the one message of a user.
CONVERSATIONS = [["What do you hear?", "sweep.wav"], ["click.wav"], ["sweep.wav", "And", "click.wav", "which is longer?"],
                 ["gradient.png", "What is it?", "sweep.wav"], ["click.wav", "tall.webp"], ["Hello there."],
                 ["What is here?", "photo.jpg", "gradient.png"]]


def write_clips():
    folder = OUT / "clips"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rate = SOUND["sampling_rate"]
    t = np.arange(int(1.13 * rate)) / rate
    clips = {"sweep": 0.3 * np.sin(2 * np.pi * (220 + 200 * t) * t)}
    t = np.arange(5003) / rate  # no multiple of the hop
    clips["click"] = 0.6 * np.exp(-t * 30) * np.sin(2 * np.pi * 900 * t)
    for name, values in clips.items():
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(np.round(values * 32767).astype("<i2").tobytes())


def samples_of(name):
    with wave.open(str(OUT / "clips" / name), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def kind_of(part):
    return "sound" if part.endswith(".wav") else "picture" if part.endswith((".png", ".jpg", ".webp")) else "text"


def spectrogram(extractor, name):
    found = extractor([samples_of(name)], sampling_rate=SOUND["sampling_rate"], padding=True, truncation=False,
                      return_attention_mask=True, return_tensors="pt")
    return found["input_features"][0].T[found["attention_mask"][0].bool()]


def serve(folder, model):
    """False where a greedy step is not clear."""
    tokenizer = Tokenizer.from_file("models/demo/tokenizer.json")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TOKENS])
    assert all(tokenizer.token_to_id(text) == number for text, number in TOKENS.items())
    processor, extractor = Qwen2VLImageProcessorPil(**PIXELS), WhisperFeatureExtractor(**SOUND)
    out = []
    for parts in CONVERSATIONS:
        pictures = [ImageOps.exif_transpose(Image.open(PICTURES / p)).convert("RGB") for p in parts if kind_of(p) == "picture"]
        spectrograms = [spectrogram(extractor, p) for p in parts if kind_of(p) == "sound"]
        pixels = processor(images=pictures, return_tensors="pt") if pictures else {}
        grids, sounds = iter(pixels["image_grid_thw"].tolist() if pictures else []), iter(spectrograms)
        content = ""
        for part in parts:
            if kind_of(part) == "picture":
                _, height, width = next(grids)
                content += "<|vision_start|>" + "<|image_pad|>" * (height * width // 4) + "<|vision_end|>"
            elif kind_of(part) == "sound":
                rows = len(audio_ids(len(next(sounds)))) - 2
                content += "<|audio_start|>" + "<|audio_pad|>" * rows + "<|audio_end|>"
            else:
                content += part
        text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
        given = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
        if pictures:
            given |= dict(pixel_values=pixels["pixel_values"], image_grid_thw=pixels["image_grid_thw"])
        with torch.no_grad():
            gap, new = greedy_of(model, given | (padded(spectrograms) if spectrograms else {}))
        if gap < MIN_GAP:
            return False
        print("served", parts, "rows", ids.shape[1], "gap", gap)
        out.append(dict(parts=parts, frames=[len(mel) for mel in spectrograms], prompt=ids[0].tolist(), greedy=new.tolist(),
                        text=tokenizer.decode(new.tolist(), skip_special_tokens=True)))
    (folder / "served.json").write_text(json.dumps(dict(system=SYSTEM, conversations=out), indent=1) + "\n")
    write_processor(folder)
    return True


def write_processor(folder):
    described = {"feature_extractor_type": "WhisperFeatureExtractor", "image_processor_type": "Qwen2VLImageProcessor",
                 "processor_class": "Qwen3OmniMoeProcessor", "dither": 0.0, "padding_value": 0.0,
                 "return_attention_mask": True, **PIXELS, **SOUND}
    (folder / "preprocessor_config.json").write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_clips()
    config = Qwen3OmniMoeThinkerConfig(text_config=TEXT, vision_config=VISION, audio_config=HEARING, position_id_per_seconds=13,
                                       user_token_id=21, **IDS)
    write(AloneThinker._from_config(config, attn_implementation="eager").float().eval())
