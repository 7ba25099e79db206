"""clients/python/millrace_trainer against real servers. Rank 0 is tests/oracles/gloo_peer.py, which speaks as PyTorch does."""
import contextlib
import http.client
import json
import os
import signal
import sys
import threading

import pytest

from harness import DEMO, ROOT, WAIT_S, Server, wait_until
from test_weights import generate, other_weights, processes_only, wait_for_all

sys.path[:0] = [str(ROOT / "tests" / "oracles"), str(ROOT / "clients" / "python")]
from gloo_peer import Rank, Store  # noqa: E402
from millrace_trainer import Broadcaster, EndpointError, InferenceEndpoint, InputError, TrainerError, WeightSync, WeightTensor, read_safetensors  # noqa: E402
from millrace_trainer.server import TrainerServer  # noqa: E402
from millrace_trainer.service import SyncService  # noqa: E402

ADMIN = "trainers-key"


class PeerBroadcaster(Broadcaster):
    made = []

    def listen(self, address, port, world_size, group_name, limit_s):
        self.store, self.world_size, self.name, self.rank = Store(host=address, port=port), world_size, group_name, None
        PeerBroadcaster.made.append(self)
        return self.store.port

    def join(self):
        self.rank = Rank(self.store, 0, self.world_size, self.name)

    def broadcast(self, buffer):
        self.rank.broadcast(bytes(buffer))

    def close(self):
        if self.rank:
            self.rank.close()
        self.store.close()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = other_weights(tmp_path_factory.mktemp("weights") / "b")
    with Server(model=DEMO) as a, Server(model=folder) as b:
        texts = {"a": generate(a)["text"], "b": generate(b)["text"]}
    assert texts["a"] != texts["b"]
    return {"a": read_safetensors(DEMO), "b": read_safetensors(folder), "texts": texts, "folder": folder}


@pytest.fixture
def server():
    with Server() as server:
        yield server


def sync_of(*servers, replicas=1, **more):
    endpoints = [InferenceEndpoint(s.host, s.port, replicas, more.pop("api_key", None)) for s in servers]
    return WeightSync(endpoints, **{"buffer_size_mb": 1, "broadcaster": PeerBroadcaster, **more})


def serves(server, weights, name, version):
    answer = generate(server)
    assert (answer["text"], answer["meta_info"]["weight_version"]) == (weights["texts"][name], version)


def test_two_servers_with_replicas_switch_while_a_client_streams(weights):
    events = []

    def read(server):
        body = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}}
        events.extend(json.loads(event) for event in server.stream("/generate", body) if event != "[DONE]")

    with Server("--dp", "2", "--dp-policy", "round_robin") as first, Server("--dp", "2") as second:
        wait_for_all(first)
        wait_for_all(second)
        client = threading.Thread(target=read, args=(first,))
        client.start()
        wait_until(lambda: events, "token")
        with sync_of(first, second, replicas=2) as sync:
            result = sync.sync(weights["b"], weight_version="step-1")
            assert result.num_tensors == len(weights["b"]) and result.num_buckets > 5
            assert set(result.weight_versions.values()) == {"step-1"}
            for server in (first, second):
                for rank in (0, 1):
                    answer = generate(server, routed_dp_rank=rank)
                    assert (answer["text"], answer["meta_info"]["weight_version"]) == (weights["texts"]["b"], "step-1")
            sync.sync(weights["a"], weight_version="step-2")  # the same group
            serves(first, weights, "a", "step-2")
            serves(second, weights, "a", "step-2")
        client.join(WAIT_S)
        spans = events[-1]["meta_info"]["weight_versions"]
        assert spans[-1]["end"] == 900 and {span["version"] for span in spans} <= {"1", "step-1", "step-2"}


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_a_sync_in_a_pause(server, weights, mode):
    with sync_of(server, pause_mode=mode, policy="retract", flush_cache=True) as sync:
        sync.sync(weights["b"], weight_version=mode)
    assert server.get("/weights_update_status")[2]["paused"] is False
    serves(server, weights, "b", mode)


def test_a_key_is_needed(weights):
    with Server("--admin-api-key", ADMIN) as server:
        with pytest.raises(EndpointError, match="/weights_update_status: status 40[13]"):
            sync_of(server).sync(weights["b"])
        sync_of(server, api_key=ADMIN).sync(weights["b"], weight_version="b")
        assert server.get("/weights_update_status", headers={"Authorization": f"Bearer {ADMIN}"})[2]["weight_version"] == "b"


