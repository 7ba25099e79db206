"""How processes end, and what they start with: signals to a whole process group, closed pipes, calls that never return, environments."""
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest

from harness import DEMO, SANITIZED, Joined, Server, alive, placement, program, wait_until
from test_pipeline import CASES, FANIN, RUN, check, control_port, run

processes_only = pytest.mark.skipif(placement() != "processes", reason="it is about child processes")
STORY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "temperature": 0}
STUCK = """name: stuck
stages:
  - {name: first, worker: toy.echo, next: stuck}
  - name: stuck
    worker: toy.echo
    args: {sleep_ms: 600000}
    stalled_ms: 0
    terminal: true
"""
GRACE_S = 2.5  # a process whose stages do not end is left that long; the server itself 8 s
SERVER_GRACE_S = 8
SLACK_S = 20 if SANITIZED else 4


@pytest.fixture
def paced(tmp_path):
    path = tmp_path / "paced.yaml"
    path.write_text(FANIN.read_text().replace("args: {steps: 24, width: 32}", "args: {steps: 24, width: 32, pace_ms: 2}"))
    return path


@pytest.fixture
def stuck(tmp_path):
    path = tmp_path / "stuck.yaml"
    path.write_text(STUCK)
    return path


# ---- signals to the whole process group, as a terminal sends them


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signal_lets_a_pipelines_requests_end(paced, sig):
    with Server("--pipeline", str(paced), model=None) as server:
        events = server.stream(RUN, {"inputs": {"text": "hello", "max_tokens": 600, "modalities": ["text", "audio"]}})
        next(events)
        os.killpg(server.process.pid, sig)
        rest = list(events)
        assert rest[-1] == "[DONE]", rest[-1]
        assert "result" in json.loads(rest[-2])
        assert server.process.wait(20) == 0
        assert server.leftovers() == []


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signal_lets_a_text_end(sig):
    with Server() as server:
        events = server.stream("/v1/chat/completions", {**STORY, "max_tokens": 200})
        next(events)
        os.killpg(server.process.pid, sig)
        assert list(events)[-1] == "[DONE]"
        assert server.process.wait(20) == 0


def test_nohup_is_honoured(paced):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = Server("--pipeline", str(paced), model=None)
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        os.killpg(server.process.pid, signal.SIGHUP)
        time.sleep(0.5)
        check(server, CASES[0])
        assert server.stop() == 0


# ---- nobody reads what is logged


@pytest.mark.parametrize("kind", ["text", "pipeline"])
def test_a_server_outlives_who_reads_its_log(paced, kind):
    with Server(*([] if kind == "text" else ["--pipeline", str(paced)]), model=DEMO if kind == "text" else None, deaf=True) as server:
        victim = "scheduler" if kind == "text" else "thinker"
        if placement() == "processes":  # its death is logged
            pid = server.children()[victim]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: server.children().get(victim) not in (None, pid), 20, "restart")
        wait_until(server.ready, 30, "200 from /ready")
        if kind == "text":
            assert server.chat("Tell me a story.", max_tokens=4)
        else:
            check(server, CASES[0])
        server.process.send_signal(signal.SIGINT)  # which is told
        assert server.process.wait(20) == 0
        assert server.leftovers() == []
