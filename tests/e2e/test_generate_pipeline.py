"""Generating stages in a pipeline of any shape: examples/pipelines/generate.yaml says token for token what text serving
says of the same model (two servers, two roads), in company, in streams, after aborts and after deaths."""
import base64
import concurrent.futures
import json
import os
import random
import signal
import struct
import subprocess
import threading

import pytest

from harness import DEMO, ROOT, TRIES, WAIT_S, Server, alive, caught_running, held_running, patient, placement, program, wait_until

EXAMPLE = ROOT / "examples" / "pipelines" / "generate.yaml"
RUN = "/v1/pipeline"
processes_only = pytest.mark.skipif(placement() != "processes", reason="only child processes can be killed from outside")
ENDLESS = {"text": "Once upon a time", "sampling": {"max_tokens": 900, "ignore_eos": True, "temperature": 0}}
PROMPTS = ["Once upon a time", "The dog and the red ball", "One day, a little girl named Lily", "In the big forest"]


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """The example, with the model's directory in full and a thread for computing, as all servers of these tests have."""
    path = tmp_path_factory.mktemp("generate") / "generate.yaml"
    text = patient(EXAMPLE.read_text()).replace("models/demo", str(DEMO))
    path.write_text(text.replace("max_running_requests: 64", "max_running_requests: 64, threads: 1"))
    return path


@pytest.fixture(scope="module")
def server(spec):
    with Server("--pipeline", str(spec), model=None) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


@pytest.fixture(scope="module")
def cases():
    """Requests, and what text serving answers to each alone: text, ids, reason."""
    samplings = [{"temperature": 0}, {"temperature": 0.9, "seed": 1}, {"temperature": 1.2, "top_p": 0.8, "top_k": 30, "seed": 2**63 - 1},
                 {"temperature": 0.7, "min_p": 0.05, "seed": 11, "frequency_penalty": 0.5}]
    found = []
    with Server() as text:
        for prompt in PROMPTS:
            for sampling in samplings:
                sampling = {**sampling, "max_tokens": 24}
                status, _, body = text.post("/v1/completions", {"prompt": prompt, **sampling})
                assert status == 200, body
                choice = body["choices"][0]
                ids = text.post("/tokenize", {"prompt": prompt})[2]["tokens"]
                found.append({"prompt": prompt, "ids": ids, "sampling": sampling, "text": choice["text"],
                              "reason": choice["finish_reason"], "count": body["usage"]["completion_tokens"]})
        for case in found:
            native = {name: value for name, value in case["sampling"].items() if name not in ("max_tokens", "seed")}
            native["max_new_tokens"] = 24
            if "seed" in case["sampling"]:
                native["sampling_seed"] = case["sampling"]["seed"]
            # The OpenAI endpoints take the model's own defaults where a request says nothing; the native one does not.
            for name, value in (("top_p", 0.9), ("top_k", 40)):
                native.setdefault(name, value)
            answer = text.post("/generate", {"input_ids": case["ids"], "sampling_params": native})[2]
            assert answer["text"] == case["text"]
            case["output_ids"] = answer["output_ids"]
        chat = {"messages": [{"role": "user", "content": "Tell me a short story about a dog."}], "temperature": 0, "max_tokens": 20}
        story = text.post("/v1/chat/completions", chat)[2]["choices"][0]["message"]["content"]
    return found, story


