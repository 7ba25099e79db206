"""continue_final_message as transformers does it, over small templates that keep, trim, drop and repeat the message.

  python3 jinja_continue.py > ../golden/jinja/continue.json      (transformers 5.12)
"""

import copy
import json
import sys

from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = {
    "keep": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}",
    "trim": "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}<|end|>\n{% endfor %}",
    "drop": "{% for m in messages if m.role == 'user' %}{{ m['content'] }}{% endfor %}",
    "parts": "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ p.text if p.type == 'text' else '<img>' }}{% endfor %}{% endif %}<|end|>{% endfor %}",
    "upper": "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    "split": "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}<|end|>{% endfor %}",
    "none": "nothing to see",
}


def chat(content, **more):
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content, **more}]


CHATS = {
    "plain": chat("The answer is"),
    "space": chat("The answer is "),
    "spaces": chat("  The answer  \n\n"),
    "empty": chat(""),
    "blank": chat("   "),
    "unicode": chat("世界\u3000 é\u00a0"),
    "twice": [{"role": "user", "content": "same"}, {"role": "assistant", "content": "same"}],
    "think": chat("<think>a</think>\n\nb"),
    "parts": chat([{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two "}]),
    "no_text": chat([{"type": "image"}]),
    "missing": [{"role": "user", "content": "Hi"}, {"role": "assistant"}],
    "user_last": [{"role": "user", "content": "Complete: a"}],
}

cases = []
for template, source in TEMPLATES.items():
    for name, messages in CHATS.items():
        case = {"template": template, "chat": name}
        try:
            rendered, _ = render_jinja_template(
                [copy.deepcopy(messages)], chat_template=source, continue_final_message=True, add_generation_prompt=False
            )
            case["expected"] = rendered[0]
        except Exception as error:
            case["error"] = type(error).__name__
        cases.append(case)
json.dump({"templates": TEMPLATES, "chats": CHATS, "cases": cases}, sys.stdout, ensure_ascii=False, indent=0, separators=(",", ":"))
print()
