"""Trains the tokenizer of the demo of pictures: byte-level BPE with Qwen's pre-tokenizer, its control tokens, and a chat template."""

import tokenizer
from vl_talk import corpus

VOCABULARY = 576  # every word of the corpus is one token
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
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


def make(folder):
    tokenizer.CONTROL, tokenizer.TEMPLATE = CONTROL, TEMPLATE
    trained = tokenizer.train(corpus(20000), VOCABULARY)
    tokenizer.save(trained, folder, 1024)
    print(trained.get_vocab_size(), "tokens")