def tensor(value):
    data = base64.b64decode(value["$tensor"]["base64"])
    assert value["$tensor"]["dtype"] == "I32" and value["$tensor"]["shape"] == [len(data) // 4]
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def run(server, inputs, **more):
    return server.post(RUN, {"inputs": inputs, **more})


def check_result(case, result):
    assert result["text"] == case["text"]
    ids = tensor(result["ids"])
    # The stop token is no id of the answer; the native endpoint tells it.
    stopped = [result["matched_stop"]] if result["finish_reason"] == "stop" else []
    assert ids + stopped == case["output_ids"]
    assert result["finish_reason"] == case["reason"]
    assert result["usage"]["completion_tokens"] == case["count"] and result["usage"]["prompt_tokens"] == len(case["ids"])


def check(server, case, by_ids=False):
    inputs = {"ids": case["ids"]} if by_ids else {"text": case["prompt"]}
    status, _, body = run(server, {**inputs, "sampling": case["sampling"]})
    assert status == 200, body
    check_result(case, body["result"])


def at_rest(server):
    return all(stage["running"] == 0 for stage in server.get("/ready")[2]["stages"])


def test_the_answer_is_that_of_text_serving(server, cases):
    for i, case in enumerate(cases[0]):
        check(server, case, by_ids=i % 2 == 1)


def test_a_conversation_goes_through_the_chat_template(server, cases):
    messages = [{"role": "user", "content": "Tell me a short story about a dog."}]
    status, _, body = run(server, {"messages": messages, "sampling": {"temperature": 0, "max_tokens": 20}})
    assert status == 200, body
    assert body["result"]["text"] == cases[1]


def completion(server, case, **more):
    status, _, body = server.post("/v1/completions", {"prompt": case["prompt"], **case["sampling"], **more})
    assert status == 200, body
    return body


def test_every_endpoint_of_text_serves_the_pipeline(server, cases):
    for case in cases[0][:4]:
        body = completion(server, case)
        assert body["choices"][0]["text"] == case["text"] and body["choices"][0]["finish_reason"] == case["reason"]
        assert body["usage"]["completion_tokens"] == case["count"]
        streamed = [json.loads(event) for event in server.stream("/v1/completions", {"prompt": case["prompt"], **case["sampling"], "stream": True})
                    if event != "[DONE]"]
        assert "".join(event["choices"][0]["text"] for event in streamed if event["choices"]) == case["text"]
    chat = {"messages": [{"role": "user", "content": "Tell me a short story about a dog."}], "temperature": 0, "max_tokens": 20}
    assert server.post("/v1/chat/completions", chat)[2]["choices"][0]["message"]["content"] == cases[1]
    native = server.post("/generate", {"input_ids": cases[0][0]["ids"], "sampling_params": {"temperature": 0, "max_new_tokens": 24}})[2]
    assert native["output_ids"] == cases[0][0]["output_ids"]
    models = server.get("/v1/models")[2]["data"]
    assert [model["id"] for model in models] == ["demo"]
    ids = server.post("/tokenize", {"prompt": PROMPTS[0]})[2]["tokens"]
    assert ids == cases[0][0]["ids"]
    assert server.post("/detokenize", {"tokens": ids})[2]["text"] == PROMPTS[0]
    assert server.get("/model_info")[2]["model_type"] == "Qwen3ForCausalLM" and server.get("/server_info")[2]["status"] == "ready"


def test_logprobs_and_several_answers_of_the_pipeline_are_those_of_text(server, cases):
    asked = {"prompt": PROMPTS[0], "temperature": 0, "max_tokens": 8, "logprobs": 3, "n": 1}
    with Server() as text:
        wanted = text.post("/v1/completions", asked)[2]["choices"][0]["logprobs"]
        several = [choice["text"] for choice in text.post("/v1/completions", {**asked, "n": 3, "temperature": 0.8, "seed": 5, "logprobs": 0})[2]["choices"]]
    assert server.post("/v1/completions", asked)[2]["choices"][0]["logprobs"] == wanted
    found = server.post("/v1/completions", {**asked, "n": 3, "temperature": 0.8, "seed": 5, "logprobs": 0})[2]["choices"]
    assert [choice["text"] for choice in found] == several


def test_a_request_is_aborted_by_its_name(server):
    body = {"rid": "to be aborted", "input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 900, "ignore_eos": True, "temperature": 0}}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(TRIES):
            running = caught_running(server, lambda: pool.submit(server.post, "/generate", body), lambda request: request.done(), "generate")
            aborted = server.post("/abort_request", {"rid": "to be aborted"})[2]["aborted"]
            status, _, answer = running.result(WAIT_S)
            assert status == 200
            if aborted:  # else it was through in the meantime
                break
    assert aborted == 1 and answer["meta_info"]["finish_reason"]["type"] == "abort", answer
    wait_until(lambda: at_rest(server), "rest")


def test_text_serving_takes_named_inputs(cases):
    with Server() as text:
        for i, case in enumerate(cases[0]):
            check(text, case, by_ids=i % 2 == 1)
        case = cases[0][0]
        events = list(text.stream(RUN, {"inputs": {"text": case["prompt"], "sampling": case["sampling"], "kept": [1, "x"]}, "stream": True}))
        assert events[-1] == "[DONE]"
        pieces = [json.loads(event) for event in events[:-1]]
        assert "".join(piece["value"]["text"] for piece in pieces[:-1]) == case["text"]
        assert [piece["chunk_id"] for piece in pieces[:-1]] == list(range(len(pieces) - 1))
        check_result(case, pieces[-1]["result"])
        assert pieces[-1]["result"]["kept"] == [1, "x"]
        for body, says in (({"inputs": {}}, "of text, messages and ids"), ({"inputs": {"text": "x", "sampling": {"temperature": 9}}}, "temperature"),
                           ({"inputs": {"text": "x"}, "terminals": ["scheduler"]}, "scheduler")):
            status, _, answer = text.post(RUN, body)
            assert status == 400 and says in answer["error"]["message"], answer
        assert "<svg" in text.get(RUN)[2]


def test_thirty_two_at_once_change_nothing(server, cases):
    wanted = [cases[0][i % len(cases[0])] for i in range(32)]
    random.Random(5).shuffle(wanted)
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(check, server, case) for case in wanted]:
            done.result()
    wait_until(lambda: at_rest(server), "rest")


def test_the_engine_shows_in_health_and_metrics(server, cases):
    check(server, cases[0][0])
    wait_until(lambda: at_rest(server), "rest")

    def generate():
        return next(stage for stage in server.get("/ready")[2]["stages"] if stage["stage"] == "generate")

    wait_until(lambda: generate()["steps"] > 0, "a heartbeat after the first step")
    stage = generate()
    assert stage["pages_total"] > 0 and 0 <= stage["pages_free"] <= stage["pages_total"], stage
    metrics = server.get("/metrics")[2]
    for name in ("steps_total", "token_usage", "utilization", "weight_version"):
        assert f'millrace:{name}{{pipeline="generate",replica="0",stage="generate"}}' in metrics, metrics


def test_a_flush_of_the_cache_waits_for_idleness(server):
    for _ in range(TRIES):
        events = server.stream(RUN, {"inputs": ENDLESS, "stream": True})
        next(events)
        status, _, body = server.post("/flush_cache", {})
        if status == 409:
            break
        assert list(events)[-1] == "[DONE]"  # it was through before
    assert status == 409 and "requests run" in body["error"]["message"], body
    assert server.post("/flush_cache", {"timeout": WAIT_S}, timeout=2 * WAIT_S)[0] == 200  # after it
    assert len(list(events)) > 2


def test_a_stream_is_whole_and_in_order(server, cases):
    for case in cases[0][:6]:
        text, result = "", None
        events = list(server.stream(RUN, {"inputs": {"text": case["prompt"], "sampling": case["sampling"]}}))
        assert events[-1] == "[DONE]"
        pieces = [json.loads(event) for event in events[:-1]]
        for number, event in enumerate(pieces[:-1]):
            assert (event["stage"], event["modality"], event["chunk_id"]) == ("detokenize", "text", number)
            text += event["value"]["text"]
        check_result(case, pieces[-1]["result"])
        assert text == case["text"] and len(pieces) > case["count"] // 2


def test_stop_strings_end_the_text_and_the_work(server, cases):
    case = cases[0][0]
    stop = case["text"][len(case["text"]) // 2:][:4]
    status, _, body = run(server, {"text": case["prompt"], "sampling": {**case["sampling"], "stop": [stop]}})
    assert status == 200, body
    result = body["result"]
    assert result["text"] == case["text"][:case["text"].index(stop)]
    assert (result["finish_reason"], result["matched_stop"]) == ("stop", stop)
    assert tensor(result["ids"]) == case["output_ids"][:len(tensor(result["ids"]))]
    assert result["usage"]["completion_tokens"] == len(tensor(result["ids"])) < case["count"]


def test_bad_requests_are_told_and_cost_nothing(server, cases):
    for inputs, status, wanted in (({"sampling": {}}, 400, "0 of text, messages and ids"),
                                   ({"text": "a", "ids": [1]}, 400, "2 of text, messages and ids"),
                                   ({"text": 7}, 400, "text is a integer"),
                                   ({"messages": [{"role": "robot", "content": "x"}]}, 400, "role is 'robot'"),
                                   ({"ids": [1, 99999]}, 400, "token id 99999 at position 1"),
                                   ({"text": "a", "sampling": {"max_tokens": 0}}, 400, "sampling: max_tokens is 0"),
                                   ({"text": "a", "sampling": {"temperature": "hot"}}, 400, "temperature"),
                                   ({"text": "a", "sampling": {"n": 2}}, 400, "n is 2"),
                                   ({"text": "a", "sampling": {"structural_tag": "a"}}, 400, "structural_tag: "),
                                   ({"text": "a", "sampling": [1]}, 400, "sampling is a list"),
                                   ({"text": "a " * 3000}, 400, "maximum context length is 1024")):
        found = run(server, inputs)
        assert found[0] == status and wanted in found[2]["error"]["message"], (inputs, found)
    check(server, cases[0][0])


def test_a_client_that_leaves_frees_everything(server, cases):
    for _ in range(6):
        events = server.stream(RUN, {"inputs": ENDLESS})
        for _ in range(3):
            next(events)
        events.close()
    status, _, body = run(server, ENDLESS, timeout_s=0.1)
    assert status == 504, body
    wait_until(lambda: at_rest(server), "rest")
    check(server, cases[0][1])


@processes_only
@pytest.mark.parametrize("victim", ["generate", "detokenize", "tokenize"])
def test_a_stage_that_is_killed_costs_its_own_requests_and_comes_back(spec, cases, victim):
    with Server("--pipeline", str(spec), model=None) as server:
        pid = wait_until(lambda: server.children().get(victim), victim)
        ends, clients = [], []

        def long_request():
            try:
                ends.append(list(server.stream(RUN, {"inputs": {**ENDLESS, "sampling": {**ENDLESS["sampling"], "max_tokens": 300}}}))[-1])
            except AssertionError as refused:
                ends.append(str(refused))

        def start():
            for client in clients:
                client.join(WAIT_S)
            ends.clear()
            clients[:] = [threading.Thread(target=long_request) for _ in range(16)]
            for client in clients:
                client.start()

        held_running(server, start, lambda _: not any(client.is_alive() for client in clients), "generate", least=8)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.post("/continue_generation", {})[0] == 200, "a stage that goes on")  # which may have to come back before
        for client in clients:
            client.join(WAIT_S)
        assert len(ends) == 16
        if victim != "tokenize":  # which had done its part for most of them
            assert any("error" in end and victim in end for end in ends), ends
        assert all(end == "[DONE]" or ("error" in end and victim in end) for end in ends), ends
        wait_until(lambda: server.children().get(victim) not in (None, pid) and server.ready(), "restart")
        assert not alive(pid)
        for case in cases[0][:4]:
            check(server, case)
        wait_until(lambda: at_rest(server), "rest")


def command(*arguments):
    return subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=WAIT_S)


