"""A tiny Qwen3-VL model of tests/golden/vision as a directory that is served: with the demo's tokenizer, the vision tokens behind it, and a chat
template with the rules of Qwen3-VL's for parts."""
import json
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "vision"
DEMO = ROOT / "models" / "demo"
TOKENS = {"<|image_pad|>": 3072, "<|video_pad|>": 3073, "<|vision_start|>": 3074, "<|vision_end|>": 3075}
TEMPLATE = """\
{%- macro render(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}<|vision_start|><|image_pad|><|vision_end|>
      {%- elif part.type == 'video' or 'video' in part -%}<|vision_start|><|video_pad|><|vision_end|>
      {%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}{{- render(message.content) -}}{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def tokenizer_with(tokens):
    """tokenizer.json of the demo with further special tokens."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    like = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [{**like, "id": number, "content": text} for text, number in tokens.items()]
    return tokenizer


def write_text_files(folder):
    """The demo's tokenizer with the vision tokens, and the chat template."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_with(TOKENS)))
    shutil.copy(DEMO / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def vision_model(folder, model="dense"):
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / model / name, folder / name)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        shutil.copy(GOLDEN / "dense" / name, folder)
    write_text_files(folder)
    return folder


def served():
    return json.loads((GOLDEN / "dense" / "served.json").read_text())


def served_videos():
    return json.loads((GOLDEN / "dense" / "video.json").read_text())


def video(name):
    return (ROOT / "tests" / "golden" / "media" / "video" / name).read_bytes()


def picture(name):
    return (GOLDEN / "pictures" / name).read_bytes()
