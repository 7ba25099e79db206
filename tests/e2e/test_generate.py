"""The native endpoint, its orders and its pages, against the running program."""
import json
import pathlib
import threading

import pytest

from harness import WAIT_S, wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 12}
PROMPT = ("Once upon a time there was a little dog who lived in a small house near the big forest. Every day the dog went "
          "out to play with a red ball and a blue bird, and one day he")


def generate(server, expect=200, **body):
    status, _, answer = server.post("/generate", body)
    assert status == expect, answer
    return answer


def events(server, **body):
    found = list(server.stream("/generate", body))
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


def kind(answer):
    return answer["meta_info"]["finish_reason"]["type"]


def test_text_ids_and_completions_agree(server):
    ids = server.post("/tokenize", {"prompt": PROMPT})[2]["tokens"]
    by_text = generate(server, text=PROMPT, sampling_params=GREEDY)
    by_ids = generate(server, input_ids=ids, sampling_params=GREEDY)
    assert by_text["output_ids"] == by_ids["output_ids"]
    status, _, completion = server.post("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 12})
    assert status == 200 and completion["choices"][0]["text"] == by_text["text"]
    meta = by_text["meta_info"]
    assert meta["prompt_tokens"] == len(ids)
    assert meta["completion_tokens"] == len(by_text["output_ids"]) == 12
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert by_ids["meta_info"]["cached_tokens"] > 0
    assert server.post("/detokenize", {"tokens": by_text["output_ids"]})[2]["text"].strip() == by_text["text"].strip()


def test_the_stop_token_is_among_the_ids_and_not_in_the_text(server):
    free = generate(server, text=PROMPT, sampling_params=GREEDY)
    stop = free["output_ids"][4]
    first = free["output_ids"].index(stop)
    stopped = generate(server, text=PROMPT, sampling_params={**GREEDY, "stop_token_ids": [stop]})
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert stopped["output_ids"] == free["output_ids"][:first + 1]
    assert len(stopped["text"]) < len(free["text"]) and free["text"].startswith(stopped["text"])


def test_a_stream_repeats_everything_or_says_each_piece_once(server):
    whole = generate(server, text=PROMPT, sampling_params=GREEDY)
    seen = events(server, text=PROMPT, sampling_params=GREEDY)
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in zip(seen, seen[1:]))
    assert (seen[-1]["text"], seen[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert all(event["meta_info"]["finish_reason"] is None for event in seen[:-1])
    pieces = events(server, text=PROMPT, sampling_params=GREEDY, stream_output=True)
    assert "".join(event["text"] for event in pieces) == whole["text"]
    assert sum((event["output_ids"] for event in pieces), []) == whole["output_ids"]


def test_logprobs_of_prompt_and_text(server):
    body = dict(text=PROMPT, return_logprob=True, logprob_start_len=0, top_logprobs_num=3, token_ids_logprob=[5, 7],
                return_text_in_logprobs=True, sampling_params=GREEDY)
    answer = generate(server, **body)
    meta = answer["meta_info"]
    ids = server.post("/tokenize", {"prompt": PROMPT})[2]["tokens"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None
    assert all(entry[0] <= 0 for entry in meta["input_token_logprobs"][1:])
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    for drawn, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"]):
        assert len(top) == 3 and drawn == top[0], "greedy draws the likeliest"
        assert [entry[0] for entry in top] == sorted((entry[0] for entry in top), reverse=True)
    assert [[entry[1] for entry in row] for row in meta["output_token_ids_logprobs"]] == [[5, 7]] * 12
    # What the prompt and the text have in common does not depend on which of the two a token is in.
    again = generate(server, input_ids=ids + answer["output_ids"], return_logprob=True, logprob_start_len=len(ids),
                     sampling_params={"max_new_tokens": 1, "temperature": 0})
    assert [e[:2] for e in again["meta_info"]["input_token_logprobs"]] == [e[:2] for e in meta["output_token_logprobs"]]


def test_scoring_a_prompt_alone(server):
    answer = generate(server, text=PROMPT, return_logprob=True, logprob_start_len=0,
                      sampling_params={"max_new_tokens": 0})
    assert answer["text"] == "" and answer["output_ids"] == []
    assert kind(answer) == "length"
    assert len(answer["meta_info"]["input_token_logprobs"]) == answer["meta_info"]["prompt_tokens"]


def test_batches_and_choices(server):
    params = {"temperature": 1, "sampling_seed": 11, "max_new_tokens": 8, "n": 2}
    batch = generate(server, text=[PROMPT, "The cat"], sampling_params=params, rid="batch")
    assert [one["meta_info"]["id"] for one in batch] == ["batch_0_0", "batch_0_1", "batch_1_0", "batch_1_1"]
    alone = generate(server, text="The cat", sampling_params={**params, "n": 1})
    assert alone["output_ids"] == batch[2]["output_ids"]
    assert batch[0]["output_ids"] != batch[1]["output_ids"]
    streamed = {}
    for event in events(server, text=[PROMPT, "The cat"], sampling_params=params):
        streamed[event["index"]] = event
    assert [streamed[i]["output_ids"] for i in range(4)] == [one["output_ids"] for one in batch]


def test_the_prefix_of_several_choices_is_computed_once(server):
    assert server.post("/flush_cache", {"timeout": WAIT_S})[0] == 200
    long = PROMPT * 4
    choices = generate(server, text=long, sampling_params={"n": 8, "max_new_tokens": 4, "ignore_eos": True})
    cached = sorted(choice["meta_info"]["cached_tokens"] for choice in choices)
    prompt = choices[0]["meta_info"]["prompt_tokens"]
    assert prompt > 100
    assert cached[0] == 0 and all(prompt - count <= 16 for count in cached[1:]), cached


@pytest.mark.parametrize("body, says", [
    ({}, "text and input_ids"),
    ({"text": "a", "sampling_params": {"max_tokens": 3}}, "max_new_tokens"),
    ({"text": "a", "sampling_params": {"top_p": 0}}, "sampling_params.top_p"),
    ({"text": "word " * 5000}, "context"),
    ({"input_ids": [-1]}, "input_ids[0]"),
])
def test_errors_come_before_the_first_byte(server, body, says):
    for stream in (False, True):
        status, _, answer = server.post("/generate", {**body, "stream": stream})
        assert status == 400 and says in answer["error"]["message"], answer


def test_an_abort_reaches_the_named_request_alone(server):
    answers = {}

    def run(rid):
        answers[rid] = generate(server, text=PROMPT, rid=rid, sampling_params={"max_new_tokens": 900, "ignore_eos": True})

    threads = [threading.Thread(target=run, args=(rid,)) for rid in ("job", "job_2")]
    assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200  # so that neither ends by itself
    for thread in threads:
        thread.start()
    wait_until(lambda: server.stage("scheduler")["running"] + server.stage("scheduler")["waiting"] == 2, what="two requests")
    assert server.post("/generate", {"text": "x", "rid": "job"})[0] == 409
    assert server.post("/abort_request", {"rid": "jo"})[2] == {"aborted": 0}
    assert server.post("/abort_request", {"rid": "job"})[2] == {"aborted": 1}
    threads[0].join(WAIT_S)
    assert kind(answers["job"]) == "abort" and "job_2" not in answers
    assert server.post("/abort_request", {"abort_all": True})[2] == {"aborted": 1}
    threads[1].join(WAIT_S)
    assert kind(answers["job_2"]) == "abort"
    assert server.post("/continue_generation", {})[0] == 200
    wait_until(lambda: server.stage("scheduler")["running"] == 0, what="idle scheduler")


def test_the_cache_can_be_flushed(server):
    generate(server, text=PROMPT, sampling_params=GREEDY)
    assert generate(server, text=PROMPT, sampling_params=GREEDY)["meta_info"]["cached_tokens"] > 0
    status, _, answer = server.post("/flush_cache", {"timeout": WAIT_S})
    assert status == 200 and answer["success"], answer
    assert generate(server, text=PROMPT, sampling_params=GREEDY)["meta_info"]["cached_tokens"] == 0
    assert server.get("/flush_cache?timeout=60")[0] == 200
    assert server.get("/flush_cache?timeout=-1")[0] == 400


def test_info_pages(server):
    info = server.get("/server_info")[2]
    assert info["options"]["page-size"] == 16 and "api-key" not in info["options"]
    assert isinstance(info["max_total_num_tokens"], int) and info["max_total_num_tokens"] > 0
    assert isinstance(info["version"], str) and info["status"] == "ready"
    assert server.get("/get_server_info")[2]["served_model_name"] == server.model
    model = server.get("/model_info")[2]
    assert model["is_generation"] is True and model == server.get("/get_model_info")[2]


def test_metrics_count_what_was_served(server):
    def read():
        status, headers, page = server.get("/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain")
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in page.splitlines() if line and not line.startswith("#")}

    label = f'{{model_name="{server.model}"}}'
    before = read()
    assert len(events(server, text=PROMPT, sampling_params=GREEDY)) >= 2
    after = read()

    def grown(name, labels=label):
        key = f"millrace:{name}{labels}"
        return after[key] - before[key]

    assert grown("generation_tokens_total") == 12
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == 11
    assert grown("e2e_request_latency_seconds_count") == 1
    assert grown("num_requests_total", f'{{model_name="{server.model}",finish_reason="length"}}') == 1
    running = f'millrace:num_running_reqs{{model_name="{server.model}",stage="scheduler"}}'
    wait_until(lambda: read()[running] == 0, what="heartbeat of an idle scheduler")
    assert grown("e2e_request_latency_seconds_sum") >= grown("time_to_first_token_seconds_sum") > 0


def test_a_profile_is_recorded(server):
    assert server.post("/stop_profile", {})[0] == 409
    status, _, answer = server.post("/start_profile", {})
    assert status == 200, answer
    assert server.post("/start_profile", {})[0] == 409
    generate(server, text=PROMPT, sampling_params=GREEDY)
    status, _, answer = server.post("/stop_profile", {})
    assert status == 200, answer
    files = [pathlib.Path(reply["message"]) for reply in answer["replies"]]
    events = [event for path in files if path.is_file() for event in json.loads(path.read_text())["traceEvents"]]
    assert any(event.get("ph") == "X" for event in events), answer
    for path in filter(pathlib.Path.is_file, files):  # a profile is meant to stay; the end of the test wants nothing left
        path.unlink()
        path.parent.rmdir()
    assert server.post("/start_profile", {"output_dir": "/etc"})[0] == 400
