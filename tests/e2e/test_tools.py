"""Tool calls and reasoning: what a model writes of them is read, in streams as in whole answers. Grammars make the demo model write it."""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess

import pytest

from harness import Server
from tool_model import ebnf, marked_tool_model, tool_model

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["paris", "rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                   "required": ["city", "days"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "parameters": {"type": "object", "properties": {"zone": {"$ref": "#/$defs/zone"}}, "required": ["zone"],
                                    "additionalProperties": False, "$defs": {"zone": {"enum": ["utc", "cet"]}}}}}
OPENAI = pathlib.Path(__file__).resolve().parent / "openai"


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    with Server(model=tool_model(tmp_path_factory.mktemp("tools") / "demo")) as running:
        yield running
        assert running.stop() == 0, running.output()


def body(text=None, **fields):
    out = {"messages": ASK, "max_tokens": 200, "temperature": 0, **fields}
    return {**out, "ebnf": ebnf(text)} if text else out


def whole(server, request):
    status, _, answer = server.post(CHAT, request)
    assert status == 200, answer
    return answer


def streamed(server, request):
    """The stream put together as a client does: one message and finish reason for each choice."""
    choices = {}
    events = list(server.stream(CHAT, request))
    assert events[-1] == "[DONE]"
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            state = choices.setdefault(choice["index"], {"message": {}, "finish_reason": None, "fragments": 0})
            assert state["finish_reason"] is None, "nothing comes behind the end"
            message, delta = state["message"], choice["delta"]
            for key in ("content", "reasoning_content"):
                if delta.get(key) is not None:
                    message[key] = (message.get(key) or "") + delta[key]
            for call in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if "id" in call:
                    assert call["index"] == len(calls) and call["function"]["arguments"] == ""
                    calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
                else:
                    assert call["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
                    state["fragments"] += 1
            state["finish_reason"] = choice["finish_reason"]
    return [choices[i] for i in sorted(choices)]


def shown(message):
    """Without what differs between two answers: the ids, and null for empty."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    for call in message.get("tool_calls") or []:
        assert re.fullmatch("call_[0-9a-f]{24}", call["id"]) and call["type"] == "function"
    return message.get("content") or "", message.get("reasoning_content") or "", calls


def both(server, request):
    """(content, reasoning, calls, finish_reason) of a whole answer, which the stream's equal."""
    choice = whole(server, request)["choices"][0]
    stream = streamed(server, request)[0]
    assert shown(stream["message"]) == shown(choice["message"])
    assert stream["finish_reason"] == choice["finish_reason"]
    return (*shown(choice["message"]), choice["finish_reason"])


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "paris", "days": 3}}\n</tool_call>'
CALLED = ("weather", '{"city": "paris", "days": 3}')


def test_a_call_that_the_model_makes_by_itself(tools):
    request = body("Let me see.\n" + CALL, tools=[WEATHER, CLOCK])
    assert both(tools, request) == ("Let me see.", "", [CALLED], "tool_calls")
    message = whole(tools, body(CALL, tools=[WEATHER]))["choices"][0]["message"]
    assert message["content"] is None, "as at OpenAI's, where there are calls alone"
    free = body('<tool_call>{"name": "clock", "arguments": {"zone": "||[a-zé]{1,12}||"}}</tool_call>', tools=[CLOCK], temperature=1, seed=3)
    content, _, calls, finish = both(tools, free)
    assert content == "" and len(calls) == 1 and finish == "tool_calls"


def test_several_calls_and_the_first_alone(tools):
    other = '<tool_call>\n{"name": "clock", "arguments": {"zone": "utc"}}\n</tool_call>'
    calls = [CALLED, ("clock", '{"zone": "utc"}')]
    request = body(CALL + "\n" + other, tools=[WEATHER, CLOCK])
    assert both(tools, request) == ("", "", calls, "tool_calls")
    assert both(tools, {**request, "parallel_tool_calls": False}) == ("", "", calls[:1], "tool_calls")


@pytest.mark.parametrize("text", [
    "No call.", "<tool_call>", '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>', CALL.replace("weather", "stranger"),
    CALL.replace("</tool_call>", ""), '<tool_call>{"name": "weather", "arguments": "paris"}</tool_call>', " <tool_call>\n\n</tool_call>\n"])
