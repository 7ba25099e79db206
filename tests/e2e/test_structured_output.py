"""Texts that a schema, a regular expression or a grammar describes: they are always of the kind, and nothing else changes."""
import concurrent.futures
import json
import re

import pytest

from harness import wait_until

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "Once upon a time"
CITY = {
    "type": "object",
    "properties": {
        "zone": {"enum": ["north", "south"]},
        "count": {"type": "integer", "minimum": 3, "maximum": 120},
        "alive": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,5}$"}, "minItems": 1, "maxItems": 3},
        "between": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1.5},
    },
    "required": ["zone", "count", "alive", "tags", "between"],
    "additionalProperties": False,
}


def text_of(server, **fields):
    status, _, answer = server.post(TEXT, {"prompt": PROMPT, "max_tokens": 400, "temperature": 0, **fields})
    assert status == 200, answer
    choice = answer["choices"][0]
    return choice["text"], choice["finish_reason"]


def check_city(text):
    city = json.loads(text)
    assert list(city) == list(CITY["properties"]), "in the sequence of the schema"
    assert city["zone"] in ("north", "south") and city["alive"] in (True, False)
    assert type(city["count"]) is int and 3 <= city["count"] <= 120
    assert 1 <= len(city["tags"]) <= 3 and all(re.fullmatch("[a-z]{2,5}", tag) for tag in city["tags"])
    assert city["between"] is None or 0 < city["between"] <= 1.5


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_schema_in_a_chat(server, temperature):
    body = {"messages": [{"role": "user", "content": "Where is it?"}], "temperature": temperature, "n": 6, "seed": 5, "max_tokens": 400,
            "response_format": {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}}
    status, _, answer = server.post(CHAT, body)
    assert status == 200, answer
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        check_city(choice["message"]["content"])
    if temperature:
        assert len({choice["message"]["content"] for choice in answer["choices"]}) > 1


def test_all_spellings_of_one_wish(server):
    spellings = [{"regex": "(cat|dog){2}"}, {"guided_regex": "(cat|dog){2}"}, {"structured_outputs": {"regex": "(cat|dog){2}"}},
                 {"ebnf": 'root ::= pet pet\npet ::= "cat" | "dog"'}, {"grammar": 'root ::= pet pet\npet ::= "cat" | "dog"'},
                 {"guided_grammar": 'root ::= ("cat" | "dog") ("cat" | "dog")'},
                 {"structured_outputs": {"grammar": 'root ::= ("cat" | "dog"){2}'}},
                 {"guided_choice": ["catcat", "dogdog", "catdog", "dogcat"]},
                 {"structured_outputs": {"choice": ["catcat", "dogdog", "catdog", "dogcat"]}}]
    texts = {json.dumps(spelling): text_of(server, **spelling) for spelling in spellings}
    assert len(set(texts.values())) == 1 and re.fullmatch("(cat|dog){2}", texts[json.dumps(spellings[0])][0]), texts
    assert next(iter(texts.values()))[1] == "stop"

    schemas = [{"json_schema": json.dumps(CITY)}, {"json_schema": CITY}, {"guided_json": CITY}, {"guided_json": json.dumps(CITY)},
               {"structured_outputs": {"json": CITY}}, {"response_format": {"type": "json_object", "schema": CITY}},
               {"response_format": {"type": "json_schema", "schema": CITY}},
               {"response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}}]
    texts = {json.dumps(spelling): text_of(server, **spelling) for spelling in schemas}
    assert len(set(texts.values())) == 1, texts
    native = [{"json_schema": json.dumps(CITY)}, {"regex": "(cat|dog){2}"}, {"ebnf": 'root ::= ("cat" | "dog"){2}'}]
    status, _, answers = server.post("/generate", {"text": [PROMPT] * 3, "sampling_params":
                                                   [{"temperature": 0, "max_new_tokens": 400, **one} for one in native]})
    assert status == 200, answers
    assert answers[0]["text"] == next(iter(texts.values()))[0]
    assert answers[1]["text"] == answers[2]["text"] == text_of(server, regex="(cat|dog){2}")[0]


TAGGED = {"triggers": [" dog"], "structures": [{"begin": " dog", "schema": {"type": "integer", "minimum": 10, "maximum": 19}, "end": "!"}]}


def test_tags_in_free_text(server):
    """The text is the model's own until a trigger comes."""
    newer = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": TAGGED["triggers"], "tags": [
        {"begin": " dog", "content": {"type": "json_schema", "json_schema": TAGGED["structures"][0]["schema"]}, "end": "!"}]}}
    spellings = [{"response_format": {"type": "structural_tag", **TAGGED}}, {"response_format": newer}, {"structural_tag": TAGGED},
                 {"structural_tag": json.dumps(TAGGED)}, {"structured_outputs": {"structural_tag": json.dumps(newer)}}]
    found = 0
    for seed in range(8):
        prompt = "Once upon a time there was a happy dog named Max. The"
        texts = {text_of(server, prompt=prompt, temperature=1, seed=seed, max_tokens=80, **spelling) for spelling in spellings}
        assert len(texts) == 1
        text, reason = texts.pop()
        free = text_of(server, prompt=prompt, temperature=1, seed=seed, max_tokens=80)[0]
        rest = text.split(" dog")
        assert free.startswith(rest[0]) or (reason == "length" and rest[0].startswith(free))
        for i, part in enumerate(rest[1:], 2):
            assert re.match("1[0-9]!", part) or (i == len(rest) and reason == "length" and re.fullmatch("(1[0-9]?)?", part)), text
            found += 1
    assert found > 2
    status, _, answer = server.post("/generate", {"text": PROMPT, "sampling_params": {"temperature": 0, "structural_tag": json.dumps(TAGGED)}})
    assert status == 200, answer


