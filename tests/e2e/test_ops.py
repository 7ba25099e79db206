"""What an operator does and sees: health of a stage that hangs, its restart, cache flushes, profiles, metrics, KV events, deadlines."""
import json
import os
import pathlib
import re
import signal
import struct
import threading
import time

import pytest

from harness import DEMO, TRIES, WAIT_S, Server, free_port, held_running, placement, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
processes_only = pytest.mark.skipif(placement() != "processes", reason="only child processes can be stopped and killed from outside")


def generate(server, **more):
    return server.post(COMPLETIONS, {"prompt": "Once upon a time there was a little dog", "max_tokens": 8, "temperature": 0, **more})


# ---- health


@processes_only
def test_a_stage_that_stands_still_is_not_ready_and_comes_back():
    with Server() as server:
        pid = server.children()["scheduler"]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: not server.ready(), "report of the stall")
        body = server.get("/ready")[2]
        assert "scheduler" in body["reason"] and "stalled" in body["reason"], body
        assert generate(server)[0] == 503
        os.kill(pid, signal.SIGCONT)
        wait_until(server.ready, "recovery")
        assert generate(server)[0] == 200
        assert server.children()["scheduler"] == pid  # nobody killed it


@processes_only
def test_a_stage_that_hangs_is_killed_and_started_again():
    with Server("--stall-restart-s", "3") as server:
        pid = server.children()["scheduler"]
        found = {}

        def start():
            client = threading.Thread(target=lambda: found.update(status=server.post(COMPLETIONS, {**LONG, "max_tokens": 900, "n": 16})[0]))
            client.start()
            return client

        client = held_running(server, start, lambda client: not client.is_alive())
        os.kill(pid, signal.SIGSTOP)
        client.join(WAIT_S)
        assert found["status"] == 503
        wait_until(lambda: server.ready() and server.children().get("scheduler") not in (None, pid), "restart")
        assert server.post("/continue_generation", {})[0] == 200
        assert generate(server)[0] == 200
        wait_until(lambda: "hangs" in server.output(), "the reason in the log")


@processes_only
def test_a_server_that_was_stopped_blames_nobody_for_the_silence():
    with Server("--stall-restart-s", "2") as server:
        children = server.children()
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(5)  # the subject: longer than a stage may be silent
        os.kill(server.process.pid, signal.SIGCONT)
        wait_until(server.ready, "readiness")
        assert generate(server)[0] == 200
        assert server.children() == children and "hangs" not in server.output()


