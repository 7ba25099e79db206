"""Fields of vLLM's clients: token ids of prompts and answers, tokens named by their ids, and prompts cut to their end."""
import json

CHAT = "/v1/chat/completions"
TALK = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}
TEXT = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}


def ids_of(server, **prompt):
    return server.post("/tokenize", prompt)[2]["tokens"]


def chunks(server, path, body):
    return [json.loads(event) for event in server.stream(path, body) if event != "[DONE]"]


def test_completions_show_the_ids_of_prompts_and_choices(server):
    whole = server.post("/v1/completions", {**TEXT, "prompt": ["Once upon a time", "The cat"], "n": 2, "return_token_ids": True})[2]["choices"]
    native = [server.post("/generate", {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 8}})[2]["output_ids"] for text in ("Once upon a time", "The cat")]
    for index, choice in enumerate(whole):
        assert choice["prompt_token_ids"] == ids_of(server, prompt=["Once upon a time", "The cat"][index // 2])
        assert choice["token_ids"] == native[index // 2]
    plain = server.post("/v1/completions", {**TEXT, "prompt": ["Once upon a time", "The cat"], "n": 2})[2]["choices"]
    assert [choice["text"] for choice in plain] == [choice["text"] for choice in whole]
    assert "token_ids" not in plain[0] and "prompt_token_ids" not in plain[0]
    by_ids = server.post("/v1/completions", {**TEXT, "prompt": [5, 6, 7], "return_token_ids": True})[2]["choices"][0]
    assert by_ids["prompt_token_ids"] == [5, 6, 7]


def test_streams_show_each_id_once(server):
    whole = server.post("/v1/completions", {**TEXT, "return_token_ids": True})[2]["choices"][0]
    parts = [chunk["choices"][0] for chunk in chunks(server, "/v1/completions", {**TEXT, "return_token_ids": True})]
    assert sum((part["token_ids"] for part in parts), []) == whole["token_ids"]
    assert [part.get("prompt_token_ids") for part in parts] == [whole["prompt_token_ids"]] + [None] * (len(parts) - 1)


def test_chats_show_them_too(server):
    body = {**TALK, "max_tokens": 12, "return_token_ids": True}
    whole = server.post(CHAT, body)[2]
    assert whole["prompt_token_ids"] == ids_of(server, messages=TALK["messages"])
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"]
    assert server.post(CHAT, {**TALK, "max_tokens": 12})[2]["choices"][0]["message"] == whole["choices"][0]["message"]
    parts = chunks(server, CHAT, body)
    assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"] and all("prompt_token_ids" not in part for part in parts[1:])
    assert sum((part["choices"][0].get("token_ids", []) for part in parts), []) == whole["choices"][0]["token_ids"]


def test_tokens_are_named_by_their_ids(server):
    named = server.post("/v1/completions", {**TEXT, "logprobs": 2, "return_tokens_as_token_ids": True, "return_token_ids": True})[2]["choices"][0]
    assert named["logprobs"]["tokens"] == [f"token_id:{id}" for id in named["token_ids"]]
    assert all(set(top) <= {f"token_id:{id}" for id in range(100_000)} and len(top) == 2 for top in named["logprobs"]["top_logprobs"])
    plain = server.post("/v1/completions", {**TEXT, "logprobs": 2})[2]["choices"][0]["logprobs"]
    assert plain["token_logprobs"] == named["logprobs"]["token_logprobs"] and plain["text_offset"] == named["logprobs"]["text_offset"]
    chat = server.post(CHAT, {**TALK, "max_tokens": 3, "logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True})[2]["choices"][0]
    assert [entry["token"] for entry in chat["logprobs"]["content"]] == [f"token_id:{id}" for id in chat["token_ids"]]
    assert all(entry["top_logprobs"][0]["token"].startswith("token_id:") for entry in chat["logprobs"]["content"])


def test_prompts_are_cut_to_their_last_tokens(server):
    limit = server.get("/v1/models")[2]["data"][0]["max_model_len"]
    ids = ids_of(server, prompt="Once upon a time there was a dog")
    cut = server.post("/v1/completions", {**TEXT, "prompt": "Once upon a time there was a dog", "truncate_prompt_tokens": 3, "return_token_ids": True})[2]
    assert cut["choices"][0]["prompt_token_ids"] == ids[-3:] and cut["usage"]["prompt_tokens"] == 3
    assert cut["choices"][0]["text"] == server.post("/v1/completions", {**TEXT, "prompt": ids[-3:]})[2]["choices"][0]["text"]
    whole = server.post("/v1/completions", {**TEXT, "truncate_prompt_tokens": 1000})[2]["choices"][0]["text"]
    assert whole == server.post("/v1/completions", TEXT)[2]["choices"][0]["text"]
    long = server.post("/v1/completions", {**TEXT, "prompt": "dog " * (2 * limit), "truncate_prompt_tokens": -1})[2]
    assert long["usage"]["prompt_tokens"] == limit - 1 and long["usage"]["completion_tokens"] == 1
    echo = server.post("/v1/completions", {**TEXT, "prompt": ids, "truncate_prompt_tokens": 3, "echo": True, "max_tokens": 1})[2]["choices"][0]["text"]
    assert echo.startswith(server.post("/detokenize", {"tokens": ids[-3:]})[2]["text"])
    talk = server.post(CHAT, {**TALK, "max_tokens": 1, "truncate_prompt_tokens": 4})[2]
    assert talk["usage"]["prompt_tokens"] == 4
    for wrong in (0, -2, limit, "x"):
        status, _, body = server.post("/v1/completions", {**TEXT, "truncate_prompt_tokens": wrong})
        assert status == 400 and body["error"]["param"] == "truncate_prompt_tokens", body


def test_prompt_logprobs(server):
    """The same numbers as those of echo; the drawn tokens' own logprobs are as without them."""
    ids = ids_of(server, prompt="Once upon a time")
    echo = server.post("/v1/completions", {**TEXT, "echo": True, "logprobs": 3})[2]["choices"][0]["logprobs"]
    plain = server.post("/v1/completions", {**TEXT, "logprobs": 1})[2]["choices"][0]
    scored = server.post("/v1/completions", {**TEXT, "logprobs": 1, "prompt_logprobs": 3})[2]["choices"][0]
    assert {**scored, "prompt_logprobs": None} == {**plain, "prompt_logprobs": None}
    assert scored["prompt_logprobs"][0] is None and len(scored["prompt_logprobs"]) == len(ids)
    for place, (id, entry) in enumerate(zip(ids[1:], scored["prompt_logprobs"][1:]), 1):
        assert entry[str(id)]["logprob"] == echo["token_logprobs"][place] and entry[str(id)]["decoded_token"] == echo["tokens"][place]
        assert len({one["rank"] for one in entry.values()}) == len(entry)
        ranked = sorted(entry.values(), key=lambda one: one["rank"])[:3]
        assert [one["rank"] for one in ranked] == [1, 2, 3] and {one["decoded_token"]: one["logprob"] for one in ranked}.items() <= echo["top_logprobs"][place].items()
        assert 3 <= len(entry) <= 4
    alone = server.post("/v1/completions", {**TEXT, "prompt_logprobs": 0})[2]["choices"][0]
    assert alone["logprobs"] is None and [len(entry) for entry in alone["prompt_logprobs"][1:]] == [1] * (len(ids) - 1)
    talk = server.post(CHAT, {**TALK, "max_tokens": 3, "prompt_logprobs": 1, "n": 2})[2]
    assert len(talk["prompt_logprobs"]) == talk["usage"]["prompt_tokens"] and talk["choices"][0]["logprobs"] is None
    for wrong in ({"stream": True, "prompt_logprobs": 1}, {"prompt_logprobs": 21}, {"prompt_logprobs": "x"}):
        status, _, body = server.post("/v1/completions", {**TEXT, **wrong})
        assert status == 400 and body["error"]["param"] == "prompt_logprobs", body


def test_errors_of_prompts_come_as_without_the_fields(server):
    for body in ({**TEXT, "prompt": "dog " * 5000}, {**TEXT, "prompt": [[5] * 5000]}):
        status, _, plain = server.post("/v1/completions", body)
        again, _, shown = server.post("/v1/completions", {**body, "return_token_ids": True})
        assert (status, plain) == (again, shown) and status == 400