def test_args_are_checked_with_the_file(spec, tmp_path):
    assert command("pipeline", "check", str(EXAMPLE)).returncode == 0
    bad = tmp_path / "bad.yaml"
    for was, becomes, wanted in (("threads: 1", "thread: 1", "args of stage 'generate': 'thread' is unknown; perhaps 'threads'"),
                                 ("threads: 1", "threads: many", "args of stage 'generate': threads: it is 'many'"),
                                 ("threads: 1", "threads: 999", "threads: it is '999'"),
                                 ("threads: 1", "kv_events: x", "'kv_events' is unknown"),
                                 ("threads: 1", "prefix_cache: maybe", "prefix_cache: it is 'maybe'"),
                                 ("threads: 1", "kv_dtype: f8", "kv_dtype: it is 'f8'"),
                                 ("threads: 1", "overlap: [1]", "overlap is a list"),
                                 ("threads: 1", "prefix_cache: false, kv_host_gib: 1", "wanted a prefix cache"),
                                 ("worker: detokenize\n    args: {model:", "worker: detokenize\n    args: {modle:", "'modle' is unknown; perhaps 'model'"),
                                 ("worker: tokenize\n    args: {", "worker: tokenize\n    args: {chat: 1, ", "chat is a integer")):
        text = spec.read_text()
        assert was in text
        bad.write_text(text.replace(was, becomes))
        found = command("pipeline", "check", str(bad))
        assert found.returncode == 2 and wanted in found.stderr and f"{bad}:" in found.stderr, (becomes, found.stderr)
    fine = tmp_path / "fine.yaml"
    fine.write_text(spec.read_text().replace("threads: 1", "threads: 1, prefix_cache: false, overlap: \"off\", kv_gib: 0.5, max_decode_gap_ms: 20"))
    assert command("pipeline", "check", str(fine)).returncode == 0