def test_what_is_no_call_stays_text(tools, text):
    assert both(tools, body(text, tools=[WEATHER])) == (text, "", [], "stop")


def test_a_call_that_is_cut_off_stays_text(tools):
    request = body("Well. " + CALL, tools=[WEATHER], max_tokens=30)
    content, _, calls, finish = both(tools, request)
    assert calls == [] and finish == "length"
    assert ("Well. " + CALL).startswith(content) and "<tool_call>" in content


def test_without_tools_nothing_is_a_call(tools):
    assert both(tools, body(CALL)) == (CALL, "", [], "stop")
    assert both(tools, body(CALL, tools=[WEATHER], tool_choice="none")) == (CALL, "", [], "stop")


@pytest.mark.parametrize("n", [1, 3])
def test_a_call_is_forced(tools, n):
    request = body(tools=[WEATHER, CLOCK], tool_choice="required", n=n, temperature=1, seed=9, max_tokens=500)
    answer = whole(tools, request)
    stream = streamed(tools, request)
    for choice, same in zip(answer["choices"], stream, strict=True):
        assert shown(choice["message"]) == shown(same["message"])
        content, _, calls = shown(choice["message"])
        if choice["finish_reason"] == "length":
            continue  # an array of calls may be long
        assert choice["finish_reason"] == same["finish_reason"] == "tool_calls" and content == "" and calls
        for name, arguments in calls:
            values = json.loads(arguments)
            if name == "weather":
                assert values["city"] in ("paris", "rome") and 1 <= values["days"] <= 9
            else:
                assert name == "clock" and values["zone"] in ("utc", "cet")


def test_a_forced_call_that_is_cut_off_is_no_text(tools):
    for limit in (1, 4, 12):
        content, _, calls, finish = both(tools, body(tools=[CLOCK], tool_choice="required", max_tokens=limit))
        assert content == "" and finish == "length" and all(name == "clock" for name, _ in calls)


def test_one_function_is_forced(tools, server):
    for running in (tools, server):  # the demo model's template knows no tools, and a grammar needs none
        for choice in ({"type": "function", "function": {"name": "clock"}}, "required"):
            request = body(tools=[CLOCK], tool_choice=choice, parallel_tool_calls=False)
            content, _, calls, finish = both(running, request)
            assert content == "" and finish == "tool_calls" and [name for name, _ in calls] == ["clock"]
            assert json.loads(calls[0][1])["zone"] in ("utc", "cet")


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": name}} for name in names]}}


