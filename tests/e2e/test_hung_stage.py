"""A stage that hangs, stands still or computes for long: what /ready reports, and when it is restarted."""
import os
import signal
import threading
import time

import pytest

from harness import WAIT_S, Server, freeze, held_running, is_silence, past_silence, placement, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
processes_only = pytest.mark.skipif(placement() != "processes", reason="only child processes can be stopped and killed from outside")


def generate(server, **more):
    return server.post(COMPLETIONS, {"prompt": "Once upon a time there was a little dog", "max_tokens": 8, "temperature": 0, **more})


@processes_only
def test_a_stage_that_stands_still_is_not_ready_and_comes_back():
    with Server() as server:
        pid = server.children()["scheduler"]
        freeze(pid)
        wait_until(lambda: not server.ready(), "report of the stall")
        body = server.get("/ready")[2]
        assert "scheduler" in body["reason"] and "stalled" in body["reason"], body
        assert generate(server)[0] == 503
        os.kill(pid, signal.SIGCONT)
        wait_until(server.ready, "recovery")
        assert past_silence(lambda: generate(server))[0] == 200
        assert server.children()["scheduler"] == pid  # nobody killed it


@processes_only
def test_a_stage_that_hangs_is_killed_and_started_again():
    with Server("--stall-restart-s", "10") as server:  # long enough that it is not killed before it is stopped
        pid = server.children()["scheduler"]
        found = {}

        def start():
            client = threading.Thread(target=lambda: found.update(status=server.post(COMPLETIONS, {**LONG, "max_tokens": 900, "n": 16})[0]))
            client.start()
            return client

        client = held_running(server, start, lambda client: not client.is_alive())
        freeze(pid)
        client.join(WAIT_S)
        assert found["status"] == 503
        wait_until(lambda: server.ready() and server.children().get("scheduler") not in (None, pid), "restart")
        assert server.post("/continue_generation", {})[0] == 200
        assert past_silence(lambda: generate(server))[0] == 200
        wait_until(lambda: "hangs" in server.output(), "the reason in the log")


@processes_only
def test_a_server_that_was_stopped_blames_nobody_for_the_silence():
    with Server("--stall-restart-s", "10") as server:
        children = server.children()
        freeze(server.process.pid)
        time.sleep(15)  # the subject: longer than a stage may be silent
        os.kill(server.process.pid, signal.SIGCONT)
        wait_until(server.ready, "readiness")
        assert past_silence(lambda: generate(server))[0] == 200
        assert server.children() == children and "hangs" not in server.output()


def test_a_long_prefill_is_ready_all_the_time():
    with Server("--chunked-prefill-tokens", "65536") as server:
        limit = server.get("/v1/models")[2]["data"][0]["max_model_len"]
        seen, stop = [], threading.Event()

        def watch():
            while not stop.is_set():
                status, _, body = server.get("/ready")
                seen.append((status, is_silence(status, body) or body["reason"]))
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
        # A heartbeat that gets no processor for 2 s is not the prefill's: "no progress" would be.
        assert {status for status, _ in seen} <= {200, 503} and all(status == 200 or silence is True for status, silence in seen), set(seen)
        assert any(status == 200 for status, _ in seen)