def test_what_one_server_refuses_switches_none(weights):
    with Server() as good, Server(model=ROOT / "tests" / "data" / "models" / "tinystories-656k") as other:
        with sync_of(good, other) as sync:
            with pytest.raises(EndpointError, match=f"127.0.0.1:{other.port}/prepare_weights_update: status 400"):
                sync.sync(weights["b"])
        wait_until(lambda: good.get("/weights_update_status")[2]["state"] == "idle", "end of the update")
        serves(good, weights, "a", "1")
        sync_of(good).sync(weights["b"], weight_version="b")
        serves(good, weights, "b", "b")
        assert good.ready() and other.ready()


def test_a_broadcast_that_fails_leaves_the_old_weights(server, weights):
    last = weights["b"][-1]

    def cuts(view):
        PeerBroadcaster.made[-1].rank.close()

    sync = sync_of(server)
    with pytest.raises(TrainerError, match="the broadcast of bucket .* failed"):
        sync.sync([*weights["b"][:-1], WeightTensor(last.name, last.dtype, last.shape, cuts)])
    wait_until(lambda: server.get("/weights_update_status")[2]["state"] == "idle", "end of the update")
    serves(server, weights, "a", "1")
    sync.sync(weights["b"], weight_version="b")
    serves(server, weights, "b", "b")
    sync.close()


def test_a_group_that_is_broken_since_the_last_sync_is_made_again(server, weights):
    sync = sync_of(server)
    sync.sync(weights["b"], weight_version="b")
    rank = PeerBroadcaster.made[-1].rank
    send, sent = rank.broadcast, []

    def cut(data):
        if len(sent) == 2:
            rank.close()
            raise ConnectionError("cut")
        sent.append(len(data))
        return send(data)

    rank.broadcast = cut
    sync.sync(weights["a"], weight_version="a")
    assert PeerBroadcaster.made[-1].rank is not rank
    serves(server, weights, "a", "a")
    sync.close()


def test_a_server_that_ends_while_it_receives_is_noticed(weights):
    with Server() as server:
        sync = sync_of(server)

        def ends(view):
            server.kill()
            view[:] = bytes(len(view))

        last = weights["b"][-1]
        with pytest.raises(TrainerError):
            sync.sync([*weights["b"][:-1], WeightTensor(last.name, last.dtype, last.shape, ends)])


@processes_only
def test_a_replica_that_is_killed_while_it_receives_gets_the_next_sync(weights):
    with Server("--dp", "2") as server:
        wait_for_all(server)
        sync = sync_of(server, replicas=2)
        killed = server.children()["scheduler-0"]

        def kills(view):
            os.kill(killed, signal.SIGKILL)
            last.write_into(view)

        last = weights["b"][-1]
        # It fails; or the replica is known to be gone before the update ends, which then goes on without it.
        with contextlib.suppress(TrainerError):
            sync.sync([*weights["b"][:-1], WeightTensor(last.name, last.dtype, last.shape, kills)])
        wait_until(lambda: server.children().get("scheduler-0", killed) != killed, "restart")
        sync.sync(weights["b"], weight_version="b")
        for rank in (0, 1):
            answer = generate(server, routed_dp_rank=rank)
            assert (answer["text"], answer["meta_info"]["weight_version"]) == (weights["texts"]["b"], "b")


def test_replicas_without_a_rank(weights):
    with Server("--dp", "2") as server:
        with pytest.raises(InputError, match="has 2 replicas and world_size is 1; wanted world_size 2"):
            sync_of(server).sync(weights["b"])


def test_the_trainers_server(server, weights):
    service = SyncService(lambda: read_safetensors(weights["folder"]), broadcaster=PeerBroadcaster)
    trainer = TrainerServer(service, port=0).start()

    def post(path, body):
        connection = http.client.HTTPConnection("127.0.0.1", trainer.server_address[1], timeout=WAIT_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    assert post("/add_inference_endpoint", {"host": "127.0.0.1", "port": server.port, "world_size": 1})[0] == 200
    status, answer = post("/sync_inference_weights", {"master_port": 0, "buffer_size_mb": 2, "weight_version": "b"})
    assert status == 200 and answer["success"] is True and answer["num_buckets"] > 2, answer
    serves(server, weights, "b", "b")
    service.close()
    trainer.shutdown()
    trainer.server_close()