def test_allowed_tools_are_all_there_are(tools):
    request = body(tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    alone = both(tools, {**request, "tools": [CLOCK], "tool_choice": "required"})
    assert both(tools, {**request, "tool_choice": allowed("required", "clock")}) == alone and alone[2][0][0] == "clock"
    request = body(CALL, tools=[WEATHER, CLOCK])
    assert both(tools, {**request, "tool_choice": allowed("auto", "clock")}) == (CALL, "", [], "stop")
    assert both(tools, {**request, "tool_choice": allowed("auto", "weather")}) == ("", "", [CALLED], "tool_calls")


THOUGHT = "<think>\nIt may rain.\n\n<tool_call>\n</think>\n\n"


def test_reasoning_is_a_field_of_its_own(tools):
    request = body(THOUGHT + "Rain.", n=1)
    assert both(tools, request) == ("Rain.", "It may rain.\n\n<tool_call>", [], "stop")
    answer = whole(tools, request)
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    assert both(tools, body(THOUGHT + CALL, tools=[WEATHER])) == ("", "It may rain.\n\n<tool_call>", [CALLED], "tool_calls")
    plain = whole(tools, body("Rain."))["choices"][0]["message"]
    assert plain["content"] == "Rain." and plain["reasoning_content"] is None


def test_how_reasoning_is_shown(tools):
    request = body(THOUGHT + "Rain.")
    for off in ({"separate_reasoning": False}, {"reasoning_format": "none"}):
        assert both(tools, {**request, **off}) == (THOUGHT + "Rain.", "", [], "stop")
    assert both(tools, {**request, "include_reasoning": False}) == ("Rain.", "", [], "stop")
    late = {**request, "stream_reasoning": False}
    assert both(tools, late) == both(tools, request)
    chunks = [json.loads(event)["choices"][0]["delta"] for event in list(tools.stream(CHAT, late))[:-1]]
    assert sum(delta.get("reasoning_content") is not None for delta in chunks) == 1
    cut = both(tools, {**request, "max_tokens": 14})
    assert cut[0] == "" and cut[1] and "It may rain.\n\n<tool_call>".startswith(cut[1]) and cut[3] == "length"


PET = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"], "additionalProperties": False}
DOCUMENT = r'\{\s*"kind"\s*:\s*"(cat|dog)"\s*\}'
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": PET}}


# ---- calls that a grammar guards ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    folder, ids = marked_tool_model(tmp_path_factory.mktemp("marked") / "demo")
    with Server(model=folder) as running:
        running.ids = ids
        running.bias = {ids["<tool_call>"]: 50, ids["<|im_end|>"]: 100}  # calls at once, and ends where it may
        yield running
        assert running.stop() == 0, running.output()


def calling(server, tools, **fields):
    return body(tools=tools, logit_bias=server.bias, min_tokens=2, temperature=1, max_tokens=400, **fields)


def strict(tool):
    return {**tool, "function": {**tool["function"], "strict": True}}


@pytest.mark.parametrize("seed", range(6))
def test_the_arguments_of_a_strict_tool_keep_its_schema(marked, seed):
    request = calling(marked, [strict(WEATHER), strict(CLOCK)], seed=seed)
    content, _, calls, finish = both(marked, request)
    assert content == "" and finish == "tool_calls" and len(calls) == 1
    name, values = calls[0][0], json.loads(calls[0][1])
    if name == "weather":
        assert list(values) == ["city", "days"] and values["city"] in ("paris", "rome") and 1 <= values["days"] <= 9
    else:
        assert name == "clock" and list(values) == ["zone"] and values["zone"] in ("utc", "cet")


def test_a_tool_that_is_not_strict_has_the_form_alone(marked):
    any_object = {"type": "function", "function": {"name": "clock", "parameters": {"unevaluatedItems": False}}}  # a schema that no grammar keeps
    for seed in range(4):
        content, _, calls, finish = both(marked, calling(marked, [any_object, strict(WEATHER)], seed=seed))
        for name, arguments in calls:
            values = json.loads(arguments) if finish == "tool_calls" else {}
            assert isinstance(values, dict) and name in ("clock", "weather")
        assert content == "" and calls and finish in ("tool_calls", "length")
    status, _, answer = marked.post(CHAT, calling(marked, [strict(any_object)]))
    assert status == 400 and "tools: structures[0]: schema.properties.arguments.unevaluatedItems is not served" in answer["error"]["message"], answer


def test_a_guarded_call_that_is_cut_off_is_a_beginning(marked):
    request = calling(marked, [strict(WEATHER)], seed=1)
    _, _, [(_, arguments)], _ = both(marked, request)
    tokens = whole(marked, request)["usage"]["completion_tokens"]
    seen = set()
    for limit in range(2, tokens):
        content, _, calls, finish = both(marked, {**request, "max_tokens": limit})
        assert finish == "length"
        if calls:
            assert content == "" and calls[0][0] == "weather" and arguments.startswith(calls[0][1]) and calls[0][1]
            seen.add(calls[0][1])
        else:
            assert content == "", "the form of a call is no text"
    assert len(seen) > 2 and arguments in seen


@pytest.mark.parametrize("thinks", [False, True])
def test_beside_a_schema_the_model_calls_or_writes_the_document(marked, thinks):
    """As agents ask: with the schema of their last answer in every turn."""
    for begun, seed in [(begun, seed) for begun in (True, False) for seed in range(3)]:
        bias = {marked.ids["<tool_call>"]: 50 if begun else -100, marked.ids["<|im_end|>"]: 100, marked.ids["</think>"]: 100}
        request = body(tools=[strict(WEATHER), CLOCK], response_format=FORMAT, temperature=1, seed=seed, logit_bias=bias, max_tokens=400,
                       enable_thinking=thinks)
        content, _, calls, finish = both(marked, request)
        if begun:
            assert content == "" and [name in ("weather", "clock") for name, _ in calls] == [True]
            assert finish == "length" or finish == "tool_calls" and json.loads(calls[0][1]) is not None
        else:
            assert re.fullmatch(DOCUMENT, content) and calls == [] and finish == "stop"


def test_beside_a_schema_in_every_family(marked):
    bias = {"logit_bias": {marked.ids["<tool_call>"]: 50, marked.ids["<|im_end|>"]: 100}, "temperature": 1, "seed": 3}
    parameters = WEATHER["function"]["parameters"]
    answer = marked.post("/v1/responses", {"input": "The weather?", "tools": [{"type": "function", "name": "weather", "parameters": parameters, "strict": True}],
                                           "text": {"format": {"type": "json_schema", "name": "pet", "schema": PET}}, **bias})[2]
    assert [item["type"] for item in answer["output"]] == ["function_call"], answer
    answer = marked.post("/v1/messages", {"max_tokens": 200, "messages": ASK, "tools": [{"name": "weather", "input_schema": parameters, "strict": True}],
                                          "output_config": {"format": {"type": "json_schema", "schema": PET}}, **bias})[2]
    assert [block["type"] for block in answer["content"]] == ["tool_use"] and answer["stop_reason"] == "tool_use", answer
    status, _, answer = marked.post(CHAT, body(tools=[WEATHER], json_schema={"type": "object", "properties": {"x": {"unevaluatedItems": False}}}))
    assert status == 400 and "json_schema beside tools: document: schema.properties.x.unevaluatedItems is not" in answer["error"]["message"], answer


def test_tools_change_no_text_without_a_call(marked):
    """The masks of free text admit all that the model may write: without a call, it is the same with strict tools as with a schema of none."""
    request = body(tools=[WEATHER], temperature=1, max_tokens=60)
    for seed in range(3):
        prompt = marked.post("/tokenize", {"messages": ASK, "tools": [WEATHER]})[2]["tokens"]
        text = marked.post("/v1/completions", {"prompt": prompt, "temperature": 1, "max_tokens": 60, "seed": seed})[2]["choices"][0]["text"]
        content, _, calls, _ = both(marked, {**request, "seed": seed})
        assert calls == [] and content.strip() == text.strip()


def test_company_changes_no_guarded_call(marked):
    requests = [calling(marked, [strict(WEATHER), CLOCK], seed=seed) for seed in range(4)] + [body(tools=[WEATHER], temperature=1, seed=5, max_tokens=60)]
    alone = [shown(whole(marked, request)["choices"][0]["message"]) for request in requests]
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(lambda request: shown(whole(marked, request)["choices"][0]["message"]), requests * 2))
    assert together == alone * 2


