"""docs/api-fields.md: every field of every table is sent to every endpoint of its table, and what happens is what the page says."""
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNLIKELY = {"x": 1}  # no field's neutral value
WRONG = [{"x": 1}]  # of no served field's type
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
OLLAMA_CHAT, OLLAMA_TEXT = "/api/chat", "/api/generate"
LLAMA = "/completion"
EMBEDDINGS = "/v1/embeddings"
OLLAMA = (OLLAMA_CHAT, OLLAMA_TEXT)
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "temperature": 0},
    TEXT: {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0},
    MESSAGES: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "temperature": 0},
    COUNT: {"messages": [{"role": "user", "content": "a"}]},
    RESPONSES: {"input": "a", "max_output_tokens": 4, "temperature": 0},
    OLLAMA_CHAT: {"messages": [{"role": "user", "content": "a"}], "stream": False, "options": {"num_predict": 4, "temperature": 0}},
    OLLAMA_TEXT: {"prompt": "Once upon a time", "stream": False, "options": {"num_predict": 4, "temperature": 0}},
    LLAMA: {"prompt": "Once upon a time", "n_predict": 4, "temperature": 0},
    EMBEDDINGS: {"input": "Once upon a time"},
    "/generate": {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
    "/tokenize": {"prompt": "Once upon a time"},
    "/detokenize": {"tokens": [5]},
}
INSTEAD = {"messages": "prompt", "content": "prompt", "tools": "prompt", "input_ids": "text"}  # what a field stands for in a request without it
REQUIRED = {"prompt", "messages", "content", "input", "text", "input_ids", "tokens"}
CONVERSATION = {"tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"}
COMPANIONS = {  # what a field's use needs beside it
    "stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}, "max_completion_tokens": {"max_tokens": None},
    "continue_final_message": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
}


def tables():
    """(heading, cells) of each row below each heading of the page."""
    for section in (ROOT / "docs" / "api-fields.md").read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        for line in text.splitlines():
            if line.startswith("| `"):
                yield heading, [cell.strip() for cell in line.strip("|").split(" | ")]


def endpoints(heading, cells):
    """(endpoint, what the page says) of a row."""
    if heading == f"`{EMBEDDINGS}`":
        return [(EMBEDDINGS, cells[2])]
    if heading == "`/completion`":
        return [(LLAMA, cells[2])]
    if "completions" in heading:
        return [(CHAT, cells[2]), (TEXT, cells[3])]
    if heading.startswith("`/v1/messages`"):
        return [(MESSAGES, cells[2]), (COUNT, cells[2])]
    if heading.startswith("`/v1/responses`"):
        return [(RESPONSES, cells[2])]
    if heading.startswith("`options`"):
        return [(path, cells[1]) for path in OLLAMA]
    if heading.startswith(("`/tokenize`", "`/api/chat`")):
        both = OLLAMA if heading.startswith("`/api/chat`") else ("/tokenize", "/detokenize")
        return [(path, cells[-2]) for path in both if cells[1] == "both" or path in cells[1]]
    return [("/generate", cells[1])]


def fields():
    for heading, cells in tables():
        shown = re.findall(r"`([^`]+)`", cells[-1].split(";")[0])
        for path, outcome in endpoints(heading, cells):
            for field in re.findall(r"`([^`]+)`", cells[0]):
                values = [json.loads(value) for value in shown] if outcome != "no effect" else []
                inside = re.match("`(sampling_params|options)`", heading)
                yield inside[1] if inside else "", path, field, outcome, values


FIELDS = list(fields())


def request(inside, path, field, value):
    body = dict(BODIES[path])
    if inside:
        return {**body, inside: {**body[inside], field: value}}
    if path in (MESSAGES, COUNT, RESPONSES, LLAMA, EMBEDDINGS, *OLLAMA):
        return {**body, field: value}
    if field in INSTEAD:
        body.pop(INSTEAD[field], None)
    if path == "/tokenize" and field in CONVERSATION:
        body = {"messages": BODIES[CHAT]["messages"]}
    if path in (CHAT, "/tokenize") or field not in ("continue_final_message", "top_logprobs"):
        body |= COMPANIONS.get(field, {})
    if field == "tools" and path != "/tokenize":
        body = dict(BODIES[path])
    return {**body, field: value}


