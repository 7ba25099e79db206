"""A pipeline of eight stages and two terminals, whose every byte tests/oracles/stages_toys.py foretells: answers, streams,
company, aborts, deaths, stages on another host. And the commands that check and draw pipelines."""
import base64
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from harness import ROOT, SANITIZED, Server, alive, placement, program, wait_until

FANIN = ROOT / "examples" / "pipelines" / "fanin.yaml"
TEXT = ROOT / "pipelines" / "text.yaml"
CASES = json.loads((ROOT / "tests" / "golden" / "stages" / "fanin.json").read_text())
RUN = "/v1/pipeline"
processes_only = pytest.mark.skipif(placement() != "processes", reason="only child processes can be stopped and killed from outside")


LONG = {"text": "long", "max_tokens": 1_000_000, "modalities": ["text", "audio"]}  # with a pause after each step, half an hour


@pytest.fixture(scope="module")
def paced(tmp_path_factory):
    """The example, whose thinker takes 2 ms for a step, as a model would."""
    path = tmp_path_factory.mktemp("paced") / "paced.yaml"
    path.write_text(FANIN.read_text().replace("args: {steps: 24, width: 32}", "args: {steps: 24, width: 32, pace_ms: 2}"))
    return path


@pytest.fixture(scope="module")
def server(paced):
    with Server("--pipeline", str(paced), model=None) as running:
        yield running


def expected(case):
    results = {"decode": {"text": case["text"]}, "code2wav": {"samples": case["samples"], "hash": case["pcm_hash"]}}
    wanted = ["decode"] if case["modalities"] == ["text"] else ["code2wav"] if case["modalities"] == ["audio"] else ["decode", "code2wav"]
    return {name: results[name] for name in wanted}


def check_result(case, result):
    wanted = expected(case)
    found = {next(iter(wanted)): result} if len(wanted) == 1 else result
    assert found.keys() == wanted.keys()
    for stage, values in wanted.items():
        assert {key: found[stage][key] for key in values} == values


def run(server, inputs, **more):
    return server.post(RUN, {"inputs": inputs, **more})


def check(server, case):
    status, _, body = run(server, case["inputs"])
    assert status == 200, body
    check_result(case, body["result"])


