"""/v1/responses: the events of a stream by their bytes, what a stream adds up to, refused fields, and the official client.
Grammars make the demo model write calls and reasoning."""
import contextlib
import copy
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from harness import Server, wait_until
from tool_model import ebnf, tool_model

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
ASK = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {"type": "function", "name": "weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["paris", "rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}
CLOCK = {"type": "function", "name": "clock", "strict": True, "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}}, "required": ["zone"], "additionalProperties": False}}
ARGUMENTS = '{"city": "paris", "days": 3}'
CALL = '<tool_call>\n{"name": "weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
THOUGHT = "<think>\nIt may rain.\n</think>\n\n"
OPENAI = pathlib.Path(__file__).resolve().parent / "openai"


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    with Server(model=tool_model(tmp_path_factory.mktemp("tools") / "demo")) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def body(words=None, /, **fields):
    out = {"model": "demo", "input": ASK, "max_output_tokens": 200, "temperature": 0, **fields}
    return {**out, "ebnf": ebnf(words)} if words else out


def events(server, request):
    """Of each event its name and its data; each is an `event:` line and a `data:` line, in this sequence, and there is nothing else."""
    connection = server.connection()
    with contextlib.closing(connection):
        connection.request("POST", RESPONSES, json.dumps({**request, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read().decode()
        assert response.status == 200, raw
        assert response.getheader("Content-Type").startswith("text/event-stream")
    assert raw.endswith("\n\n")
    found = []
    for event in raw.removesuffix("\n\n").replace(": ping\n\n", "").split("\n\n"):
        name, data = re.fullmatch("event: ([a-z_.]+)\ndata: ({.*})", event).groups()
        data = json.loads(data)
        assert data["type"] == name and data["sequence_number"] == len(found)
        found.append((name.removeprefix("response."), data))
    return found


DELTAS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


def assembled(found):
    """The response that the events of a stream make, as a client makes it."""
    names = [name for name, _ in found]
    assert names[:2] == ["created", "in_progress"] and names[-1] in ("completed", "incomplete")
    first, last = found[0][1]["response"], found[-1][1]["response"]
    assert first == found[1][1]["response"]
    assert first["status"] == "in_progress" and first["output"] == [] and first["usage"] is None and first["completed_at"] is None
    ending = {"status", "output", "usage", "completed_at", "incomplete_details"}
    assert {key: value for key, value in first.items() if key not in ending} == {key: value for key, value in last.items() if key not in ending}
    output, is_open = [], False
    for name, data in found[2:-1]:
        assert is_open == (name != "output_item.added"), "items do not overlap"
        if name == "output_item.added":
            is_open = True
            output.append(copy.deepcopy(data["item"]))
            assert data["item"]["status"] == "in_progress" and data["item"].get("content", []) == [] and data["item"].get("arguments", "") == ""
        item = output[-1]
        assert data["output_index"] == len(output) - 1
        if name == "output_item.done":
            is_open = False
            assert {**item, "status": data["item"]["status"]} == data["item"]
            output[-1] = data["item"]
        elif name != "output_item.added":
            assert data["item_id"] == item["id"]
            assert item["type"] == "function_call" or data["content_index"] == 0
            part = item["content"][0] if item.get("content") else item
            key = "arguments" if item["type"] == "function_call" else "text"
            kind = DELTAS[item["type"]]
            if name == "content_part.added":
                item["content"].append(data["part"])
            elif name == "content_part.done":
                assert data["part"] == part
            elif name == kind + ".delta":
                part[key] += data["delta"]
                if item["type"] == "message":
                    part["logprobs"] += data["logprobs"]
            else:
                assert name == kind + ".done" and data[key] == part[key]
    assert not is_open and output == last["output"]
    return last


# What the description of the Responses API requires of a response.
MEMBERS = {"id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id", "instructions", "output",
           "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty",
           "top_logprobs", "temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background", "service_tier",
           "metadata", "safety_identifier", "prompt_cache_key"}


def shown(response):
    """Without what differs between two answers: ids, times, and how much of the prompt was cached."""
    assert set(response) - {"user"} == MEMBERS
    assert re.fullmatch("resp_[0-9a-f]{32}", response["id"]) and response["object"] == "response"
    usage = response["usage"]
    assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
    assert 0 <= usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert (response["completed_at"] is None) == (response["status"] != "completed")
    output = copy.deepcopy(response["output"])
    for item in output:
        prefix = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}[item["type"]]
        assert re.fullmatch(prefix + "[0-9a-f]{24}", item.pop("id"))
        assert item["type"] != "function_call" or re.fullmatch("call_[0-9a-f]{24}", item.pop("call_id"))
    return {**response, "id": None, "created_at": None, "completed_at": None, "output": output, "usage": (usage["input_tokens"], usage["output_tokens"])}


def both(server, request):
    """The answer, which the stream's equals."""
    status, _, answer = server.post(RESPONSES, request)
    assert status == 200, answer
    response = shown(answer)
    assert shown(assembled(events(server, request))) == response
    return response


def message(words, status="completed"):
    return {"type": "message", "role": "assistant", "status": status, "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": words}]}


def call(name, arguments):
    return {"type": "function_call", "status": "completed", "name": name, "arguments": arguments}


REASONING = {"type": "reasoning", "summary": [], "status": "completed", "content": [{"type": "reasoning_text", "text": "It may rain."}]}


def test_text(server):
    request = body(max_output_tokens=24, input="Tell me a story about a dog.", metadata={"a": "b"}, store=True, user="u")
    response = both(server, request)
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"} and response["usage"][1] == 24
    assert [item["type"] for item in response["output"]] == ["message"] and response["output"][0]["status"] == "incomplete"
    repeated = {"model": "demo", "temperature": 0, "top_p": 0.9, "max_output_tokens": 24, "metadata": {"a": "b"}, "store": True, "user": "u",
                "instructions": None, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "truncation": "disabled", "error": None,
                "previous_response_id": None, "background": False, "text": {"format": {"type": "text"}, "verbosity": "medium"}}
    assert {key: response[key] for key in repeated} == repeated
    ended = both(server, body("Yes."))
    assert (ended["output"], ended["status"], ended["incomplete_details"]) == ([message("Yes.")], "completed", None)
    assert both(server, body("One, two, three.", stop=["four", ", t"]))["output"] == [message("One")]
    assert shown(server.post("/responses", request)[2]) == response


def test_a_chat_has_the_same_prompt_and_text(server):
    items = [{"role": "developer", "content": "Short ones."}, {"role": "user", "content": [{"type": "input_text", "text": "Tell me"}, {"type": "input_text", "text": "a story."}]},
             {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{"type": "output_text", "text": "Of what?", "annotations": []}]},
             {"role": "user", "content": "A cat."}]
    response = both(server, body(instructions="Write stories.", input=items, max_output_tokens=20))
    chat = {"messages": [{"role": "system", "content": "Write stories.\nShort ones."}, {"role": "user", "content": "Tell me\na story."},
                         {"role": "assistant", "content": "Of what?"}, {"role": "user", "content": "A cat."}], "max_tokens": 20, "temperature": 0}
    answer = server.post(CHAT, chat)[2]
    assert response["output"][0]["content"][0]["text"] == answer["choices"][0]["message"]["content"]
    assert response["usage"][0] == answer["usage"]["prompt_tokens"]


