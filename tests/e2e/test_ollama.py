"""Ollama's API: the bytes of a stream, the text of the other dialects, pictures, keys, and Ollama's own client."""
import base64
import contextlib
import json
import os
import pathlib
import subprocess

import pytest

from harness import Server
from tool_model import tool_model
from vision_model import picture, vision_model

CHAT, GENERATE = "/api/chat", "/api/generate"
OPENAI = pathlib.Path(__file__).resolve().parent / "openai"
LIMIT_S = 600  # of a hung script; no test waits for it
ASK = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}]}
GREEDY = {"temperature": 0, "num_predict": 12}


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    with Server(model=tool_model(tmp_path_factory.mktemp("tools") / "demo")) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    with Server(model=vision_model(tmp_path_factory.mktemp("vision") / "vl")) as running:
        yield running
        assert running.stop() == 0, running.output()


def test_the_official_client(tools):
    if not (OPENAI / "node_modules" / "ollama").is_dir():
        pytest.fail("tests/e2e/openai/node_modules lacks ollama; wanted: ./scripts/test, which installs it")
    result = subprocess.run(["node", "--test", "ollama.test.mjs"], cwd=OPENAI, capture_output=True, text=True, timeout=LIMIT_S,
                            env={**os.environ, "MILLRACE_URL": f"http://{tools.host}:{tools.port}"})
    assert result.returncode == 0, result.stdout + result.stderr


def lines(server, path, body):
    """The objects of a stream: each a line with its end."""
    with contextlib.closing(server.connection()) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        assert response.getheader("Content-Type") == "application/x-ndjson"
    assert text.endswith("\n")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def test_the_text_is_that_of_the_other_dialects(server):
    chat = server.post("/v1/chat/completions", {**ASK, "temperature": 0, "max_tokens": 12})[2]
    text = chat["choices"][0]["message"]["content"]
    streamed = lines(server, CHAT, {**ASK, "options": GREEDY})
    assert len(streamed) > 3 and "".join(line["message"]["content"] for line in streamed) == text
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1]["prompt_eval_count"] == chat["usage"]["prompt_tokens"] and streamed[-1]["eval_count"] == 12
    completed = server.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12})[2]
    body = {"model": "demo", "prompt": "Once upon a time", "raw": True, "options": GREEDY}
    assert "".join(line["response"] for line in lines(server, GENERATE, body)) == completed["choices"][0]["text"]


def test_logprobs_are_those_of_chats(server):
    chat = server.post("/v1/chat/completions", {**ASK, "temperature": 0, "max_tokens": 4, "logprobs": True, "top_logprobs": 2})[2]
    wanted = chat["choices"][0]["logprobs"]["content"]
    body = {**ASK, "options": {"temperature": 0, "num_predict": 4}, "logprobs": True, "top_logprobs": 2}
    assert server.post(CHAT, {**body, "stream": False})[2]["logprobs"] == wanted
    assert sum((line.get("logprobs", []) for line in lines(server, CHAT, body)), []) == wanted


def test_pictures(vision):
    data = base64.b64encode(picture("photo.jpg")).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}
    content = [part, {"type": "text", "text": "What is it?"}]
    wanted = vision.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8})[2]
    options = {"temperature": 0, "num_predict": 8}
    message = {"role": "user", "content": "What is it?", "images": [data]}
    for path, body in [(CHAT, {"messages": [message]}), (GENERATE, {"prompt": "What is it?", "images": [data]})]:
        status, _, answer = vision.post(path, {**body, "options": options, "stream": False})
        assert status == 200, answer
        text = answer["message"]["content"] if path == CHAT else answer["response"]
        assert text == wanted["choices"][0]["message"]["content"] and answer["prompt_eval_count"] == wanted["usage"]["prompt_tokens"]
    assert "vision" in vision.post("/api/show", {"model": vision.get("/api/tags")[2]["models"][0]["name"]})[2]["capabilities"]
    for images, where in [(["ab*d"], "images[0]"), ([data, data[:400]], "images[1]")]:
        status, _, answer = vision.post(CHAT, {"messages": [{**message, "images": images}], "stream": False})
        assert status == 400 and answer["error"].startswith(f"messages[0].{where}"), answer
        status, _, answer = vision.post(GENERATE, {"prompt": "a", "images": images, "stream": False})
        assert status == 400 and answer["error"].startswith(where), answer


def test_a_broken_picture_that_only_the_decoder_finds_has_its_name(vision):
    data = base64.b64encode(picture("gradient.png")[:-40]).decode()
    status, _, answer = vision.post(GENERATE, {"prompt": "a", "system": "s", "images": [data], "stream": False})
    assert status == 400 and answer["error"].startswith("images[0]: PNG"), answer


def test_errors_of_the_server_itself_have_ollamas_form():
    with Server("--api-key", "secret") as server:
        for path in ("/api/tags", "/api/ps"):
            status, _, answer = server.get(path)
            assert status == 401 and isinstance(answer["error"], str), answer
        status, _, answer = server.post(CHAT, ASK)
        assert status == 401 and isinstance(answer["error"], str), answer
        status, _, answer = server.post(CHAT, {**ASK, "stream": False, "options": GREEDY}, headers={"Authorization": "Bearer secret"})
        assert status == 200 and answer["done_reason"] == "length", answer
        assert server.get("/api/version")[0] == 200
        status, _, answer = server.post(CHAT, "a=b", headers={"Content-Type": "text/plain", "Authorization": "Bearer secret"})
        assert status == 415 and isinstance(answer["error"], str), answer


ODD = [None, 0, -1, 2**70, 1.5, True, "a", "", [], {}, [1], ["a"], [{}], [[]], [None], {"a": 1}, [{"function": {}}], [{"function": {"name": "f", "arguments": []}}]]


@pytest.mark.parametrize("path", [CHAT, GENERATE, "/completion", "/apply-template", "/api/show"])
def test_odd_values_are_answered_or_refused(server, path):
    chat = {**ASK, "stream": False, "options": {"num_predict": 1}}
    text = {"model": "demo", "prompt": "a", "stream": False, "options": {"num_predict": 1}}
    plain = {CHAT: chat, GENERATE: text, "/completion": {"prompt": "a", "n_predict": 1}, "/apply-template": ASK, "/api/show": {"model": "demo"}}[path]
    fields = ["model", "name", "messages", "prompt", "system", "images", "format", "think", "raw", "tools", "options", "keep_alive", "context", "logprobs",
              "top_logprobs", "logit_bias", "n_probs", "seed", "stop", "n_predict", "repeat_last_n", "grammar", "json_schema", "tool_choice", "return_tokens"]
    bodies = [{**plain, field: value} for field in fields for value in ODD]
    members = ["role", "content", "images", "thinking", "tool_calls", "tool_name", "tool_call_id"]
    for role in ("user", "assistant", "tool"):
        bodies += [{**plain, "messages": [{"role": role, "content": "a", member: value}]} for member in members for value in ODD]
    bodies += [{**plain, "options": {option: value}} for option in ("seed", "num_predict", "stop", "top_k", "repeat_last_n") for value in ODD[:2] + ODD[3:]]
    for body in bodies:
        body = {**body, "options": {"num_predict": 1, **body["options"]}} if isinstance(body.get("options"), dict) else {"max_tokens": 1, **body}
        status, _, answer = server.post(path, body)
        assert status in (200, 400, 404) and ("error" in answer) == (status != 200), (body, status, answer)
