"""How processes end: signals to a whole process group, closed pipes, calls that never return."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import threading
import time

import pytest

from harness import DEMO, WAIT_S, Joined, Server, alive, placement, wait_until
from test_pipeline import CASES, RUN, check, control_port, paced, run  # noqa: F401: a fixture

processes_only = pytest.mark.skipif(placement() != "processes", reason="it is about child processes")
STORY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "temperature": 0}
STUCK = """name: stuck
lease_ms: 20000
stages:
  - {name: first, worker: toy.echo, next: stuck}
  - name: stuck
    worker: toy.echo
    args: {sleep_ms: 600000}
    stalled_ms: 0
    terminal: true
"""


@pytest.fixture
def stuck(tmp_path):
    path = tmp_path / "stuck.yaml"
    path.write_text(STUCK)
    return path


# ---- signals to the whole process group, as a terminal sends them


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signal_lets_a_pipelines_requests_end(paced, sig):
    with Server("--pipeline", str(paced), "--drain-timeout-s", str(WAIT_S), model=None) as server:
        events = server.stream(RUN, {"inputs": {"text": "hello", "max_tokens": 600, "modalities": ["text", "audio"]}})
        next(events)
        os.killpg(server.process.pid, sig)
        rest = list(events)
        assert rest[-1] == "[DONE]", rest[-1]
        assert "result" in json.loads(rest[-2])
        assert server.process.wait(WAIT_S) == 0
        assert server.leftovers() == []


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signal_lets_a_text_end(sig):
    with Server("--drain-timeout-s", str(WAIT_S)) as server:
        events = server.stream("/v1/chat/completions", {**STORY, "max_tokens": 200})
        next(events)
        os.killpg(server.process.pid, sig)
        assert list(events)[-1] == "[DONE]"
        assert server.process.wait(WAIT_S) == 0


def test_nohup_is_honoured(paced):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = Server("--pipeline", str(paced), model=None)
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        for pid in (server.process.pid, *server.children().values()):
            ignored = re.search(r"SigIgn:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]
            assert int(ignored, 16) >> (signal.SIGHUP - 1) & 1, pid  # the kernel throws it away as it is sent
        os.killpg(server.process.pid, signal.SIGHUP)
        check(server, CASES[0])
        assert "stopping" not in server.output() and server.process.poll() is None
        assert server.stop() == 0


# ---- nobody reads what is logged


@pytest.mark.parametrize("kind", ["text", "pipeline"])
def test_a_server_outlives_who_reads_its_log(paced, kind):
    with Server(*([] if kind == "text" else ["--pipeline", str(paced)]), model=DEMO if kind == "text" else None, deaf=True) as server:
        victim = "scheduler" if kind == "text" else "thinker"
        if placement() == "processes":  # its death is logged
            pid = server.children()[victim]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: server.children().get(victim) not in (None, pid), "restart")
        wait_until(server.ready, "200 from /ready")
        if kind == "text":
            assert server.chat("Tell me a story.", max_tokens=4)
        else:
            check(server, CASES[0])
        server.process.send_signal(signal.SIGINT)  # which is told
        assert server.process.wait(WAIT_S) == 0
        assert server.leftovers() == []


# ---- calls that do not return


@contextlib.contextmanager
def busy(server):
    """A request whose stage does not return from its call."""
    answers = []

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):  # a server that is killed says nothing
            answers.append(run(server, {"text": "x"}))

    client = threading.Thread(target=ask, daemon=True)
    client.start()
    wait_until(lambda: server.stage("stuck")["running"] == 1, "running request")
    yield answers
    client.join(WAIT_S)


@processes_only
def test_killing_the_parent_ends_a_stage_in_the_middle_of_a_call(stuck):
    with Server("--pipeline", str(stuck), model=None) as server:
        with busy(server):
            children = server.children()
            os.kill(server.process.pid, signal.SIGKILL)
            wait_until(lambda: not any(alive(pid) for pid in children.values()), "end of the children")
        wait_until(lambda: server.leftovers() == [], "removal of the run folder")


@pytest.mark.parametrize("single", [False, True], ids=["as placed", "front"])
def test_a_server_ends_in_the_middle_of_a_call(stuck, single):
    if single:
        stuck.write_text(STUCK.replace("worker:", "process: front\n    worker:").replace("{name: first, process: front\n    worker", "{name: first, worker"))
    with Server("--pipeline", str(stuck), "--drain-timeout-s", "1", model=None) as server, busy(server) as answers:
        children = server.children()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(WAIT_S)
        wait_until(lambda: answers, "its answer")
        assert answers[0][0] == 503  # told before the end by force
        wait_until(lambda: not any(alive(pid) for pid in children.values()), "end of the children")
        assert server.leftovers() == []


def test_signals_again_and_again_end_a_server_at_once(stuck):
    with Server("--pipeline", str(stuck), "--placement", "single", model=None) as server, busy(server):
        server.process.send_signal(signal.SIGINT)  # the first drains, the second ends the draining, the third everything
        wait_until(lambda: "millrace: stopping" in server.output(), "the first signal's message")
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert server.process.returncode == 1
        assert server.leftovers() == []


def test_a_joined_process_ends_in_the_middle_of_a_call(stuck):
    port = control_port()
    stuck.write_text(STUCK.replace("name: stuck\n", f'name: stuck\ncontrol: "tcp://127.0.0.1:{port}"\n', 1).replace("terminal: true", "terminal: true\n    host: far"))
    with Server("--pipeline", str(stuck), "--drain-timeout-s", "1", model=None, wait=False) as server:
        with Joined(stuck, "stuck", f"127.0.0.1:{port}", model=None) as far:
            assert server.url_found.wait(WAIT_S) and server.host, server.output()
            with busy(server):
                far.process.send_signal(signal.SIGTERM)
                assert far.end() == 1
                server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT_S) == 0
