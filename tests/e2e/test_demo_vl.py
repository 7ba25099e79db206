"""The bundled demo of pictures, served: what is in examples/pictures, asked with Python and with OpenAI's client."""
import base64
import json
import os
import re
import subprocess

import pytest

from harness import ROOT, WAIT_S, Server, program
from test_openai_client import FOLDER, LIMIT_S


PICTURES = ROOT / "examples" / "pictures"


@pytest.fixture(scope="module")
def demo():
    with Server(model=ROOT / "models" / "demo-vl") as server:
        yield server
        assert server.stop() == 0, server.output()


def test_the_pictures_are_described(demo):
    contents = json.loads((PICTURES / "pictures.json").read_text())
    for name, facts in contents.items():
        url = "data:image/png;base64," + base64.b64encode((PICTURES / name).read_bytes()).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is in this picture?"}]
        status, _, answer = demo.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "temperature": 0})
        assert status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        assert all(word in text for word in (facts["colour"], facts["shape"], facts["background"], str(facts["digit"]))), (name, text)


def test_the_banner_shows_a_request_that_the_model_answers(demo):
    """As a person does: paste it, with a file of theirs."""
    name, facts = next(iter(json.loads((PICTURES / "pictures.json").read_text()).items()))
    shown = re.search(r"^  curl .*?\n\n", demo.output(), re.DOTALL | re.MULTILINE)[0]
    assert shown.count("PICTURE.png") == 1
    done = subprocess.run(["bash", "-c", shown.replace("PICTURE.png", str(PICTURES / name)).replace("curl ", "curl --silent --show-error ", 1)], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert facts["shape"] in json.loads(done.stdout)["choices"][0]["message"]["content"], done.stdout


def test_its_parameters_count_the_tower(demo):
    told = subprocess.run([program(), "inspect", str(ROOT / "models" / "demo-vl")], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert "3.28 M (3277344)" in told and "text and pictures" in told, told
    status, _, shown = demo.post("/api/show", {"model": "demo-vl"})
    assert status == 200 and shown["details"]["parameter_size"] == "3.3M", shown


def test_the_client_of_openai_gets_the_answers_of_transformers(demo):
    if not (FOLDER / "node_modules" / "openai").is_dir():
        pytest.fail("tests/e2e/openai/node_modules is missing; wanted: ./scripts/test, which installs it")
    result = subprocess.run(["node", "--test", "demo_vl.test.mjs"], cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT_S,
                            env={**os.environ, "MILLRACE_URL": f"http://{demo.host}:{demo.port}/v1"})
    assert result.returncode == 0, result.stdout + result.stderr
