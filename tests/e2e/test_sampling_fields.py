"""Sampling fields of the OpenAI endpoints, alone and together, against the running program."""
import itertools
import json

import pytest

PROMPT = "Once upon a time there was a little dog"
BASE = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16}


def complete(server, **more):
    status, _, body = server.post("/v1/completions", {**BASE, **more})
    assert status == 200, body
    return body


def text(server, **more):
    return complete(server, **more)["choices"][0]["text"]


def tokens(server, **more):
    return complete(server, logprobs=0, **more)["choices"][0]["logprobs"]["tokens"]


def native_ids(server, **params):
    status, _, body = server.post("/generate", {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 16, **params}})
    assert status == 200, body
    return body["output_ids"]


def test_a_bias_forces_and_bans(server):
    ids = native_ids(server)
    assert native_ids(server, logit_bias={str(ids[0]): -100})[0] != ids[0]
    other = next(i for i in range(20, 60) if i not in ids)
    assert native_ids(server, logit_bias={str(other): 100}, ignore_eos=True) == [other] * 16


def test_penalties_keep_tokens_from_coming_again(server):
    other = 40
    # A bias that wins every draw, until its own repetition costs more than it gives.
    forced = native_ids(server, logit_bias={str(other): 50}, ignore_eos=True, max_new_tokens=60, frequency_penalty=2)
    assert forced[0] == other
    assert 1 < forced.count(other) < 60
    assert len(set(native_ids(server, presence_penalty=2, repetition_penalty=2, max_new_tokens=60, ignore_eos=True))) > \
        len(set(native_ids(server, max_new_tokens=60, ignore_eos=True))) * 0.9


def test_min_tokens_holds_stop_tokens_off(server):
    ids = native_ids(server)
    assert len(native_ids(server, stop_token_ids=[ids[2]])) <= 3
    held = native_ids(server, stop_token_ids=[ids[2]], min_new_tokens=10)
    assert len(held) >= 10 and ids[2] not in held[:10]


@pytest.mark.parametrize("keep", [False, True])
def test_stop_strings_and_patterns(server, keep):
    whole = text(server)
    word = whole.split()[3]
    end = whole.index(word)
    by_string = complete(server, stop=word, include_stop_str_in_output=keep)["choices"][0]
    assert by_string["text"] == whole[:end + (len(word) if keep else 0)]
    assert by_string["finish_reason"] == "stop" and by_string["matched_stop"] == word
    pattern = complete(server, stop_regex=r"[a-z]+\s+[a-z]+\s", no_stop_trim=keep)["choices"][0]
    assert pattern["finish_reason"] == "stop"
    assert whole.startswith(pattern["text"])


def test_seeds(server):
    hot = {"temperature": 1, "max_tokens": 24}
    one = text(server, seed=5, **hot)
    assert text(server, seed=5, **hot) == one
    assert text(server, seed=6, **hot) != one
    several = complete(server, seed=5, n=3, **hot)
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert several["choices"][0]["text"] == one
    assert len({choice["text"] for choice in several["choices"]}) == 3
    assert several["usage"]["prompt_tokens"] == complete(server)["usage"]["prompt_tokens"]
    best = complete(server, seed=5, n=1, best_of=3, logprobs=0, **hot)["choices"][0]
    candidates = complete(server, seed=5, n=3, logprobs=0, **hot)["choices"]

    def mean(choice):
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    assert best["text"] == max(candidates, key=mean)["text"]


def test_echo_and_its_logprobs(server):
    plain = complete(server, logprobs=2)["choices"][0]
    echoed = complete(server, logprobs=2, echo=True)["choices"][0]
    assert echoed["text"] == PROMPT + plain["text"]
    places = echoed["logprobs"]
    assert places["token_logprobs"][0] is None
    assert places["token_logprobs"][-16:] == plain["logprobs"]["token_logprobs"]
    for token, offset in list(zip(places["tokens"], places["text_offset"]))[1:]:
        assert echoed["text"][offset:offset + len(token)] == token
    assert all(2 <= len(top) <= 3 for top in places["top_logprobs"][1:])
    ids = server.post("/tokenize", {"prompt": PROMPT})[2]["tokens"]
    assert complete(server, prompt=ids, echo=True)["choices"][0]["text"].endswith(PROMPT + plain["text"])
    scored = complete(server, echo=True, logprobs=0, max_tokens=0)
    assert scored["choices"][0]["text"] == PROMPT and scored["usage"]["completion_tokens"] == 0


def test_chat_logprobs(server):
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0, "logprobs": True,
            "top_logprobs": 2}
    status, _, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    said = b"".join(bytes(token["bytes"]) for token in content).decode("utf-8", "replace")
    assert said.strip().startswith(answer["choices"][0]["message"]["content"].strip())
    for token in content:
        assert len(token["top_logprobs"]) == 2
        assert token["logprob"] == max(rival["logprob"] for rival in token["top_logprobs"])


FEATURES = {
    "n": {"n": 2}, "logprobs": {"logprobs": 1}, "echo": {"echo": True}, "stop": {"stop": ["zzzz", "."]},
    "regex": {"stop_regex": "\\. "}, "penalty": {"frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "bias": {"logit_bias": {"30": -5}}, "min": {"min_tokens": 4}, "hot": {"temperature": 0.8, "top_p": 0.9, "top_k": 30},
    "salt": {"cache_salt": "s", "extra_key": "k", "priority": 1}, "late": {"timeout_s": 60, "queue_timeout_s": 30},
}


@pytest.mark.parametrize("first, second", list(itertools.combinations(FEATURES, 2)))
def test_pairs_give_the_same_streamed_and_whole(server, first, second):
    body = {"seed": 3, "max_tokens": 10, **FEATURES[first], **FEATURES[second]}
    whole = complete(server, **body)
    choices = len(whole["choices"])
    texts, logprobs, ends = [""] * choices, [[] for _ in range(choices)], [None] * choices
    for event in server.stream("/v1/completions", {**BASE, **body}):
        if event == "[DONE]":
            break
        for choice in json.loads(event)["choices"]:
            texts[choice["index"]] += choice["text"]
            if choice["logprobs"]:
                logprobs[choice["index"]] += choice["logprobs"]["token_logprobs"]
            ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert ends == [choice["finish_reason"] for choice in whole["choices"]]
    if "logprobs" in body:
        assert logprobs == [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]]


def test_deadlines(server):
    endless = {"max_tokens": 900, "ignore_eos": True}
    status, _, body = server.post("/v1/completions", {**BASE, **endless, "timeout_s": 0.05})
    assert status == 504, body


@pytest.mark.parametrize("field, value", [
    ("temperature", 2.1), ("top_p", 0), ("min_p", 1.1), ("top_k", -2), ("frequency_penalty", -2.1), ("presence_penalty", 3),
    ("repetition_penalty", 0), ("min_tokens", 17), ("n", 129), ("n", 0), ("best_of", 129), ("logprobs", 21),
    ("logit_bias", {"x": 1}), ("logit_bias", {"99999999": 1}), ("stop_regex", "("), ("stop", [""]), ("timeout_s", 0),
    ("priority", "high"), ("seed", 2**64), ("seed", -2**63 - 1), ("max_tokens", 2**31),
])
def test_what_is_out_of_range_is_refused(server, field, value):
    status, _, body = server.post("/v1/completions", {**BASE, field: value})
    assert status == 400 and body["error"]["param"] == field, body
