"""Disconnects, deaths, signals and leftovers: a crash is local, and nothing stays behind."""
import json
import os
import select
import shutil
import signal
import socket
import threading
import time

import pytest

from harness import DEMO, SANITIZED, WAIT_S, Server, alive, caught_running, free_port, placement, program, wait_until

STORY = {"messages": [{"role": "user", "content": "Tell me a story."}]}
LONG = {**STORY, "ignore_eos": True, "temperature": 0}
processes_only = pytest.mark.skipif(placement() != "processes", reason="there are no child processes with --placement single")


def open_stream(server, body):
    raw = socket.create_connection((server.host, server.port), timeout=WAIT_S)
    text = json.dumps({**body, "stream": True})
    raw.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    return raw


@pytest.mark.parametrize("how", ["fin", "rst", "before-the-first-byte"])
def test_a_client_that_leaves_frees_its_pages(server, how):
    raw = open_stream(server, LONG)
    if how != "before-the-first-byte":
        assert b"200 OK" in raw.recv(4096)
    if how == "rst":
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raw.close()
    wait_until(server.all_pages_back, "pages free again")


def test_a_waiting_client_that_leaves_frees_its_pages(server):
    def start():
        raw = socket.create_connection((server.host, server.port))
        text = json.dumps(LONG)
        raw.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        return raw

    raw = caught_running(server, start, lambda raw: select.select([raw], [], [], 0)[0])
    raw.close()
    wait_until(server.all_pages_back, "pages free again")


def test_a_storm_of_leaving_clients_leaves_nothing(server):
    for _ in range(3):
        streams = [open_stream(server, LONG) for _ in range(60)]
        for index, raw in enumerate(streams):
            if index % 3:
                raw.recv(512)
            raw.close()
    wait_until(server.all_pages_back, "pages free again")
    assert server.chat("Tell me a story.", max_tokens=4)


@processes_only
@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_stage_fails_its_requests_and_comes_back(victim, sig):
    with Server() as server:
        raw = open_stream(server, LONG)
        assert b"200 OK" in raw.recv(4096)
        answers = []
        # Many choices, so that nothing ends before the stage dies, however fast the machine is.
        waiting = threading.Thread(target=lambda: answers.append(server.post("/v1/chat/completions", {**LONG, "n": 30})))
        waiting.start()
        wait_until(lambda: server.stage("scheduler")["running"] == 31, "31 running requests")
        incarnation = server.stage(victim)["incarnation"]
        os.kill(server.children()[victim], sig)
        data = b""
        while piece := raw.recv(65536):
            data += piece
            if b'"error"' in data:
                break
        assert b'"error"' in data and b"[DONE]" not in data
        waiting.join(WAIT_S)
        assert answers and answers[0][0] == 503 and victim in answers[0][2]["error"]["message"]
        assert answers[0][1]["Retry-After"]
        assert server.get("/live")[0] == 200
        wait_until(lambda: server.ready() and server.stage(victim)["incarnation"] != incarnation, "restart")
        assert server.chat("Tell me a story.", max_tokens=4)
        wait_until(server.all_pages_back, "pages free")
        assert server.stop() == 0
        assert server.leftovers() == []


@processes_only
def test_weights_that_changed_on_disk_are_never_served(tmp_path):
    model = tmp_path / "demo"
    shutil.copytree(DEMO, model)
    weights = model / "model.safetensors"
    original = weights.read_bytes()
    with Server(model=model) as server:
        before = server.chat("Tell me a story.", max_tokens=8, temperature=0)
        changed = bytearray(original)
        for at in range(len(original) // 2, len(original), 2):  # of the same types and shapes
            changed[at] ^= 1
        (model / "new").write_bytes(changed)
        (model / "new").rename(weights)  # the running server keeps the old file mapped
        os.kill(server.children()["scheduler"], signal.SIGKILL)
        wait_until(lambda: "weights" in server.get("/ready")[2]["reason"], "the reason in /ready")
        assert server.get("/ready")[0] == 503
        assert server.post("/v1/chat/completions", {**STORY, "max_tokens": 2})[0] == 503
        (model / "new").write_bytes(original)
        (model / "new").rename(weights)
        wait_until(server.ready, "ready again with the weights of before")
        assert server.chat("Tell me a story.", max_tokens=8, temperature=0) == before


@processes_only
def test_killing_the_parent_leaves_no_process_and_no_file():
    with Server() as server:
        children = server.children()
        assert set(children) == {"scheduler", "detokenizer"}
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in children.values()), "end of the children")
        wait_until(lambda: server.leftovers() == [], "removal of the run folder")


@pytest.mark.parametrize("at", ["the first child", "every child", "the address"])
def test_killing_a_server_that_loads_leaves_no_folder(at):
    """The children remove the run folder, also those that find their parent dead as they begin; a server without
    children makes none."""
    with Server(wait=False) as server:
        reached = {"the first child": lambda: server.children(), "every child": lambda: len(server.children()) == 2,
                   "the address": lambda: " at http" in server.output()}[at]
        if placement() == "processes" or at == "the address":
            wait_until(reached, at)
        else:
            wait_until(lambda: server.leftovers() or " at http" in server.output(), at)
        children = server.children()
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in children.values()), "end of the children")
        wait_until(lambda: server.leftovers() == [], "removal of the run folder")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_stopping_finishes_what_runs_and_refuses_what_is_new(sig):
    with Server() as server:
        children = server.children()
        events = server.stream("/v1/chat/completions", {**LONG, "max_tokens": 900})
        next(events)
        server.process.send_signal(sig)
        wait_until(lambda: server.get("/ready")[0] == 503, "503 from /ready")
        assert server.get("/live")[0] == 200
        status, headers, _ = server.post("/v1/chat/completions", STORY)
        assert status == 503 and headers["Retry-After"]
        assert list(events)[-1] == "[DONE]"
        assert server.process.wait(WAIT_S) == 0
        assert not any(alive(pid) for pid in children.values())
        assert server.leftovers() == []


def test_a_second_signal_stops_at_once():
    with Server("--drain-timeout-s", "60") as server:
        raw = [open_stream(server, LONG) for _ in range(4)]
        assert raw[0].recv(100)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "millrace: stopping" in server.output(), "the first signal's message")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT_S) == 0


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


def test_a_request_over_its_time_is_a_504():
    with Server("--request-timeout-s", "1", "--max-running-requests", "1") as server:
        blockers = [open_stream(server, LONG) for _ in range(60)]
        status, _, body = server.post("/v1/chat/completions", STORY)
        assert status == 504 and "1 s" in body["error"]["message"]
        for raw in blockers:
            raw.close()


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
        assert second.process.wait(WAIT_S) == 2
        second.reader.join(WAIT_S)
        assert str(port) in second.output() and "error" in second.output()
        assert first.ready()
        assert second.leftovers() == []
