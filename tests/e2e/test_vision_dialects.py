"""Pictures and audio at /v1/messages and /v1/responses: the answers of Hugging Face transformers, as at /v1/chat/completions, and clear errors."""
import base64
import contextlib
import json
import os
import pathlib
import subprocess

import pytest

import omni_model
from harness import Server
from vision_model import GOLDEN, picture, served, vision_model

CHAT, MESSAGES, COUNT, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
TYPES = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}
CLIENTS = pathlib.Path(__file__).resolve().parent / "openai"


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    with Server(model=vision_model(tmp_path_factory.mktemp("vision") / "vl")) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def kind_of(part):
    return TYPES.get(part.rsplit(".", 1)[-1])


def text_of(part):
    return base64.b64encode(picture(part)).decode()


def block(part):
    if kind_of(part) is None:
        return {"type": "text", "text": part}
    return {"type": "image", "source": {"type": "base64", "media_type": kind_of(part), "data": text_of(part)}}


def item_part(part):
    if kind_of(part) is None:
        return {"type": "input_text", "text": part}
    return {"type": "input_image", "image_url": f"data:{kind_of(part)};base64,{text_of(part)}", "detail": "auto"}


def chat_part(part):
    if kind_of(part) is None:
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:{kind_of(part)};base64,{text_of(part)}"}}


def messages_body(content, **more):
    return {"system": served()["system"], "messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0,
            "ignore_eos": True, **more}


def responses_body(content, **more):
    return {"instructions": served()["system"], "input": [{"role": "user", "content": content}], "max_output_tokens": 16, "temperature": 0,
            "ignore_eos": True, **more}


def answered(server, path, body):
    status, _, answer = server.post(path, body)
    assert status == 200, answer
    return answer


def prompt_tokens(usage):
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


@pytest.mark.parametrize("one", served()["conversations"], ids=lambda one: "-".join(one["parts"])[:40])
def test_answers_are_those_of_transformers(vision, one):
    body = messages_body([block(part) for part in one["parts"]])
    answer = answered(vision, MESSAGES, body)
    assert answer["content"] == [{"type": "text", "citations": [], "text": one["text"]}]
    assert prompt_tokens(answer["usage"]) == len(one["prompt"])
    assert answered(vision, COUNT, body) == {"input_tokens": len(one["prompt"])}
    answer = answered(vision, RESPONSES, responses_body([item_part(part) for part in one["parts"]]))
    assert answer["output"][0]["content"][0]["text"] == one["text"]
    assert answer["usage"]["input_tokens"] == len(one["prompt"])


def events(server, path, body):
    """The data of each event of a stream, whose name is in it too."""
    with contextlib.closing(server.connection()) as connection:
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return [json.loads(line.removeprefix("data: ")) for line in response.read().decode().splitlines() if line.startswith("data: ")]


def test_streams_have_the_same_text(vision):
    one = served()["conversations"][0]
    found = events(vision, MESSAGES, messages_body([block(part) for part in one["parts"]]))
    assert "".join(event.get("delta", {}).get("text") or "" for event in found) == one["text"]
    found = events(vision, RESPONSES, responses_body([item_part(part) for part in one["parts"]]))
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == one["text"]


