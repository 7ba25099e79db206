"""Runs openai/client.test.mjs, the official npm client, against a started server."""
import os
import pathlib
import subprocess

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent / "openai"


def test_the_official_client_is_content(server):
    if not (FOLDER / "node_modules" / "openai").is_dir():
        pytest.fail("tests/e2e/openai/node_modules is missing; wanted: ./scripts/test, which installs it")
    result = subprocess.run(["node", "--test", "client.test.mjs"], cwd=FOLDER, capture_output=True, text=True, timeout=120,
                            env={**os.environ, "MILLRACE_URL": f"http://{server.host}:{server.port}/v1"})
    assert result.returncode == 0, result.stdout + result.stderr
