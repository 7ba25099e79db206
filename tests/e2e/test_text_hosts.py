"""Text serving over several hosts, as far as one machine can show them: the scheduler, the detokenizer or both join over TCP. The
texts are those of one process; a stage that dies or freezes costs its own requests and may come back; who is not the same is refused."""
import contextlib
import json
import pathlib
import random
import shutil
import signal
import socket
import threading
import time

import pytest

from harness import DEMO, ROOT, SANITIZED, WAIT_S, Joined, Server, alive, new_key, past_silence, strike, wait_until

TEXT = (ROOT / "pipelines" / "text.yaml").read_text()
COMPLETIONS = "/v1/completions"
PROMPTS = ["Once upon a time", "The little dog", "Tom and his sister went to the sea", "It rained"]
LONG = {"prompt": "Once upon a time", "ignore_eos": True, "temperature": 0, "max_tokens": 900}


LEASE = "lease_ms: 10000"  # so that a process that gets no processor for a while is not lost


_given_ports = set()


def control_port():
    """Below those that the system gives to connections. Each is given once; the one behind it is of the same server."""
    while True:
        port = random.randrange(20000, 30000, 2)
        if port in _given_ports:
            continue
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            _given_ports.add(port)
            return port


def pipeline(folder, *remote, replicas=1, name="hosts.yaml", more=""):
    """pipelines/text.yaml with these stages on another host."""
    text = TEXT.replace("name: text\n", f'name: text\ncontrol: "tcp://127.0.0.1:{control_port()}"\n{LEASE}\n{more}')
    for stage in remote:
        text = text.replace(f"    process: {stage}\n", f"    process: {stage}\n    host: other\n")
    text = text.replace("    process: scheduler\n", f"    process: scheduler\n    replicas: {replicas}\n")
    path = folder / name
    path.write_text(text)
    return path


def control_of(path):
    return next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("control:")).removeprefix("tcp://")


def join(path, stages, leader=None, **more):
    return Joined(path, stages, leader or control_of(path), **more)


def leader(path, *arguments):
    return Server("--pipeline", str(path), *arguments, wait=False)


def listening(server):
    wait_until(lambda: "waiting for stages" in server.output(), "start")


def wait_ready(server):
    assert server.url_found.wait(WAIT_S) and server.host, server.output()


