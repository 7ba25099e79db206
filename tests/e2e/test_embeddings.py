"""Embeddings of prompts: those of Hugging Face transformers, the same bits in company, chunked and behind a cached prefix, from directories of
language models and of embedding models, at OpenAI's and Ollama's endpoints."""
import array
import base64
import concurrent.futures
import contextlib
import json
import math
import pathlib
import shutil
import struct

import pytest

from harness import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
PATH = "/v1/embeddings"
CASES = json.loads((ROOT / "tests" / "golden" / "embeddings" / "demo.json").read_text())
TEXTS = [case["text"] for case in CASES]
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
           {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
           {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def post(server, body, path=PATH):
    status, _, found = server.post(path, body)
    assert status == 200, found
    return found


def embeddings(server, inputs, **more):
    found = post(server, {"input": inputs, **more})
    assert [one["index"] for one in found["data"]] == list(range(len(found["data"])))
    return [one["embedding"] for one in found["data"]]


def refused(server, body, path=PATH, status=400):
    seen, _, found = server.post(path, body)
    assert seen == status, found
    return found["error"]["message"] if isinstance(found["error"], dict) else found["error"]


def near(seen, wanted, share=1e-4):
    assert len(seen) == len(wanted)
    return max(abs(a - b) for a, b in zip(seen, wanted)) <= share * max(map(abs, wanted))


def length(values):
    return math.sqrt(sum(value * value for value in values))


def test_they_are_those_of_transformers(server):
    found = post(server, {"input": TEXTS, "model": "demo"})
    assert found["object"] == "list" and found["model"] == "demo"
    for one, case in zip(found["data"], CASES):
        assert one["object"] == "embedding" and near(one["embedding"], case["embedding"]), case["text"]
        assert abs(length(one["embedding"]) - 1) < 1e-5
    tokens = sum(len(case["ids"]) for case in CASES)
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert embeddings(server, [case["ids"] for case in CASES]) == [one["embedding"] for one in found["data"]]
    assert embeddings(server, TEXTS[0]) == embeddings(server, CASES[0]["ids"]) == [found["data"][0]["embedding"]]


def test_company_chunks_and_a_cached_prefix_change_no_bit(server):
    with Server("--chunked-prefill-tokens", "16", "--page-size", "4", "--no-prefix-cache") as small:
        alone = [embeddings(small, text)[0] for text in TEXTS]
        assert small.stop() == 0
    assert [embeddings(server, text)[0] for text in TEXTS] == alone
    assert [embeddings(server, text)[0] for text in TEXTS] == alone, "their pages are cached now"
    chat = {"prompt": TEXTS[4], "max_tokens": 200, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(server.post, "/v1/completions", chat) for _ in range(2)]
        together = list(pool.map(lambda text: embeddings(server, text)[0], TEXTS * 4))
        assert all(one.result()[0] == 200 for one in texts)
    assert together == alone * 4
    assert embeddings(server, TEXTS * 20) == alone * 20


def test_forms(server):
    row = embeddings(server, TEXTS[1], normalize=False)[0]
    assert near(row, CASES[1]["row"]) and abs(length(row) - 1) > 0.1
    unit = embeddings(server, TEXTS[1])[0]
    coded = embeddings(server, TEXTS[1], encoding_format="base64")[0]
    data = base64.b64decode(coded)
    assert array.array("f", unit).tobytes() == data == struct.pack(f"<{len(unit)}f", *unit)
    short = embeddings(server, TEXTS[1], dimensions=16)[0]
    assert len(short) == 16 and abs(length(short) - 1) < 1e-5 and near(short, [value / length(unit[:16]) for value in unit[:16]], 1e-5)
    assert embeddings(server, TEXTS[4], truncate_prompt_tokens=3) == embeddings(server, CASES[4]["ids"][-3:])
    assert embeddings(server, TEXTS[4], truncate_prompt_tokens=-1) == embeddings(server, TEXTS[4])


def test_ollamas_endpoints(server):
    found = post(server, {"model": "demo", "input": TEXTS}, "/api/embed")
    assert found["embeddings"] == embeddings(server, TEXTS) and found["model"] == "demo"
    assert found["prompt_eval_count"] == sum(len(case["ids"]) for case in CASES) and found["total_duration"] > 0
    assert post(server, {"model": "demo:latest", "input": TEXTS[0]}, "/api/embed")["embeddings"] == embeddings(server, TEXTS[0])
    assert post(server, {"model": "demo", "prompt": TEXTS[0]}, "/api/embeddings") == {"embedding": embeddings(server, TEXTS[0])[0]}
    long = "word " * 3000
    cut = post(server, {"model": "demo", "input": long}, "/api/embed")
    assert cut["prompt_eval_count"] == 1023, "what is over the context is cut, as Ollama does"
    assert "context" in refused(server, {"model": "demo", "input": long, "truncate": False}, "/api/embed")


def test_refusals_name_the_field(server):
    for body, wanted in (({}, "input is missing"), ({"input": ""}, "input is empty"), ({"input": ["a", 5]}, "input[1]"),
                         ({"input": ["a"] * 1025}, "1025 entries"), ({"input": [3072]}, "input[0] is 3072"), ({"input": []}, "0 ids"),
                         ({"input": "a", "encoding_format": "int8"}, "encoding_format is 'int8'"),
                         ({"input": "a", "dimensions": 289}, "dimensions"), ({"input": "a", "dimensions": 0}, "dimensions"),
                         ({"input": "a", "messages": [{}]}, "messages"), ({"input": "a", "embed_dtype": "int8"}, "embed_dtype"),
                         ({"input": "word " * 3000}, "maximum context length is 1024"), ({"input": {"text": "a"}}, "input is of type object")):
        assert wanted in refused(server, body), body
    assert "model" in refused(server, {"input": "a", "model": "other"}, status=404)
    assert "options" in refused(server, {"model": "demo", "input": "a", "options": 5}, "/api/embed")
    assert embeddings(server, TEXTS[0])


def test_clients_that_hang_up_leave_nothing(server):
    for _ in range(20):
        connection = server.connection()
        with contextlib.closing(connection):
            connection.request("POST", PATH, json.dumps({"input": TEXTS * 20}), {"Content-Type": "application/json"})
    assert near(embeddings(server, TEXTS[0])[0], CASES[0]["embedding"])


def bare_names(source, target):
    """The tensors as transformers' AutoModel writes them, and published embedding models have them: without "model."."""
    data = source.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = {name.removeprefix("model."): entry for name, entry in json.loads(data[8:8 + size]).items()}
    packed = json.dumps(header).encode()
    target.write_bytes(struct.pack("<Q", len(packed)) + packed + data[8 + size:])


def embedding_model(folder, pooling, modules=MODULES):
    shutil.copytree(DEMO, folder)
    bare_names(DEMO / "model.safetensors", folder / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 288, pooling: True}))
    return folder