def test_options_of_the_text_server_hold_for_the_model_of_a_file(spec):
    options = ["--no-web", "--no-request-log", "--public-models", "--served-model-name", "mine", "--require-model", "--response-store-mib", "0"]
    key = {"Authorization": "Bearer secret"}
    with Server("--pipeline", str(spec), "--api-key", "secret", *options, model=None) as server:
        assert [model["id"] for model in server.get("/v1/models")[2]["data"]] == ["mine"]
        assert "serves mine" in server.get("/")[2]
        asked = {"input": "a", "max_output_tokens": 2}
        assert server.post("/v1/responses", asked, headers=key)[0] == 400
        status, _, answer = server.post("/v1/responses", {**asked, "model": "mine"}, headers=key)
        assert status == 200 and answer["store"] is False, answer
        assert "POST /v1/responses" not in server.output()


@pytest.mark.parametrize("options, says", [(["--response-store-file", "x.db", "--response-store-mib", "0"], "--response-store-mib is 0"),
                                           (["--media-root", "/tmp"], "takes text only"), (["--dp-policy", "least_tokens"], "the model of the command line")])
def test_options_without_use_for_the_model_of_a_file_are_refused(spec, options, says):
    found = command("serve", "--pipeline", str(spec), "--port", "0", *options)
    assert found.returncode == 2 and f"{options[0]} has no use" in found.stderr and says in found.stderr, found.stderr