def texts(server):
    out = []
    for prompt in PROMPTS:
        status, _, body = past_silence(lambda: server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 40, "temperature": 0}))
        assert status == 200, body
        out.append((body["choices"][0]["text"], body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]))
    pieces = [json.loads(event) for event in server.stream(COMPLETIONS, {"prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0}) if event != "[DONE]"]
    assert all("choices" in piece for piece in pieces), pieces[-1]
    out.append("".join(piece["choices"][0]["text"] for piece in pieces if piece["choices"]))
    return out


@pytest.fixture(scope="module")
def wanted():
    with Server("--placement", "single") as server:
        return texts(server)


LAYOUTS = {"scheduler": (["scheduler"], 1, ["scheduler"], []),
           "detokenizer": (["detokenizer"], 1, ["detokenizer"], []),
           "both-in-one-process": (["scheduler", "detokenizer"], 1, ["scheduler,detokenizer"], []),
           "both-in-two": (["scheduler", "detokenizer"], 1, ["detokenizer", "scheduler"], []),
           "two-schedulers": (["scheduler"], 2, ["scheduler:0", "scheduler:1"], []),
           "two-schedulers-here": (["detokenizer"], 1, ["detokenizer"], ["--dp", "2"])}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_texts_are_those_of_one_process(wanted, tmp_path, layout):
    remote, replicas, joiners, more = LAYOUTS[layout]
    path = pipeline(tmp_path, *remote, replicas=replicas)
    with leader(path, *more) as server, contextlib.ExitStack() as stack:
        joined = [stack.enter_context(join(path, stages)) for stages in joiners]
        wait_ready(server)
        wait_until(lambda: all(stage["state"] == "ready" for stage in server.get("/ready")[2]["stages"]), "ready stages")
        assert texts(server) == wanted
        status, _, body = past_silence(lambda: server.post("/flush_cache", {}))  # an order and its answers
        assert status == 200, body
        assert texts(server) == wanted
        assert server.stop() == 0, server.output()
        for one in joined:  # the leader told them to end
            assert one.end() == 0, one.output()
        assert server.leftovers() == []


def test_ready_says_what_it_waits_for(tmp_path):
    path = pipeline(tmp_path, "scheduler")
    with leader(path, "--port", str(control_port())) as server:
        listening(server)
        server.host, server.port = "127.0.0.1", int(server.process.args[server.process.args.index("--port") + 1])
        wait_until(lambda: "scheduler: awaited from host 'other'" in server.get("/ready")[2]["reason"], "reason")
        assert server.get("/ready")[0] == 503
        assert server.get("/live")[0] == 200
        assert server.post(COMPLETIONS, LONG)[0] == 503
        assert f"millrace stage --join tcp://{control_of(path)} --pipeline {path} --stages scheduler" in server.output()
        with join(path, "scheduler"):
            wait_until(server.ready, "the stage")


def long_request(server, found, rank, choices):
    headers = {} if rank is None else {"X-Data-Parallel-Rank": str(rank)}
    found["status"], _, found["body"] = server.post(COMPLETIONS, {**LONG, "n": choices}, headers=headers)


def in_background(server, rank=None, choices=1):
    found = {}
    thread = threading.Thread(target=long_request, args=(server, found, rank, choices))
    thread.start()
    return found, thread


def expect_scheduler_1_lost(server, requests, host):
    """The requests that it had not answered get an error; the server says which host it waits for, and serves on."""
    for found, thread in requests:
        thread.join(WAIT_S)
        if found["status"] != 200:
            assert found["status"] == 503 and "scheduler-1" in found["body"]["error"]["message"], found
    assert any(found["status"] == 503 for found, _ in requests)
    during = server.get("/ready")[2]
    assert during["ready"] and "scheduler-1" in during["reason"] and f"awaited from host '{host}'" in during["reason"], during


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_scheduler_that_is_lost_costs_its_own_requests_and_comes_back(wanted, tmp_path, how):
    path = pipeline(tmp_path, "scheduler", replicas=2)
    with leader(path, "--dp-policy", "round_robin") as server, join(path, "scheduler:0") as one:
        with join(path, "scheduler:1") as two:
            wait_ready(server)
            wait_until(lambda: server.stage("scheduler-0")["state"] == server.stage("scheduler-1")["state"] == "ready", "both")
            # More than can run at once, so that some are there when the loss is noticed.
            mine = [in_background(server, 1, choices=16) for _ in range(12)]
            others = [in_background(server, 0) for _ in range(2)]
            wait_until(lambda: server.stage("scheduler-1")["running"] >= 2, "running requests")
            strike(two.process.pid, how)
            expect_scheduler_1_lost(server, mine, "other")
            for found, thread in others:
                thread.join(WAIT_S)
                assert found["status"] == 200, found
            if how == signal.SIGSTOP:
                two.process.send_signal(signal.SIGCONT)  # it joins again by itself
                wait_until(lambda: server.stage("scheduler-1")["state"] == "ready", "return")
                wait_until(lambda: "joins again" in two.output(), "word of it")
        if how == signal.SIGKILL:
            with join(path, "scheduler:1"):
                wait_until(lambda: server.stage("scheduler-1")["state"] == "ready", "return")
                assert texts(server) == wanted
        wait_until(lambda: server.stage("scheduler-1")["state"] != "ready", "its end")
        assert texts(server) == wanted
        assert one.process.poll() is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_detokenizer_that_is_lost_fails_what_runs_and_comes_back(wanted, tmp_path, how):
    path = pipeline(tmp_path, "scheduler", "detokenizer")
    with leader(path) as server, join(path, "scheduler") as scheduler, join(path, "detokenizer") as first:
        wait_ready(server)
        mine = [in_background(server, choices=16) for _ in range(12)]
        wait_until(lambda: server.stage("scheduler")["running"] >= 2, "running requests")
        strike(first.process.pid, how)
        for found, thread in mine:
            thread.join(WAIT_S)
        cut = [found for found, _ in mine if found["status"] != 200]  # a fast one was through before
        assert cut
        for found in cut:
            assert found["status"] == 503 and "detokenizer" in found["body"]["error"]["message"], found
        assert server.get("/ready")[0] == 503
        with join(path, "detokenizer") as second:  # while the other one still sleeps, or is gone
            wait_until(server.ready, "return")
            assert texts(server) == wanted
            if how == signal.SIGSTOP:
                first.process.send_signal(signal.SIGCONT)
                wait_until(lambda: "taken by a live other one" in first.output(), "news of the other")
                assert texts(server) == wanted
            assert second.process.poll() is None
        assert "joins again" not in scheduler.output()  # it lived on
        wait_until(lambda: server.stage("scheduler")["running"] == 0, "rest")


def test_a_leader_that_dies_is_waited_for(wanted, tmp_path):
    path = pipeline(tmp_path, "scheduler")
    with join(path, "scheduler") as far:
        for _ in range(2):
            with leader(path) as server:
                wait_ready(server)
                assert texts(server)[0] == wanted[0]
                # The next server knows of no pause.
                assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
                children = server.children()
                server.process.kill()
                server.process.wait()
                wait_until(lambda: not any(alive(pid) for pid in children.values()), "end of the children")
        assert far.process.poll() is None
        wait_until(lambda: "joins again" in far.output(), "word of it")


def test_a_stage_that_leaves_is_missed_at_once(tmp_path):
    path = pipeline(tmp_path, "scheduler")
    with leader(path) as server:
        with join(path, "scheduler") as far:
            wait_ready(server)
            far.process.send_signal(signal.SIGINT)
            assert far.end() == 0, far.output()
        wait_until(lambda: not server.ready(), "503 from /ready")


# ---- who is refused


def other_model(folder, change):
    """A copy of the model with one file changed."""
    copy = folder / "model"
    shutil.copytree(DEMO, copy)
    change(copy)
    return copy


def longer_context(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))


def other_weights(folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    for at in range(len(data) // 2, len(data)):
        data[at] ^= 1
    (folder / "model.safetensors").write_bytes(data)


@pytest.mark.parametrize("what", ["file", "config", "weights", "local stage", "replica"])
def test_what_is_not_the_same_is_refused_on_both_sides(tmp_path, what):
    path = pipeline(tmp_path, "scheduler")
    joiner, model, stages, words, leaders_words = path, DEMO, "scheduler", "", "refused stage 'scheduler'"
    if what == "file":
        joiner = tmp_path / "other.yaml"
        joiner.write_text(path.read_text().replace("name: text\n", "name: other\n"))
        words = "another pipeline"
    elif what == "config":
        model, words = other_model(tmp_path, longer_context), "another model: config.json"
    elif what == "weights":
        model, words = other_model(tmp_path, other_weights), "the weights, --kv-dtype, --quantize or --activations differ"
    elif what == "local stage":
        stages, words, leaders_words = "detokenizer", "stage 'detokenizer' has no host", ""
    else:
        stages, words, leaders_words = "scheduler:1", "replica '1' of stage 'scheduler'", ""
    with leader(path) as server:
        listening(server)
        with join(joiner, stages, model=model) as far:
            assert far.end() == 2, far.output()
            assert words in far.output(), far.output()
        wait_until(lambda: leaders_words in server.output() and (not leaders_words or words in server.output()), "the leader's words")
        with join(path, "scheduler"):
            wait_ready(server)


def test_with_a_key_and_without_or_with_another(wanted, tmp_path):
    key, other = new_key(tmp_path / "key"), new_key(tmp_path / "other")
    path = pipeline(tmp_path, "scheduler", "detokenizer", more=f'key_file: "{key}"\n')
    plain = tmp_path / "plain.yaml"
    plain.write_text("".join(line for line in path.read_text().splitlines(True) if "key_file" not in line))
    with leader(path) as server:
        listening(server)
        with join(path, "scheduler", more=["--key-file", str(other)]) as wrong, join(plain, "scheduler") as none:
            for one in (wrong, none):
                wait_until(lambda: "hung up in the handshake" in one.output(), "word of the key")
            assert "joined" not in wrong.output() + none.output() + server.output()
        with join(path, "scheduler"), join(plain, "detokenizer", more=["--key-file", str(key)]):
            wait_ready(server)
            assert texts(server) == wanted


def test_beyond_loopback_there_must_be_a_key(tmp_path):
    path = pipeline(tmp_path, "scheduler")
    for address, words in (("10.255.0.1:30999", "wanted a shared key"), ("0.0.0.0:30999", "0.0.0.0 stands for every address"), ("127.0.0.1:0", "port 0")):
        server = leader(path, "--listen", address)
        assert server.process.wait(WAIT_S) == 2, server.output()
        server.reader.join(WAIT_S)
        assert words in server.output(), server.output()
        server.tmp.cleanup()


def test_the_command_line_says_where_to_join(wanted, tmp_path):
    path = pipeline(tmp_path, "scheduler")
    key, address = new_key(tmp_path / "key"), f"127.0.0.1:{control_port()}"
    with leader(path, "--listen", address, "--key-file", str(key)) as server:
        with join(path, "scheduler", leader=address, more=["--key-file", str(key)]):
            wait_ready(server)
            assert texts(server)[0] == wanted[0]


def test_bad_layouts_are_refused_with_one_line(tmp_path):
    dp = ["--dp", "2"]
    process = pipeline(tmp_path, "scheduler", name="front.yaml")
    process.write_text(process.read_text().replace("process: scheduler", "process: front"))
    for path, more, words in ((pipeline(tmp_path, "scheduler"), dp, "--dp is 2"), (process, [], "process 'front'")):
        server = leader(path, *more)
        assert server.process.wait(WAIT_S) == 2
        server.reader.join(WAIT_S)
        assert words in server.output(), server.output()
        server.tmp.cleanup()
    without = join(pipeline(tmp_path, "scheduler"), "scheduler", model=None)
    assert without.end() == 2 and "--model is missing" in without.output()
