"""The same bits: tokens do not depend on the company, the order, the cache, the chunks, the page size or the placement."""
import json
import pathlib
import random
import threading

import pytest

from harness import DEMO, ROOT, Server

GOLDEN = ROOT / "tests" / "golden" / "demo" / "greedy.json"
END_IDS = json.loads((DEMO / "generation_config.json").read_text())["eos_token_id"]
SETTINGS = {
    "as shipped": [],
    "no cache": ["--no-prefix-cache"],
    "small chunks": ["--chunked-prefill-tokens", "16"],
    "page size 1": ["--page-size", "1"],
    "page size 64": ["--page-size", "64"],
    "two threads": ["--threads", "2"],
    "tiny pool": ["--kv-gib", "0.02", "--max-running-requests", "16"],
    "one at a time": ["--max-running-requests", "1"],
    "other placement": ["--placement", "single"],
}


def requests():
    """Greedy and sampled requests, some with a common beginning."""
    things = ["a dog", "a cat", "the moon", "a red ball", "rain", "a bear", "a boat", "cake"]
    out = []
    for i, thing in enumerate(things):
        for sampled in (False, True):
            more = {"temperature": 0.9, "top_p": 0.9, "seed": i} if sampled else {"temperature": 0}
            out.append({"messages": [{"role": "user", "content": f"Tell me a short story about {thing}. It should end well."}],
                        "max_tokens": 40, **more})
    return out


def answers(server, order):
    found = {}

    def run(index, body):
        status, _, answer = server.post("/v1/chat/completions", body)
        assert status == 200, answer
        found[index] = (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"])
    all_requests = requests()
    threads = [threading.Thread(target=run, args=(index, all_requests[index])) for index in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in sorted(found)]


@pytest.fixture(scope="module")
def alone():
    """Each request by itself, nothing cached: what every other way must give."""
    with Server("--no-prefix-cache", "--max-running-requests", "1") as server:
        out = []
        for body in requests():
            answer = server.post("/v1/chat/completions", body)[2]["choices"][0]
            out.append((answer["message"]["content"], answer["finish_reason"]))
        return out


@pytest.mark.parametrize("name", SETTINGS)
def test_the_answers_are_those_of_a_lone_request(alone, name):
    with Server(*SETTINGS[name]) as server:
        order = list(range(len(alone)))
        for round_number in range(2):  # the second round meets the cache of the first
            random.Random(round_number).shuffle(order)
            assert answers(server, order) == alone


def test_a_repeated_prompt_comes_from_the_cache_and_gives_the_same(server):
    body = {"messages": [{"role": "user", "content": "Tell me a story about a very small mouse and a very big elephant who went to the sea together. " * 3}],
            "max_tokens": 8, "temperature": 0}
    first = server.post("/v1/chat/completions", body)[2]
    second = server.post("/v1/chat/completions", body)[2]
    assert second["choices"] == first["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    salted = server.post("/v1/chat/completions", {**body, "cache_salt": "another tenant"})[2]
    assert salted["choices"] == first["choices"]
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_greedy_equals_transformers(server):
    """tests/oracles/demo_greedy.py wrote the golden continuations."""
    golden = json.loads(GOLDEN.read_text())
    assert len(golden) >= 20
    for case in golden:
        ids = case["prompt_ids"]
        assert server.post("/tokenize", {"messages": case["messages"]})[2]["tokens"] == ids
        body = server.post("/v1/completions", {"prompt": ids, "max_tokens": len(case["greedy_ids"]), "temperature": 0, "skip_special_tokens": False})[2]
        # The engine stops at an end token and leaves it out of the text.
        ids = case["greedy_ids"]
        end = next((i for i, token in enumerate(ids) if token in END_IDS), len(ids))
        expected = server.post("/detokenize", {"tokens": ids[:end], "skip_special_tokens": False})[2]["text"]
        assert body["choices"][0]["text"] == expected
        assert body["choices"][0]["finish_reason"] == ("stop" if end < len(ids) else "length")
