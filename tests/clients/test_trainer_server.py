"""The trainer's HTTP server, over real HTTP: python3 -m millrace_trainer.server."""
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading

import pytest

from fake_endpoint import LIMITS, ROOT, WAIT_S, FakeBroadcaster, FakeEndpoint, refusal
from millrace_trainer import InputError, WeightSync, WeightTensor
from millrace_trainer.server import MAX_BODY_BYTES, TrainerServer
from millrace_trainer.service import MAX_ENDPOINTS, SyncService

TENSORS = [WeightTensor.of_bytes("a", "float32", [256], bytes(1024)), WeightTensor.of_bytes("b", "float32", [256], bytes(1024))]


class Trainer:
    def __init__(self, endpoints=(), weights=lambda: TENSORS, api_key=None, stuck=None, **more):
        self.calls = []
        make = lambda *a, **k: WeightSync(*a, broadcaster=lambda: FakeBroadcaster(endpoints, self.calls, stuck=stuck), **k)  # noqa: E731
        self.service = SyncService(weights, make_sync=make, limits=LIMITS, **more)
        self.server = TrainerServer(self.service, port=0, api_key=api_key)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.port = self.server.server_address[1]

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def add(self, endpoint, **more):
        return self.post("/add_inference_endpoint", {"host": "127.0.0.1", "port": endpoint.port, "world_size": endpoint.replicas, **more})

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def pair():
    endpoints = [FakeEndpoint(), FakeEndpoint(replicas=2)]
    yield endpoints
    for endpoint in endpoints:
        endpoint.close()


@pytest.fixture
def trainer(pair):
    trainer = Trainer(pair)
    yield trainer
    trainer.close()


def test_endpoints_are_added_and_synced(trainer, pair):
    status, answer = trainer.add(pair[0])
    assert status == 200 and answer["success"] is True and answer["endpoint"] == {
        "host": "127.0.0.1", "port": pair[0].port, "world_size": 1, "healthy": True}
    assert trainer.add(pair[1], port=str(pair[1].port), pool="default")[0] == 200  # as a string, and with what others have
    status, answer = trainer.post("/sync_inference_weights", {"master_port": 29611, "buffer_size_mb": 1024 / (1 << 20), "weight_version": "s1"})
    assert status == 200 and answer["success"] is True, answer
    assert (answer["num_parameters"], answer["num_buckets"], answer["total_bytes"]) == (2, 2, 2048)
    assert [(e["port"], e["weight_version"], e["success"]) for e in answer["endpoints_synced"]] == [(e.port, "s1", True) for e in pair]
    assert trainer.calls[0] == ("listen", 29611, 4, "weight_sync_group") and all(e.version == "s1" for e in pair)
    status, answer = trainer.post("/api/v1/sync_inference_weights", {"master_port": 29611})
    assert status == 200 and answer["num_buckets"] == 1
    assert [call[0] for call in trainer.calls].count("join") == 1
    assert trainer.request("GET", "/healthz") == (200, {"status": "ok", "num_endpoints": 2, "syncing": False, "syncs_completed": 2,
                                                        "syncs_failed": 0, "last_error": ""})


def test_other_endpoints_or_another_port_make_another_group(trainer, pair):
    trainer.add(pair[0])
    assert trainer.post("/sync_inference_weights", {})[0] == 200
    trainer.add(pair[1])
    assert trainer.post("/sync_inference_weights", {})[0] == 200
    assert trainer.post("/sync_inference_weights", {"master_port": 29612})[0] == 200
    assert [call[1:3] for call in trainer.calls if call[0] == "listen"] == [(0, 2), (0, 4), (29612, 4)]
    assert [call[0] for call in trainer.calls].count("close") == 2


