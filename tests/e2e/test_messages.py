"""/v1/messages: the events of a stream by their bytes, what a stream puts together, errors in Anthropic's form, refused fields, and the official
client. Grammars make the demo model write calls and reasoning."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from harness import Server, wait_until
from tool_model import ebnf, tool_model

MESSAGES, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
ASK = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {"name": "weather", "description": "The weather of a city", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["paris", "rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}
CLOCK = {"name": "clock", "input_schema": {
    "type": "object", "properties": {"zone": {"$ref": "#/$defs/zone"}}, "required": ["zone"], "additionalProperties": False,
    "$defs": {"zone": {"enum": ["utc", "cet"]}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "paris", "days": 3}}\n</tool_call>'
THOUGHT = "<think>\nIt may rain.\n</think>\n\n"
OPENAI = pathlib.Path(__file__).resolve().parent / "openai"


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    with Server(model=tool_model(tmp_path_factory.mktemp("tools") / "demo")) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def body(text=None, **fields):
    out = {"model": "demo", "messages": ASK, "max_tokens": 200, "temperature": 0, **fields}
    return {**out, "ebnf": ebnf(text)} if text else out


def raw(server, request, path=MESSAGES, headers=None):
    """The bytes of a stream."""
    connection = server.connection()
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps({**request, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        data = response.read().decode()
        assert response.status == 200, data
        assert response.getheader("Content-Type").startswith("text/event-stream")
        assert response.getheader("request-id") == response.getheader("x-request-id")
        return data


def events(server, request):
    """Of each event its name and its data; each is an `event:` line and a `data:` line, in this sequence."""
    found = []
    for event in raw(server, request).removesuffix("\n\n").replace(": ping\n\n", "").split("\n\n"):
        name, data = re.fullmatch("event: ([a-z_]+)\ndata: ({.*})", event).groups()
        found.append((name, json.loads(data)))
        assert found[-1][1]["type"] == name
    return found


def assembled(found):
    """The message that the events of a stream make, as a client makes it."""
    names = [name for name, _ in found]
    assert names[:2] == ["message_start", "ping"] and names[-2:] == ["message_delta", "message_stop"]
    assert set(names[2:-2]) <= {"content_block_start", "content_block_delta", "content_block_stop"}
    message, is_open = found[0][1]["message"], False
    assert message["content"] == [] and message["stop_reason"] is None and message["usage"]["output_tokens"] == 0
    for name, data in found[2:-2]:
        assert is_open == (name != "content_block_start"), "blocks do not overlap"
        assert data["index"] == len(message["content"]) - is_open
        if name == "content_block_start":
            is_open, arguments = True, ""
            message["content"].append(data["content_block"])
            continue
        block = message["content"][-1]
        if name == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = json.loads(arguments) if complete(arguments) else CUT_OFF
            continue
        delta = data["delta"]
        kind = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}[block["type"]]
        assert delta["type"] == kind
        if block["type"] == "tool_use":
            arguments += delta["partial_json"]
        else:
            block[block["type"]] += delta[block["type"]]
    assert not is_open
    message.update(found[-2][1]["delta"])
    message["usage"] = found[-2][1]["usage"]
    return message


CUT_OFF = "an input that max_tokens cut off"


def complete(arguments):
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(arguments), dict)
    return False


# What Anthropic's description of its API requires of a message and of its usage.
MEMBERS = {"id", "type", "role", "content", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container"}
USAGE = {"cache_creation", "cache_creation_input_tokens", "cache_read_input_tokens", "inference_geo", "input_tokens", "output_tokens",
         "output_tokens_details", "server_tool_use", "service_tier"}


def shown(message):
    """Without what differs between two answers, ids and how much of the prompt was cached, and without what is always the same."""
    assert set(message) == MEMBERS and set(message["usage"]) == USAGE
    assert re.fullmatch("msg_[0-9a-f]{24}", message["id"])
    usage = message["usage"]
    assert usage["cache_creation_input_tokens"] == 0
    blocks = [dict(block) for block in message["content"]]
    for block in blocks:
        if block["type"] == "tool_use":
            assert re.fullmatch("toolu_[0-9a-f]{24}", block.pop("id")) and block.pop("caller") == {"type": "direct"}
        elif block["type"] == "text":
            assert block.pop("citations") == []
    assert 0 <= usage["output_tokens_details"]["thinking_tokens"] <= usage["output_tokens"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return {**message, "id": None, "content": blocks, "usage": (total, usage["output_tokens"])}


def both(server, request):
    """The answer, which the stream's equals."""
    status, headers, answer = server.post(MESSAGES, request)
    assert status == 200, answer
    assert headers["request-id"] == headers["x-request-id"]
    message = shown(answer)
    stream = shown(assembled(events(server, request)))
    if message["content"] and stream["content"][-1].get("input") == CUT_OFF:  # the answer has what is complete of it
        assert message["stop_reason"] == "max_tokens" and isinstance(message["content"][-1]["input"], dict)
        message["content"][-1]["input"] = CUT_OFF
    assert stream == message
    status, _, count = server.post(COUNT, request)
    assert (status, count) == (200, {"input_tokens": message["usage"][0]}), "the same body has the same prompt"
    return message


