"""Disconnects, deaths, signals and leftovers: a crash is local, and nothing stays behind."""
import json
import os
import select
import shutil
import signal
import socket
import threading

import pytest

from harness import DEMO, WAIT_S, Server, alive, caught_running, held_running, placement, wait_until

STORY = {"messages": [{"role": "user", "content": "Tell me a story."}]}
LONG = {**STORY, "ignore_eos": True, "temperature": 0}
processes_only = pytest.mark.skipif(placement() != "processes", reason="there are no child processes with --placement single")


def open_stream(server, body):
    raw = socket.create_connection((server.host, server.port), timeout=WAIT_S)
    text = json.dumps({**body, "stream": True})
    raw.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    return raw


def received(raw, data):
    """`data`, with what has come since."""
    while select.select([raw], [], [], 0)[0] and (piece := raw.recv(65536)):
        data += piece
    return data


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
        def start():
            raw, answers = open_stream(server, LONG), []
            data = bytearray(raw.recv(4096))
            waiting = threading.Thread(target=lambda: answers.append(server.post("/v1/chat/completions", {**LONG, "n": 30})))
            waiting.start()
            return raw, data, waiting, answers

        def over(request):
            raw, data, waiting, _ = request
            return not waiting.is_alive() or b"[DONE]" in received(raw, data)

        raw, data, waiting, answers = held_running(server, start, over, least=31)
        assert b"200 OK" in data
        incarnation = server.stage(victim)["incarnation"]
        os.kill(server.children()[victim], sig)
        while b'"error"' not in data and (piece := raw.recv(65536)):
            data += piece
        assert b'"error"' in data and b"[DONE]" not in data
        waiting.join(WAIT_S)
        assert answers and answers[0][0] == 503 and victim in answers[0][2]["error"]["message"]
        assert answers[0][1]["Retry-After"]
        assert server.get("/live")[0] == 200
        wait_until(lambda: server.ready() and server.stage(victim)["incarnation"] != incarnation, "restart")
        assert server.post("/continue_generation", {})[0] == 200
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
    with Server("--drain-timeout-s", str(WAIT_S)) as server:
        children = server.children()

        def start():
            raw = open_stream(server, {**LONG, "max_tokens": 300})
            return raw, bytearray(raw.recv(4096))

        # Held, so that the server cannot be gone before it is asked.
        raw, data = held_running(server, start, lambda request: b"[DONE]" in received(*request))
        server.process.send_signal(sig)
        wait_until(lambda: server.get("/ready")[0] == 503, "503 from /ready")
        assert server.get("/live")[0] == 200
        status, headers, _ = server.post("/v1/chat/completions", STORY)
        assert status == 503 and headers["Retry-After"]
        assert server.post("/continue_generation", {})[0] == 200
        while b"[DONE]" not in data and (piece := raw.recv(65536)):
            data += piece
        assert b"[DONE]" in data and b'"error"' not in data
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
