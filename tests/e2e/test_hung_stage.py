"""A stage that hangs, stands still or computes for long: what /ready reports, and when it is restarted."""
import os
import re
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


def standing_ms(status, body):
    """What /ready says of a stage that makes no progress; 0: nothing, as of one that is silent, whose heartbeat gets no processor."""
    if status == 200 or is_silence(status, body):
        return 0
    return int(re.fullmatch(r"scheduler: stalled, no progress for (\d+) ms; stalled_ms is 1500", body["reason"])[1])


def prefill(server, first, count):
    """`count` prompts of the whole context at once, of which no two share a page. What /ready said all the while, and how long it took."""
    limit = server.get("/v1/models")[2]["data"][0]["max_model_len"]
    seen, statuses, stop = [], [], threading.Event()

    def watch():
        while not stop.is_set():
            status, _, body = server.get("/ready")
            seen.append((status, body))
            time.sleep(0.1)

    def ask(i):
        prompt = [300 + i % 100, 300 + i // 100] + [300 + k % 100 for k in range(limit - 5)]

        def answer():
            status, _, body = server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}, timeout=600)
            return None if status == 503 and ("no progress for" in str(body) or is_silence(status, body)) else status
        statuses.append(wait_until(answer, "answer but that the stage stands"))
    watcher = threading.Thread(target=watch)
    clients = [threading.Thread(target=ask, args=(first + i,)) for i in range(count)]
    begin = time.monotonic()
    for thread in [watcher, *clients]:
        thread.start()
    for client in clients:
        client.join()
    took_ms = 1000 * (time.monotonic() - begin)
    stop.set()
    watcher.join()
    assert statuses == [200] * count
    return seen, took_ms


def test_a_long_prefill_makes_progress_all_the_time():
    """Inside steps that last several times longer than a stage may stand. A slow machine lets it stand too, for a small part of the time."""
    with Server("--chunked-prefill-tokens", "65536") as server:
        first, count, took_ms = 0, 4, 0
        while took_ms < 6000 and count < 256:
            first, count = first + count, 2 * count
            seen, took_ms = prefill(server, first, count)
        assert any(status == 200 for status, _ in seen)
        longest_ms = max(standing_ms(status, body) for status, body in seen)
        assert longest_ms < took_ms / 3, (longest_ms, took_ms)
