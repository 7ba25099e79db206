"""Directories of Qwen3-Omni's form with random weights, for bench/speech.py.

    omni   talker, code predictor and vocoder of Qwen3-Omni-30B-A3B, and a thinker of its width with 6 of 48 layers and 16 of 128 experts
    tts    the talker and the code predictor of Qwen3-TTS-12Hz-0.6B: its 28 dense layers as layers of one expert and the shared one, which
           together are as wide; the vocoder of Qwen3-Omni; a thinker of one small layer, which computes nothing of a given text
    small  about a tenth of `omni`
    tiny   what is quick: for hours of sound

Vocabulary and tokenizer are those of the tests' tiny models. Ends of text and speech have rows of zeros in the heads, so they are never
drawn where 50 likelier ones are: lengths are those that were asked for."""
import json
import shutil
import sys
import pathlib

from vision import write_weights

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from omni_model import DEMO, ROLE_MERGES, SPEECH_TOKENS, TEMPLATE, TOKENS, speaking_tokenizer  # noqa: E402

VOCABULARY, TURN_END, CODEC_EOS, CODES, GROUPS = 3088, 3071, 2150, 2048, 16
# The published ones.
PREDICTOR = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5, "num_attention_heads": 16, "num_key_value_heads": 8}
VOCODER = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16, "decoder_dim": 1536}
SHAPES = {
    "omni": {"thinker": {"hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 16,
                         "num_experts_per_tok": 8, "moe_intermediate_size": 768},
             "talker": {"hidden_size": 1024, "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 2, "num_experts": 128,
                        "num_experts_per_tok": 8, "moe_intermediate_size": 384, "shared_expert_intermediate_size": 768},
             "predictor": PREDICTOR,
             "vocoder": VOCODER},
    "tts": {"thinker": {"hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 2,
                        "num_experts_per_tok": 1, "moe_intermediate_size": 128},
            "talker": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "num_experts": 1,
                       "num_experts_per_tok": 1, "moe_intermediate_size": 1536, "shared_expert_intermediate_size": 1536},
            "predictor": PREDICTOR,
            "vocoder": VOCODER},
    "small": {"thinker": {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "num_experts": 8,
                          "num_experts_per_tok": 4, "moe_intermediate_size": 384},
              "talker": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "num_experts": 32,
                         "num_experts_per_tok": 4, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 384},
              "predictor": {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4},
              "vocoder": {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "decoder_dim": 512}},
    "tiny": {"thinker": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 2,
                         "num_experts_per_tok": 1, "moe_intermediate_size": 64},
             "talker": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 2,
                        "num_experts_per_tok": 1, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
             "predictor": {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
             "vocoder": {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "decoder_dim": 64}},
}
HEAD_DIM, MERGE = 128, 2
VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 16, "spatial_merge_size": MERGE,
          "temporal_patch_size": 2, "num_position_embeddings": 36, "deepstack_visual_indexes": [0], "hidden_act": "gelu_pytorch_tanh",
          "model_type": "qwen3_omni_moe_vision_encoder"}
HEARING = {"num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 128, "d_model": 64, "n_window": 50,
           "n_window_infer": 200, "downsample_hidden_size": 8, "activation_function": "gelu", "model_type": "qwen3_omni_moe_audio_encoder"}