def text(words):
    return {"type": "text", "text": words}


def test_text(server):
    request = body(max_tokens=24, messages=[{"role": "user", "content": "Tell me a story about a dog."}])
    message = both(server, request)
    assert message["stop_reason"] == "max_tokens" and message["stop_sequence"] is None and message["usage"][1] == 24
    assert [block["type"] for block in message["content"]] == ["text"]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "demo")
    ended = both(server, body("Yes."))
    assert (ended["content"], ended["stop_reason"]) == ([text("Yes.")], "end_turn")
    stopped = both(server, body("One, two, three.", stop_sequences=["four", ", t"]))
    assert (stopped["content"], stopped["stop_reason"], stopped["stop_sequence"]) == ([text("One")], "stop_sequence", ", t")
    assert shown(server.post("/messages", request)[2]) == message


def test_instructions_between_turns_stay_there(server):
    turns = [{"role": "user", "content": "Tell me a story."}, {"role": "system", "content": [text("About a cat.")]}, {"role": "user", "content": "Now."}]
    message = both(server, body(messages=turns, max_tokens=12))
    chat = {"messages": [turns[0], {"role": "system", "content": "About a cat."}, turns[2]], "max_tokens": 12, "temperature": 0}
    answer = server.post(CHAT, chat)[2]
    assert message["content"][0]["text"] == answer["choices"][0]["message"]["content"]
    assert message["usage"][0] == answer["usage"]["prompt_tokens"]


def test_a_chat_has_the_same_prompt_and_text(server):
    system = "Write short stories."
    turns = [{"role": "user", "content": "Tell me"}, {"role": "user", "content": [text("a story."), text("About a cat.")]}]
    message = both(server, body(system=[text(system)], messages=turns, max_tokens=20))
    chat = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "Tell me\na story.\nAbout a cat."}],
            "max_tokens": 20, "temperature": 0}
    answer = server.post(CHAT, chat)[2]
    assert message["content"] == [text(answer["choices"][0]["message"]["content"])]
    assert message["usage"][0] == answer["usage"]["prompt_tokens"]


def test_the_answer_continues_what_it_is_given(server):
    turns = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once upon a"}]
    message = both(server, body(messages=turns, max_tokens=12))
    chat = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 12, "temperature": 0}
    assert message["content"] == [text(server.post(CHAT, chat)[2]["choices"][0]["message"]["content"])]


def test_cached_tokens_are_not_counted_twice(server):
    request = body(max_tokens=4, messages=[{"role": "user", "content": "Tell me a story about a bird that could not fly. " * 4}])
    usage = [server.post(MESSAGES, request)[2]["usage"] for _ in range(2)]
    assert usage[0]["cache_read_input_tokens"] < usage[1]["cache_read_input_tokens"]
    assert len({one["input_tokens"] + one["cache_read_input_tokens"] for one in usage}) == 1