def test_logprobs(server):
    request = body(input="Tell me a story.", max_output_tokens=8, include=["message.output_text.logprobs"], top_logprobs=2)
    response = both(server, request)
    part = response["output"][0]["content"][0]
    chat = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    assert part["logprobs"] == server.post(CHAT, chat)[2]["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] and response["top_logprobs"] == 2


def test_calls(tools):
    response = both(tools, body("Let me see.\n" + CALL, tools=[WEATHER, CLOCK]))
    assert (response["output"], response["status"]) == ([message("Let me see."), call("weather", ARGUMENTS)], "completed")
    assert response["tools"] == [{**WEATHER, "strict": None}, {**CLOCK, "description": None}]
    other = '\n<tool_call>\n{"name": "clock", "arguments": {"zone": "utc"}}\n</tool_call>'
    request = body(CALL + other, tools=[WEATHER, CLOCK])
    assert both(tools, request)["output"] == [call("weather", ARGUMENTS), call("clock", '{"zone": "utc"}')]
    assert both(tools, {**request, "parallel_tool_calls": False})["output"] == [call("weather", ARGUMENTS)]
    assert both(tools, {**request, "tool_choice": "none"})["output"] == [message(CALL + other)]
    cut = both(tools, body("Well. " + CALL, tools=[WEATHER], max_output_tokens=30))
    assert cut["status"] == "incomplete" and {item["type"] for item in cut["output"]} == {"message"}


def test_only_allowed_functions_are_called(tools):
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]}
    response = both(tools, body(CALL, tools=[WEATHER, CLOCK], tool_choice=allowed))
    assert response["output"] == [message(CALL)] and response["tool_choice"] == allowed
    forced = both(tools, body(tools=[WEATHER, CLOCK], tool_choice={**allowed, "mode": "required"}, parallel_tool_calls=False))
    assert [item["name"] for item in forced["output"]] == ["clock"]


