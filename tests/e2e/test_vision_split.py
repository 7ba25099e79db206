"""Pictures where the model is divided: layers over processes (--pp), and the encoder in a process or on a host of its own. The same
answers as in one process."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess

import pytest

from harness import ROOT, WAIT_S, Server, placement, program, strike, wait_until
from test_layer_hosts import join, lead, pipeline, wait_ready
from test_text_hosts import control_port
from test_vision import CHAT, ask, part_of, refused, tokens_of, url, whole
from vision_model import picture, served, vision_model

ENCODER = """\
name: vision
{control}entry: scheduler
stages:
  - {{name: scheduler, worker: generate, process: scheduler, encode_from: vision, next: detokenizer, stream_to: detokenizer{more}}}
  - {{name: vision, worker: encode, {place}}}
  - {{name: detokenizer, worker: detokenize, terminal: true, can_accept_stream_before_payload: true}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return vision_model(tmp_path_factory.mktemp("vision") / "vl")


@pytest.fixture(scope="module")
def wanted(folder):
    """Of one process: tokens with their logprobs."""
    with Server(model=folder) as server:
        return [whole(server, ask(*one["parts"]))["choices"] for one in served()["conversations"]]


def file(folder, place="process: vision", control="", more=""):
    path = folder / "vision.yaml"
    path.write_text(ENCODER.format(place=place, control=f'control: "{control}"\n' if control else "", more=more))
    return path


def check(server, wanted):
    """Alone, from the caches, and in company."""
    bodies = [ask(*one["parts"]) for one in served()["conversations"]]
    for _ in range(2):
        assert [whole(server, body)["choices"] for body in bodies] == wanted
    assert server.post("/flush_cache", None)[0] == 200
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda body: whole(server, body)["choices"], bodies * 3)) == wanted * 3