MEDIA_IDS = {f"{name}_token_id": TOKENS[f"<|{pad}|>"] for name, pad in (
    ("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("audio", "audio_pad"), ("audio_start", "audio_start"))}
ROPE = {"rope_type": "default", "rope_theta": 1e6}
MROPE = {**ROPE, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
LANGUAGE = {"head_dim": HEAD_DIM, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6}


def config_of(shape):
    sizes = SHAPES[shape]
    hidden, user = sizes["thinker"]["hidden_size"], ROLE_MERGES["u ser"]
    layers = sizes["thinker"]["num_hidden_layers"]
    thinker = {"model_type": "qwen3_omni_moe_thinker", "position_id_per_seconds": 13, "user_token_id": user, **MEDIA_IDS,
               "vision_end_token_id": TOKENS["<|vision_end|>"], "audio_end_token_id": TOKENS["<|audio_end|>"],
               "text_config": {**sizes["thinker"], **LANGUAGE, "vocab_size": VOCABULARY, "intermediate_size": 4 * hidden, "norm_topk_prob": True,
                               "rope_parameters": MROPE, "sliding_window": None, "model_type": "qwen3_omni_moe_text"},
               "vision_config": {**VISION, "out_hidden_size": hidden}, "audio_config": {**HEARING, "output_dim": hidden}}
    talker = {"model_type": "qwen3_omni_moe_talker", "num_code_groups": GROUPS, "thinker_hidden_size": hidden, "accept_hidden_layer": layers // 2,
              "codec_pad_id": 2148, "codec_bos_id": 2149, "codec_eos_token_id": CODEC_EOS, "codec_nothink_id": 2155, "codec_think_bos_id": 2156,
              "codec_think_eos_id": 2157, "speaker_id": {"ethan": 2302, "chelsie": 2301}, "spatial_merge_size": MERGE, "position_id_per_seconds": 13,
              **MEDIA_IDS,
              "text_config": {**sizes["talker"], **LANGUAGE, "vocab_size": CODES + 1024, "intermediate_size": 2048, "norm_topk_prob": True,
                              "rope_parameters": MROPE, "model_type": "qwen3_omni_moe_talker_text"},
              "code_predictor_config": {**sizes["predictor"], **LANGUAGE, "vocab_size": CODES, "num_code_groups": GROUPS, "rope_parameters": ROPE,
                                        "model_type": "qwen3_omni_moe_talker_code_predictor"}}
    vocoder = {"codebook_size": CODES, "num_quantizers": GROUPS, "sliding_window": 72, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
               "max_position_embeddings": 8000, "rms_norm_eps": 1e-5, "model_type": "qwen3_omni_moe_code2wav", **sizes["vocoder"],
               "num_key_value_heads": sizes["vocoder"]["num_attention_heads"]}
    speech = dict(zip(("tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id"), SPEECH_TOKENS.values()))
    return {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe", "dtype": "bfloat16", "enable_audio_output": True,
            "im_start_token_id": 3070, "im_end_token_id": TURN_END, "system_token_id": ROLE_MERGES["syst em"], "user_token_id": user,
            "assistant_token_id": ROLE_MERGES["assist ant"], **speech, "thinker_config": thinker, "talker_config": talker, "code2wav_config": vocoder}


def attention(prefix, config):
    hidden, queries, keys = config["hidden_size"], config["num_attention_heads"] * HEAD_DIM, config["num_key_value_heads"] * HEAD_DIM
    return [(prefix + name + ".weight", shape) for name, shape in (
        ("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]), ("self_attn.q_norm", [HEAD_DIM]), ("self_attn.k_norm", [HEAD_DIM]),
        ("self_attn.q_proj", [queries, hidden]), ("self_attn.k_proj", [keys, hidden]), ("self_attn.v_proj", [keys, hidden]),
        ("self_attn.o_proj", [hidden, queries]))]


def mlp(prefix, hidden, middle):
    return [(f"{prefix}{name}_proj.weight", [hidden, middle] if name == "down" else [middle, hidden]) for name in ("gate", "up", "down")]


def experts(prefix, config):
    hidden, middle = config["hidden_size"], config["moe_intermediate_size"]
    out = [(prefix + "gate.weight", [config["num_experts"], hidden])]
    for i in range(config["num_experts"]):
        out += mlp(f"{prefix}experts.{i}.", hidden, middle)
    if "shared_expert_intermediate_size" in config:
        out += mlp(prefix + "shared_expert.", hidden, config["shared_expert_intermediate_size"])
        out.append((prefix + "shared_expert_gate.weight", [1, hidden]))
    return out


def language_layers(prefix, config, dense=False):
    out = []
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}layers.{i}."
        out += attention(layer, config)
        out += mlp(layer + "mlp.", config["hidden_size"], config["intermediate_size"]) if dense else experts(layer + "mlp.", config)
    return [*out, (prefix + "norm.weight", [config["hidden_size"]])]


def with_bias(name, shape):
    return [(name + ".weight", shape), (name + ".bias", shape[:1])]


def thinker_tensors(config):
    text, vision, hearing = config["text_config"], config["vision_config"], config["audio_config"]
    hidden, tower, wide = text["hidden_size"], vision["hidden_size"], MERGE * MERGE * vision["hidden_size"]
    out = [("model.embed_tokens.weight", [VOCABULARY, hidden]), ("lm_head.weight", [VOCABULARY, hidden]), *language_layers("model.", text)]
    out += with_bias("visual.patch_embed.proj", [tower, 3, 2, vision["patch_size"], vision["patch_size"]])
    out.append(("visual.pos_embed.weight", [vision["num_position_embeddings"], tower]))
    for i in range(vision["depth"]):
        block = f"visual.blocks.{i}."
        for name, shape in (("norm1", [tower]), ("norm2", [tower]), ("attn.qkv", [3 * tower, tower]), ("attn.proj", [tower, tower]),
                            ("mlp.linear_fc1", [vision["intermediate_size"], tower]), ("mlp.linear_fc2", [tower, vision["intermediate_size"]])):
            out += with_bias(block + name, shape)
    for prefix, width in (("visual.merger.", tower), ("visual.merger_list.0.", wide)):
        out += [*with_bias(prefix + "ln_q", [width]), *with_bias(prefix + "mlp.0", [wide, wide]), *with_bias(prefix + "mlp.2", [hidden, wide])]
    heard, channels, up = hearing["d_model"], hearing["downsample_hidden_size"], hearing["encoder_ffn_dim"]
    for i, inputs in ((1, 1), (2, channels), (3, channels)):
        out += with_bias(f"audio_tower.conv2d{i}", [channels, inputs, 3, 3])
    out.append(("audio_tower.conv_out.weight", [heard, channels * 16]))
    for i in range(hearing["encoder_layers"]):
        layer = f"audio_tower.layers.{i}."
        for name, shape in (("self_attn_layer_norm", [heard]), ("final_layer_norm", [heard]), ("fc1", [up, heard]), ("fc2", [heard, up]),
                            *((f"self_attn.{each}_proj", [heard, heard]) for each in ("q", "k", "v", "out"))):
            out += with_bias(layer + name, shape)
    for name, shape in (("ln_post", [heard]), ("proj1", [heard, heard]), ("proj2", [hearing["output_dim"], heard])):
        out += with_bias("audio_tower." + name, shape)
    return out


def talker_tensors(config):
    text, predictor = config["text_config"], config["code_predictor_config"]
    hidden, inner, thinker = text["hidden_size"], text["intermediate_size"], config["thinker_hidden_size"]
    out = [("model.codec_embedding.weight", [text["vocab_size"], hidden]), ("codec_head.weight", [text["vocab_size"], hidden])]
    out += language_layers("model.", text)
    for name in ("text_projection", "hidden_projection"):
        out += [*with_bias(name + ".linear_fc1", [inner, thinker]), *with_bias(name + ".linear_fc2", [hidden, inner])]
    for i in range(GROUPS - 1):
        out += [(f"code_predictor.{name}.{i}.weight", [CODES, hidden]) for name in ("model.codec_embedding", "lm_head")]
    return out + language_layers("code_predictor.model.", predictor, dense=True)


def vocoder_tensors(config):
    hidden, middle, channels = config["hidden_size"], config["intermediate_size"], config["decoder_dim"]
    out = [("code_embedding.weight", [GROUPS * CODES, hidden]), ("pre_transformer.norm.weight", [hidden])]
    for i in range(config["num_hidden_layers"]):
        layer = f"pre_transformer.layers.{i}."
        out += [(layer + name, [hidden]) for name in ("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn_layer_scale.scale",
                                                      "mlp_layer_scale.scale")]
        out += [(f"{layer}self_attn.{name}_proj.weight", [hidden, hidden]) for name in "qkvo"] + mlp(layer + "mlp.", hidden, middle)
    for i, ratio in enumerate(config["upsampling_ratios"]):
        prefix = f"upsample.{i}."
        for name, shape, bias in (("0.conv", [hidden, hidden, ratio], hidden), ("1.dwconv.conv", [hidden, 1, 7], hidden), ("1.norm", [hidden], hidden),
                                  ("1.pwconv1", [4 * hidden, hidden], 4 * hidden), ("1.pwconv2", [hidden, 4 * hidden], hidden)):
            out += [(prefix + name + ".weight", shape), (prefix + name + ".bias", [bias])]
        out.append((prefix + "1.gamma", [hidden]))
    out += with_bias("decoder.0.conv", [channels, hidden, 7])
    for i, rate in enumerate(config["upsample_rates"]):
        block, narrow = f"decoder.{i + 1}.block.", channels // 2
        out += [(f"{block}0.{name}", [channels]) for name in ("alpha", "beta")]
        out += [(block + "1.conv.weight", [channels, narrow, 2 * rate]), (block + "1.conv.bias", [narrow])]
        for unit in (2, 3, 4):
            out += [(f"{block}{unit}.act{act}.{name}", [narrow]) for act in (1, 2) for name in ("alpha", "beta")]
            out += [*with_bias(f"{block}{unit}.conv1.conv", [narrow, narrow, 7]), *with_bias(f"{block}{unit}.conv2.conv", [narrow, narrow, 1])]
        channels = narrow
    last = len(config["upsample_rates"]) + 1
    return out + [(f"decoder.{last}.{name}", [channels]) for name in ("alpha", "beta")] + with_bias(f"decoder.{last + 1}.conv", [1, channels, 7])


def tensors_of(config):
    """[(name, shape)]"""
    return [(prefix + name, shape) for prefix, part in (
        ("thinker.", thinker_tensors(config["thinker_config"])), ("talker.", talker_tensors(config["talker_config"])),
        ("code2wav.", vocoder_tensors(config["code2wav_config"]))) for name, shape in part]


def make_model(folder, config):
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(speaking_tokenizer()))
    shutil.copy(DEMO / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "feature_extractor_type": "WhisperFeatureExtractor", "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3OmniMoeProcessor",
        "dither": 0.0, "padding_value": 0.0, "return_attention_mask": True, "patch_size": VISION["patch_size"], "temporal_patch_size": 2,
        "merge_size": MERGE, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"shortest_edge": 4096, "longest_edge": 1048576},
        "feature_size": 128, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 300}))
    write_weights(folder, tensors_of(config), {"thinker.lm_head.weight": TURN_END, "talker.codec_head.weight": CODEC_EOS})
    (folder / "config.json").write_text(json.dumps(config))  # last: the directory is complete


def model_of(folder, shape):
    """(configuration, directory): made where it is not there yet, or is another"""
    config, folder = config_of(shape), folder / shape
    if not (folder / "config.json").exists() or json.loads((folder / "config.json").read_text()) != config:
        shutil.rmtree(folder, ignore_errors=True)
        make_model(folder, config)
    return config, folder