@pytest.mark.parametrize("body, status, part", [
    ({}, 400, "host is missing; wanted a string"),
    ({"host": "127.0.0.1"}, 400, "port is missing; wanted an integer"),
    ({"host": "127.0.0.1", "port": "x"}, 400, "port is 'x'; wanted an integer"),
    ({"host": "127.0.0.1", "port": True}, 400, "port is True; wanted an integer"),
    ({"host": "127.0.0.1", "port": 0}, 400, "port is 0; wanted an integer from 1 to 65535"),
    ({"host": 5, "port": 1}, 400, "host is 5; wanted a string"),
    ({"host": "192.0.2.7", "port": 1}, 400, "host is '192.0.2.7'; wanted one of 127.0.0.1, ::1, localhost: --endpoint-hosts adds others"),
    ({"host": "127.0.0.1", "port": 1, "world_size": -1}, 400, "world_size is -1; wanted an integer from 1 to 1023"),
    ([], 400, "the body is a JSON list; wanted an object"),
    ("{", 400, "the body is no JSON")])
def test_an_endpoint_that_cannot_be_is_refused(trainer, body, status, part):
    found, answer = trainer.post("/add_inference_endpoint", body)
    assert (found, answer["success"], answer["status"]) == (status, False, "error") and part in answer["message"], answer
    assert trainer.request("GET", "/healthz")[1]["num_endpoints"] == 0


def test_an_endpoint_is_looked_at_when_it_is_added(trainer, pair):
    away = FakeEndpoint()
    away.close()
    status, answer = trainer.add(away)
    assert status == 502 and "wanted a Millrace server at this address" in answer["message"], answer
    status, answer = trainer.add(pair[1], world_size=4)
    assert status == 400 and "has 2 replicas and world_size is 4" in answer["message"], answer
    assert trainer.add(pair[0])[0] == 200
    assert trainer.add(pair[0])[1]["message"] == "already registered"
    pair[0].replicas = 2
    status, answer = trainer.add(pair[0])
    assert status == 409 and "registered with world_size 1; wanted the same, not 2" in answer["message"], answer
    trainer.service._endpoints.update({str(i): None for i in range(MAX_ENDPOINTS)})
    status, answer = trainer.add(pair[1])
    assert status == 409 and f"there are {MAX_ENDPOINTS} endpoints" in answer["message"], answer


@pytest.mark.parametrize("body, part", [
    ({"buffer_size_mb": 0}, "buffer_size_mb is 0; wanted a number of MiB"),
    ({"buffer_size_mb": "64"}, "buffer_size_mb is '64'; wanted a number"),
    ('{"buffer_size_mb": NaN}', "buffer_size_mb is nan"),
    ({"master_port": 70000}, "master_port is 70000; wanted an integer from 0 to 65535"),
    ({"master_port": -1}, "master_port is -1"),
    ({"master_address": "192.0.2.7"}, "master_address is '192.0.2.7'; wanted one of"),
    ({"pause_mode": "stop"}, "pause_mode is 'stop'; wanted abort, retract, in_place"),
    ({"policy": "stop"}, "policy is 'stop'"),
    ({"flush_cache": 1}, "flush_cache is 1; wanted true or false"),
    ({"weight_version": {}}, "weight_version is {}")])
def test_a_sync_that_cannot_be_is_refused(trainer, pair, body, part):
    trainer.add(pair[0])
    status, answer = trainer.post("/sync_inference_weights", body)
    assert status == 400 and part in answer["message"] and answer["success"] is False, answer
    assert pair[0].paths() == []
    assert trainer.post("/sync_inference_weights", {})[0] == 200


def test_a_sync_without_endpoints_is_refused(trainer):
    status, answer = trainer.post("/sync_inference_weights", {})
    assert status == 400 and answer["message"] == "there are no endpoints; wanted POST /add_inference_endpoint first"