def test_a_result_of_a_tool_may_be_a_picture(vision):
    ask = {"role": "user", "content": "Look."}
    chat = {"messages": [ask, {"role": "assistant", "content": "Yes."}, {"role": "tool", "tool_call_id": "a", "content": [chat_part("photo.jpg")]},
                         {"role": "user", "content": "What is it?"}], "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    wanted = answered(vision, CHAT, chat)["choices"][0]["message"]["content"]
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block("photo.jpg")]}
    history = [ask, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": [result, {"type": "text", "text": "What is it?"}]}]
    body = messages_body([]) | {"messages": history, "system": None}
    assert answered(vision, MESSAGES, body)["content"][0]["text"] == wanted
    items = [ask, {"role": "assistant", "content": "Yes."}, {"type": "function_call_output", "call_id": "a", "output": [item_part("photo.jpg")]},
             {"role": "user", "content": "What is it?"}]
    body = responses_body([]) | {"input": items, "instructions": None}
    assert answered(vision, RESPONSES, body)["output"][0]["content"][0]["text"] == wanted


def test_detail_low_is_the_same_as_in_chats(vision):
    part = item_part("photo.jpg") | {"detail": "low"}
    chat = chat_part("photo.jpg")
    chat["image_url"]["detail"] = "low"
    messages = [{"role": "system", "content": served()["system"]}, {"role": "user", "content": [chat]}]
    wanted = answered(vision, CHAT, {"messages": messages, "max_tokens": 4, "temperature": 0})["usage"]["prompt_tokens"]
    assert answered(vision, RESPONSES, responses_body([part]))["usage"]["input_tokens"] == wanted


@pytest.mark.parametrize("source, message", [
    (None, "messages[0].content[0].source is missing"),
    ({"type": "base64", "media_type": "image/png"}, "messages[0].content[0].source.data is no string"),
    ({"type": "base64", "media_type": "image/png", "data": "ab*d"}, "at offset 2"),
    ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "messages[0].content[0]"),
    ({"type": "url", "url": "https://example.org/a.png"}, "messages[0].content[0].source.url begins with 'https://'"),
    ({"type": "file", "file_id": "f"}, "messages[0].content[0].source.type is 'file'; wanted base64 or url"),
])
def test_blocks_that_cannot_be_served_are_refused_by_name(vision, source, message):
    for path in (MESSAGES, COUNT):
        status, _, answer = vision.post(path, messages_body([{"type": "image", "source": source}]))
        assert status == 400 and answer["error"]["type"] == "invalid_request_error" and message in answer["error"]["message"], answer
    status, _, answer = vision.post(MESSAGES, messages_body("Look.") | {"system": [block("photo.jpg")]})
    assert status == 400 and "system[0].type is 'image'; wanted text" in answer["error"]["message"], answer


@pytest.mark.parametrize("part, message", [
    ({"type": "input_image"}, "input[0].content[0].image_url is no string"),
    ({"type": "input_image", "file_id": "f"}, "input[0].content[0].file_id is not supported"),
    ({"type": "input_image", "image_url": "https://example.org/a.png"}, "input[0].content[0].image_url begins with 'https://'"),
    (item_part("photo.jpg") | {"detail": "original"}, "input[0].content[0].detail is 'original'; wanted auto, low or high"),
    ({"type": "input_file", "file_id": "f"}, "input[0].content[0].type is 'input_file'; wanted input_text, output_text, refusal or input_image"),
    ({"type": "input_audio", "input_audio": {}}, "input[0].content[0].type is 'input_audio'"),
])
def test_parts_that_cannot_be_served_are_refused_by_name(vision, part, message):
    status, _, answer = vision.post(RESPONSES, responses_body([part]))
    assert status == 400 and message in answer["error"]["message"], answer


def test_responses_take_audio(tmp_path):
    one = next(one for one in omni_model.served()["conversations"] if any(part.endswith(".wav") for part in one["parts"]))
    parts = [omni_model.part_of(part) for part in one["parts"]]
    for part in parts:
        if part["type"] == "text":
            part["type"] = "input_text"
        elif part["type"] == "image_url":
            part |= {"type": "input_image", "image_url": part["image_url"]["url"]}
    with Server(model=omni_model.omni_model(tmp_path / "omni")) as omni:
        body = responses_body(parts) | {"instructions": omni_model.served().get("system")}
        answer = answered(omni, RESPONSES, body)
        assert answer["output"][0]["content"][0]["text"] == one["text"]
        assert answer["usage"]["input_tokens"] == len(one["prompt"])


def test_official_clients(vision):
    if not (CLIENTS / "node_modules" / "@anthropic-ai" / "sdk").is_dir():
        pytest.fail("tests/e2e/openai/node_modules lacks @anthropic-ai/sdk; wanted: ./scripts/test, which installs it")
    root = f"http://{vision.host}:{vision.port}"
    environment = {**os.environ, "ANTHROPIC_BASE_URL": root, "ANTHROPIC_API_KEY": "unused", "OPENAI_BASE_URL": root + "/v1",
                   "OPENAI_API_KEY": "unused", "MILLRACE_GOLDEN": str(GOLDEN)}
    result = subprocess.run(["node", "--test", "pictures.test.mjs"], cwd=CLIENTS, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
