"""The same bits: tokens do not depend on the company, the order, the cache, the chunks, the page size, the overlap of batches,
the number of schedulers, the placement or a split of the layers."""
import concurrent.futures
import json
import random
import time

import pytest

from harness import DEMO, HEARTBEAT_S, ROOT, SANITIZED, STORIES, TRIES, Server, placement, wait_until

GOLDEN = ROOT / "tests" / "golden" / "demo" / "greedy.json"
END_IDS = json.loads((DEMO / "generation_config.json").read_text())["eos_token_id"]
# With so little memory the pool holds too few pages for sixteen growing texts: some are retracted and computed again.
TINY = ["--kv-gib", "0.004", "--schedule-conservativeness", "0", "--max-running-requests", "16"]
# Short prompts move too.
SPLIT = ["--min-remote-tokens", "1", "--page-size", "4"]
SETTINGS = {
    "as shipped": [],
    "no cache": ["--no-prefix-cache"],
    "chunks of 16": ["--chunked-prefill-tokens", "16"],
    "chunks of 64, page size 1": ["--chunked-prefill-tokens", "64", "--page-size", "1"],
    "chunks of 512, page size 64": ["--chunked-prefill-tokens", "512", "--page-size", "64"],
    "two threads": ["--threads", "2"],
    "batches of 1": ["--max-running-requests", "1"],
    "batches of 7, short decode gaps": ["--max-running-requests", "7", "--max-decode-gap-ms", "5"],
    "batches of 32, no overlap": ["--max-running-requests", "32", "--overlap", "off"],
    "tiny pool": TINY,
    "tiny pool, no overlap, longest match first": [*TINY, "--overlap", "off", "--schedule-policy", "lpm"],
    "tiny pool, host tier": [*TINY, "--kv-host-gib", "0.01", "--kv-host-write-policy", "write_back"],
    "two replicas": ["--dp", "2"],
    "two ranges": ["--pp", "2"],
    "three ranges, balanced, chunks of 16": ["--pp", "3", "--split", "balanced", "--chunked-prefill-tokens", "16"],
    "one layer a range, tiny pool, host tier": ["--pp", "6", *TINY, "--kv-host-gib", "0.01"],
    "one prefill and one decode replica": [*SPLIT, "--prefill", "1", "--decode", "1"],
    "two prefill and two decode replicas, tiny pool": [*SPLIT, "--prefill", "2", "--decode", "2", *TINY],
    "prefill and decode, chunks of 16, page size 6, no overlap":
        ["--prefill", "1", "--min-remote-tokens", "1", "--page-size", "6", "--chunked-prefill-tokens", "16", "--overlap", "off"],
    "prefill and decode, tiny pool, host tier": [*SPLIT, "--prefill", "1", "--decode", "1", *TINY, "--kv-host-gib", "0.01"],
    "other placement": ["--placement", "single"],
}
# The scheduler and the runner are the same code in both placements: the threads of one get the settings that change
# what passes between stages.
if placement() == "single":
    SETTINGS = {name: SETTINGS[name] for name in ("as shipped", "batches of 7, short decode gaps", "tiny pool", "two replicas", "two ranges", "one prefill and one decode replica")}


def requests(prompt):
    """32 (16 on slow builds) greedy and sampled requests with common beginnings. Logprobs show a difference too small to change a token."""
    things = ["a dog", "a cat", "the moon", "a red ball", "rain", "a bear", "a boat", "cake"]
    ways = [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.9}, {"frequency_penalty": 0.7, "presence_penalty": 0.2, "min_tokens": 20},
            {"repetition_penalty": 1.3, "top_k": 20, "logit_bias": {"20": 2.5}}]
    out = []
    for i, thing in enumerate(things[:4] if SANITIZED else things):
        for way in ways:
            out.append({"prompt": prompt.format(thing), "max_tokens": 40, "seed": i, "logprobs": 2, **way})
    for i, way in enumerate([{"regex": "( [a-z]{1,7}){20}"}, {"response_format": {"type": "json_object"}, "frequency_penalty": 0.5}]):
        out.append({"prompt": prompt.format("a fox"), "max_tokens": 40, "seed": i, "logprobs": 2, **way})
    return out


def answer(server, body):
    status, _, found = server.post("/v1/completions", body)
    assert status == 200, found
    choice = found["choices"][0]
    return choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


def answers(server, bodies, order):
    """All at once, begun in `order`."""
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        running = {index: pool.submit(answer, server, bodies[index]) for index in order}
        return [running[index].result() for index in range(len(bodies))]


class Reference:
    """The answers to each request by itself, nothing cached, one batch at a time: what every other way must give."""

    def __init__(self, model, prompt):
        self.model, self.bodies = model, requests(prompt)
        with Server("--no-prefix-cache", "--max-running-requests", "1", "--overlap", "off", model=model) as server:
            self.answers = [answer(server, body) for body in self.bodies]

    def check(self, arguments, until=lambda metrics: True):
        """The metrics as soon as they are so: what the stages report comes with their heartbeats."""
        with Server(*arguments, model=self.model) as server:
            wait_until(lambda: server.get("/ready")[2]["reason"] == "", "all replicas")  # it is ready without prefill ones
            order = list(range(len(self.bodies)))
            # The second round meets the cache of the first. Whether one has to wait for memory depends on how many come together.
            for round_number in range(TRIES):
                random.Random(round_number).shuffle(order)
                assert answers(server, self.bodies, order) == self.answers
                for _ in range(20 if round_number > 0 else 0):
                    if until(metrics := server.metrics()):
                        return metrics
                    time.sleep(HEARTBEAT_S / 5)
            raise AssertionError(f"metrics, {metrics}")


