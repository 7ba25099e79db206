"""llama.cpp's own endpoints, with requests as its clients send them."""
import contextlib
import json
import threading

from harness import Server, wait_until

STORY = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0, "n_predict": 12}


def test_a_completion_is_that_of_the_other_dialect(server):
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    wanted = server.post("/v1/completions", body)[2]["choices"][0]
    status, _, answer = server.post("/completion", {"prompt": body["prompt"], **GREEDY, "return_tokens": True})
    assert status == 200 and answer["content"] == wanted["text"] and answer["tokens"] == wanted["token_ids"], answer
    assert (answer["stop"], answer["stop_type"], answer["tokens_predicted"]) == (True, "limit", 12)
    assert answer["timings"]["predicted_n"] == 12 and answer["generation_settings"]["n_predict"] == 12
    ids = server.post("/tokenize", {"content": body["prompt"], "add_special": True})[2]["tokens"]
    both = server.post("/completion", {"prompt": [body["prompt"], ids], **GREEDY})[2]
    assert [one["content"] for one in both] == [wanted["text"]] * 2 and [one["index"] for one in both] == [0, 1]
    assert both[0]["tokens_evaluated"] == len(ids) and both[0]["tokens"] == []


def test_a_stream_ends_with_its_statistics(server):
    body = {"prompt": "Once upon a time", **GREEDY, "n_probs": 2}
    answer = server.post("/completion", body)[2]
    events = [json.loads(event) for event in server.stream("/completion", body)]
    assert "".join(event["content"] for event in events) == answer["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert sum((event["tokens"] for event in events), []) == server.post("/completion", {**body, "return_tokens": True})[2]["tokens"]
    found = sum((event["completion_probabilities"] for event in events), [])
    assert found == answer["completion_probabilities"] and len(found) == 12
    assert all(len(one["top_logprobs"]) == 2 and one["top_logprobs"][0]["id"] == one["id"] for one in found)


@contextlib.contextmanager
def generating(server):
    """One request after the other, each of 700 tokens, until the block ends."""
    done = threading.Event()

    def run():
        while not done.is_set():
            server.post("/completion", {"prompt": "Once upon a time", "n_predict": 700, "ignore_eos": True})

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_slots_are_the_requests_that_may_run(server):
    status, _, idle = server.get("/slots")
    info = server.get("/server_info")[2]
    most = info["options"]["max-running-requests"]
    assert status == 200 and [slot["id"] for slot in idle] == list(range(most)) and not any(slot["is_processing"] for slot in idle)
    assert {slot["n_ctx"] for slot in idle} == {info["context_length"]}
    assert server.get("/slots?fail_on_no_slot=1")[0] == 200
    with generating(server):
        slots = wait_until(lambda: (lambda found: found if found[0]["is_processing"] else None)(server.get("/slots")[2]), "a slot in use")
    busy, *others = slots
    assert len(slots) == most and not any(slot["is_processing"] for slot in others)
    assert busy["n_prompt_tokens"] > 0 and busy["params"]["n_predict"] == 700
    assert 0 <= busy["next_token"]["n_decoded"] <= 700 and busy["next_token"]["n_decoded"] + busy["next_token"]["n_remain"] == 700
    wait_until(lambda: not any(slot["is_processing"] for slot in server.get("/slots")[2]), "idle slots")


def test_no_slot_is_idle():
    with Server("--max-running-requests", "1") as server, generating(server):
        status, body = wait_until(lambda: (lambda answer: (answer[0], answer[2]) if answer[0] != 200 else None)(server.get("/slots?fail_on_no_slot=1")), "a server without an idle slot")
        assert status == 503 and "no slot is idle, of 1" in body["error"]["message"]


def test_the_prompt_is_computed_alone(server):
    answer = server.post("/completion", {"prompt": "Once upon a time", "n_predict": 0})[2]
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")


def test_grammars_and_biases(server):
    ask = {"prompt": "a", "temperature": 0, "n_predict": 60}
    assert server.post("/completion", {**ask, "grammar": 'root ::= "yes"'})[2]["content"] == "yes"
    schema = {"enum": ["dog", "cat"]}
    assert json.loads(server.post("/completion", {**ask, "json_schema": schema})[2]["content"]) in schema["enum"]
    first = server.post("/completion", {**ask, "n_predict": 1, "return_tokens": True})[2]["tokens"]
    other = server.post("/completion", {**ask, "n_predict": 1, "return_tokens": True, "logit_bias": [[first[0], False]]})[2]
    assert other["tokens"] != first
    stopped = server.post("/completion", {**ask, "grammar": 'root ::= "one two"', "stop": [" t"]})[2]
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == ("one", "word", " t")
    assert server.post("/completion", {**ask, "grammar": 'root ::= "yes"'})[2]["stop_type"] == "eos"


def test_a_template_that_the_client_fills_in_itself(server):
    prompt = server.post("/apply-template", {"messages": STORY})[2]["prompt"]
    assert "Tell me a story." in prompt and prompt != "Tell me a story."
    chat = server.post("/v1/chat/completions", {"messages": STORY, "temperature": 0, "max_tokens": 12})[2]
    answer = server.post("/completion", {"prompt": prompt, **GREEDY})[2]
    assert answer["content"] == chat["choices"][0]["message"]["content"]
    assert answer["tokens_evaluated"] == chat["usage"]["prompt_tokens"]


def test_tokens_with_their_text(server):
    text = "Hello, wörld! 你好"
    plain = server.post("/tokenize", {"content": text})[2]["tokens"]
    listed = server.post("/tokenize", {"content": text, "with_pieces": True})[2]["tokens"]
    assert [one["id"] for one in listed] == plain
    spelled = [one["piece"].encode() if isinstance(one["piece"], str) else bytes(one["piece"]) for one in listed]
    assert b"".join(spelled).decode() == text
    assert server.post("/detokenize", {"tokens": plain})[2]["content"] == text
    assert server.post("/tokenize", {"content": ""})[2]["tokens"] == []


def test_properties(server):
    props = server.get("/props")[2]
    info = server.get("/model_info")[2]
    assert props["default_generation_settings"]["n_ctx"] == info["context_length"] and props["model_path"] == info["model_path"]
    assert "messages" in props["chat_template"] and props["model_alias"] == "demo"
    assert props["modalities"] == {"vision": False, "audio": False}
    assert server.post("/api/show", {"model": "demo"})[2]["template"] == props["chat_template"]