def at_rest(server):
    return all(stage["running"] == 0 for stage in server.get("/ready")[2]["stages"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["inputs"].get("text", "nothing"))
def test_the_answer_is_the_oracles(server, case):
    check(server, case)


def test_streams_are_whole_and_in_order(server):
    for case in CASES:
        text, pcm, counts, result = "", b"", {}, None
        events = list(server.stream(RUN, {"inputs": case["inputs"]}))
        assert events[-1] == "[DONE]"
        for event in map(json.loads, events[:-1]):
            if "result" in event:
                result = event["result"]
                continue
            assert result is None and event["chunk_id"] == counts.get(event["stage"], 0)
            counts[event["stage"]] = event["chunk_id"] + 1
            if event["modality"] == "text":
                text += event["value"]["text"]
            else:
                assert event["modality"] == "audio"
                pcm += base64.b64decode(event["value"]["pcm"]["$tensor"]["base64"])
        check_result(case, result)
        if "text" in case["modalities"]:
            assert text == case["text"]
        if "audio" in case["modalities"]:
            assert len(pcm) == 2 * case["samples"]
            assert [int.from_bytes(pcm[i:i + 2], "little", signed=True) for i in range(0, min(16, len(pcm)), 2)] == case["first_samples"]


def test_company_changes_nothing(server):
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        for done in [pool.submit(check, server, CASES[i % len(CASES)]) for i in range(96)]:
            done.result()
    wait_until(lambda: at_rest(server), 20, "rest")


def test_a_long_stream_waits_for_its_receivers():
    """The example's thinker takes no time for a step: what follows it is slower."""
    with Server("--pipeline", str(FANIN), model=None) as server:
        status, _, body = run(server, {"text": "hello", "max_tokens": 20_000, "modalities": ["text", "audio"]})
        assert status == 200, body
        text = body["result"]["decode"]["text"]
        assert len(text) == 20_000 and text.startswith(CASES[0]["text"])
        assert body["result"]["code2wav"]["samples"] == 20_000 * 240


def test_bad_requests_are_told_and_cost_nothing(server):
    for body, status, wanted in (({}, 400, "inputs is missing"),
                                 ({"inputs": {"text": "x"}, "terminals": ["thinker"]}, 400, "thinker"),
                                 ({"inputs": {"text": "x"}, "terminals": ["nobody"]}, 400, "nobody"),
                                 ({"inputs": {"image": {"width": -1, "height": 2, "seed": 0}}}, 400, "width"),
                                 ({"inputs": {"text": "x", "max_tokens": 10**9}}, 400, "max_tokens"),
                                 ({"inputs": {"modalities": ["smell"]}}, 400, "modalities")):
        found = server.post(RUN, body)
        assert found[0] == status and wanted in found[2]["error"]["message"], found
    check(server, CASES[0])


def test_a_deadline_ends_a_request_with_504(server):
    status, _, body = run(server, LONG, timeout_s=0.5)
    assert status == 504, body
    wait_until(lambda: at_rest(server), 20, "rest")


def test_a_client_that_leaves_frees_everything(server):
    for _ in range(10):
        events = server.stream(RUN, {"inputs": LONG})
        for _ in range(3):
            next(events)
        events.close()
    wait_until(lambda: at_rest(server), 20, "rest")
    check(server, CASES[3])


def test_its_picture_and_metrics(server):
    svg = server.get(RUN)[2]
    assert svg.startswith("<svg") and all(f">{name}</text>" in svg for name in ("preprocessing", "mm_aggregate", "code2wav"))
    metrics = server.get("/metrics")[2]
    assert re.search(r'^millrace:stage_up\{.*stage="thinker".*\} 1$', metrics, re.M)


@processes_only
@pytest.mark.parametrize("victim", ["preprocessing", "mm_aggregate", "thinker", "code2wav"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_stage_that_dies_costs_its_own_requests(paced, victim, how):
    with Server("--pipeline", str(paced), model=None) as server:
        pid = wait_until(lambda: server.children().get(victim), 20, victim)
        found = {}

        def long_request():
            try:
                found["events"] = list(server.stream(RUN, {"inputs": LONG}))
            except AssertionError as refused:
                found["events"] = [str(refused)]
            found["seconds"] = time.monotonic() - begun

        client = threading.Thread(target=long_request)
        begun = time.monotonic()
        client.start()
        wait_until(lambda: server.stage("thinker")["running"] > 0, 20, "running request")
        begun = time.monotonic()
        os.kill(pid, how)
        if victim in ("thinker", "code2wav"):  # the others had finished their part
            client.join(60)
            assert "error" in found["events"][-1] and victim in found["events"][-1], found["events"][-1]
            assert found["seconds"] < (20 if SANITIZED else 6)
        wait_until(lambda: server.children().get(victim) not in (None, pid) and server.ready(), 60, "restart")
        assert not alive(pid)
        for case in CASES[:4]:
            check(server, case)
        if client.is_alive():
            # Its requests never needed the dead one again: still running.
            assert server.stage("thinker")["running"] > 0
        server.stop()
        client.join(20)
        assert server.leftovers() == []


def segments():
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()}


def test_nothing_stays_behind():
    before = segments()
    server = Server("--pipeline", str(FANIN), model=None)
    check(server, CASES[7])
    children = server.children()
    assert len(children) == (8 if placement() == "processes" else 0)
    assert server.stop() == 0
    wait_until(lambda: not any(alive(pid) for pid in children.values()), 5, "end of the children")
    assert server.leftovers() == [] and segments() == before
    server = Server("--pipeline", str(FANIN), model=None)
    children = server.children()
    os.kill(server.process.pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in children.values()), 10, "end of the orphans")
    assert segments() == before


# ---- several hosts, as far as one machine can show them: the stages join over TCP


def control_port():
    """One that is free together with the next, where aborts are told; below those that the system gives to connections."""
    while True:
        port = random.randrange(20000, 30000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", port))
            two.bind(("127.0.0.1", port + 1))
            return port


@pytest.fixture
def two_hosts(tmp_path):
    """The example with its sound on another host."""
    port = control_port()
    text = FANIN.read_text().replace("name: fanin\n", f'name: fanin\ncontrol: "tcp://127.0.0.1:{port}"\n')
    for stage in ("talker_ar", "code2wav"):
        text = text.replace(f"    process: {stage}\n", "    process: far\n    host: other\n")
    path = tmp_path / "two-hosts.yaml"
    path.write_text(text)
    return path


@contextlib.contextmanager
def joined(path, *stages):
    control = next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("control:"))
    process = subprocess.Popen([program(), "stage", "--join", control.removeprefix("tcp://"), "--pipeline", str(path), "--stages", ",".join(stages)],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def test_stages_join_from_another_host_and_may_come_back(two_hosts):
    server = Server("--pipeline", str(two_hosts), model=None, wait=False)
    with server:
        with joined(two_hosts, "talker_ar", "code2wav") as far:
            assert server.url_found.wait(30) and server.host, server.output()
            for case in CASES:
                check(server, case)
            far.kill()
            far.wait()
            # Each has a lease of its own; until it runs out, a request may still be sent to the dead.
            wait_until(lambda: all(server.stage(name)["state"] != "ready" for name in ("talker_ar", "code2wav")), 20, "loss")
            status, _, body = run(server, CASES[2]["inputs"])
            assert status == 503, body
        with joined(two_hosts, "talker_ar", "code2wav"):
            wait_until(server.ready, 30, "return")
            check(server, CASES[3])
        assert "millrace stage --join" in server.output()


def test_a_stage_of_another_pipeline_is_refused(two_hosts, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(two_hosts.read_text().replace("samples: 240", "samples: 241"))
    with Server("--pipeline", str(two_hosts), model=None, wait=False) as server:
        wait_until(lambda: "waiting for stages" in server.output(), 20, "start")
        with joined(other, "talker_ar", "code2wav") as far:
            assert far.wait(30) != 0
            assert "pipeline" in far.stdout.read()


# ---- the commands


def command(*arguments):
    return subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=60)


def test_check_says_what_a_pipeline_is_or_what_is_wrong(tmp_path):
    for path, parts in ((FANIN, ("8 stages", "entry preprocessing", "terminals decode, code2wav", "~> talker_ar, decode")), (TEXT, ("text.generate",))):
        found = command("pipeline", "check", str(path))
        assert found.returncode == 0 and all(part in found.stdout for part in parts), found.stdout + found.stderr
    bad = tmp_path / "bad.yaml"
    bad.write_text(FANIN.read_text().replace("next: decode", "next: decoed"))
    found = command("pipeline", "check", str(bad))
    assert found.returncode == 2 and "next of stage 'thinker' is 'decoed'; wanted the name of a stage (perhaps 'decode')" in found.stderr, found.stderr
    assert command("serve", "--pipeline", str(bad), "--port", "0").returncode == 2
    assert command("pipeline", "check", str(tmp_path / "none.yaml")).returncode == 2


def test_draw_makes_a_picture(tmp_path):
    svg, dot = tmp_path / "p.svg", tmp_path / "p.dot"
    assert command("pipeline", "draw", str(FANIN), "-o", str(svg)).returncode == 0
    assert command("pipeline", "draw", str(FANIN), "-o", str(dot)).returncode == 0
    assert svg.read_text().count("<rect") == 9  # the eight stages and the background
    assert '"thinker" -> "talker_ar" [style=dashed];' in dot.read_text()


def test_text_serving_runs_from_its_file_in_any_placement(tmp_path):
    with Server("--pipeline", str(TEXT)) as server:
        story = server.chat("Tell me about a dog.", temperature=0, max_tokens=20)
    together = tmp_path / "together.yaml"  # both stages in one child process
    together.write_text(TEXT.read_text().replace("process: detokenizer", "process: scheduler"))
    mixed = tmp_path / "mixed.yaml"  # the detokenizer in the front
    mixed.write_text(TEXT.read_text().replace("process: detokenizer", "process: front"))
    for path, children in ((together, {"scheduler"}), (mixed, {"scheduler"})):
        with Server("--pipeline", str(path), "--placement", "processes") as server:
            assert set(server.children()) == children
            assert server.chat("Tell me about a dog.", temperature=0, max_tokens=20) == story
    replicas = tmp_path / "replicas.yaml"
    replicas.write_text(TEXT.read_text().replace("process: scheduler\n", "process: scheduler\n    replicas: 2\n"))
    with Server("--pipeline", str(replicas), "--placement", "processes") as server:
        assert set(server.children()) == {"scheduler-0", "scheduler-1", "detokenizer"}
        assert server.chat("Tell me about a dog.", temperature=0, max_tokens=20) == story