def test_a_call_is_forced(tools, server):
    for running in (tools, server):  # the demo model's template knows no tools, and a grammar needs none
        for choice in ({"type": "function", "name": "clock"}, "required"):
            response = both(running, body(tools=[CLOCK], tool_choice=choice, parallel_tool_calls=False))
            assert [item["type"] for item in response["output"]] == ["function_call"]
            assert json.loads(response["output"][0]["arguments"])["zone"] in ("utc", "cet")


def test_reasoning(tools):
    assert both(tools, body(THOUGHT + "Rain."))["output"] == [REASONING, message("Rain.")]
    usage = tools.post(RESPONSES, body(THOUGHT + "Rain."))[2]["usage"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    assert both(tools, body(THOUGHT + CALL, tools=[WEATHER]))["output"] == [REASONING, call("weather", ARGUMENTS)]
    off = both(tools, body("Rain.", reasoning={"effort": "none", "summary": "auto"}, include=["reasoning.encrypted_content"]))
    assert off["output"] == [message("Rain.")] and off["reasoning"] == {"effort": "none", "summary": None}
    cut = both(tools, body(THOUGHT + "Rain.", max_output_tokens=12))
    assert cut["output"][0]["type"] == "reasoning" and cut["output"][0]["status"] == "incomplete"


def test_history_goes_through_the_template(tools):
    """Items of an earlier answer, as they came."""
    made = tools.post(RESPONSES, body(THOUGHT + "So.\n" + CALL, tools=[WEATHER]))[2]["output"]
    assert [item["type"] for item in made] == ["reasoning", "message", "function_call"]
    items = [*ASK, *made, {"type": "function_call_output", "call_id": made[2]["call_id"], "output": "sun"}, {"role": "user", "content": "And?"}]
    response = both(tools, body("Sun.", input=items, tools=[WEATHER]))
    assert response["output"] == [message("Sun.")]
    chat = [*ASK, {"role": "assistant", "content": "So.", "tool_calls": [
        {"id": made[2]["call_id"], "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}]},
        {"role": "tool", "tool_call_id": made[2]["call_id"], "content": "sun"}, {"role": "user", "content": "And?"}]
    tool = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "description", "parameters")}}
    assert tools.post("/tokenize", {"messages": chat, "tools": [tool]})[2]["count"] == response["usage"][0]


def test_a_schema_is_kept(server):
    schema = {"type": "object", "properties": {"kind": {"enum": ["dog", "cat"]}}, "required": ["kind"], "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "pet", "schema": schema, "strict": True}}
    response = both(server, body(text=text))
    assert json.loads(response["output"][0]["content"][0]["text"])["kind"] in ("dog", "cat") and response["status"] == "completed"
    assert response["text"] == {**text, "verbosity": "medium"}
    free = both(server, body(text={"format": {"type": "json_object"}}, max_output_tokens=400))
    if free["status"] == "completed":
        assert isinstance(json.loads(free["output"][0]["content"][0]["text"]), dict)


def part(kind):
    return {"input": [{"role": "user", "content": [{"type": kind}]}]}


@pytest.mark.parametrize("fields, message", [
    ({"input": None}, "input is missing"),
    ({"input": []}, "input has 0 items"),
    ({"max_output_tokens": 0}, "max_output_tokens is 0"),
    ({"temperature": 9}, "temperature is 9"),
    ({"instructions": 7}, "instructions is of type integer"),
    (part("input_image"), "input[0].content[0].type is 'input_image'"),
    (part("input_file"), "input[0].content[0].type is 'input_file'"),
    (part("input_audio"), "input[0].content[0].type is 'input_audio'"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id is 'msg_1', and no such item is stored"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type is 'computer_call'"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]}]}, "input[0].output[0].type is 'input_image'"),
    ({"previous_response_id": "resp_1"}, "previous_response_id is 'resp_1', and no such response is stored"),
    ({"conversation": "conv_1"}, "conversation is not supported"),
    ({"background": True, "store": False}, "background is true, and store is false"),
    ({"background": True, "request_id": "a"}, "request_id is not supported beside background"),
    ({"truncation": "auto"}, "truncation is not supported"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt is not supported"),
    ({"context_management": [{"type": "compaction"}]}, "context_management is not supported"),
    ({"include": ["code_interpreter_call.outputs"]}, "include[0] is 'code_interpreter_call.outputs'"),
    ({"top_logprobs": 21}, "top_logprobs is 21"),
    ({"reasoning": {"summary": "detailed"}}, "summary is not supported"),
    ({"text": {"verbosity": "high"}}, "verbosity is not supported"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type is 'grammar'; wanted text, json_object or json_schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema is missing"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "array", "uniqueItems": True}}}}, "uniqueItems"),
    ({"tool_choice": "required", "tools": [CLOCK], "text": {"format": {"type": "json_object"}}}, "tool_choice forces a call, and text.format is set too"),
    ({"tools": [CLOCK]}, "tools is not supported with this model"),
    *[({"tools": [{"type": kind}]}, f"tools[0].type is '{kind}'") for kind in (
        "web_search", "file_search", "code_interpreter", "mcp", "image_generation", "computer_use_preview", "local_shell", "custom", "apply_patch")],
    ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name is 'x'"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type is 'web_search'"),
    ({"input": "a story " * 5000}, "context"),
], ids=lambda value: str(value)[:60] if isinstance(value, str) else None)
def test_what_is_not_served_is_refused_by_name(server, fields, message):
    for stream in (False, True):
        status, _, answer = server.post(RESPONSES, body(**fields, stream=stream))
        assert status == 400 and message in answer["error"]["message"], answer
        counts = {"n_prompt_tokens", "n_ctx"} if message == "context" else set()
        assert set(answer["error"]) == {"message", "type", "param", "code"} | counts


