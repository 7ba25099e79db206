"""The tiny models of Qwen3-Omni of tests/golden/omni as directories that are served, the thinker alone and one that speaks: with the demo's
tokenizer, the tokens of pictures and sounds behind it, and a chat template with the rules of Qwen3-Omni's for parts."""
import base64
import json
import pathlib
import shutil
import struct

from vision_model import picture, tokenizer_with

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "omni"
DEMO = ROOT / "models" / "demo"
TOKENS = {"<|image_pad|>": 3072, "<|video_pad|>": 3073, "<|vision_start|>": 3074, "<|vision_end|>": 3075,
          "<|audio_pad|>": 3076, "<|audio_start|>": 3077, "<|audio_end|>": 3078}
# Behind those, for a model that speaks. A talker looks for roles of one token: two are merged to one after all other merges.
SPEECH_TOKENS = {"<tts_pad>": 3079, "<tts_text_bos>": 3080, "<tts_text_eod>": 3081}
ROLE_MERGES = {"sy st": 3082, "syst em": 3083, "u ser": 3084, "ass ist": 3085, "assist ant": 3086}
TYPES = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}
TEMPLATE = """\
{%- macro render(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}<|vision_start|><|image_pad|><|vision_end|>
      {%- elif part.type == 'audio' or 'audio' in part or 'input_audio' in part or 'audio_url' in part -%}
        <|audio_start|><|audio_pad|><|audio_end|>
      {%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}{{- render(message.content) -}}{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def speaking_tokenizer():
    tokenizer = tokenizer_with({**TOKENS, **SPEECH_TOKENS})
    model = tokenizer["model"]
    # Hugging Face tokenizers number added tokens that are not in the vocabulary themselves, after its last one.
    model["vocab"] |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    model["vocab"] |= {merge.replace(" ", ""): number for merge, number in ROLE_MERGES.items()}
    model["merges"] += list(ROLE_MERGES)
    return tokenizer


def write_model(folder, golden, tokenizer):
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        shutil.copy(GOLDEN / golden / name, folder / name)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(DEMO / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def omni_model(folder):
    return write_model(folder, "thinker", tokenizer_with(TOKENS))


def speaking_model(folder):
    """A complete model: thinker, talker, code predictor, code2wav. As published, its turns end at im_end_token_id of config.json."""
    return write_model(folder, "speech", speaking_tokenizer())


def endless_model(folder):
    """One that speaks until its limit, up to 87 minutes: greedily the end is never drawn, whose row of the head is zero here."""
    speaking_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config["talker_config"]["text_config"]["max_position_embeddings"] = 65536
    (folder / "config.json").write_text(json.dumps(config))
    data = bytearray((folder / "model.safetensors").read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])["talker.codec_head.weight"]
    row = 2 * head["shape"][1]
    begin = 8 + size + head["data_offsets"][0] + config["talker_config"]["codec_eos_token_id"] * row
    data[begin:begin + row] = bytes(row)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def served():
    """Conversations of tests/oracles/omni_thinker.py: parts, ids of the prompt, greedy ids and text."""
    return json.loads((GOLDEN / "thinker" / "served.json").read_text())


def spoken():
    """Conversations of tests/oracles/omni_speech.py: messages, voice and limits; ids and text of the answer, codes of its speech."""
    return json.loads((GOLDEN / "speech" / "spoken.json").read_text())


def clip(name):
    return (GOLDEN / "clips" / name).read_bytes()


def text_of(data):
    return base64.b64encode(data).decode()


def audio(data, form="wav"):
    return {"type": "input_audio", "input_audio": {"data": text_of(data), "format": form}}


def part_of(part):
    """A part of an oracle's message, a text or the name of a file, as one of a chat."""
    if part.endswith(".wav"):
        return audio(clip(part))
    kind = TYPES.get(part.rsplit(".", 1)[-1])
    if kind is None:
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{text_of(picture(part))}"}}


def spoken_body(case, **more):
    """A chat of a conversation of spoken(), greedy, whose answer is spoken."""
    messages = [{"role": one["role"], "content": [part_of(part) for part in one["parts"]]} for one in case["messages"]]
    return {"messages": messages, "modalities": ["text", "audio"], "audio": {"voice": case["voice"], "format": "pcm16"}, "temperature": 0,
            "talker_do_sample": False, **more}


def sound_of(server, body):
    status, _, found = server.post("/v1/chat/completions", body)
    assert status == 200, found
    return base64.b64decode(found["choices"][0]["message"]["audio"]["data"])
