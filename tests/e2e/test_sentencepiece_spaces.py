"""Answers that clients compare with those of other servers: the spaces of a SentencePiece model, and offsets of its logprobs."""
import json

import pytest

from harness import DATA, Server

STORIES = DATA / "stories260K"


@pytest.fixture(scope="module")
def stories():
    with Server(model=STORIES) as server:
        yield server


def complete(server, **body):
    status, _, answer = server.post("/v1/completions", {"temperature": 0, "max_tokens": 8, **body})
    assert status == 200, answer
    return answer["choices"][0]


def test_a_completion_begins_where_the_prompt_ends(stories):
    alone = complete(stories, prompt="Once")["text"]
    assert alone.startswith(" upon a time")
    assert complete(stories, prompt="Once", echo=True)["text"] == "Once" + alone
    native = stories.post("/generate", {"text": "Once", "sampling_params": {"temperature": 0, "max_new_tokens": 8}})[2]
    assert native["text"] == alone
    pieces = [json.loads(event)["choices"][0]["text"] for event in
              stories.stream("/v1/completions", {"prompt": "Once", "temperature": 0, "max_tokens": 8}) if event != "[DONE]"]
    assert "".join(pieces) == alone
    ids = stories.post("/tokenize", {"prompt": "Once"})[2]["tokens"]
    whole = stories.post("/detokenize", {"tokens": ids + native["output_ids"]})[2]["text"]
    assert whole == "Once" + alone
    assert complete(stories, prompt="Once", stop=[" upon"])["text"] == ""


def test_a_text_from_nothing_has_no_space_before_it(stories):
    bos = stories.post("/tokenize", {"prompt": "Once"})[2]["tokens"][:1]
    assert complete(stories, prompt=bos)["text"].startswith("Once upon")


def test_offsets_are_those_of_the_text(stories):
    for echo in (False, True):
        choice = complete(stories, prompt="Once", echo=echo, logprobs=0)
        places = choice["logprobs"]
        ends = places["text_offset"][1:] + [len(choice["text"])]
        pieces = [choice["text"][begin:end] for begin, end in zip(places["text_offset"], ends)]
        assert "".join(pieces) == choice["text"]
        # The start of the prompt alone lacks something: its special token, and the space before its first word.
        assert [piece for piece, token in zip(pieces, places["tokens"]) if piece != token] == (["", "Once"] if echo else [])