def stored(server, path, method="GET"):
    return server.request(method, f"{RESPONSES}/{path}", None)[::2]


def test_a_stored_answer(server):
    made = server.post(RESPONSES, body(max_output_tokens=2))[2]
    assert made["store"] is True
    assert stored(server, made["id"]) == (200, made)
    [streamed] = [data["response"] for name, data in events(server, body(max_output_tokens=2)) if name == "incomplete"]
    assert stored(server, streamed["id"]) == (200, streamed)
    assert stored(server, made["id"], "DELETE") == (200, {"id": made["id"], "object": "response", "deleted": True})
    secret = server.post(RESPONSES, body(max_output_tokens=2, store=False))[2]
    assert secret["store"] is False
    for gone, why in ((made["id"], "it was deleted"), (secret["id"], "it was not stored"), ("resp_1", "it was not stored")):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            status, answer = stored(server, gone + path, method)
            assert status == 404 and f"'{gone}' not found: {why}" in answer["error"]["message"], answer
            assert answer["error"]["type"] == "not_found_error"


def test_compacted_responses_are_refused(server):
    status, _, answer = server.post(f"{RESPONSES}/compact", {"model": "demo", "input": "hi"})
    assert status == 404 and "previous_response_id" in answer["error"]["message"], answer


def test_a_conversation_goes_on_from_a_stored_answer(tools):
    first = tools.post(RESPONSES, body(CALL, tools=[WEATHER], instructions="Be brief."))[2]
    [made] = first["output"]
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
    by_id = body(THOUGHT + "Rain.", input=[result], tools=[WEATHER], previous_response_id=first["id"])
    by_items = body(THOUGHT + "Rain.", input=[*ASK, made, result], tools=[WEATHER])
    second, same = tools.post(RESPONSES, by_id)[2], tools.post(RESPONSES, by_items)[2]
    assert second["previous_response_id"] == first["id"] and same["previous_response_id"] is None
    assert second["usage"]["input_tokens"] == same["usage"]["input_tokens"], "the instructions are not carried over"
    assert shown(second)["output"] == shown(same)["output"]
    references = [*ASK, {"type": "item_reference", "id": made["id"]}, result]
    assert tools.post(RESPONSES, {**by_items, "input": references})[2]["usage"]["input_tokens"] == same["usage"]["input_tokens"]

    third = tools.post(RESPONSES, body("Yes.", input="Sure?", previous_response_id=second["id"]))[2]
    status, items = stored(tools, f"{third['id']}/input_items?order=asc")
    assert status == 200 and [item["type"] for item in items["data"]] == [
        "message", "function_call", "function_call_output", "reasoning", "message", "message"]
    assert items["data"][-1]["content"] == [{"type": "input_text", "text": "Sure?"}] and items["has_more"] is False
    assert items["data"][1] == made
    assert stored(tools, first["id"], "DELETE")[0] == 200
    assert tools.post(RESPONSES, body("Yes.", previous_response_id=second["id"]))[0] == 200, "a later answer holds the earlier ones"
    status, _, answer = tools.post(RESPONSES, body("Yes.", previous_response_id=first["id"]))
    assert status == 400 and "it was deleted" in answer["error"]["message"], answer