def test_a_directory_of_sentence_transformers(server, tmp_path):
    with Server(model=embedding_model(tmp_path / "last", "pooling_mode_lasttoken")) as other:
        assert embeddings(other, TEXTS) == embeddings(server, TEXTS)
        assert other.stop() == 0
    with Server(model=embedding_model(tmp_path / "bare", "pooling_mode_lasttoken", MODULES[:2])) as other:
        assert near(embeddings(other, TEXTS[1])[0], CASES[1]["row"]), "no module scales it to length 1"
        assert embeddings(other, TEXTS[1], normalize=True) == embeddings(server, TEXTS[1])
        assert other.stop() == 0
    with Server(model=embedding_model(tmp_path / "first", "pooling_mode_cls_token")) as other:
        assert "pooling_mode_cls_token" in refused(other, {"input": "a"})
        assert other.stop() == 0


def test_the_mean_of_all_rows(tmp_path):
    """Those of transformers, and the same bits in company, in chunks, and although their prefix is cached."""
    folder = embedding_model(tmp_path / "mean", "pooling_mode_mean_tokens")
    with Server("--chunked-prefill-tokens", "16", "--page-size", "4", model=folder) as small:
        chunked = embeddings(small, TEXTS)
        assert small.stop() == 0
    with Server(model=folder) as mean:
        alone = [embeddings(mean, text)[0] for text in TEXTS]
        for seen, case in zip(alone, CASES):
            assert near(seen, [value / length(case["mean"]) for value in case["mean"]]), case["text"]
        assert near(embeddings(mean, TEXTS[4], normalize=False)[0], CASES[4]["mean"])
        assert alone == chunked == embeddings(mean, TEXTS) and embeddings(mean, TEXTS * 20) == alone * 20
        status, _, answer = mean.post("/v1/completions", {"prompt": TEXTS[1], "max_tokens": 4, "temperature": 0})
        assert status == 200 and answer["choices"][0]["text"]
        assert embeddings(mean, TEXTS) == alone
        assert mean.stop() == 0


def test_layers_split_over_processes_give_none():
    with Server("--pp", "2") as split:
        assert "--pp" in refused(split, {"input": "a"})
        assert "--pp" in refused(split, {"model": "demo", "input": "a"}, "/api/embed")
        assert split.stop() == 0
