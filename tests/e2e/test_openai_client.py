"""Runs openai/*.test.mjs against a started server: the official npm client, and the schemas of the JSON Schema test suite with ajv."""
import os
import pathlib
import subprocess

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent / "openai"


LIMIT_S = 900  # of a hung script; no test waits for it


@pytest.mark.parametrize("script", ["client.test.mjs", "schemas.test.mjs"])
def test_the_scripts_are_content(server, script):
    if not (FOLDER / "node_modules" / "openai").is_dir():
        pytest.fail("tests/e2e/openai/node_modules is missing; wanted: ./scripts/test, which installs it")
    result = subprocess.run(["node", "--test", script], cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT_S,
                            env={**os.environ, "MILLRACE_URL": f"http://{server.host}:{server.port}/v1"})
    assert result.returncode == 0, result.stdout + result.stderr