def test_calls(tools):
    made = {"type": "tool_use", "name": "weather", "input": {"city": "paris", "days": 3}}
    message = both(tools, body("Let me see.\n" + CALL, tools=[WEATHER, CLOCK]))
    assert (message["content"], message["stop_reason"]) == ([text("Let me see."), made], "tool_use")
    other = '\n<tool_call>\n{"name": "clock", "arguments": {"zone": "utc"}}\n</tool_call>'
    request = body(CALL + other, tools=[WEATHER, CLOCK])
    assert both(tools, request)["content"] == [made, {"type": "tool_use", "name": "clock", "input": {"zone": "utc"}}]
    first = both(tools, {**request, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}})
    assert (first["content"], first["stop_reason"]) == ([made], "tool_use")
    plain = both(tools, {**request, "tool_choice": {"type": "none"}})
    assert (plain["content"], plain["stop_reason"]) == ([text(CALL + other)], "end_turn")
    cut = both(tools, body("Well. " + CALL, tools=[WEATHER], max_tokens=30))
    assert cut["stop_reason"] == "max_tokens" and {block["type"] for block in cut["content"]} == {"text"}


def test_a_call_is_forced(tools, server):
    for running in (tools, server):  # the demo model's template knows no tools, and a grammar needs none
        for choice in ({"type": "tool", "name": "clock"}, {"type": "any", "disable_parallel_tool_use": True}):
            message = both(running, body(tools=[CLOCK], tool_choice=choice))
            assert message["stop_reason"] == "tool_use" and [block["type"] for block in message["content"]] == ["tool_use"]
            assert message["content"][0]["name"] == "clock" and message["content"][0]["input"]["zone"] in ("utc", "cet")


def test_several_calls_are_forced(tools):
    request = body(tools=[WEATHER, CLOCK], tool_choice={"type": "any"}, temperature=1, max_tokens=400)
    counts = set()
    for seed in range(1, 6):
        message = both(tools, {**request, "seed": seed})
        if message["stop_reason"] == "max_tokens":
            continue  # a list of calls may be long
        assert message["stop_reason"] == "tool_use" and {block["type"] for block in message["content"]} == {"tool_use"}
        for block in message["content"]:
            given = block["input"]
            assert given["zone"] in ("utc", "cet") if block["name"] == "clock" else 1 <= given["days"] <= 9 and given["city"] in ("paris", "rome")
        counts.add(len(message["content"]))
    assert counts


def test_thinking(tools):
    thinking = {"type": "thinking", "thinking": "It may rain.", "signature": ""}
    assert both(tools, body(THOUGHT + "Rain."))["content"] == [thinking, text("Rain.")]
    usage = tools.post(MESSAGES, body(THOUGHT + "Rain."))[2]["usage"]
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]
    for wish in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 30000}):  # the prompt opens it then
        request = body("It may rain.\n</think>\n\nRain.", thinking=wish)
        assert both(tools, request)["content"] == [thinking, text("Rain.")]
        hidden = both(tools, {**request, "thinking": {**wish, "display": "omitted"}})
        assert hidden["content"] == [{**thinking, "thinking": ""}, text("Rain.")]
    assert both(tools, body("Rain.", thinking={"type": "disabled"}))["content"] == [text("Rain.")]
    forced = both(tools, body(tools=[CLOCK], tool_choice={"type": "any", "disable_parallel_tool_use": True}, thinking={"type": "adaptive"}))
    assert forced["stop_reason"] == "tool_use"
    assert both(tools, body(THOUGHT + CALL, tools=[WEATHER]))["content"][0] == thinking