def encoded(server):
    """Pictures that the stage `vision` has encoded."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_S)
    connection.request("GET", "/live/events")
    lines = iter(connection.getresponse().readline, b"")
    event = json.loads(next(line for line in lines if line.startswith(b"data: "))[len(b"data: "):])
    connection.close()
    metrics = next(stage["metrics"] for stage in event["stages"] if stage["stage"] == "vision")
    return next((value for name, value in metrics.items() if name.endswith("media_encoded_total")), 0)


@pytest.mark.parametrize("ranges", ["2", "4"])
def test_layers_over_processes(folder, wanted, ranges):
    """The model has 4 layers, and adds features behind three of them: with 4 ranges each of the first three does."""
    with Server("--pp", ranges, model=folder) as server:
        check(server, wanted)
        for one, choices in zip(served()["conversations"], wanted):
            assert choices[0]["message"]["content"] == one["text"]
        wait_until(server.all_pages_back, "rest")
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []


def test_a_first_range_of_tower_and_embedding_alone(folder, wanted):
    with Server("--pp", "2", "--split", "0,4", model=folder) as server:
        check(server, wanted)
        assert server.stop() == 0, server.output()


@pytest.fixture(scope="module")
def shards(folder, tmp_path_factory):
    """{layers of the first range: the folder with both shards}"""
    found = {}
    for first in (0, 2):
        found[first] = tmp_path_factory.mktemp("split") / "shards"
        done = subprocess.run([program(), "split", str(folder), "--split", f"{first},{4 - first}", "--out", str(found[first])],
                              capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("model", ["complete", "shards"])
def test_layers_over_hosts(folder, shards, wanted, network, key, tmp_path, first, model):
    """The first range has the tower, the embedding, and some layers or none; the host of the others has no tower where it has a shard."""
    near, far = network
    models = [shards[first] / "0", shards[first] / "1"] if model == "shards" else [folder] * 2
    path = pipeline(tmp_path, (0, first, None), (first, 4, "b"), control=f"{near.ipv4}:30310", key=key)
    with lead(path, where=near, model=models[0]) as server, join(path, "upper1", where=far, model=models[1]) as upper:
        wait_ready(server)
        check(server, wanted)
        assert server.stop() == 0, server.output()
        assert upper.end() == 0, upper.output()
        assert server.leftovers() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_range_of_another_host_that_is_lost_costs_time_alone(folder, wanted, tmp_path, how):
    """Its rows of pictures are computed anew when it is back, with what the tower had made of them."""
    path = pipeline(tmp_path, (0, 1, None), (1, 4, "b"))
    with lead(path, model=folder) as server, join(path, "upper1", model=folder) as upper:
        wait_ready(server)
        bodies = [ask(*one["parts"]) for one in served()["conversations"]]
        assert [whole(server, body)["choices"] for body in bodies] == wanted
        with contextlib.ExitStack() as stack:
            strike(upper.process.pid, how)
            wait_until(lambda: "upper1" in server.get("/ready")[2]["reason"], "a server that names the stage")
            if how == signal.SIGSTOP:
                upper.process.send_signal(signal.SIGCONT)
            else:
                stack.enter_context(join(path, "upper1", model=folder))
            wait_until(server.ready, "return")
            check(server, wanted)
            assert server.stop() == 0, server.output()


def test_a_shard_with_the_tower(shards):
    shards = shards[2]

    def names(shard):
        data = (shards / shard / "model.safetensors").read_bytes()
        return json.loads(data[8:8 + int.from_bytes(data[:8], "little")])

    assert any("visual." in name for name in names("0"))
    assert not any("visual." in name for name in names("1"))
    assert (shards / "0" / "preprocessor_config.json").exists()


def test_the_encoder_in_a_process_of_its_own(folder, wanted, tmp_path):
    with Server("--pipeline", str(file(tmp_path)), model=folder) as server:
        check(server, wanted)
        assert "messages[1].content[0]" in refused(server, ask_broken())
        assert server.post("/flush_cache", None)[0] == 200
        wait_until(lambda: encoded(server) > 0, "pictures of the encoder")
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []


def ask_broken():
    body = ask("photo.jpg")
    body["messages"][1]["content"] = [{"type": "image_url", "image_url": {"url": url(picture("gradient.png")[:-40])}}]
    return body


def test_two_schedulers_have_a_picture_encoded_once(folder, wanted, tmp_path):
    with Server("--pipeline", str(file(tmp_path, more=", replicas: 2")), "--dp-policy", "round_robin", model=folder) as server:
        one = served()["conversations"][0]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: whole(server, ask(*one["parts"]))["choices"], range(8)))
        assert answers == [wanted[0]] * 8
        wait_until(lambda: encoded(server) == 1, "one run of the encoder")


def encoder_pid(server):
    for entry in pathlib.Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] if arguments[1:3] == [b"stage", b"vision"] else None
        except OSError:
            continue
        if parent == str(server.process.pid):
            return int(entry.name)
    raise AssertionError("no encoder")


@pytest.mark.skipif(placement() != "processes", reason="the encoder has a process to kill only where stages are processes")
def test_an_encoder_that_dies_costs_time_alone(folder, wanted, tmp_path):
    with Server("--pipeline", str(file(tmp_path)), model=folder) as server:
        one = served()["conversations"][1]
        assert whole(server, ask(*one["parts"]))["choices"] == wanted[1]
        os.kill(encoder_pid(server), signal.SIGKILL)
        text = whole(server, ask("Tell me of it."))
        assert text["choices"][0]["message"]["content"]
        assert server.post("/flush_cache", None)[0] in (200, 409, 503)
        wait_until(lambda: server.post(CHAT, ask(*served()["conversations"][0]["parts"]))[2].get("choices") == wanted[0], "the next encoder")
        assert server.stop() == 0, server.output()


def test_the_encoder_on_another_host(folder, wanted, tmp_path):
    path = file(tmp_path, place="host: b", control=f"tcp://127.0.0.1:{control_port()}")
    with lead(path, model=folder) as server:
        wait_ready(server)
        with join(path, "vision", model=folder):
            wait_until(lambda: server.get("/ready")[0] == 200, "the encoder")
            check(server, wanted)
        assert server.stop() == 0, server.output()


def test_the_example_is_a_pipeline():
    done = subprocess.run([program(), "pipeline", "check", str(ROOT / "pipelines" / "vision-hosts.yaml")], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    assert "<= vision" in done.stdout
