"""The tiny Qwen3-Omni thinker of tests/golden/omni as a directory that is served: with the demo's tokenizer, the tokens of pictures and sounds
behind it, and a chat template with the rules of Qwen3-Omni's for parts."""
import json
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "omni"
DEMO = ROOT / "models" / "demo"
TOKENS = {"<|image_pad|>": 3072, "<|video_pad|>": 3073, "<|vision_start|>": 3074, "<|vision_end|>": 3075,
          "<|audio_pad|>": 3076, "<|audio_start|>": 3077, "<|audio_end|>": 3078}
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


def omni_model(folder):
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        shutil.copy(GOLDEN / "thinker" / name, folder / name)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    like = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [{**like, "id": number, "content": text} for text, number in TOKENS.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(DEMO / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def served():
    """Conversations of tests/oracles/omni_thinker.py: parts, ids of the prompt, greedy ids and text."""
    return json.loads((GOLDEN / "thinker" / "served.json").read_text())


def clip(name):
    return (GOLDEN / "clips" / name).read_bytes()
