"""Qwen3-VL in GGUF, of llama.cpp's own converter: the language model and its tower in two files of one folder give the answers of transformers."""
import shutil
import subprocess

import pytest

from harness import Server, placement, program
from test_vision import ask, refused, whole
from vision_model import GOLDEN, served

FILES = GOLDEN / "gguf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the processor of the golden model: its pictures are smaller than those of published models."""
    folder = tmp_path_factory.mktemp("gguf")
    for name in ("model.gguf", "mmproj.gguf"):
        shutil.copy(FILES / name, folder)
    shutil.copy(GOLDEN / "dense" / "preprocessor_config.json", folder)
    return folder


@pytest.mark.parametrize("name", ["", "model.gguf"])
def test_answers_are_those_of_transformers(folder, name):
    """By the folder, and by the file, beside which the tower is found."""
    with Server(model=folder / name) as server:
        for one in served()["conversations"]:
            body = ask(*one["parts"])
            status, _, tokenized = server.post("/tokenize", {"messages": body["messages"]})
            assert status == 200 and tokenized["tokens"] == one["prompt"], tokenized
            assert whole(server, body)["choices"][0]["message"]["content"] == one["text"]
        assert server.get("/model_info")[2]["has_image_understanding"] is True


def test_the_towers_own_processor(tmp_path):
    """Without a preprocessor_config.json the metadata counts: pictures are larger, as in published models."""
    for name in ("model.gguf", "mmproj.gguf"):
        shutil.copy(FILES / name, tmp_path)
    with Server(model=tmp_path) as server:
        answer = whole(server, ask("gradient.png"))
        assert answer["usage"]["prompt_tokens"] > 64 + 20, "at least 64 rows"


def test_without_the_tower_it_is_a_text_model(tmp_path):
    shutil.copy(FILES / "model.gguf", tmp_path)
    with Server(model=tmp_path) as server:
        assert "this model takes text only" in refused(server, ask("gradient.png"))
        assert whole(server, ask("Tell me."))["choices"][0]["finish_reason"] == "length"


def test_towers_that_do_not_fit(tmp_path):
    shutil.copy(FILES / "model.gguf", tmp_path)

    def message():
        done = subprocess.run([program(), "serve", "--model", str(tmp_path), "--port", "0", "--placement", placement()], capture_output=True, text=True,
                              timeout=120, check=False)
        assert done.returncode == 2, done
        return done.stdout + done.stderr

    shutil.copy(FILES / "model.gguf", tmp_path / "mmproj.gguf")
    assert 'general.architecture is "qwen3vl" and clip.projector_type ""; wanted clip and qwen3vl_merger' in message()
    shutil.copy(FILES / "mmproj.gguf", tmp_path / "mmproj.gguf")
    shutil.copy(FILES / "mmproj.gguf", tmp_path / "mmproj-f16.gguf")
    assert "holds 2 towers" in message()
