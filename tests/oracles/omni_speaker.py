"""The tiny complete Qwen3-Omni of omni_speech.py: its sizes, its weights, its prompts, and what one call
of its generate() computes inside."""
import json
import sys

import torch
from PIL import Image, ImageOps
from tokenizers import Tokenizer
from transformers import (Qwen2VLImageProcessorPil, Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration,
                          WhisperFeatureExtractor)

import omni_thinker as thinker_oracle
from omni_thinker import AloneThinker, IDS, PICTURES, PIXELS, SOUND, TURN_END, audio_ids, kind_of, padded, spectrogram

sys.path.insert(0, "tests/e2e")
from omni_model import ROLE_MERGES, SPEECH_TOKENS, speaking_tokenizer  # noqa: E402

GROUPS, CODEBOOK = 4, 128
CODEC = dict(codec_pad_id=130, codec_bos_id=131, codec_eos_token_id=132, codec_nothink_id=137, codec_think_bos_id=138,
             codec_think_eos_id=139)
VOICES = {"ethan": 150, "chelsie": 151}
TEXT = {**thinker_oracle.TEXT, "vocab_size": 3088}
ROPE = dict(rope_type="default", rope_theta=1e6)
TALKER_TEXT = dict(vocab_size=CODEBOOK + 1024, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                   num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, num_experts=6, num_experts_per_tok=2,
                   moe_intermediate_size=16, shared_expert_intermediate_size=28, norm_topk_prob=True, rms_norm_eps=1e-6,
                   rope_parameters=dict(**ROPE, mrope_section=[4, 2, 2], mrope_interleaved=True))
PREDICTOR = dict(vocab_size=CODEBOOK, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16, max_position_embeddings=64, num_code_groups=GROUPS, rms_norm_eps=1e-6,
                 rope_parameters=ROPE)
VOCODER = dict(codebook_size=CODEBOOK, hidden_size=32, num_attention_heads=4, num_key_value_heads=4, sliding_window=6,
               intermediate_size=48, num_hidden_layers=2, num_quantizers=GROUPS, upsample_rates=[8, 5, 4, 3],
               upsampling_ratios=[2, 2], decoder_dim=32, max_position_embeddings=1000, rms_norm_eps=1e-5)
TOP_IDS = dict(im_start_token_id=3070, im_end_token_id=TURN_END, system_token_id=ROLE_MERGES["syst em"],
               user_token_id=ROLE_MERGES["u ser"], assistant_token_id=ROLE_MERGES["assist ant"],
               **dict(zip(("tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id"), SPEECH_TOKENS.values())))
THINKER = dict(**IDS, position_id_per_seconds=13, user_token_id=TOP_IDS["user_token_id"])
TALKER = dict(num_code_groups=GROUPS, thinker_hidden_size=TEXT["hidden_size"], accept_hidden_layer=3, **CODEC,
              speaker_id=VOICES, spatial_merge_size=2, position_id_per_seconds=13,
              **{key: IDS[key] for key in ("audio_token_id", "image_token_id", "video_token_id", "vision_start_token_id",
                                           "audio_start_token_id")})


def rounded(values):
    return values.bfloat16().float()  # what is stored