def test_a_long_prefill_is_ready_all_the_time():
    with Server("--chunked-prefill-tokens", "65536") as server:
        limit = server.get("/v1/models")[2]["data"][0]["max_model_len"]
        seen, stop = [], threading.Event()

        def watch():
            while not stop.is_set():
                seen.append(server.get("/ready")[0])
                time.sleep(0.1)
        watcher = threading.Thread(target=watch)
        watcher.start()
        ids = [300 + i % 100 for i in range(limit - 4)]
        statuses = []
        clients = [threading.Thread(target=lambda i=i: statuses.append(server.post(COMPLETIONS, {"prompt": [i] + ids, "max_tokens": 1}, timeout=600)[0])) for i in range(300, 308)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        stop.set()
        watcher.join()
        assert statuses == [200] * len(clients)
        assert set(seen) == {200}


# ---- orders


def test_flush_forgets_the_cache_and_waits_for_idleness(server):
    text = "A mouse and an elephant went to the sea together, and there they met a whale and a crab. " * 2
    generate(server, prompt=text)
    assert generate(server, prompt=text)[2]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    assert server.post("/flush_cache", {})[0] == 200
    assert generate(server, prompt=text)[2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for _ in range(TRIES):
        # Its first text is here, so it runs: a heartbeat might still tell of the request before.
        events = server.stream(COMPLETIONS, {**LONG, "max_tokens": 900})
        next(events)
        status, _, body = server.post("/flush_cache", {})
        if status == 409:
            break
        assert list(events)[-1] == "[DONE]"  # it was through before
    assert status == 409 and "run" in body["error"]["message"], body
    assert server.post("/flush_cache", {"timeout": WAIT_S}, timeout=2 * WAIT_S)[0] == 200  # after it
    assert len(list(events)) > 2


def test_a_profile_is_json_with_steps_kernels_and_requests_and_its_spans_nest(tmp_path):
    folder = tmp_path / "profiles"
    with Server("--profile-dir", str(folder)) as server:
        status, _, body = server.post("/stop_profile", {})
        assert status == 409, body
        status, _, body = server.post("/start_profile", {})
        assert status == 200, body
        assert server.post("/start_profile", {})[0] == 409
        assert generate(server)[0] == 200
        status, _, body = server.post("/stop_profile", {})
        assert status == 200, body
        assert server.post("/stop_profile", {})[0] == 409
        paths = re.findall(r"/[^\"\s]*trace-\d+[^\"\s]*\.json", json.dumps(body))
        path = pathlib.Path(paths[0])
        assert path.parent == folder and path.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [entry for entry in folder.iterdir()] == [path]
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {"step", "batch", "layers", "linear", "attention", "request", "deliver", "process_name"} <= names, names
    spans = [event for event in events if event["ph"] == "X"]
    assert sum(event["args"]["rows"] for event in spans if event["name"] == "step") >= 8
    by_thread = {}
    for span in spans:
        by_thread.setdefault((span["pid"], span["tid"]), []).append((span["ts"], span["ts"] + span["dur"]))
    for intervals in by_thread.values():
        stack = []
        for begin, end in sorted(intervals, key=lambda interval: (interval[0], -interval[1])):
            while stack and stack[-1] <= begin + 0.002:
                stack.pop()
            assert not stack or end <= stack[-1] + 0.002  # inside its parent, or after it
            stack.append(end)
    assert len({event["pid"] for event in spans}) == (3 if placement() == "processes" else 1)


def test_metrics_tell_of_the_scheduler(server):
    generate(server)
    def value(name):
        found = re.findall(rf"^\w+:{name}{{[^}}]*}} (\S+)$", server.get("/metrics")[2], re.MULTILINE)
        return float(found[0]) if found else None
    wait_until(lambda: (value("num_ended_requests_total") or 0) >= 1, "count of ended requests")
    assert value("sampled_tokens_total") >= 8
    wait_until(lambda: value("num_running_reqs") == 0, "a heartbeat without running requests")
    assert value("forward_execution_seconds_total") > 0


# ---- deadlines


def test_a_request_that_waits_too_long_in_the_queue_gets_a_504():
    with Server("--queue-timeout-s", "1") as server:
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200  # nothing begins
        statuses = []
        waiting = [threading.Thread(target=lambda: statuses.append(generate(server)[0])) for _ in range(3)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        assert statuses == [504] * 3
        assert server.post("/continue_generation", {})[0] == 200
        assert generate(server)[0] == 200


# ---- KV events


def test_kv_events_tell_a_router_what_is_cached():
    zmq = pytest.importorskip("zmq")
    msgpack = pytest.importorskip("msgpack")
    endpoint, began = f"tcp://127.0.0.1:{free_port()}", time.time()
    with Server("--kv-events", endpoint, "--page-size", "16") as server, zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.setsockopt(zmq.SUBSCRIBE, b"")
        listener.setsockopt(zmq.RCVTIMEO, WAIT_S * 1000)
        listener.setsockopt(zmq.LINGER, 0)
        listener.connect(endpoint)
        ids = server.post("/tokenize", {"prompt": "A mouse and an elephant went to the sea together. " * 6})[2]["tokens"]
        for token in range(300, 300 + WAIT_S):  # until the subscription has arrived; each stores another block
            assert server.post(COMPLETIONS, {"prompt": [token] * 20, "max_tokens": 1, "temperature": 0})[0] == 200
            if listener.poll(1000):
                break
        assert server.post(COMPLETIONS, {"prompt": ids, "max_tokens": 2, "temperature": 0})[0] == 200
        stored, sequence = [], None
        while 16 * len(stored) < len(ids) // 16 * 16:
            topic, number, payload = listener.recv_multipart()
            assert topic == b"kv-events"
            assert sequence is None or struct.unpack(">Q", number)[0] == sequence + 1
            sequence = struct.unpack(">Q", number)[0]
            stamp, events, rank, version = msgpack.unpackb(payload)
            assert began - 60 < stamp < time.time() + 60 and rank == 0 and version >= 0
            for event in events:
                assert event[0] == "BlockStored" and len(event) == 7
                if len(set(event[3])) > 1:  # not of the requests before
                    stored.append(event)
        parent, tokens = None, []
        for _, hashes, before, part, size, lora, medium in stored:
            assert before == parent and len(hashes) == 1 and size == 16 and len(part) == 16 and lora is None and medium == "pool"
            parent = hashes[0]
            tokens += part
        assert tokens[:len(ids) // 16 * 16] == ids[:len(ids) // 16 * 16]
        assert server.post("/flush_cache", {"timeout": 60})[0] == 200
        gone = set()
        while True:
            _, _, payload = listener.recv_multipart()
            events = msgpack.unpackb(payload)[1]
            for event in events:
                if event[0] == "BlockRemoved":
                    gone |= set(event[1])
            if any(event[0] == "AllBlocksCleared" for event in events) or gone >= {event[1][0] for event in stored}:
                break


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5557", "tcp://127.0.0.1:0", "5557"])
def test_kv_events_stay_on_this_machine_unless_told_otherwise(endpoint):
    server = Server("--kv-events", endpoint, wait=False)
    assert server.process.wait(WAIT_S) == 2
    server.reader.join()
    assert f"--kv-events is '{endpoint}'" in server.output(), server.output()
    server.tmp.cleanup()
