"""The demo model with a chat template that knows tools and reasoning, and grammars that make it write what a test wants."""
import json
import re

from harness import DEMO

TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\nCall <tool_call>{"name": ..., "arguments": {...}}</tool_call>' }}
    {%- for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'tool' %}{{ '<tool_response>\n' + message.content + '\n</tool_response>' }}{% else %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined %}{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""


def tool_model(folder):
    """Makes the folder of the model."""
    folder.mkdir()
    for file in DEMO.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def marked_tool_model(folder):
    """The same, with the tags of calls and reasoning as tokens, in place of those that its merges made last. Returns the ids
    of all and of <|im_end|>, by their texts."""
    tool_model(folder)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    for marker in ("<tool_call>", "</tool_call>", "<think>", "</think>"):
        tokenizer["added_tokens"].append({"id": vocabulary.pop(merges.pop().replace(" ", "")), "content": marker, "special": False, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False})
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder, {token["content"]: token["id"] for token in tokenizer["added_tokens"]}


def ebnf(text):
    """The grammar of one text; what stands between two bars is a part of EBNF itself."""
    parts = re.split(r"\|\|(.*?)\|\|", text)
    return "root ::= " + " ".join(part if i % 2 else json.dumps(part) for i, part in enumerate(parts) if part)
