"""How processes end, and what they start with: signals to a whole process group, closed pipes, calls that never return, environments."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest

from harness import DEMO, SANITIZED, WAIT_S, Joined, Server, alive, placement, program, wait_until
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


# ---- environments


ENVIRONMENT = """name: environment
env_defaults: {E2E_SET: default, E2E_OWN: default, E2E_FREE: default}
stages:
  - {name: first, worker: toy.echo, next: second}
  - {name: second, worker: toy.echo, terminal: true, env: {E2E_OWN: stage, E2E_ALSO: "a=b c"}}
"""


def environment(pid):
    pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().rstrip("\0").split("\0")
    found = dict(pair.split("=", 1) for pair in pairs)
    assert len(found) == len(pairs)  # each name once
    return {name: value for name, value in found.items() if name.startswith("E2E_")}


@processes_only
def test_children_have_the_environment_of_the_file(tmp_path):
    path = tmp_path / "environment.yaml"
    path.write_text(ENVIRONMENT)
    with Server("--pipeline", str(path), model=None, env={"E2E_SET": "server", "E2E_ALSO": "server"}) as server:
        children = server.children()
        assert environment(children["first"]) == {"E2E_SET": "server", "E2E_ALSO": "server", "E2E_OWN": "default", "E2E_FREE": "default"}
        assert environment(children["second"]) == {"E2E_SET": "server", "E2E_ALSO": "a=b c", "E2E_OWN": "stage", "E2E_FREE": "default"}
        os.kill(children["second"], signal.SIGKILL)
        again = wait_until(lambda: {**server.children()}.get("second") not in (None, children["second"]) and server.children(), "restart")
        wait_until(server.ready, "200 from /ready")
        assert environment(again["second"])["E2E_OWN"] == "stage"


@processes_only
def test_text_children_have_the_environment_of_the_file(tmp_path):
    path = tmp_path / "text.yaml"
    text = (FANIN.parents[2] / "pipelines" / "text.yaml").read_text()
    assert text.count("    process: scheduler\n") == 1
    path.write_text(text.replace("    process: scheduler\n", "    process: scheduler\n    env: {E2E_OWN: stage}\n").replace("stages:\n", "env_defaults: {E2E_FREE: default}\nstages:\n"))
    with Server("--pipeline", str(path)) as server:
        children = server.children()
        assert environment(children["scheduler"]) == {"E2E_OWN": "stage", "E2E_FREE": "default"}
        assert environment(children["detokenizer"]) == {"E2E_FREE": "default"}


@processes_only
def test_children_do_not_have_the_key():
    with Server(env={"MILLRACE_API_KEY": "sk-secret"}, admin=False) as server:
        assert server.get("/v1/models")[0] == 401
        for pid in server.children().values():
            assert b"sk-secret" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            assert b"sk-secret" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("text", [ENVIRONMENT, None], ids=["pipeline", "text"])
def test_one_process_has_no_environment_of_a_stages_own(tmp_path, text):
    path = tmp_path / "environment.yaml"
    path.write_text(text or (FANIN.parents[2] / "pipelines" / "text.yaml").read_text().replace("    process: scheduler\n", "    process: scheduler\n    env: {A: b}\n"))
    found = subprocess.run([program(path), "serve", "--pipeline", str(path), "--placement", "single", "--port", "0", *([] if text else ["--model", str(DEMO)])],
                           capture_output=True, text=True, timeout=WAIT_S)
    assert found.returncode == 2 and "env" in found.stderr and "--placement single" in found.stderr, found.stderr


# ---- a passing shortage


@processes_only
def test_a_scheduler_that_cannot_load_again_is_tried_again(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    weights = model / "model.safetensors"
    with Server("--dp", "2", model=model) as server:
        wait_until(lambda: all(server.stage(name)["state"] == "ready" for name in ("scheduler-0", "scheduler-1")), "two schedulers")
        weights.rename(model / "away")
        pid = server.children()["scheduler-0"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "exit code" in server.output(), "a load that fails")
        assert server.process.poll() is None
        for _ in range(3):
            assert server.chat("Tell me a story.", max_tokens=4)
        (model / "away").rename(weights)
        wait_until(lambda: server.stage("scheduler-0")["state"] == "ready", "return")
        assert server.stop() == 0


@processes_only
def test_a_generating_stage_that_cannot_load_again_is_tried_again(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    weights = model / "model.safetensors"
    path = tmp_path / "generate.yaml"
    text = (FANIN.parent / "generate.yaml").read_text().replace("models/demo", str(model))
    path.write_text(text.replace("max_running_requests: 64", "max_running_requests: 64, threads: 1"))
    question = {"text": "Once upon a time", "sampling": {"max_tokens": 4}}
    with Server("--pipeline", str(path), model=None) as server:
        assert run(server, question)[0] == 200
        weights.rename(model / "away")
        os.kill(server.children()["generate"], signal.SIGKILL)
        wait_until(lambda: "exit code" in server.output(), "a load that fails")
        assert server.process.poll() is None and server.get("/live")[0] == 200
        (model / "away").rename(weights)
        wait_until(server.ready, "return")
        assert run(server, question)[0] == 200
        assert server.stop() == 0


def test_a_generating_stage_that_never_could_load_ends_the_server(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    (model / "model.safetensors").unlink()
    path = tmp_path / "generate.yaml"
    path.write_text((FANIN.parent / "generate.yaml").read_text().replace("models/demo", str(model)))
    found = subprocess.run([program(), "serve", "--pipeline", str(path), "--placement", "processes", "--port", "0"], capture_output=True, text=True, timeout=WAIT_S)
    assert found.returncode == 2 and "millrace: error: stage 'generate'" in found.stderr, found.stderr
