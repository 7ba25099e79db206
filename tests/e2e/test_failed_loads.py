"""A stage whose model cannot be loaded: one that had it is tried again, one that never had it ends the server."""
import os
import shutil
import signal
import subprocess

import pytest

from harness import DEMO, WAIT_S, Server, placement, program, wait_until
from test_pipeline import FANIN, run

processes_only = pytest.mark.skipif(placement() != "processes", reason="it is about child processes")


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