def test_a_guarded_call_in_every_family(marked):
    bias = {"logit_bias": marked.bias, "min_tokens": 2, "temperature": 1, "seed": 3}
    parameters = WEATHER["function"]["parameters"]
    answer = marked.post("/v1/responses", {"input": "The weather?", "tools": [{"type": "function", "name": "weather", "parameters": parameters,
                                                                              "strict": True}], **bias})[2]
    [item] = answer["output"]
    assert item["type"] == "function_call" and json.loads(item["arguments"])["city"] in ("paris", "rome")
    message = {"max_tokens": 200, "messages": ASK, "tools": [{"name": "weather", "input_schema": parameters, "strict": True}], **bias}
    answer = marked.post("/v1/messages", message)[2]
    [block] = answer["content"]
    assert answer["stop_reason"] == "tool_use" and block["input"]["city"] in ("paris", "rome")
    cut = marked.post("/v1/messages", {**message, "max_tokens": answer["usage"]["output_tokens"] - 4})[2]
    assert cut["stop_reason"] == "max_tokens" and cut["content"][0]["type"] == "tool_use"
    assert cut["content"][0]["input"].items() <= block["input"].items(), "what is not complete is left out"


def test_reasoning_that_the_prompt_opens_or_closes(tools):
    for fields in ({"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}):
        assert both(tools, body("So.\n</think>\n\nRain.", **fields)) == ("Rain.", "So.", [], "stop")
    assert both(tools, body("Rain.", enable_thinking=False)) == ("Rain.", "", [], "stop")
    forced = body(tools=[CLOCK], tool_choice="required", parallel_tool_calls=False)
    assert both(tools, forced)[3] == "tool_calls"


@pytest.mark.parametrize("fields, document", [({"response_format": FORMAT}, DOCUMENT), ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
                                              ({"guided_choice": ["a|b", "c"]}, r"a\|b|c"), ({"response_format": {"type": "json_object"}}, r"\{.*")])
def test_a_document_comes_behind_the_reasoning(marked, fields, document):
    """What the prompt opened ends with the tag, which is likely here; where the prompt closed it, none begins."""
    request = body(**fields, temperature=1, logit_bias={marked.ids["</think>"]: 14}, max_tokens=300)
    thoughts = 0
    for seed in range(4):
        content, reasoning, _, _ = both(marked, {**request, "seed": seed, "enable_thinking": True})
        assert re.fullmatch(document, content, re.DOTALL), (content, reasoning)
        thoughts += bool(reasoning)
        content, reasoning, _, _ = both(marked, {**request, "seed": seed, "enable_thinking": False, "logit_bias": {marked.ids["<think>"]: 100}})
        assert re.fullmatch(document, content, re.DOTALL) and reasoning == ""
        content, reasoning, _, _ = both(marked, {**request, "seed": seed})  # the prompt says nothing
        assert re.fullmatch(document, content, re.DOTALL)
        content, reasoning, _, _ = both(marked, {**request, "seed": seed, "enable_thinking": True, "separate_reasoning": False})
        assert re.fullmatch(document, content, re.DOTALL) and reasoning == ""
    assert thoughts > 0


def test_a_document_behind_reasoning_in_every_family(marked):
    bias = {"logit_bias": {marked.ids["</think>"]: 100}, "temperature": 1, "seed": 3}
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = marked.post("/v1/responses", {"input": "A pet?", "text": {"format": {"type": "json_schema", "name": "pet", "schema": PET}}, **thinks, **bias})[2]
    assert re.fullmatch(DOCUMENT, answer["output"][-1]["content"][0]["text"]), answer
    answer = marked.post("/v1/messages", {"max_tokens": 200, "messages": ASK, "output_config": {"format": {"type": "json_schema", "schema": PET}},
                                          **thinks, **bias})[2]
    assert re.fullmatch(DOCUMENT, answer["content"][-1]["text"]), answer
    answer = marked.post("/api/chat", {"messages": ASK, "stream": False, "format": PET, "think": True, "options": {"temperature": 1, "seed": 3},
                                       "logit_bias": bias["logit_bias"]})[2]
    assert re.fullmatch(DOCUMENT, answer["message"]["content"]), answer


def test_history_goes_through_the_template(tools):
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_0123456789abcdef01234567", "type": "function", "function": {"name": "weather", "arguments": '{"days": 3, "city": "paris"}'}}]},
        {"role": "tool", "tool_call_id": "call_0123456789abcdef01234567", "content": [{"type": "text", "text": "sun"}]}]
    status, _, answer = tools.post("/tokenize", {"messages": messages, "tools": [CLOCK]})
    assert status == 200, answer
    status, _, text = tools.post("/detokenize", {"tokens": answer["tokens"], "skip_special_tokens": False})
    assert status == 200 and text["text"] == (
        '<|im_start|>system\nCall <tool_call>{"name": ..., "arguments": {...}}</tool_call>\n' + json.dumps(CLOCK) + "<|im_end|>\n"
        "<|im_start|>user\nHow is the weather?<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n"
        '{"name": "weather", "arguments": {"days": 3, "city": "paris"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\nsun\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    told = {"messages": [{"role": "developer", "content": "Rhyme."}, *ASK]}  # a role that the template does not name
    text = tools.post("/detokenize", {"tokens": tools.post("/tokenize", told)[2]["tokens"], "skip_special_tokens": False})[2]["text"]
    assert text.startswith("<|im_start|>system\nRhyme.<|im_end|>\n<|im_start|>user\n")
    content, _, calls, finish = both(tools, body("Sun.", messages=messages, tools=[WEATHER]))
    assert (content, calls, finish) == ("Sun.", [], "stop")


@pytest.mark.parametrize("fields, message", [
    ({"tool_choice": "required"}, "Tools cannot be empty if tool choice is set to required."),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "Tools cannot be empty if tool choice is set to a specific tool."),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "Tool 'x' not found in tools list."),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "Tool 0 function has invalid 'parameters' schema: "),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type is 'custom'"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name is 'a b'"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name is 'weather'"),
    ({"tools": [WEATHER] * 129}, "tools has 129 entries"),
    ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice is 'any'"),
    ({"tools": [WEATHER], "tool_choice": allowed("none", "weather")}, "tool_choice.allowed_tools.mode is 'none'"),
    ({"tools": [WEATHER], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools is empty"),
    ({"tools": [WEATHER], "tool_choice": allowed("auto", "x")}, "tool_choice.allowed_tools.tools[0].function.name is 'x'"),
    ({"tool_choice": allowed("auto", "x")}, "tool_choice.allowed_tools.tools[0].function.name is 'x'"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools is missing"),
    ({"tools": [WEATHER], "tool_choice": "required", "regex": "a"}, "tool_choice forces a call"),
    ({"tools": [WEATHER], "tool_choice": "required", "ignore_eos": True}, "ignore_eos is true"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"unevaluatedItems": False}}}], "tool_choice": "required"}, "tools: "),
    ({"reasoning_format": "x"}, "reasoning_format is 'x'"),
    ({"enable_thinking": "yes"}, "enable_thinking is of type string; wanted a boolean"),
    ({"messages": [*ASK, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages[1].tool_calls[0].function.name is missing"),
])
def test_bad_fields_are_refused(tools, fields, message):
    status, _, answer = tools.post(CHAT, {**body(), **fields})
    assert status == 400 and message in answer["error"]["message"], answer


def test_a_model_without_a_form_of_calls(server):
    status, _, answer = server.post(CHAT, body(tools=[WEATHER]))
    assert status == 400 and "tools is not supported with this model" in answer["error"]["message"]


def test_the_parsers_are_named_by_flags():
    with Server("--tool-parser", "llama3", "--reasoning-parser", "deepseek") as running:
        text = 'Hm.</think>{"name": "clock", "parameters": {"zone": "utc"}}'
        assert both(running, body(text, tools=[CLOCK])) == ("", "Hm.", [("clock", '{"zone": "utc"}')], "tool_calls")
    with Server("--tool-parser", "mistral") as running:
        text = '[TOOL_CALLS][{"name": "clock", "arguments": {"zone": "utc"}}]'
        assert both(running, body(text, tools=[CLOCK])) == ("", "", [("clock", '{"zone": "utc"}')], "tool_calls")
    with Server("--tool-parser", "deepseek") as running:
        text = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{"zone": "utc"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        assert both(running, body(text, tools=[CLOCK])) == ("", "", [("clock", '{"zone": "utc"}')], "tool_calls")
    with Server("--tool-parser", "qwen-xml") as running:  # the city is a text, whatever it reads as
        text = "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>"
        city = {"type": "string"}
        weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": city, "days": {}}}}}
        assert both(running, body(text, tools=[weather])) == ("", "", [("weather", '{"city": "12", "days": 12}')], "tool_calls")


@pytest.mark.parametrize("script", ["tools.test.mjs", "ai.test.mjs", "langchain.test.mjs"])
def test_clients_go_a_whole_round(tools, script):
    if not (OPENAI / "node_modules" / "ai").is_dir():
        pytest.fail("tests/e2e/openai/node_modules lacks ai; wanted: ./scripts/test, which installs it")
    result = subprocess.run(["node", "--test", script], cwd=OPENAI, capture_output=True, text=True, timeout=300,
                            env={**os.environ, "MILLRACE_URL": f"http://{tools.host}:{tools.port}/v1"})
    assert result.returncode == 0, result.stdout + result.stderr