def randomize(model, seed):
    """Every weight: transformers leaves the talker's experts as they are in memory."""
    thinker_oracle.randomize(model.thinker, seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # Answers that depend on the last rows, not on the mean of all, and that end now and then.
        model.thinker.model.embed_tokens.weight *= 4
        model.thinker.lm_head.weight[TURN_END] *= 2
        for part in (model.talker, model.code2wav):
            for key, p in sorted(part.named_parameters()):
                if part is model.code2wav:
                    p.copy_(rounded(vocoder_values(key, p, draw)))
                elif "codec_embedding" in key:
                    p.copy_(rounded(torch.randn(p.shape, generator=draw)))
                elif p.dim() >= 2:
                    p.copy_(rounded(torch.randn(p.shape, generator=draw) * (1.5 / p.shape[-1]) ** 0.5))
                else:
                    p.copy_(rounded((0 if key.endswith("bias") else 1) + 0.2 * torch.randn(p.shape, generator=draw)))


def vocoder_values(key, p, draw):
    """As in omni_code2wav.py."""
    values = torch.randn(p.shape, generator=draw)
    if key.endswith((".alpha", ".beta")):
        return 0.3 * values
    if key.endswith(("scale", "gamma")):
        return 0.5 + 0.2 * values
    if p.dim() < 2:
        return 1 + 0.2 * values if "norm" in key and key.endswith("weight") else 0.05 * values
    values *= (0.6 / max(1, p.shape[0] * 2 if ".block.1." in key else p[0].numel())) ** 0.5
    return 0.15 * values if key.startswith(f"decoder.{len(VOCODER['upsample_rates']) + 2}.") else values


def stored_config():
    thinker = {"model_type": "qwen3_omni_moe_thinker", **THINKER,
               "text_config": {**TEXT, "model_type": "qwen3_omni_moe_text", "rms_norm_eps": 1e-6, "sliding_window": None},
               "vision_config": {**thinker_oracle.VISION, "model_type": "qwen3_omni_moe_vision_encoder",
                                 "hidden_act": "gelu_pytorch_tanh"},
               "audio_config": {**thinker_oracle.HEARING, "model_type": "qwen3_omni_moe_audio_encoder",
                                "activation_function": "gelu"}}
    talker = {"model_type": "qwen3_omni_moe_talker", **TALKER,
              "text_config": {**TALKER_TEXT, "model_type": "qwen3_omni_moe_talker_text"},
              "code_predictor_config": {**PREDICTOR, "model_type": "qwen3_omni_moe_talker_code_predictor"}}
    return {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe", "dtype": "bfloat16",
            "enable_audio_output": True, **TOP_IDS, "thinker_config": thinker, "talker_config": talker,
            "code2wav_config": {**VOCODER, "model_type": "qwen3_omni_moe_code2wav"}}


def speaker():
    config = Qwen3OmniMoeConfig(
        thinker_config=dict(text_config=TEXT, vision_config=thinker_oracle.VISION, audio_config=thinker_oracle.HEARING, **THINKER),
        talker_config=dict(text_config=TALKER_TEXT, code_predictor_config=PREDICTOR, **TALKER), code2wav_config=VOCODER, **TOP_IDS)
    model = Qwen3OmniMoeForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    model.thinker.__class__ = AloneThinker
    return model


class Prompts:
    """Conversations as prompts, with what their media are for the model."""

    def __init__(self):
        self.tokenizer = Tokenizer.from_str(json.dumps(speaking_tokenizer()))
        for text, number in {"system": TOP_IDS["system_token_id"], "user": TOP_IDS["user_token_id"],
                             "assistant": TOP_IDS["assistant_token_id"], **SPEECH_TOKENS}.items():
            assert self.ids(text) == [number], text
        self.processor, self.extractor = Qwen2VLImageProcessorPil(**PIXELS), WhisperFeatureExtractor(**SOUND)

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def content(self, parts, grids, sounds):
        out = ""
        for part in parts:
            if kind_of(part) == "picture":
                _, height, width = next(grids)
                out += "<|vision_start|>" + "<|image_pad|>" * (height * width // 4) + "<|vision_end|>"
            elif kind_of(part) == "sound":
                out += "<|audio_start|>" + "<|audio_pad|>" * (len(audio_ids(next(sounds))) - 2) + "<|audio_end|>"
            else:
                out += part
        return out

    def make(self, messages):
        """The model's inputs, and the frames of each sound."""
        parts = [part for _, parts in messages for part in parts]
        pictures = [ImageOps.exif_transpose(Image.open(PICTURES / p)).convert("RGB") for p in parts if kind_of(p) == "picture"]
        spectrograms = [spectrogram(self.extractor, p) for p in parts if kind_of(p) == "sound"]
        pixels = self.processor(images=pictures, return_tensors="pt") if pictures else {}
        frames = [len(mel) for mel in spectrograms]
        grids, sounds = iter(pixels["image_grid_thw"].tolist() if pictures else []), iter(frames)
        text = "".join(f"<|im_start|>{role}\n{self.content(parts, grids, sounds)}<|im_end|>\n" for role, parts in messages)
        ids = torch.tensor([self.ids(text + "<|im_start|>assistant\n")])
        inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
        if pictures:
            inputs |= dict(pixel_values=pixels["pixel_values"], image_grid_thw=pixels["image_grid_thw"])
        return inputs | (padded(spectrograms) if spectrograms else {}), frames


def gap_of(scores):
    finite = scores[torch.isfinite(scores)]
    return float(torch.topk(finite, 2).values.diff().abs()) / float(finite.max() - finite.min())


class Unwanted(Exception):
    pass


class Recorder:
    """What one call of generate() computes inside, the code predictor made greedy. A text that is not wanted ends it, and
    so does a talker that ends at once, of which generate() makes an error."""

    def __init__(self, model):
        self.model, self.text_wanted = model, None
        for owner, name, method in ((model.thinker, "generate", self.think), (model.talker, "generate", self.talk),
                                    (model.talker.code_predictor, "generate", self.predict),
                                    (model.code2wav, "chunked_decode", self.decode)):
            setattr(owner, name, lambda *args, _method=method, _real=getattr(owner, name), **given: _method(_real, *args, **given))

    def think(self, real, **given):
        self.thought = real(**given)
        if not self.text_wanted(self.thought):
            raise Unwanted
        return self.thought

    def talk(self, real, **given):
        self.given, self.spoken, self.code_gaps = given, None, []
        self.spoken = real(**given)
        if not self.code_gaps:
            raise Unwanted
        return self.spoken

    def predict(self, real, **given):
        # The talker's code asks for sampling.
        found = real(**{**given, "do_sample": False, "top_k": None, "top_p": None}, output_scores=True)
        self.code_gaps.append(min(gap_of(scores[0]) for scores in found.scores))
        return found

    def decode(self, real, codes, **given):
        self.codes = codes
        return real(codes, **given)

    def run(self, inputs, voice, penalty, tokens, samples):
        greedy = dict(do_sample=False, output_scores=True, pad_token_id=0)
        thinker = {f"thinker_{key}": value for key, value in greedy.items()}
        talker = {f"talker_{key}": value for key, value in
                  dict(**greedy, top_k=None, top_p=None, temperature=None, output_logits=True).items()}
        return self.model.generate(**inputs, speaker=voice, thinker_max_new_tokens=tokens, thinker_eos_token_id=TURN_END,
                                   talker_max_new_tokens=samples, talker_repetition_penalty=penalty, **thinker, **talker)
