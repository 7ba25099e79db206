"""Random bodies to every endpoint: valid requests with values, names, bytes and pictures changed. None is answered with a 500, ends a
process or is left without an answer, and then the server answers as before.

Other bodies: MILLRACE_SEED=7 MILLRACE_BODIES=20000 python3 -m pytest -q test_random_bodies.py (with MILLRACE_PROGRAM, as ctest sets it)."""
import base64
import concurrent.futures
import copy
import http.client
import json
import os
import random
import re

import pytest

from harness import ROOT, WAIT_S, Server, wait_until
from test_api_examples import EXAMPLES

SEED = int(os.environ.get("MILLRACE_SEED", "1"))
BODIES = int(os.environ.get("MILLRACE_BODIES", "700"))
CLIENTS = 8
KEPT = {"/start_profile", "/stop_profile", "/update_weights_from_disk", "/pause_generation"}  # they write, load, or hold up the others
FIELDS = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (ROOT / "docs" / "api-fields.md").read_text(), re.M)
NAMES = sorted({name for line in FIELDS for name in re.findall(r"\w+", line)})
PICTURE = ROOT / "examples" / "pictures" / "green-circle-1.png"
VALUES = [None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e-320, 1e308, -1e308, 2**31, 2**32, 2**53 + 1, -2**63, 2**63, 2**64 - 1, 2**64, 10**40,
          "", "a", "\0", "\n", "é", "\ud800", "\U0001F600" * 9, "x" * 5000, "null", "1", "-1e9", "{{", "<|im_start|>", "data:image/png;base64,",
          "data:,", "http://127.0.0.1:1/a.png", "../../etc/passwd", [], {}, [[]], [None], [1, "a"], {"": ""}, {"type": "x"}, {"type": "object"},
          {"type": "text", "text": 1}, {"type": "function", "function": {}}, [0] * 300, ["a"] * 70, [2**40], [-1], {"a": {"b": [{}]}}]
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
TALK = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a", "tool_calls": [
    {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"a\": \"b\"}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "r"},
    {"role": "user", "content": [{"type": "text", "text": "On"}]}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", 1]}, "c": {"type": "array", "items": {"type": "integer", "minimum": 3}, "maxItems": 2}},
          "required": ["a"], "allOf": [{"properties": {"d": {"pattern": "^x{1,3}$"}}}], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
MORE = [
    ("POST", "/v1/chat/completions", {"messages": TALK, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 3, "stream": True, "n": 2, "logprobs": True,
                                      "top_logprobs": 2, "stop": ["z"], "logit_bias": {"5": 1}, "seed": 1, "stream_options": {"include_usage": True}}),
    ("POST", "/v1/chat/completions", {"messages": TALK[:2], "response_format": FORMAT, "max_tokens": 6, "temperature": 0}),
    ("POST", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "echo": True, "logprobs": 2, "n": 2, "best_of": 2, "suffix": None}),
    ("POST", "/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 2, "guided_regex": "[ab]{2}"}),
    ("POST", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "max_output_tokens": 3, "store": True,
                               "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}], "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}}),
    ("POST", "/v1/messages", {"model": "demo", "max_tokens": 3, "system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}], "tools": [{"name": "look", "input_schema": SCHEMA}], "stream": True}),
    ("POST", "/api/chat", {"model": "demo", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "look", "arguments": {"a": 1.5}}}]}, {"role": "tool", "tool_name": "look", "content": "r"}], "tools": [TOOL], "format": SCHEMA,
        "options": {"num_predict": 3, "temperature": 0, "stop": ["z"]}, "keep_alive": "5m", "think": False}),
    ("POST", "/api/embed", {"model": "demo", "input": ["a", "b"], "truncate": True, "dimensions": 4}),
    ("POST", "/v1/embeddings", {"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 4}),
    ("POST", "/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    ("POST", "/v1/audio/speech", {"input": "a", "voice": "x", "response_format": "wav"}),
    ("POST", "/generate", {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 2}, {"max_new_tokens": 3, "json_schema": json.dumps(SCHEMA)}], "return_logprob": True,
                           "top_logprobs_num": 2, "logprob_start_len": 0, "rid": ["r1", "r2"], "stream": True}),
    ("POST", "/generate", {"input_ids": [[1, 2, 3]], "sampling_params": {"max_new_tokens": 2, "ebnf": 'root ::= "a" | "b"', "n": 2}}),
    ("POST", "/completion", {"prompt": ["a", 1, 2], "n_predict": 2, "n_probs": 2, "grammar": 'root ::= "a"', "logit_bias": [[5, 1.5], ["a", False]]}),
    ("POST", "/tokenize", {"messages": TALK[:2], "add_generation_prompt": True, "tools": [TOOL]}),
    ("POST", "/prepare_weights_update", {"group_name": "g", "names": ["a"], "dtypes": ["bfloat16"], "shapes": [[2, 2]], "buckets": [[0]]}),
    ("POST", "/complete_weights_update", {"group_name": "g", "weight_version": "2"}), ("POST", "/abort_weights_update", {"group_name": "g"}),
    ("POST", "/get_weights_by_name", {"name": "model.norm.weight", "truncate_size": 3}), ("POST", "/weights_checker", {"action": "checksum"}),
    ("POST", "/update_weights", {"update_info": {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2]]}}),
    ("POST", "/update_weights_from_distributed", {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[2]], "group_name": "g"}),
    ("POST", "/update_weights_from_tensor", {"serialized_named_tensors": ["a"]}), ("POST", "/v1/audio/transcriptions", {"file": "a", "language": "en"}),
    ("POST", "/models/load", {"model": "demo"}), ("POST", "/api/pull", {"model": "demo"})]