@processes_only
def test_a_model_that_is_not_there_ends_the_server(spec, tmp_path):
    path = tmp_path / "nothing.yaml"
    path.write_text(spec.read_text().replace(f"worker: generate\n    args: {{model: {DEMO}", f"worker: generate\n    args: {{model: {tmp_path}/nothing"))
    found = command("serve", "--pipeline", str(path), "--port", "0", "--placement", "processes")
    assert found.returncode == 2 and "stage 'generate'" in found.stderr and "nothing" in found.stderr, found.stderr


def test_options_of_the_engine_change_no_token(spec, cases, tmp_path):
    """Small pages, short chunks, room for two, no cache, no overlap; two replicas and a chat stage."""
    path = tmp_path / "other.yaml"
    text = spec.read_text().replace(
        "max_running_requests: 64, threads: 1, chunked_prefill_tokens: 512",
        "max_running_requests: 2, threads: 1, chunked_prefill_tokens: 16, page_size: 4, prefix_cache: false, overlap: \"off\"")
    text = text.replace("    process: generate\n", "    process: generate\n    replicas: 2\n").replace("worker: tokenize\n    args: {", "worker: tokenize\n    args: {chat: true, ")
    path.write_text(text)
    with Server("--pipeline", str(path), model=None) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(check, server, case, True) for case in cases[0][:8]]:
                done.result()
        sampling = {"temperature": 0, "max_tokens": 20}
        status, _, body = run(server, {"text": "Tell me a short story about a dog.", "sampling": sampling})
        assert status == 200 and body["result"]["text"] == cases[1], body
