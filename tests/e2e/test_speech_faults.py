"""Spoken answers over several hosts and under faults: clients that hang up at random moments, stages that are killed or frozen at several moments under eight clients. Each
request ends once, nothing is left in any book, and the sound of what comes later is what it was."""
import base64
import concurrent.futures
import contextlib
import json
import os
import random
import signal
import socket

import pytest

from harness import WAIT_S, Server, placement, strike, wait_until
from omni_model import ROOT, sound_of, speaking_model, spoken, spoken_body
from test_text_hosts import LEASE, control_port, join, wait_ready

CHAT = "/v1/chat/completions"
HANGUPS = int(os.environ.get("MILLRACE_HANGUPS", "300"))  # 5,000 by hand
MOMENTS = int(os.environ.get("MILLRACE_MOMENTS", "3"))  # 10 by hand
STAGES = ("scheduler", "talker", "vocoder")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return speaking_model(tmp_path_factory.mktemp("faults") / "speaker")


BODIES = [spoken_body(case, max_tokens=8, ignore_eos=True, talker_max_new_tokens=40) for case in spoken()]


def books_are_empty(server):
    for stage in server.get("/ready")[2]["stages"]:
        if stage["running"] or stage["waiting"] or stage["pages_free"] + stage["pages_cached"] != stage["pages_total"]:
            return False
    metrics = server.metrics()
    return metrics.get("millrace:live_requests", 0) == 0


def hang_up(server, seed):
    """A request for a spoken answer whose client leaves at a random moment."""
    draw = random.Random(seed)
    body = {**draw.choice(BODIES), "stream": draw.random() < 0.8, "talker_max_new_tokens": draw.choice((1, 20, 400)), "max_tokens": draw.choice((1, 8, 40))}
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: millrace\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with contextlib.suppress(OSError), socket.create_connection((server.host, server.port), timeout=WAIT_S) as connection:
        connection.sendall(head + data)
        connection.settimeout(draw.choice((0.001, 0.01, 0.05, 0.3)))
        for _ in range(draw.randrange(40)):
            if not connection.recv(draw.choice((100, 4096, 65536))):
                return


def test_clients_that_hang_up_at_any_moment_leave_nothing(folder):
    with Server(model=folder) as server:
        wanted = [sound_of(server, body) for body in BODIES]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda seed: hang_up(server, seed), range(HANGUPS)))
        wait_until(lambda: books_are_empty(server), "empty books of all stages")
        assert [sound_of(server, body) for body in BODIES] == wanted
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []


def ends_of(server, body):
    """How a stream ended: its finish reasons and errors, and its sound."""
    finishes, errors, sound = [], [], b""
    with contextlib.closing(server.connection()) as connection:
        connection.request("POST", CHAT, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return [], [json.loads(response.read())["error"]["message"]], b""
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                errors.append(event["error"]["message"])
                continue
            for choice in event["choices"]:
                sound += base64.b64decode((choice["delta"].get("audio") or {}).get("data") or "")
                finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
    return finishes, errors, sound


@pytest.mark.skipif(placement() != "processes", reason="only child processes can be killed from outside")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("victim", STAGES)
def test_a_stage_that_fails_at_any_moment_ends_each_request_once(folder, victim, how):
    with Server(model=folder) as server:
        bodies = [{**BODIES[i % len(BODIES)], "talker_max_new_tokens": 60} for i in range(8)]
        wanted = [ends_of(server, body) for body in bodies]
        assert all(finishes == ["length"] and not errors and sound for finishes, errors, sound in wanted)
        for moment in range(MOMENTS):
            before = server.stage(victim)["incarnation"]
            started = server.metrics()["millrace:speech_frames_total"]
            pid = server.children()[victim]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                asked = [pool.submit(ends_of, server, body) for body in bodies]
                if moment:
                    wait_until(lambda: server.metrics().get("millrace:speech_frames_total", started) != started or all(one.done() for one in asked),
                               "frames, or the ends")
                strike(pid, how)
                if how == signal.SIGKILL:
                    wait_until(lambda: server.stage(victim)["incarnation"] > before and server.ready(), "the stage's restart")
                else:
                    wait_until(lambda: not server.ready() or server.children().get(victim) != pid, "the frozen stage's absence")
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                ends = [one.result() for one in asked]
            for (finishes, errors, sound), (_, _, whole) in zip(ends, wanted):
                assert len(finishes) + len(errors) == 1, (finishes, errors)
                assert whole.startswith(sound) and (errors or sound == whole), "what came is the beginning of the sound, without a gap"
            wait_until(server.ready, "a ready server")
            wait_until(lambda: books_are_empty(server), "empty books of all stages")
        assert [ends_of(server, body) for body in bodies] == wanted
        assert server.stop() == 0, server.output()


OMNI = (ROOT / "pipelines" / "omni.yaml").read_text()
EXAMPLE = (ROOT / "examples" / "pipelines" / "omni-two-hosts.yaml").read_text()
LAYOUTS = {"example": ["talker", "vocoder"], "vocoder": ["vocoder"], "thinker": ["scheduler"], "all": ["scheduler", "detokenizer", "talker", "vocoder"]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_over_hosts_the_sound_is_that_of_one_process(folder, tmp_path, layout):
    """Hidden rows of pictures and audio, codes and samples go over TCP."""
    remote = LAYOUTS[layout]
    control = f'control: "tcp://127.0.0.1:{control_port()}"\n{LEASE}\n'
    text = EXAMPLE.replace('control: "tcp://127.0.0.1:30100"\n', control) if layout == "example" else OMNI.replace("name: omni\n", f"name: omni\n{control}")
    for stage in remote if layout != "example" else []:
        text = text.replace(f"    process: {stage}\n", f"    process: {stage}\n    host: other\n")
    path = tmp_path / "omni-hosts.yaml"
    path.write_text(text)
    with Server("--placement", "single", model=folder) as alone:
        wanted = [sound_of(alone, body) for body in BODIES]
        assert alone.stop() == 0
    with Server("--pipeline", str(path), model=folder, wait=False) as server, join(path, ",".join(remote), model=folder) as joined:
        wait_ready(server)
        wait_until(server.ready, "the joined stages")
        assert [sound_of(server, body) for body in BODIES] == wanted
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda body: sound_of(server, body), BODIES)) == wanted
        assert server.stop() == 0, server.output()
        assert joined.end() == 0, joined.output()