@pytest.fixture(scope="module")
def demo():
    return Reference(DEMO, "<|im_start|>user\nTell me a short story about {}. It should end well.<|im_end|>\n<|im_start|>assistant\n")


@pytest.fixture(scope="module")
def stories():
    if not STORIES.is_dir():
        pytest.skip("stories15M is not in the repository; MILLRACE_EXTRA_TEST_DATA can name a folder that holds models/stories15M")
    return Reference(STORIES, "Once upon a time there was {}. One day")


@pytest.mark.parametrize("name", SETTINGS)
def test_the_answers_are_those_of_a_lone_request(demo, name):
    # The tiny pools are there to force retractions.
    wanted = {"millrace:kv_imported_tokens_total": "prefill" in name and "decode" in name,
              "millrace:num_retracted_requests_total": "tiny pool" in name}
    metrics = demo.check(SETTINGS[name], lambda found: all(found[what] > 0 for what, there in wanted.items() if there))
    assert {what: metrics[what] > 0 for what in wanted} == wanted


@pytest.mark.parametrize("name", SETTINGS)
def test_the_story_model_does_so_too(stories, name):
    stories.check(SETTINGS[name])


@pytest.mark.parametrize("dtype", ["bf16", "f16", "int8"])
def test_smaller_keys_and_values_are_the_same_for_all_too(dtype):
    """They change the answers, but not with the company."""
    short = ["--kv-dtype", dtype]
    bodies = requests("Tell me about {}.")
    with Server(*short, "--no-prefix-cache", "--max-running-requests", "1", "--chunked-prefill-tokens", "16") as server:
        alone = [answer(server, body) for body in bodies]
    with Server(*short) as server:
        for _ in range(2):
            assert answers(server, bodies, range(len(bodies))) == alone


@pytest.mark.parametrize("split", [[], ["--pp", "2"], ["--prefill", "1", "--decode", "1", "--min-remote-tokens", "1"]], ids=["whole", "pp", "prefill"])
def test_bf16_activations_are_the_same_for_all_too(split):
    """So are they over processes, which compare what they compute with."""
    rounded = ["--activations", "bf16"]
    bodies = requests("Tell me about {}.")
    with Server(*rounded, "--no-prefix-cache", "--max-running-requests", "1", "--chunked-prefill-tokens", "16") as server:
        alone = [answer(server, body) for body in bodies]
    with Server(*rounded, *split) as server:
        for _ in range(2):
            assert answers(server, bodies, range(len(bodies))) == alone


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


def check_greedy(server):
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


def test_greedy_equals_transformers(server):
    check_greedy(server)


# Names and texts that leave no choice about most of their tokens, in a vocabulary that spells some characters by their bytes.
FORCED = [{"regex": "[ab]{3} \u6f22\u5b57 \u2713 [0-9]{2} \u4eee\u540d{2}(x|y)"},
          {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
              "type": "object", "additionalProperties": False, "required": ["zqxj\u6f22", "w\u5b57"],
              "properties": {"zqxj\u6f22": {"enum": ["\u4eee\u540d1", "\u4eee\u540d2"]}, "w\u5b57": {"const": "\u00fe\u2713\u00f0"}}}}}},
          {"regex": "(\u6f22\u5b57){1,9}", "stop": "\u5b57\u6f22\u5b57"}]


@pytest.mark.parametrize("name", [name for name in SETTINGS if "replica" in name or "range" in name or "overlap" in name or name in ("as shipped", "tiny pool", "chunks of 16")])
def test_runs_of_forced_tokens_change_nothing(name):
    """Logprobs keep each token in a step of its own."""
    ways = [{"temperature": 0}, {"temperature": 1, "frequency_penalty": 0.5}, {"min_tokens": 5}, {"n": 2}]
    bodies = [{"prompt": "Once", "max_tokens": most, "seed": most, **grammar, **way}
              for grammar in FORCED for way in ways for most in (5, 17, 60) if not ("min_tokens" in way and most < 60)]

    def shown(server, body):
        status, _, found = server.post("/v1/completions", body)
        assert status == 200, found
        return [(choice["text"], choice["finish_reason"]) for choice in found["choices"]], found["usage"]["completion_tokens"]
    with Server(*SETTINGS[name]) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
        wait_until(lambda: server.get("/ready")[2]["reason"] == "", "all replicas")
        single = list(pool.map(lambda body: shown(server, {**body, "logprobs": 0}), bodies))
        counter = "millrace:forced_run_tokens_total"
        assert server.metrics()[counter] == 0
        assert list(pool.map(lambda body: shown(server, body), bodies)) == single
        wait_until(lambda: server.metrics()[counter] > 0, "tokens in forced runs")