def test_a_server_that_stores_nothing(tmp_path):
    with Server("--response-store-mib", "0") as running:
        made = running.post(RESPONSES, body(max_output_tokens=2, store=True))[2]
        assert made["store"] is False and stored(running, made["id"])[0] == 404


def test_stored_responses_outlive_the_server(tmp_path):
    file = tmp_path / "responses.db"
    with Server("--response-store-file", str(file)) as running:
        first = running.post(RESPONSES, body(max_output_tokens=8))[2]
        second = running.post(RESPONSES, body(max_output_tokens=8, input="Go on.", previous_response_id=first["id"]))[2]
        deleted = running.post(RESPONSES, body(max_output_tokens=2))[2]
        unstored = running.post(RESPONSES, body(max_output_tokens=2, store=False))[2]
        assert stored(running, first["id"], "DELETE")[0] == stored(running, deleted["id"], "DELETE")[0] == 200
        third = {**body(max_output_tokens=8, input="And then?"), "previous_response_id": second["id"]}
        wanted = running.post(RESPONSES, third)[2]
        items = stored(running, f"{second['id']}/input_items")[1]
        other = Server("--response-store-file", str(file), wait=False)
        assert other.end() == 1, other.output()  # it may be closed later
        assert "responses.db: it is open in another process; wanted" in other.output()
    assert file.stat().st_mode & 0o777 == 0o600
    with Server("--response-store-file", str(file)) as running:
        assert stored(running, second["id"]) == (200, second)
        assert stored(running, f"{second['id']}/input_items") == (200, items)
        for gone in (first, deleted, unstored):
            assert stored(running, gone["id"])[0] == 404
        found = running.post(RESPONSES, third)[2]
        assert shown(found)["output"] == shown(wanted)["output"] and found["usage"]["input_tokens"] == wanted["usage"]["input_tokens"]
        running.kill()  # what was stored before is whole all the same
    with Server("--response-store-file", str(file)) as running:
        assert stored(running, second["id"]) == (200, second)


