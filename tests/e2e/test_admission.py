"""What a server admits: full queues and time limits, API keys, names of models, origins, a port that is taken."""
import json
import threading

from harness import WAIT_S, Server, free_port, wait_until
from test_crashes_and_leftovers import LONG, STORY

QUICK = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


def test_a_full_queue_is_a_429_and_the_others_go_on():
    with Server("--max-running-requests", "1", "--max-queued-requests", "1") as server:
        results = []
        threads = [threading.Thread(target=lambda: results.append(server.post("/v1/chat/completions", {**LONG, "max_tokens": 150}))) for _ in range(6)]
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200  # so that none ends before all have come
        for thread in threads:
            thread.start()
        wait_until(lambda: len(results) == 4, "the answers of those that find the queue full")
        assert server.post("/continue_generation", {})[0] == 200
        for thread in threads:
            thread.join()
        assert sorted(status for status, _, _ in results) == [200] * 2 + [429] * 4  # one runs, one waits
        assert all(headers["Retry-After"] for status, headers, _ in results if status == 429)


def test_a_burst_that_fits_is_served():
    with Server("--max-running-requests", "2", "--max-queued-requests", "3") as server:
        for _ in range(5):
            results = []
            threads = [threading.Thread(target=lambda: results.append(server.post("/v1/chat/completions", {**LONG, "max_tokens": 20})[0])) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert results == [200] * 5
            wait_until(server.all_pages_back, "an idle server")


def test_a_request_that_never_fits_is_a_400():
    with Server("--max-running-requests", "2", "--max-queued-requests", "2") as server:
        for path, body in (("/v1/completions", {**QUICK, "n": 8}), ("/v1/completions", {**QUICK, "prompt": ["a"] * 5}),
                           ("/v1/embeddings", {"input": ["a"] * 5})):
            status, _, answer = server.post(path, body)
            assert status == 400 and "--max-queued-requests" in answer["error"]["message"], (path, answer)
        assert server.post("/v1/completions", {**QUICK, "n": 4})[0] == 200


def test_a_request_over_its_time_is_a_504():
    with Server("--request-timeout-s", "1") as server:
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200  # so that it cannot be through before
        status, _, body = server.post("/v1/chat/completions", STORY)
        assert status == 504 and "1 s" in body["error"]["message"]


def test_a_request_that_waits_too_long_in_the_queue_gets_a_504():
    with Server("--queue-timeout-s", "1") as server:
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200  # nothing begins
        statuses = []
        waiting = [threading.Thread(target=lambda: statuses.append(server.post("/v1/completions", QUICK)[0])) for _ in range(3)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        assert statuses == [504] * 3
        assert server.post("/continue_generation", {})[0] == 200
        assert server.post("/v1/completions", QUICK)[0] == 200


def test_api_key_guards_everything_but_the_probes():
    with Server("--api-key", "secret") as server:
        for path in ("/v1/models", "/models"):
            assert server.get(path)[0] == 401
            assert server.get(path, headers={"Authorization": "Bearer wrong"})[0] == 401
            assert server.get(path, headers={"Authorization": "Bearer secret"})[0] == 200
            assert server.get(path, headers={"x-api-key": "wrong"})[0] == 401
            assert server.get(path, headers={"x-api-key": "secret"})[0] == 200
            assert server.get(path, headers={"Authorization": "Bearer wrong", "x-api-key": "secret"})[0] == 401
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            status, _, body = server.post(path, {})
            assert status == 401 and body["error"]["code"] == "invalid_api_key"
        assert server.get("/live")[0] == 200 and server.get("/ready")[0] == 200


def test_a_model_of_several_names():
    with Server("--served-model-name", "first", "--served-model-name", "org/second", "--api-key", "k", "--public-models") as server:
        assert [model["id"] for model in server.get("/v1/models")[2]["data"]] == ["first", "org/second"]
        assert server.get("/v1/models/org/second")[2]["id"] == "org/second"
        assert server.get("/v1/models/third")[0] == 404
        key = {"Authorization": "Bearer k"}
        for name in ("first", "org/second", None):
            status, _, body = server.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1}, headers=key)
            assert status == 200 and body["model"] == (name or "first")
        status, _, body = server.post("/v1/completions", {"model": "third", "prompt": "a"}, headers=key)
        assert status == 404 and "'first', 'org/second'" in body["error"]["message"]
        assert server.post("/tokenize", {"model": "third", "prompt": "a"}, headers=key)[0] == 404
        assert server.post("/tokenize", {"model": "third", "prompt": "a"})[0] == 401


