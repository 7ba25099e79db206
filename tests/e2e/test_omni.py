"""The thinker of Qwen3-Omni is served: text and pictures give the ids of Hugging Face transformers, beside tensors of a talker that are not read."""
import base64

import pytest

from harness import Server
from omni_model import omni_model, served
from vision_model import picture

CHAT = "/v1/chat/completions"
TYPES = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}


@pytest.fixture(scope="module")
def omni(tmp_path_factory):
    with Server(model=omni_model(tmp_path_factory.mktemp("omni") / "thinker")) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def part_of(part):
    kind = TYPES.get(part.rsplit(".", 1)[-1])
    if kind is None:
        return {"type": "text", "text": part}
    url = f"data:{kind};base64,{base64.b64encode(picture(part)).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def without_sound():
    return [one for one in served()["conversations"] if not any(part.endswith(".wav") for part in one["parts"])]


def test_prompts_and_answers_are_those_of_transformers(omni):
    assert len(without_sound()) == 2
    for one in without_sound():
        messages = [{"role": "system", "content": served()["system"]},
                    {"role": "user", "content": [part_of(part) for part in one["parts"]]}]
        status, _, tokenized = omni.post("/tokenize", {"messages": messages})
        assert status == 200 and tokenized["tokens"] == one["prompt"]
        status, _, answer = omni.post(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 16, "ignore_eos": True})
        assert status == 200, answer
        assert answer["choices"][0]["message"]["content"] == one["text"]
        assert answer["usage"]["prompt_tokens"] == len(one["prompt"])