def post(server, path, body):
    """The status and the answer; of a stream its events."""
    if body.get("stream") is True:
        return 200, list(server.stream(path, body))
    status, _, answer = server.post(path, body)
    return status, answer


def content(path, answer):
    """What a field without effect must not change."""
    if path == "/generate":
        return answer["text"], answer["output_ids"]
    if path == MESSAGES:
        return answer["content"], answer["stop_reason"]
    if path == LLAMA:
        return answer["content"], answer["stop_type"]
    if path in OLLAMA:
        return answer.get("message"), answer.get("response"), answer["done_reason"]
    if path == RESPONSES:
        return [item["content"] for item in answer["output"]], answer["status"]
    return answer["choices"] if path in (CHAT, TEXT) else answer


def test_the_tables_are_read():
    assert len({field for _, _, field, _, _ in FIELDS}) > 200
    assert {outcome for _, _, _, outcome, _ in FIELDS} == {"served", "refused", "no effect"}
    assert {path for _, path, _, _, _ in FIELDS} == set(BODIES)


def test_the_tables_have_what_the_server_refuses():
    refused = {field for _, _, field, outcome, _ in FIELDS if outcome == "refused"}
    source = (ROOT / "src" / "api" / "unserved_fields.cc").read_text()
    source = re.sub(r"Status refuse_unserved_upload.*?\n}\n", "", source, flags=re.DOTALL)  # what the tables' endpoints serve
    known = set(re.findall(r'\{"(\w+)", \{', source))
    assert len(known) > 60 and known <= refused, known - refused


def error_of(path, answer):
    return answer["error"] if path in OLLAMA else answer["error"]["message"]


@pytest.mark.parametrize("inside, path, field, outcome, values", FIELDS,
                         ids=[f"{path}-{inside}{'.' * bool(inside)}{field}-{outcome}" for inside, path, field, outcome, _ in FIELDS])
def test_what_happens_with_a_field(server, inside, path, field, outcome, values):
    plain = post(server, path, BODIES[path])[1]
    if outcome == "no effect":
        for value in (1, "a", UNLIKELY):
            body = request(inside, path, field, value) if inside else {**BODIES[path], field: value}
            status, answer = post(server, path, body)
            assert status == 200 and content(path, answer) == content(path, plain), (value, answer)
        return
    assert values or outcome == "refused", "a served field without a value to try"
    required = REQUIRED | ({"max_tokens"} if path == MESSAGES else set())
    for value in values if field in required else [*values, None]:
        status, answer = post(server, path, request(inside, path, field, value))
        assert status == 200, (value, answer)
        if outcome == "refused" and field not in ("tools",):
            assert content(path, answer) == content(path, plain), (value, answer)
    wrong = WRONG if outcome == "served" and field != "tools" else UNLIKELY
    status, _, answer = server.post(path, request(inside, path, field, wrong))
    assert status == 400 and field in error_of(path, answer), answer


def test_tools_that_must_not_be_called_are_served(server):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    chat = BODIES[CHAT]
    assert server.post(CHAT, {**chat, "tools": [tool], "tool_choice": "none"})[0] == 200
    for choice in ({}, {"tool_choice": "auto"}):  # the demo model's template has no form of calls
        status, _, answer = server.post(CHAT, {**chat, "tools": [tool], **choice})
        assert status == 400 and "tools" in answer["error"]["message"], (choice, answer)
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        assert server.post(CHAT, {**chat, "tools": [tool], "tool_choice": choice})[0] == 200
        status, _, answer = server.post(TEXT, {**BODIES[TEXT], "tool_choice": choice})
        assert status == 400 and "tool_choice" in answer["error"]["message"], (choice, answer)


def test_two_names_of_one_field(server):
    text = BODIES[TEXT]
    assert server.post(TEXT, {**text, "request_id": "from-vllm"})[2]["id"] == "from-vllm"
    assert server.post(TEXT, {**text, "request_id": "from-vllm", "rid": "the-name"})[2]["id"] == "the-name"
    for field in ("routed_dp_rank", "data_parallel_rank"):
        status, _, answer = server.post(TEXT, {**text, field: 7})
        assert status != 200, answer