def test_a_model_of_any_name():
    with Server("--any-model-name") as server:
        status, _, body = server.post("/v1/chat/completions", {"model": "gpt-4o", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
        assert status == 200 and body["model"] == "gpt-4o"
        assert len(server.get("/v1/models")[2]["data"]) == 1 and server.get("/v1/models/gpt-4o")[2]["id"] == "gpt-4o"
        status, _, body = server.post("/v1/completions", {"model": "x" * 300, "prompt": "a"})
        assert status == 400 and body["error"]["param"] == "model"


# A request of every path whose body has `model`; what it lacks beside is looked at later.
HELLO = [{"role": "user", "content": "Hello"}]
OF_A_MODEL = [("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"}), ("/v1/responses/input_tokens", {"input": "a"}),
              ("/v1/messages", {"messages": HELLO, "max_tokens": 2}), ("/v1/messages/count_tokens", {"messages": HELLO}), ("/v1/embeddings", {"input": "a"}),
              ("/v1/audio/speech", {"input": "a"}), ("/completion", {"prompt": "a"}), ("/apply-template", {"messages": HELLO}),
              ("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [100]}), ("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "a"}),
              ("/api/embed", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["a"]}),
              ("/api/embeddings", {"prompt": "a"}), ("/api/show", {})]


def test_a_request_that_has_to_name_its_model():
    with Server("--require-model", "--served-model-name", "first", "--served-model-name", "second") as server:
        for path, body in OF_A_MODEL:
            for without in (body, {**body, "model": None}):
                status, _, answer = server.post(path, without)
                assert status == 400 and "model is missing" in json.dumps(answer), (path, answer)
                if path.startswith("/v1/") and "messages" not in path:
                    assert answer["error"]["param"] == "model" and answer["error"]["type"] == "invalid_request_error", path
                    assert answer["error"]["message"] == "model is missing; wanted one of 'first', 'second'"
        for path, body in OF_A_MODEL:
            status, _, answer = server.post(path, {**body, "model": "second", "max_tokens": 2, "max_output_tokens": 2, "n_predict": 2, "stream": False})
            assert "model is missing" not in json.dumps(answer) and status in (200, 400), (path, answer)
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "model": "third"})[0] == 404
        assert server.get("/v1/models")[0] == server.get("/props")[0] == server.get("/model_info")[0] == 200


def test_cors_answers_the_allowed_origin_only():
    with Server("--cors-origin", "https://ui.example") as server:
        ask = {"Origin": "https://ui.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        _, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers=ask)
        assert headers["Access-Control-Allow-Origin"] == "https://ui.example"
        _, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers={**ask, "Origin": "https://evil.example"})
        assert headers["Access-Control-Allow-Origin"] is None
        # The official SDK asks for a dozen headers of its own in a browser.
        wanted = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
        _, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers={**ask, "Access-Control-Request-Headers": wanted})
        assert headers["Access-Control-Allow-Headers"] == wanted


def test_a_taken_port_is_one_clear_line():
    port = free_port()
    with Server("--port", str(port)) as first:
        second = Server("--port", str(port), wait=False)
        assert second.process.wait(WAIT_S) == 1  # it may be free later
        second.reader.join(WAIT_S)
        assert str(port) in second.output() and "error" in second.output()
        assert first.ready()
        assert second.leftovers() == []
