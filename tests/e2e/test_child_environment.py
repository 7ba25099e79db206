"""The environment of child processes: what the pipeline's file sets, what they inherit, and the key that they must not have."""
import os
import pathlib
import signal
import subprocess

import pytest

from harness import DEMO, WAIT_S, Server, placement, program, wait_until
from test_pipeline import FANIN

processes_only = pytest.mark.skipif(placement() != "processes", reason="it is about child processes")
ENVIRONMENT = """name: environment
lease_ms: 20000
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