@pytest.mark.parametrize("arguments, message", [
    (["--response-store-file", "{}/none/x.db"], "cannot be opened: No such file or directory; wanted"),
    (["--response-store-file", "{}/text"], "text: it is no SQLite file; wanted one, or a new name"),
    (["--response-store-file", "{}/x.db", "--response-store-mib", "0"], "--response-store-file has no use: --response-store-mib is 0"),
])
def test_files_that_keep_no_responses(tmp_path, arguments, message):
    (tmp_path / "text").write_text("x" * 5000)
    refused = Server(*[argument.format(tmp_path) for argument in arguments], wait=False)
    assert refused.end() == 2 and message in refused.output(), refused.output()


def test_another_model_and_the_key(server):
    status, _, answer = server.post(RESPONSES, body(model="nothing"))
    assert status == 404 and answer["error"]["code"] == "model_not_found"
    with Server("--api-key", "sk-key") as running:
        assert running.post(RESPONSES, body())[0] == 401 and running.get(RESPONSES + "/resp_1")[0] == 401


def held_stream(server, **fields):
    return server.held_stream(RESPONSES, body(**fields), b"event: response.created\n")


def test_a_request_may_be_aborted_by_name(server):
    """Its answer is then what was generated, and not an error."""
    with held_stream(server, rid="to-abort") as response:
        assert server.post("/abort_request", {"rid": "to-abort"})[2]["aborted"] == 1
        rest = response.read().decode()
    assert server.post("/continue_generation", {})[0] == 200
    name, data = re.search("event: ([a-z_.]+)\ndata: ({.*})\n\n$", rest).groups()
    last = json.loads(data)["response"]
    assert name == "response.incomplete" and last["id"] == "to-abort" and last["incomplete_details"] == {"reason": "abort"}


def test_a_client_that_leaves_ends_its_request(server):
    with held_stream(server, rid="to-leave"):
        assert server.metrics()["millrace:live_requests"] == 1
    wait_until(lambda: server.metrics()["millrace:live_requests"] == 0, "end of the request")
    assert server.post("/continue_generation", {})[0] == 200
    wait_until(lambda: all(stage["running"] == 0 and stage["waiting"] == 0 for stage in server.get("/ready")[2]["stages"]), "idle stages")


def test_an_error_in_a_stream_fails_the_response():
    with Server() as server, held_stream(server) as response:
        os.kill(server.children()["scheduler"], signal.SIGKILL)
        found = re.findall("event: ([a-z_.]+)\ndata: ({.*})\n\n", response.read().decode())
        assert [name for name, _ in found[-2:]] == ["error", "response.failed"]
        error, failed = (json.loads(data) for _, data in found[-2:])
        assert error["code"] == failed["response"]["error"]["code"] == "server_error" and failed["response"]["status"] == "failed"
        assert failed["sequence_number"] == error["sequence_number"] + 1


def test_the_official_client(tools):
    if not (OPENAI / "node_modules" / "openai").is_dir():
        pytest.fail("tests/e2e/openai/node_modules lacks openai; wanted: ./scripts/test, which installs it")
    result = subprocess.run(["node", "--test", "responses.test.mjs"], cwd=OPENAI, capture_output=True, text=True, timeout=600,
                            env={**os.environ, "OPENAI_BASE_URL": f"http://{tools.host}:{tools.port}/v1", "OPENAI_API_KEY": "unused"})
    assert result.returncode == 0, result.stdout + result.stderr
