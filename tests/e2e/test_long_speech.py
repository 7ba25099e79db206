"""Speech that lasts: a listener that reads slowly holds the talker back, and gets every sample when it reads again; and options of the stages
that speak."""
import base64
import contextlib
import http.client
import json
import socket

import pytest

from harness import WAIT_S, Server, placement, wait_until
from omni_model import endless_model

FRAMES = 6000  # 8 minutes, 23 MB of samples
SAMPLES_PER_FRAME = 1920
HELD_FRAMES = 4500  # a server keeps 8 MiB for the client, 4 MiB before the vocoder rests, 768 frames in chunks between it and the talker
SOUND = {"talker_max_new_tokens": FRAMES, "talker_do_sample": False}
SPEECH = ("/v1/audio/speech", {"input": "Once upon a time there was a dog.", "voice": "ethan", "response_format": "pcm", **SOUND})
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Good morning!"}], "modalities": ["text", "audio"], "max_tokens": 8,
                                 "audio": {"voice": "ethan", "format": "pcm16"}, "temperature": 0, "ignore_eos": True, "stream": True, **SOUND})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return endless_model(tmp_path_factory.mktemp("long") / "endless")


@contextlib.contextmanager
def asked(server, path, body, buffer_bytes=None):
    """The response of a client that lets the system keep so little for it."""
    with socket.socket() as client:
        if buffer_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.settimeout(WAIT_S)
        client.connect((server.host, server.port))
        connection = http.client.HTTPConnection(server.host, server.port)
        connection.sock = client
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield response


def sound_in(response, path):
    if path == SPEECH[0]:
        return response.read()
    sound = b""
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                sound += base64.b64decode((choice["delta"].get("audio") or {}).get("data") or "")
    return sound


@pytest.mark.parametrize("path, body", [SPEECH, CHAT], ids=["speech", "chat"])
def test_a_slow_listener_holds_the_talker_back_and_misses_nothing(folder, path, body):
    with Server(model=folder) as server:
        def metric(name):
            return server.metrics().get(f"millrace:{name}", 0)
        with asked(server, path, body) as response:
            wanted = sound_in(response, path)
        assert FRAMES - 2 < len(wanted) / 2 / SAMPLES_PER_FRAME <= FRAMES
        wait_until(lambda: metric("speech_frames_total") == FRAMES, "the frames of the first")
        with asked(server, path, body, buffer_bytes=4096) as response:
            wait_until(lambda: metric("speech_held_requests") == 1, "a talker that rests")
            assert metric("speech_frames_total") - FRAMES < HELD_FRAMES
            sound = sound_in(response, path)
            assert len(sound) == len(wanted), "every sample"
            assert sound == wanted
        wait_until(lambda: metric("speech_held_requests") == 0 and metric("speech_frames_total") == 2 * FRAMES, "all frames, and nothing held")
        assert server.stop() == 0, server.output()


def speech(server, text):
    with asked(server, SPEECH[0], {**SPEECH[1], "input": text, "talker_max_new_tokens": 40}) as response:
        return response.read()


TEXTS = ["Once upon a time there was a dog.", "The sun was red.", "A cat saw a bird in the tree."]


def test_quantize_holds_for_the_talker(folder):
    """Of a given text the thinker computes nothing: what changes the sound is the talker."""
    with Server(model=folder) as plain:
        wanted = [speech(plain, text) for text in TEXTS]
        assert plain.stop() == 0
    for kind in ("q8_0", "q4_0"):
        with Server("--quantize", kind, model=folder) as server:
            sounds = [speech(server, text) for text in TEXTS]
            assert sounds != wanted and [len(one) for one in sounds] == [len(one) for one in wanted]
            assert [speech(server, text) for text in TEXTS] == sounds
            assert server.stop() == 0


def threads_of(server, stage):
    with open(f"/proc/{server.children()[stage]}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Threads:"))


@pytest.mark.skipif(placement() != "processes", reason="the threads of stages are counted by process")
def test_stages_that_speak_have_threads_of_their_own(folder):
    counts = []
    for more in ([], ["--talker-threads", "4", "--vocoder-threads", "3"]):
        with Server("--threads", "2", *more, model=folder) as server:
            speech(server, TEXTS[0])
            counts.append([threads_of(server, stage) for stage in ("scheduler", "talker", "vocoder")])
            assert server.stop() == 0
    assert [b - a for a, b in zip(*counts)] == [0, 2, 1]