def test_failures_are_answered_and_the_next_sync_works(trainer, pair):
    trainer.add(pair[0])
    pair[0].answers["/prepare_weights_update"] = refusal("a has shape [1]; wanted [2]")
    status, answer = trainer.post("/sync_inference_weights", {})
    assert status == 502 and "a has shape [1]; wanted [2]" in answer["message"], answer
    health = trainer.request("GET", "/healthz")[1]
    assert (health["syncs_failed"], health["syncing"]) == (1, False) and "wanted [2]" in health["last_error"]
    assert pair[0].paths()[-1] == "/prepare_weights_update"  # refused: there is nothing to abort
    pair[0].answers.clear()
    assert trainer.post("/sync_inference_weights", {})[0] == 200

    def raises():
        raise RuntimeError("the model is gone")

    trainer.service.weights = raises
    status, answer = trainer.post("/sync_inference_weights", {})
    assert status == 500 and answer["message"] == "RuntimeError: the model is gone"


def test_a_second_sync_is_refused_meanwhile(pair):
    stuck, begun = threading.Event(), threading.Event()
    trainer = Trainer(pair, stuck=stuck)
    trainer.add(pair[0])
    pair[0].answers["/prepare_weights_update"] = lambda body: begun.set()
    answers = []
    first = threading.Thread(target=lambda: answers.append(trainer.post("/sync_inference_weights", {})))
    first.start()
    assert begun.wait(WAIT_S)
    assert trainer.request("GET", "/healthz")[1]["syncing"] is True
    status, answer = trainer.post("/sync_inference_weights", {})
    assert status == 409 and "a sync is in progress" in answer["message"], answer
    stuck.set()
    first.join(WAIT_S)
    assert answers[0][0] == 200, answers
    trainer.close()


@pytest.mark.parametrize("method, path, headers, body, status, part", [
    ("GET", "/none", {}, None, 404, "there is no GET /none; wanted /healthz"),
    ("POST", "/healthz", {}, b"{}", 404, "wanted /add_inference_endpoint, /sync_inference_weights"),
    ("POST", "/sync_inference_weights", {"Content-Type": "text/plain"}, b"{}", 415, "wanted 'application/json'"),
    ("POST", "/sync_inference_weights", {"Transfer-Encoding": "chunked"}, None, 411, "Content-Length"),
    ("POST", "/sync_inference_weights", {"Content-Length": str(MAX_BODY_BYTES + 1)}, b"", 413, f"wanted at most {MAX_BODY_BYTES}")])
def test_requests_that_are_none(trainer, method, path, headers, body, status, part):
    found, answer = trainer.request(method, path, body, headers)
    assert found == status and part in answer["message"], answer


def test_a_key_is_asked_for_and_needed_where_others_reach_it():
    trainer = Trainer(api_key="secret")
    assert trainer.request("GET", "/healthz")[0] == 200
    for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer s\xe9cret"}):
        status, answer = trainer.post("/sync_inference_weights", {}, headers=headers)
        assert status == 401 and answer["message"].startswith("the header Authorization"), answer
    assert trainer.post("/sync_inference_weights", {}, headers={"Authorization": "Bearer secret"})[0] == 400  # no endpoints
    trainer.close()
    with pytest.raises(InputError, match="host is '0.0.0.0' and there is no key"):
        TrainerServer(trainer.service, "0.0.0.0", 0)


def test_connections_over_the_limit_are_refused(trainer):
    taken = 0
    while trainer.server.free.acquire(blocking=False):
        taken += 1
    with socket.create_connection(("127.0.0.1", trainer.port), WAIT_S) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
    for _ in range(taken):
        trainer.server.free.release()
    assert trainer.request("GET", "/healthz")[0] == 200


def test_the_program_starts_answers_and_ends(tmp_path):
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"abcd")
    command = [sys.executable, "-B", "-m", "millrace_trainer.server", "--port", "0", "--weights"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "clients" / "python")}
    bad = subprocess.run([*command, str(tmp_path / "none")], env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert bad.returncode == 2 and bad.stderr.startswith("error: ") and "wanted a model folder" in bad.stderr
    with subprocess.Popen([*command, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True) as process:
        url = re.search(r"http://127.0.0.1:(\d+)", process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", int(url[1]), timeout=WAIT_S)
        connection.request("GET", "/healthz")
        assert json.loads(connection.getresponse().read())["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
