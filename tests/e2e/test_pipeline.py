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
import xml.etree.ElementTree

import pytest

from harness import HEARTBEAT_S, ROOT, SANITIZED, TRIES, WAIT_S, Server, alive, freeze, past_silence, patient, placement, program, strike, wait_until

FANIN = ROOT / "examples" / "pipelines" / "fanin.yaml"
TEXT = ROOT / "pipelines" / "text.yaml"
CASES = json.loads((ROOT / "tests" / "golden" / "stages" / "fanin.json").read_text())
RUN = "/v1/pipeline"
processes_only = pytest.mark.skipif(placement() != "processes", reason="only child processes can be stopped and killed from outside")


LONG = {"text": "long", "max_tokens": 1_000_000, "modalities": ["text", "audio"]}  # with a pause after each step, half an hour


def pace(text, pace_ms=2):
    """Of the example: its thinker takes so long for a step, as a model would."""
    assert "args: {steps: 24, width: 32}" in text
    return text.replace("args: {steps: 24, width: 32}", f"args: {{steps: 24, width: 32, pace_ms: {pace_ms}}}")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example, on a machine that may be busy. Its thinker takes no time for a step: what follows it is slower."""
    path = tmp_path_factory.mktemp("example") / "fanin.yaml"
    path.write_text(patient(FANIN.read_text()))
    return path


@pytest.fixture(scope="module")
def paced(tmp_path_factory):
    path = tmp_path_factory.mktemp("paced") / "paced.yaml"
    path.write_text(pace(patient(FANIN.read_text())))
    return path


SHORT_LEASE_MS = 5000  # where the subject is what becomes of those that are silent for longer


@pytest.fixture(scope="module")
def soon_missed(tmp_path_factory):
    path = tmp_path_factory.mktemp("soon-missed") / "soon-missed.yaml"
    path.write_text(pace(patient(FANIN.read_text(), lease_ms=SHORT_LEASE_MS)))
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


def served(server, inputs, **more):
    """As run(), by stages that are not silent."""
    return past_silence(lambda: run(server, inputs, **more))


def check(server, case):
    status, _, body = served(server, case["inputs"])
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
    wait_until(lambda: at_rest(server), "rest")


def test_a_long_stream_waits_for_its_receivers(example):
    with Server("--pipeline", str(example), model=None) as server:
        status, _, body = served(server, {"text": "hello", "max_tokens": 20_000, "modalities": ["text", "audio"]})
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
    status, _, body = served(server, LONG, timeout_s=0.5)
    assert status == 504, body
    assert "took more than 0.5 s, the limit" in body["error"]["message"], body
    status, _, body = run(server, LONG, timeout_s=601)
    assert status == 400 and "wanted a number from 0 to 600" in body["error"]["message"], body
    wait_until(lambda: at_rest(server), "rest")


def by_stage(server, name):
    """{stage: value} of one series of /metrics, as old as the last heartbeats."""
    found = {}
    for line in server.get("/metrics")[2].splitlines():
        if line.startswith(f"millrace:{name}{{"):
            found[re.search(r'stage="(\w+)"', line)[1]] = float(line.rsplit(" ", 1)[1])
    return found


BOOKS = ("stage_requests", "stage_queued_items", "stage_queued_bytes", "stage_held_chunks", "stage_relay_puts", "stage_relay_gets", "stage_relay_lent_parts",
         "stage_relay_held_bytes")


def books_are_zero(server):
    return all(by_stage(server, name) and not any(by_stage(server, name).values()) for name in BOOKS)


def test_a_client_that_leaves_frees_everything(server):
    busy = ("thinker", "talker_ar", "decode", "code2wav")  # the others had done their part
    before = by_stage(server, "stage_aborted_total")
    for round in range(1, 11):
        events = server.stream(RUN, {"inputs": LONG})
        for _ in range(3):
            next(events)
        # An abort that overtakes the request to a stage is counted there as nothing.
        wait_until(lambda: all(by_stage(server, "stage_requests")[name] > 0 for name in busy), "request in its stages")
        events.close()
        # Heartbeats tell of the past: without this wait the next round could take this one's request for its own.
        wait_until(lambda: all(by_stage(server, "stage_aborted_total")[name] >= before[name] + round for name in busy),
                   f"aborts in every stage, round {round}")
    # One that waits for the whole answer leaves too.
    silent = server.connection()
    silent.request("POST", RUN, json.dumps({"inputs": LONG}), {"Content-Type": "application/json"})
    wait_until(lambda: all(by_stage(server, "stage_requests")[name] > 0 for name in busy), "request in its stages")
    silent.sock.shutdown(socket.SHUT_RDWR)
    silent.close()
    wait_until(lambda: at_rest(server) and books_are_zero(server), "rest")
    wait_until(lambda: all(by_stage(server, "stage_aborted_total")[name] >= before[name] + 11 for name in busy), "aborts in every stage")
    check(server, CASES[3])


def memory_kib(server):
    pids = [server.process.pid, *server.children().values()]
    return sum(int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) for pid in pids)


def test_a_client_that_does_not_read_stops_its_own_request_alone(example):
    """25 MB of events, if somebody took them."""
    count = 250_000
    with Server("--pipeline", str(example), model=None) as server:
        for case in CASES[:4]:
            check(server, case)
        before = memory_kib(server)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
            client.connect((server.host, server.port))
            body = json.dumps({"inputs": {"text": "hello", "max_tokens": count}, "stream": True})
            client.sendall(f"POST {RUN} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            assert standstill(server) < count / 2
            if not SANITIZED:
                assert memory_kib(server) < before + (64 << 10)
            for case in CASES:  # nobody else waits for it
                check(server, case)
            received = bytearray()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)  # a window below one segment of loopback is a stall of 0.2 s a piece
            while piece := client.recv(1 << 20):
                received += piece
        assert received.endswith(b"data: [DONE]\n\n")
        events = re.findall(rb"data: (.*)", received)
        result = json.loads(events[-2])["result"]
        assert len(events) == count + 2 and len(result["text"]) == count
        assert [json.loads(event)["chunk_id"] for event in events[:-2:1000]] == list(range(0, count, 1000))
        assert "".join(json.loads(event)["value"]["text"] for event in events[:5000]) == result["text"][:5000]
        wait_until(lambda: at_rest(server) and books_are_zero(server), "rest")


def standstill(server):
    """Waits until the thinker sends no more: so many chunks are on their way. A machine that is slow beyond that only makes the
    count smaller."""
    sent = 0
    while (now := by_stage(server, "stage_chunks_out_total")["thinker"]) != sent or not sent:
        sent = now
        time.sleep(4 * HEARTBEAT_S)
    return sent


def others_are_served(server, stands_still):
    """Requests for text alone, while somebody else's sound stands still: none waits for it."""
    for _ in range(5):
        check(server, CASES[0])
        assert stands_still()