TEXT = [(method, path, body) for method, path, body, _ in EXAMPLES if path not in KEPT and body is not None] + MORE


def picture_parts():
    url = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
    raw = url.partition(",")[2]
    ask = {"type": "text", "text": "What is in this picture?"}
    return [
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}, ask]}], "max_tokens": 2}),
        ("POST", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "a"}]}], "max_output_tokens": 2}),
        ("POST", "/v1/messages", {"model": "demo-vl", "max_tokens": 2, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": raw}}, {"type": "text", "text": "a"}]}]}),
        ("POST", "/api/chat", {"model": "demo-vl", "messages": [{"role": "user", "content": "a", "images": [raw]}], "options": {"num_predict": 2}, "stream": False})]


def places(value, path=()):
    """The paths of all parts of a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def deep(draw):
    levels = draw.choice([30, 70, 300, 3000])
    return draw.choice(["[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels])


def other_picture(draw, text):
    """Bytes of a picture, changed, where `text` is one; else other text."""
    head, comma, data = text.rpartition(",")
    if len(data) < 200 or len(data) % 4 or not re.fullmatch("[A-Za-z0-9+/]+=*", data):
        return draw.choice([text * (50 if len(text) < 1000 else 2), text[: len(text) // 2], text + "\0", text.upper()])
    found = bytearray(base64.b64decode(data))
    for _ in range(draw.choice([1, 1, 3, 40])):
        found[draw.randrange(len(found) if draw.random() < 0.5 else 60)] = draw.randrange(256)
    if draw.random() < 0.2:
        del found[draw.randrange(len(found)):]
    made = base64.b64encode(bytes(found)).decode()
    return head + comma + (made if draw.random() < 0.9 else made[:-1])


def changed(draw, body):
    """The JSON of a body in which a few parts are others, as text."""
    body, texts = copy.deepcopy(body), []
    for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
        path = draw.choice(list(places(body)))
        holder = body
        for key in path[:-1]:
            holder = holder[key]
        act = draw.random()
        if not path or (act < 0.25 and isinstance(holder, dict)):
            if isinstance(body, dict):
                body[draw.choice(NAMES)] = copy.deepcopy(draw.choice(VALUES))
        elif act < 0.35:
            del holder[path[-1]]
        elif act < 0.42 and isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[path[-1]])] * draw.choice([1, 2, 60]))
        elif act < 0.47:
            mark = f"deep{len(texts)}"
            texts.append((json.dumps(mark), deep(draw)))
            holder[path[-1]] = mark
        elif isinstance(holder[path[-1]], str) and act < 0.75:
            holder[path[-1]] = other_picture(draw, holder[path[-1]])
        elif isinstance(holder[path[-1]], (int, float)) and act < 0.75:
            holder[path[-1]] = draw.choice([-1, 1, 1000, 1e-3, 2**40]) * holder[path[-1]] + draw.choice([0, 1, -1])
        else:
            holder[path[-1]] = copy.deepcopy(draw.choice(VALUES))
    text = json.dumps(body)
    for mark, inner in texts:
        text = text.replace(mark, inner)
    return text


def mangled(draw, data):
    """Bytes of a body, which is mostly no JSON any more."""
    data = bytearray(data)
    at = draw.randrange(len(data) + 1)
    act = draw.randrange(5)
    if act == 0:
        del data[at:]
    elif act == 1:
        data[at:at] = draw.choice([b"\xff", b"\xc3", b"\0", b"\xed\xa0\x80", b"NaN", b"1e999", b"\\ud800", b",", b'"', b"}" * 9, b"-"])
    elif act == 2:
        for _ in range(4):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif act == 3:
        data[at:at] = data[draw.randrange(len(data)):][:50]
    else:
        data = data[at:] + data[:at]
    return bytes(data)


def bodies(draw, requests, count):
    for _ in range(count):
        method, path, body = draw.choice(requests)
        data = (changed(draw, body) if draw.random() < 0.9 else json.dumps(body)).encode()
        if draw.random() < 0.25:
            data = mangled(draw, data)
        kind = "application/json" if draw.random() < 0.97 else draw.choice(["text/plain", "multipart/form-data; boundary=b", ""])
        yield method, path, data, kind


def answer_to(server, method, path, data, kind):
    """(status, body) of a complete answer; a client of one request."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_S)
    try:
        connection.request(method, path, data, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def storm(server, requests, count):
    draw = random.Random(SEED)
    question = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 20, "temperature": 0}
    wanted = server.chat_answer(question)["choices"]

    def send(one):
        method, path, data, kind = one
        try:
            status, body = answer_to(server, method, path, data, kind)
        except (OSError, http.client.HTTPException) as why:
            return f"{why!r}", one
        wrong = status == 500 or (status == 200 and b'"type":"server_error"' in body)
        return (f"{status} {body[:2000]}", one) if wrong else None

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        faults = [fault for fault in clients.map(send, bodies(draw, requests, count)) if fault]
    assert not faults, "\n".join([*map(str, faults[:9]), server.output()[-2000:]])
    wait_until(server.all_pages_back, "rest")
    assert server.chat_answer(question)["choices"] == wanted


def test_random_bodies_are_refused_or_answered(server):
    storm(server, TEXT, BODIES * 5 // 7)


def test_random_pictures_are_refused_or_answered():
    with Server(model=ROOT / "models" / "demo-vl") as demo:
        storm(demo, picture_parts(), BODIES * 2 // 7)
        assert demo.stop() == 0, demo.output()