def test_choices_may_hold_anything(server):
    for choice in ['"quoted"\\back', "two\nlines\tand \x01", "☃ é", "[a-z]"]:
        assert text_of(server, guided_choice=[choice]) == (choice, "stop")


def test_any_object_is_json_or_cut(server):
    text, reason = text_of(server, response_format={"type": "json_object"}, seed=3, temperature=1)
    assert text.lstrip().startswith("{") and (reason == "length" or type(json.loads(text)) is dict)


def test_max_tokens_cuts_and_stop_strings_stop(server):
    whole, _ = text_of(server, json_schema=CITY)
    cut, reason = text_of(server, json_schema=CITY, max_tokens=5)
    assert reason == "length" and whole.startswith(cut) and 0 < len(cut) < len(whole)
    stopped, reason = text_of(server, json_schema=CITY, stop=["count"])
    assert reason == "stop" and stopped == whole[:whole.index("count")]


def test_a_stream_has_the_same_text(server):
    body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0.8, "seed": 4, "guided_json": CITY}
    events = [json.loads(event) for event in server.stream(TEXT, {**body, "stream": True}) if event != "[DONE]"]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == server.post(TEXT, body)[2]["choices"][0]["text"]
    check_city(text)


def test_company_changes_nothing(server):
    bodies = [{"prompt": PROMPT, "max_tokens": 60, "temperature": 1, "seed": seed, **more} for seed in range(4)
              for more in ({}, {"guided_json": CITY}, {"regex": "( [a-z]{1,9}){40}\\."}, {"regex": "(a|b){70}"})]
    alone = [server.post(TEXT, body)[2]["choices"] for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: server.post(TEXT, body)[2]["choices"], bodies))
    assert together == alone
    assert all("finish_reason" in choices[0] for choices in alone)


def test_logprobs_are_those_of_the_model(server):
    def logprobs(**more):
        answer = server.post(TEXT, {"prompt": PROMPT, "max_tokens": 1, "temperature": 0, "logprobs": 5, **more})[2]
        return answer["choices"][0]["logprobs"]
    plain, forced = logprobs(), logprobs(regex="[0-9]+")
    assert plain["top_logprobs"][0].items() <= forced["top_logprobs"][0].items()
    assert forced["tokens"][0].isdigit() and forced["token_logprobs"][0] < min(plain["top_logprobs"][0].values())


BAD = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"x": {"unevaluatedItems": False}}}}}},
     "response_format.json_schema.schema: schema.properties.x.unevaluatedItems is not served"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is missing"),
    ({"response_format": {"type": "yaml"}}, "response_format.type is 'yaml'"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format.json_schema.schema is of type integer"),
    ({"json_schema": "{"}, "json_schema: "),
    ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "json_schema: "),
    ({"regex": "a(b"}, "regex: "),
    ({"regex": "(?=a)a"}, "regex: "),
    ({"regex": ""}, "regex is empty"),
    ({"regex": "a" * 300_000}, "regex has 300000 bytes; wanted at most 262144"),
    ({"regex": "((((a{9999}){9999}){9999}){9999})"}, "regex: "),
    ({"ebnf": "root ::= missing"}, "ebnf: "),
    ({"ebnf": "root ::= root"}, "ebnf: "),
    ({"guided_choice": []}, "guided_choice is empty"),
    ({"guided_choice": ["a", 1]}, "guided_choice has a integer"),
    ({"structured_outputs": {}}, "structured_outputs has none"),
    ({"structured_outputs": {"regex": "a", "structural_tag": {}}}, "structural_tag is set beside structured_outputs.regex"),
    ({"structural_tag": {}}, "structural_tag: triggers is missing"),
    ({"response_format": {"type": "structural_tag", **TAGGED, "triggers": ["cat"]}}, "response_format: structures[0].begin begins with none"),
    ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, "disable_any_whitespace"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf is set beside regex"),
    ({"regex": "a", "ignore_eos": True}, "ignore_eos is true beside regex"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"grammar": 'root ::= "a"', "grammar_lazy": True}, "grammar_lazy"),
]


@pytest.mark.parametrize("fields, message", BAD, ids=[f"{next(iter(fields))}-{number}" for number, (fields, _) in enumerate(BAD)])
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_a_400(server, fields, message, stream):
    status, _, answer = server.post(TEXT, {"prompt": PROMPT, "max_tokens": 8, "stream": stream, **fields})
    assert status == 400 and message in answer["error"]["message"], answer
    if ": " in message:
        assert answer["error"]["param"] == message.split(":")[0], answer


def test_a_grammar_that_leaves_no_token_ends_its_request_alone(server):
    body = {"prompt": PROMPT, "max_tokens": 50, "temperature": 0}
    status, _, answer = server.post(TEXT, {**body, "regex": "ab", "min_tokens": 10})
    assert status == 400 and "banned" in answer["error"]["message"], answer
    assert server.post(TEXT, {**body, "regex": "ab"})[2]["choices"][0]["text"] == "ab"


def test_the_same_schema_is_compiled_once(server):
    def count(name):
        return sum(value for key, value in server.metrics().items() if name in key)
    schema = {"type": "integer", "minimum": 17, "maximum": 4711}
    hits = count("grammar_cache_hits_total")
    for _ in range(3):
        assert 17 <= int(text_of(server, json_schema=schema)[0]) <= 4711
    wait_until(lambda: count("grammar_cache_hits_total") >= hits + 2, "two cache hits in the metrics")
    wait_until(lambda: count("grammar_compiles_total") > 0 and count("grammar_compiling_requests") == 0, "the next heartbeat")