def test_a_slow_stage_holds_up_its_own_requests_alone(tmp_path):
    """It takes a fifth of a second for each chunk: the chunks of its request wait, and not in anybody's way."""
    path = tmp_path / "slow.yaml"
    path.write_text(patient(FANIN.read_text()).replace("    worker: toy.talk\n", "    worker: toy.talk\n    args: {sleep_ms: 200}\n"))
    with Server("--pipeline", str(path), model=None) as server:
        slow = server.connection()
        inputs = {"text": "slow", "max_tokens": 2000, "modalities": ["text", "audio"]}
        slow.request("POST", RUN, json.dumps({"inputs": inputs}), {"Content-Type": "application/json"})
        wait_until(lambda: server.stage("talker_ar")["running"] > 0, "the slow request")
        wait_until(lambda: by_stage(server, "stage_queued_items")["thinker"] > 0, "chunks that wait for it")
        others_are_served(server, lambda: server.stage("talker_ar")["running"] > 0)  # they waited for its end
        assert served(server, inputs, timeout_s=0.5)[0] == 504  # the deadline waits for no chunk either
        slow.close()


def test_a_client_that_does_not_read_holds_up_nobody_else(example):
    with Server("--pipeline", str(example), model=None) as server:
        with socket.create_connection((server.host, server.port)) as raw:
            body = json.dumps({"inputs": {"text": "unread", "max_tokens": 1_000_000, "modalities": ["text", "audio"]}, "stream": True}).encode()
            raw.sendall(b"POST /v1/pipeline HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert raw.recv(16)
            standstill(server)
            others_are_served(server, lambda: server.stage("talker_ar")["running"] > 0)  # they waited for its end


def test_its_picture_and_metrics(server):
    svg = server.get(RUN)[2]
    assert svg.startswith("<svg") and all(f">{name}</text>" in svg for name in ("preprocessing", "mm_aggregate", "code2wav"))
    metrics = server.get("/metrics")[2]
    assert re.search(r'^millrace:stage_up\{.*stage="thinker".*\} 1$', metrics, re.M)


def of_process(server, name):
    """{process: sum} of a series that stages tell of their whole process."""
    found = {}
    for line in server.get("/metrics")[2].splitlines():
        process = re.search(r'process="([\w-]+)"', line)
        if line.startswith(f"millrace:{name}{{") and process:
            found[process[1]] = found.get(process[1], 0) + float(line.rsplit(" ", 1)[1])
    return found


def test_metrics_tell_of_the_control_plane_in_every_process(server):
    """Bytes that are no message, into one stage's inbox: its process counts them, and the leader tells."""
    check(server, CASES[0])
    metrics = server.get("/metrics")[2]
    assert re.search(r'^millrace:pipeline_requests_total\{.*state="completed".*\} [1-9]', metrics, re.M)
    if placement() != "processes":
        assert of_process(server, "control_bad_frames_total") == {}  # the front tells of itself alone
        return
    zmq = pytest.importorskip("zmq")
    wait_until(lambda: of_process(server, "control_bad_frames_total").keys() == server.children().keys(), "numbers of all processes")
    inbox = next(path for path in pathlib.Path(server.tmp.name).rglob("*thinker-0-*") if path.is_socket())
    before = of_process(server, "control_bad_frames_total")
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.connect(f"ipc://{inbox}")
        push.send(b"no message")
        wait_until(lambda: of_process(server, "control_bad_frames_total") == {**before, "thinker": before["thinker"] + 1}, "count of the bad frame")


@pytest.fixture
def profile_folder(tmp_path):
    return tmp_path / "profiles"


def test_a_profile_has_the_loops_of_every_process(paced, profile_folder):
    with Server("--pipeline", str(paced), "--profile-dir", str(profile_folder), model=None) as server:
        assert server.post("/stop_profile", {})[0] == 409
        status, _, body = server.post("/start_profile", {})
        assert status == 200 and body["success"] and [reply["stage"] for reply in body["replies"]][:2] == ["front", "preprocessing"], body
        assert len(body["replies"]) == 9 and all(reply["ok"] for reply in body["replies"])
        assert server.post("/start_profile", {})[0] == 409
        for case in CASES:
            check(server, case)
        visits = {"preprocessing": CASES, "mm_aggregate": CASES, "thinker": CASES,
                  "image_encoder": [case for case in CASES if "image" in case["inputs"]], "audio_encoder": [case for case in CASES if "audio" in case["inputs"]],
                  "decode": [case for case in CASES if "text" in case["modalities"]]}
        visits["talker_ar"] = visits["code2wav"] = [case for case in CASES if "audio" in case["modalities"]]
        wait_until(lambda: by_stage(server, "stage_finished_total") == {stage: len(cases) for stage, cases in visits.items()}, "news of all ends")
        wait_until(lambda: at_rest(server), "rest")
        status, _, body = server.post("/stop_profile", {})
        assert status == 200 and len(body["replies"]) == 9 and all(reply["ok"] for reply in body["replies"]), body
        path = pathlib.Path(body["replies"][0]["message"])
        assert path.parent == profile_folder and path.stat().st_mode & 0o777 == 0o600
        assert list(profile_folder.iterdir()) == [path]
        assert server.post("/stop_profile", {})[0] == 409
    events = json.loads(path.read_text())["traceEvents"]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    stages = ("preprocessing", "image_encoder", "audio_encoder", "mm_aggregate", "thinker", "decode", "talker_ar", "code2wav")
    assert processes == ({"front", *stages} if placement() == "processes" else {"front"})
    assert {"coordinator", *stages, *(f"{stage} worker" for stage in stages)} <= threads, threads
    names = {event["name"] for event in events}
    assert {"start", "chunk", "chunks_done", "drop", "tick", "messages", "deliver", "request", "request in a stage"} <= names, names
    begins, ends = ([event for event in events if event["ph"] == phase and event["name"] == "request in a stage"] for phase in "be")
    assert len(begins) == len(ends) >= 4 * 4
    assert {event["id"] for event in begins} == {event["id"] for event in ends}


def test_orders_have_deadlines_and_tell_of_each_stage(server):
    status, _, body = server.post("/flush_cache", {})
    assert status == 400 and "keeps no cache" in body["error"]["message"], body  # no toy has one
    assert len(body["replies"]) == 8 and not any(reply["ok"] for reply in body["replies"])
    assert server.post("/flush_cache", {"timeout": -1})[2]["error"]["message"].startswith("timeout is -1")


@processes_only
def test_an_order_to_a_frozen_stage_ends_at_its_deadline(server):
    for _ in range(TRIES):  # the others may be late as well
        pid = server.children()["decode"]
        freeze(pid)
        try:
            status, _, body = server.post("/flush_cache", {"timeout": 0.2})
        finally:
            os.kill(pid, signal.SIGCONT)
        late = [reply["stage"] for reply in body["replies"] if "did not answer within" in reply["message"]]
        assert status == 504 and "decode" in late, body
        wait_until(server.ready, "return")
        if late == ["decode"]:
            break
    assert late == ["decode"], body


@processes_only
@pytest.mark.parametrize("victim", ["preprocessing", "image_encoder", "mm_aggregate", "thinker", "code2wav"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_stage_that_dies_costs_its_own_requests(paced, soon_missed, victim, how):
    # A request that goes on is not waited for at the end.
    with Server("--pipeline", str(soon_missed if how == signal.SIGSTOP else paced), "--drain-timeout-s", "1", model=None) as server:
        pid = wait_until(lambda: server.children().get(victim), victim)
        found = {}

        def long_request():
            try:
                found["events"] = list(server.stream(RUN, {"inputs": LONG}))
            except AssertionError as refused:
                found["events"] = [str(refused)]

        client = threading.Thread(target=long_request)
        client.start()
        wait_until(lambda: server.stage("thinker")["running"] > 0, "running request")
        strike(pid, how)
        needed = victim in ("thinker", "code2wav")  # the others had finished their part
        if needed:
            client.join(WAIT_S)
            assert "error" in found["events"][-1] and victim in found["events"][-1], found["events"][-1]
        wait_until(lambda: server.children().get(victim) not in (None, pid) and server.ready(), "restart")
        assert not alive(pid)
        for case in CASES[:4]:
            check(server, case)
        assert client.is_alive() != needed
        assert needed or server.stage("thinker")["running"] > 0
        server.stop()
        client.join(WAIT_S)
        assert server.leftovers() == []


def segments():
    """Files of /dev/shm. Those of others come and go, where tests/isolated could not give this test a /dev/shm of its own."""
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()} if os.environ.get("MILLRACE_ISOLATED") else set()


def test_nothing_stays_behind(example):
    before = segments()
    server = Server("--pipeline", str(example), model=None)
    check(server, CASES[7])
    children = server.children()
    assert len(children) == (8 if placement() == "processes" else 0)
    assert server.stop() == 0
    wait_until(lambda: not any(alive(pid) for pid in children.values()), "end of the children")
    assert server.leftovers() == [] and segments() == before
    server = Server("--pipeline", str(example), model=None)
    children = server.children()
    os.kill(server.process.pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in children.values()), "end of the orphans")
    assert segments() == before
    if not os.environ.get("MILLRACE_ISOLATED"):
        pytest.skip("no /dev/shm of its own (tests/isolated): what is left there was not looked at")


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
    text = patient(FANIN.read_text()).replace("name: fanin\n", f'name: fanin\ncontrol: "tcp://127.0.0.1:{port}"\n')
    for stage in ("talker_ar", "code2wav"):
        text = text.replace(f"    process: {stage}\n", "    process: far\n    host: other\n")
    path = tmp_path / "two-hosts.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def soon_missed_hosts(two_hosts):
    two_hosts.write_text(re.sub(r"lease_ms: \d+", f"lease_ms: {SHORT_LEASE_MS}", two_hosts.read_text()))
    return two_hosts


@contextlib.contextmanager
def joined(path, *stages):
    control = next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("control:"))
    process = subprocess.Popen([program(path), "stage", "--join", control.removeprefix("tcp://"), "--pipeline", str(path), "--stages", ",".join(stages)],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def test_stages_join_from_another_host_and_may_come_back(soon_missed_hosts):
    two_hosts = soon_missed_hosts
    server = Server("--pipeline", str(two_hosts), model=None, wait=False)
    with server:
        with joined(two_hosts, "talker_ar", "code2wav") as far:
            assert server.url_found.wait(WAIT_S) and server.host, server.output()
            for case in CASES:
                check(server, case)
            far.kill()
            far.wait()
            # Each has a lease of its own; until it runs out, a request may still be sent to the dead.
            wait_until(lambda: all(server.stage(name)["state"] != "ready" for name in ("talker_ar", "code2wav")), "loss")
            status, _, body = run(server, CASES[2]["inputs"])
            assert status == 503, body
        with joined(two_hosts, "talker_ar", "code2wav"):
            wait_until(server.ready, "return")
            check(server, CASES[3])
        assert "millrace stage --join" in server.output()


def test_stages_that_are_stopped_say_so(two_hosts):
    """Ctrl-C at a joined process: what runs may end, and nothing new begins. A second one: its requests and /ready have the reason at
    once, not when the lease runs out."""
    two_hosts.write_text(pace(two_hosts.read_text()))
    with Server("--pipeline", str(two_hosts), model=None, wait=False) as server, joined(two_hosts, "talker_ar", "code2wav") as far:
        assert server.url_found.wait(WAIT_S) and server.host, server.output()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(run, server, LONG)
            wait_until(lambda: server.stage("talker_ar")["running"] > 0, "running request")
            far.send_signal(signal.SIGINT)
            wait_until(lambda: server.stage("talker_ar")["state"] == "draining", "a stage that drains")
            assert server.stage("talker_ar")["running"] > 0 and not running.done()
            far.send_signal(signal.SIGINT)
            status, _, body = running.result(WAIT_S)
        assert status == 503 and "it was stopped" in body["error"]["message"], body
        # Each of the two reports its end; the request has failed with the first. The reason of a lease that is over is another one.
        wait_until(lambda: "it was stopped; awaited from host 'other'" in str(server.get("/ready")[2]), "reason of the end")
        assert server.get("/ready")[0] == 503
        assert far.wait(WAIT_S) == 0


def test_stages_outlive_a_leader_that_dies(soon_missed_hosts):
    """They remember for a minute what has ended there; the next leader's requests are others all the same."""
    two_hosts = soon_missed_hosts
    with joined(two_hosts, "talker_ar", "code2wav"):
        for _ in range(2):
            server = Server("--pipeline", str(two_hosts), model=None)
            wait_until(server.ready, "readiness")
            for case in CASES:
                check(server, case)
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()


def test_a_request_needs_the_stages_of_its_own_way_alone(soon_missed_hosts):
    """The sound is away: requests for text are taken, one that runs already goes on, and only sound is refused."""
    path = soon_missed_hosts
    path.write_text(pace(path.read_text(), 20))
    text = next(case for case in CASES if case["modalities"] == ["text"])
    sound = next(case for case in CASES if case["modalities"] == ["audio"])
    with Server("--pipeline", str(path), model=None, wait=False) as server:
        with joined(path, "talker_ar", "code2wav") as far:
            assert server.url_found.wait(WAIT_S) and server.host, server.output()
            wait_until(server.ready, "readiness")
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                running = pool.submit(check, server, text)
                wait_until(lambda: server.stage("thinker")["running"] > 0 or running.done(), "running request")
                far.kill()
                far.wait()
                running.result(WAIT_S)
            wait_until(lambda: not server.ready(), "loss")
            check(server, text)
            status, _, body = run(server, sound["inputs"])
            assert status == 503 and ("talker_ar" in str(body) or "code2wav" in str(body)), body
            # The same where the client names the terminals: what leads to none of them is sent nothing.
            status, _, body = served(server, CASES[7]["inputs"], terminals=["decode"])
            assert status == 200 and body["result"]["text"] == CASES[7]["text"], body
        with joined(path, "talker_ar", "code2wav"):
            wait_until(server.ready, "return")
            check(server, sound)


def test_terminals_that_the_client_leaves_out_cost_nothing(server):
    """Their results would be for nobody: no stage before them works on the request, and nothing waits for them."""
    long = {"text": "long", "max_tokens": 3000, "modalities": ["text", "audio"]}
    status, _, body = served(server, long, terminals=["decode"])
    assert status == 200 and set(body["result"]) >= {"text"}, body
    wait_until(lambda: at_rest(server), "rest")


def test_a_stage_that_the_server_runs_itself_cannot_be_joined(two_hosts):
    with joined(two_hosts, "thinker") as far:
        assert far.wait(WAIT_S) == 2
        said = far.stdout.read()
        assert "stage 'thinker' has no host" in said and "talker_ar, code2wav" in said, said


def test_a_stage_of_another_pipeline_is_refused(two_hosts, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(two_hosts.read_text().replace("samples: 240", "samples: 241"))
    with Server("--pipeline", str(two_hosts), model=None, wait=False) as server:
        wait_until(lambda: "waiting for stages" in server.output(), "start")
        with joined(other, "talker_ar", "code2wav") as far:
            assert far.wait(WAIT_S) != 0
            assert "pipeline" in far.stdout.read()


def test_a_wrong_key_is_told_once_on_both_sides(two_hosts, tmp_path):
    """However often it tries: a line for its address."""
    keys = [tmp_path / "ours.key", tmp_path / "theirs.key"]
    for key in keys:
        key.write_text(os.urandom(32).hex())
        key.chmod(0o600)
    other = tmp_path / "other.yaml"
    for path, key in ((other, keys[1]), (two_hosts, keys[0])):
        path.write_text(two_hosts.read_text().replace("name: fanin\n", f"name: fanin\nkey_file: {key}\n"))
    with Server("--pipeline", str(two_hosts), model=None, wait=False) as server, joined(other, "talker_ar", "code2wav") as far:
        wait_until(lambda: "from 127.0.0.1 in the handshake" in server.output(), "word of the refusal")
        time.sleep(3)
        refusals = [line for line in server.output().splitlines() if "another key?" in line]
        assert len(refusals) <= 2, refusals  # one for each kind of refusal at most
        assert far.poll() is None


# ---- the commands


def command(*arguments):
    return subprocess.run([program(*arguments), *arguments], capture_output=True, text=True, timeout=WAIT_S)


def test_check_says_what_a_pipeline_is_or_what_is_wrong(tmp_path):
    for path, parts in ((FANIN, ("8 stages", "entry preprocessing", "terminals decode, code2wav", "~> talker_ar, decode")), (TEXT, ("generate", "detokenize"))):
        found = command("pipeline", "check", str(path))
        assert found.returncode == 0 and all(part in found.stdout for part in parts), found.stdout + found.stderr
    bad = tmp_path / "bad.yaml"
    bad.write_text(FANIN.read_text().replace("next: decode", "next: decoed"))
    found = command("pipeline", "check", str(bad))
    assert found.returncode == 2 and "next of stage 'thinker' is 'decoed'; wanted the name of a stage; perhaps 'decode'" in found.stderr, found.stderr
    assert command("serve", "--pipeline", str(bad), "--port", "0").returncode == 2
    assert command("pipeline", "check", str(tmp_path / "none.yaml")).returncode == 2
    bad.write_text("")
    found = command("pipeline", "check", str(bad))
    assert found.returncode == 2 and "is empty" in found.stderr, found.stderr
    found = command("pipeline", "draw", str(FANIN), "-o", str(tmp_path / "p.png"))
    assert found.returncode == 2 and ".svg or .dot" in found.stderr and not (tmp_path / "p.png").exists(), found.stderr


@pytest.mark.parametrize("options, says", ((["--request-timeout-s", "5"], "request_timeout_s in the file"), (["--dp", "2"], "replicas of a stage"),
                                           (["--queue-timeout-s", "5"], "request_timeout_s"), (["--max-queued-requests", "5"], "max_requests"),
                                           (["--kv-gib", "1"], "kv_gib in the args"), (["--model", "models/demo"], "model in the args"),
                                           (["--listen", "127.0.0.1:0"], "no stage of the pipeline has a host")))
def test_options_that_the_pipeline_does_not_use_are_refused(options, says):
    found = command("serve", "--pipeline", str(FANIN), "--port", "0", *options)
    assert found.returncode == 2 and f"{options[0]} has no use" in found.stderr and says in found.stderr, found.stderr


def test_ctrl_c_says_what_it_waits_for(paced):
    with Server("--pipeline", str(paced), "--drain-timeout-s", "1", model=None) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, server, LONG)
        wait_until(lambda: server.stage("thinker")["running"] > 0, "running request")
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping when 1 request is done, after 1 s at most; Ctrl-C again stops at once" in server.output(), "word")
        assert running.result(WAIT_S)[0] == 503


def test_a_tensor_that_no_relay_takes_is_told_with_the_key_that_limits_it(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("name: small\nstages:\n  - {name: a, worker: toy.echo, terminal: true}\nrelay: {backend: shm, pool_mib: 1}\n")
    tensor = {"$tensor": {"dtype": "U8", "shape": [3 << 20], "base64": base64.b64encode(bytes(3 << 20)).decode()}}
    with Server("--pipeline", str(path), model=None) as server:
        status, _, body = run(server, tensor)
        assert status == 400 and body["error"]["code"] is None and "pool_mib" in body["error"]["message"], body


def test_check_finds_what_serve_would_refuse(tmp_path):
    path = tmp_path / "p.yaml"

    def checked(text):
        path.write_text(text)
        return command("pipeline", "check", str(path))

    text = TEXT.read_text()
    for old, new, says in (("next: detokenizer\n", "next: detokenizer\n    replicas: 2\n", None),
                           ("    terminal: true\n", "    terminal: true\n    replicas: 2\n", "stage 'detokenizer' has 2 replicas; wanted 1"),
                           ("    stream_to: detokenizer\n", "", "its next and stream_to 'detokenizer'"),
                           ("worker: generate", "worker: toy.decode", "a text pipeline of 2 stages; wanted one of worker generate"),
                           ("name: text\n", 'name: text\ncontrol: "tcp://*:30100"\n', "stands for every address")):
        assert old in text
        found = checked(text.replace(old, new, 1))
        assert found.returncode == (2 if says else 0) and (says or "") in found.stderr, (new, found.stdout, found.stderr)
        if says:
            assert str(path) + ":" in found.stderr
    # What an option of serve can still give is no error of the file.
    far = text.replace("name: text\n", 'name: text\ncontrol: "tcp://10.9.8.7:30100"\n').replace("    process: scheduler\n", "    host: gpu\n")
    found = checked(far)
    assert found.returncode == 0 and "key_file" in found.stderr and "--key-file" in found.stderr and f"{path}:" in found.stderr, found.stderr
    found = checked(far.replace("10.9.8.7", "127.0.0.1"))
    assert found.returncode == 0 and found.stderr == ""
    found = checked(far.replace("name: text\n", "name: text\nkey_file: some.key\n"))
    assert found.returncode == 0 and found.stderr == ""


def test_a_stage_may_take_its_time_where_its_file_says_so(tmp_path):
    path = tmp_path / "slow.yaml"
    slow = patient(FANIN.read_text(), stalled_ms=20_000).replace("    worker: toy.aggregate\n", "    worker: toy.aggregate\n    args: {sleep_ms: 3500}\n")
    path.write_text(slow)
    found = command("pipeline", "check", str(path))
    assert found.returncode == 0 and "stalls at 20 s" in found.stdout, found.stdout + found.stderr
    with Server("--pipeline", str(path), model=None) as server:
        check(server, CASES[0])  # without the key, the stage is taken for stalled after 1.5 s, and killed
    path.write_text(slow.replace("stalled_ms", "stalled_s"))
    found = command("pipeline", "check", str(path))
    assert found.returncode == 2 and "unknown key 'stalled_s'; perhaps 'stalled_ms'" in found.stderr, found.stderr


GIVEN_UP_S = 3 * SHORT_LEASE_MS / 1000 + 2  # by its stages, a server that says nothing


@processes_only
def test_a_server_that_was_stopped_kills_nobody(soon_missed):
    """Its stages gave it up after three leases, and join again by themselves."""
    with Server("--pipeline", str(soon_missed), model=None) as server:
        children = server.children()
        freeze(server.process.pid)
        time.sleep(GIVEN_UP_S)  # the subject, as the title says
        os.kill(server.process.pid, signal.SIGCONT)
        wait_until(lambda: server.ready() and run(server, CASES[0]["inputs"])[0] == 200, "recovery")
        time.sleep(SHORT_LEASE_MS / 1000 + 0.5)  # the subject: longer than a lease, so that who is missed would be lost by then
        check(server, CASES[3])
        assert server.children() == children


def test_a_machine_that_stood_still_loses_nothing(soon_missed):
    """A suspended machine, a stopped job, a host without a free core: nobody ran, so nobody is missed. The time is the subject."""
    with Server("--pipeline", str(soon_missed), "--drain-timeout-s", "1", model=None) as server:
        events = server.stream(RUN, {"inputs": LONG})
        for _ in range(20):
            next(events)
        pids = [server.process.pid, *server.children().values()]
        os.killpg(server.process.pid, signal.SIGSTOP)  # all at once, wherever this test is stopped itself
        time.sleep(GIVEN_UP_S)  # longer than a lease, too
        os.killpg(server.process.pid, signal.SIGCONT)
        for _ in range(2000):  # more than what lay in the sockets
            event = next(events)
            assert "error" not in event, event + server.output()
        events.close()
        assert "lost" not in server.output() and sorted(pids) == sorted([server.process.pid, *server.children().values()])


@processes_only
def test_a_stage_that_stalls_fails_its_requests(tmp_path):
    path = tmp_path / "stuck.yaml"
    text = patient(FANIN.read_text()).replace("    worker: toy.encode_image\n    args: {", "    worker: toy.encode_image\n    args: {sleep_ms: 60000, ")
    path.write_text(re.sub(r"(- name: image_encoder\n)    stalled_ms: \d+\n", r"\1", text))
    image, text = CASES[4], CASES[0]
    with Server("--pipeline", str(path), model=None) as server:
        pid = server.children()["image_encoder"]
        status, _, body = served(server, image["inputs"])
        assert status == 503 and "image_encoder" in body["error"]["message"] and "no progress" in body["error"]["message"], body
        check(server, text)  # needs no encoder
        wait_until(lambda: server.children().get("image_encoder") not in (None, pid) and server.ready(), "restart")


def test_the_product_has_no_example_workers():
    for arguments in (("pipeline", "check", str(FANIN)), ("serve", "--pipeline", str(FANIN), "--port", "0")):
        found = subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=WAIT_S)
        assert found.returncode == 2 and "worker of stage 'preprocessing' is 'toy.preprocess'; wanted one of this program's" in found.stderr, found.stderr


def test_draw_makes_a_picture(tmp_path):
    svg, dot = tmp_path / "p.svg", tmp_path / "p.dot"
    assert command("pipeline", "draw", str(FANIN), "-o", str(svg)).returncode == 0
    assert command("pipeline", "draw", str(FANIN), "-o", str(dot)).returncode == 0
    assert svg.read_text().count("<rect") == 9  # the eight stages and the background
    assert '"thinker" -> "talker_ar" [style=dashed];' in dot.read_text()


def points_of(path, steps=60):
    """Along a path of M, C and H, absolute."""
    numbers = lambda text: [float(value) for value in re.findall(r"-?[\d.]+", text)]
    at = None
    for command, rest in re.findall(r"([MCH])([^MCH]*)", path):
        given = numbers(rest)
        if command == "M":
            at = tuple(given)
        elif command == "H":
            yield from ((at[0] + (given[0] - at[0]) * i / steps, at[1]) for i in range(steps + 1))
            at = (given[0], at[1])
        else:
            corners = [at, *zip(given[::2], given[1::2])]
            for i in range(steps + 1):
                u = i / steps
                weights = ((1 - u) ** 3, 3 * u * (1 - u) ** 2, 3 * u * u * (1 - u), u ** 3)
                yield tuple(sum(weight * corner[axis] for weight, corner in zip(weights, corners)) for axis in (0, 1))
            at = corners[-1]


@pytest.mark.parametrize("file", sorted([*(ROOT / "pipelines").glob("*.yaml"), *(ROOT / "examples" / "pipelines").glob("*.yaml")]), ids=lambda file: file.name)
def test_no_edge_of_a_picture_is_behind_a_box_and_no_text_is_cut(tmp_path, file):
    svg = tmp_path / "p.svg"
    assert command("pipeline", "draw", str(file), "-o", str(svg)).returncode == 0
    picture = xml.etree.ElementTree.parse(svg).getroot()
    width, height = float(picture.get("width")), float(picture.get("height"))
    tag = lambda name: [each for each in picture.iter("{http://www.w3.org/2000/svg}" + name)]
    boxes = [tuple(float(box.get(name)) for name in ("x", "y", "width", "height")) for box in tag("rect") if box.get("x")]
    edges = [each.get("d") for each in tag("path") if each.get("marker-end")]
    assert boxes and (edges or len(boxes) == 1)
    for edge in edges:
        for x, y in points_of(edge):
            assert 0 <= x <= width and 0 <= y <= height
            assert not any(left < x < left + wide and top < y < top + high for left, top, wide, high in boxes), (edge, x, y)
    for text in tag("text"):
        # A letter of a sans-serif font is about half as wide as it is high; 0.6 is more than any text here has.
        wide = 0.6 * float(text.get("font-size")) * len(text.text)
        x = float(text.get("x")) - (wide / 2 if text.get("text-anchor") == "middle" else 0)
        assert x >= 0 and float(text.get("y")) <= height and (x + wide <= width), text.text


def test_text_serving_runs_from_its_file_in_any_placement(tmp_path):
    with Server("--pipeline", str(TEXT)) as server:
        story = server.chat("Tell me about a dog.", temperature=0, max_tokens=20)
    together = tmp_path / "together.yaml"  # both stages in one child process
    together.write_text(TEXT.read_text().replace("process: detokenizer", "process: scheduler"))
    mixed = tmp_path / "mixed.yaml"  # the detokenizer in the front
    mixed.write_text(TEXT.read_text().replace("process: detokenizer", "process: front"))
    for path, children in ((together, {"scheduler"}), (mixed, {"scheduler"})):
        with Server("--pipeline", str(path), "--placement", "processes") as server:
            wait_until(lambda: set(server.children()) == children, f"{children} alone")
            assert server.chat("Tell me about a dog.", temperature=0, max_tokens=20) == story
    replicas = tmp_path / "replicas.yaml"
    replicas.write_text(TEXT.read_text().replace("process: scheduler\n", "process: scheduler\n    replicas: 2\n"))
    with Server("--pipeline", str(replicas), "--placement", "processes") as server:
        # It is ready when one of the replicas is.
        wait_until(lambda: set(server.children()) == {"scheduler-0", "scheduler-1", "detokenizer"}, "both replicas")
        assert server.chat("Tell me about a dog.", temperature=0, max_tokens=20) == story