def test_history_goes_through_the_template(tools):
    turns = [*ASK, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "redacted_thinking", "data": "x"}, text("So."),
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"days": 3, "city": "paris"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("sun")]}, text("And?")]}]
    message = both(tools, body("Sun.", messages=turns, tools=[WEATHER]))
    assert message["content"] == [text("Sun.")]
    chat = [*ASK, {"role": "assistant", "content": "So.", "tool_calls": [
        {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"days": 3, "city": "paris"}'}}]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sun"}, {"role": "user", "content": "And?"}]
    tool = {"type": "function", "function": {"name": WEATHER["name"], "description": WEATHER["description"], "parameters": WEATHER["input_schema"]}}
    answer = tools.post("/tokenize", {"messages": chat, "tools": [tool]})[2]
    assert answer["count"] == message["usage"][0]


def test_a_schema_is_kept(server):
    schema = {"type": "object", "properties": {"kind": {"enum": ["dog", "cat"]}}, "required": ["kind"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": form, "effort": "low"}}, {"output_format": form}):
        message = both(server, body(**fields))
        assert json.loads(message["content"][0]["text"])["kind"] in ("dog", "cat") and message["stop_reason"] == "end_turn"


def fault(answer):
    """The type and message of an error in Anthropic's form."""
    status, headers, error = answer
    assert set(error) == {"type", "error", "request_id"} and error["type"] == "error", error
    assert set(error["error"]) == {"type", "message"}
    assert error["request_id"] == headers["request-id"] == headers["x-request-id"]
    return status, error["error"]["type"], error["error"]["message"]


@pytest.mark.parametrize("fields, message", [
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"messages": None}, "messages is missing"),
    ({"messages": []}, "messages has 0 entries"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role is 'tool'; wanted user, assistant or system"),
    ({"messages": [{"role": "system", "content": 5}]}, "messages[0].content is of type integer"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type is 'image'"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type is 'document'"),
    ({"messages": [*ASK, {"role": "assistant", "content": [{"type": "server_tool_use"}]}, *ASK]}, "messages[1].content[0].type is 'server_tool_use'"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]},
     "messages[0].content[0].content[0].type is 'image'"),
    ({"messages": [*ASK, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}, "messages has a tool_use block"),
    ({"system": [{"type": "image"}]}, "system[0].type is 'image'"),
    ({"temperature": 9}, "temperature is 9"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences has 17 strings"),
    ({"stop_sequences": [""]}, "stop_sequences has an empty string"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type is 'web_search_20250305'; wanted 'custom'"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type is 'bash_20250124'"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
    ({"tools": [CLOCK, CLOCK]}, "tools[1].name is 'clock'"),
    ({"tools": [{**CLOCK, "defer_loading": True}]}, "tools[0]: defer_loading is not supported"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type is 'any' without tools"),
    ({"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name is 'x'"),
    ({"tools": [CLOCK], "tool_choice": {"type": "required"}}, "tool_choice.type is 'required'"),
    ({"tools": [{**CLOCK, "input_schema": {"unevaluatedItems": False}}], "tool_choice": {"type": "any"}}, "tools: "),
    ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "budget_tokens is 10"),
    ({"thinking": {"type": "enabled"}, "tools": [CLOCK], "tool_choice": {"type": "any"}}, "thinking.type is 'enabled', and tool_choice forces a call"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"unevaluatedItems": False}}}}, "output_config.format.schema: "),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type is 'text'"),
    ({"output_config": {"task_budget": {"total": 5}}}, "task_budget is not supported"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
    ({"container": "c"}, "container is not supported"),
])
def test_bad_and_unserved_fields_are_refused(tools, fields, message):
    for more in ({}, {"stream": True}):
        status, kind, words = fault(tools.post(MESSAGES, {**body(), **fields, **more}))
        assert (status, kind) == (400, "invalid_request_error") and message in words, words


def test_threads_are_refused_as_clients_understand_it(server):
    """The official client's tool runner then sends the conversation in each request."""
    status, _, answer = server.post(MESSAGES, body(thread={"type": "create"}))
    assert status == 400 and answer["error"].pop("details") == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert answer["error"] == {"type": "invalid_request_error", "message": "thread is not supported; leave it out"}


def test_a_model_without_a_form_of_calls(server):
    status, _, words = fault(server.post(MESSAGES, body(tools=[CLOCK])))
    assert status == 400 and "tools is not supported with this model" in words


def test_errors_have_the_form_of_the_family(server):
    assert fault(server.post(MESSAGES, body(model="nothing")))[:2] == (404, "not_found_error")
    assert fault(server.post(MESSAGES, "{"))[:2] == (400, "invalid_request_error")
    assert fault(server.get(MESSAGES))[:2] == (405, "invalid_request_error")
    assert fault(server.post(COUNT, {"messages": []}))[:2] == (400, "invalid_request_error")
    assert fault(server.post(MESSAGES, body(), headers={"Content-Type": "text/plain"}))[:2] == (415, "invalid_request_error")
    status, kind, words = fault(server.post(MESSAGES, body(messages=[{"role": "user", "content": "a story " * 5000}])))
    assert (status, kind) == (400, "invalid_request_error") and words.startswith("prompt is too long: ")
    large = {"messages": [{"role": "user", "content": "a" * (33 << 20)}], "max_tokens": 1}
    assert fault(server.post(MESSAGES, large))[:2] == (413, "request_too_large")
    assert "type" not in server.post(CHAT, "{")[2], "other families keep theirs"
    with Server("--api-key", "sk-key", "--admin-api-key", "sk-admin") as running:
        assert fault(running.post(MESSAGES, body()))[:2] == (401, "authentication_error")
        versions = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta-2025-01-01"}
        assert running.post(MESSAGES, body(max_tokens=2), headers={"x-api-key": "sk-key", **versions})[0] == 200


def held_stream(server, **fields):
    return server.held_stream(MESSAGES, body(**fields), b"event: message_start\n")


def test_a_request_may_be_aborted_by_name(server):
    """Its answer is then what was generated, and not an error."""
    with held_stream(server, rid="to-abort") as response:
        assert server.post("/abort_request", {"rid": "to-abort"})[2]["aborted"] == 1
        rest = response.read().decode()
    assert server.post("/continue_generation", {})[0] == 200
    assert '"stop_reason":"abort"' in rest
    assert rest.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_a_client_that_leaves_ends_its_request(server):
    with held_stream(server, rid="to-leave"):
        assert server.metrics()["millrace:live_requests"] == 1
    wait_until(lambda: server.metrics()["millrace:live_requests"] == 0, "end of the request")
    assert server.post("/continue_generation", {})[0] == 200
    wait_until(lambda: all(stage["running"] == 0 and stage["waiting"] == 0 for stage in server.get("/ready")[2]["stages"]), "idle stages")


def test_an_error_in_a_stream_is_its_last_event():
    with Server() as server, held_stream(server) as response:
        os.kill(server.children()["scheduler"], signal.SIGKILL)
        name, data = re.search("event: ([a-z_]+)\ndata: ({.*})\n\n$", response.read().decode()).groups()
        error = json.loads(data)
        assert name == error["type"] == "error" and error["error"]["type"] == "overloaded_error"
        assert error["request_id"] == response.getheader("request-id")


def test_the_official_client(tools):
    if not (OPENAI / "node_modules" / "@anthropic-ai" / "sdk").is_dir():
        pytest.fail("tests/e2e/openai/node_modules lacks @anthropic-ai/sdk; wanted: ./scripts/test, which installs it")
    result = subprocess.run(["node", "--test", "messages.test.mjs"], cwd=OPENAI, capture_output=True, text=True, timeout=600,
                            env={**os.environ, "ANTHROPIC_BASE_URL": f"http://{tools.host}:{tools.port}", "ANTHROPIC_API_KEY": "unused"})
    assert result.returncode == 0, result.stdout + result.stderr
