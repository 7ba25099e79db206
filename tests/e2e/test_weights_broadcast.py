"""Weights that a trainer broadcasts over a process group: rank 0 is tests/oracles/gloo_peer.py, which speaks as PyTorch does."""
import json
import os
import signal
import struct
import sys
import threading

import pytest

from harness import DEMO, ROOT, WAIT_S, Server, wait_until
from test_disaggregation import answer as prefilled_answer
from test_disaggregation import begins
from test_weights import generate, kill, other_weights, processes_only, wait_for_all

sys.path.insert(0, str(ROOT / "tests" / "oracles"))
from gloo_peer import Rank, Store  # noqa: E402

GROUP = "weight_update_group"
DTYPES = {"BF16": "torch.bfloat16", "F16": "float16", "F32": "float32"}


def tensors_of(folder):
    """{name: (dtype, shape, bytes)} of model.safetensors."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    root = tmp_path_factory.mktemp("weights")
    return {"a": tensors_of(DEMO), "b": tensors_of(other_weights(root / "b")), "c": tensors_of(other_weights(root / "c", 0)), "root": root}


@pytest.fixture(scope="module")
def texts(weights):
    """What fresh servers make of the prompt."""
    found = {}
    for name, folder in (("a", DEMO), ("b", weights["root"] / "b"), ("c", weights["root"] / "c")):
        with Server(model=folder) as server:
            found[name] = generate(server)["text"]
    assert len(set(found.values())) == 3
    return found


@pytest.fixture
def server():
    with Server() as server:
        yield server


class Trainer:
    """Rank 0 of a group with the server's replicas."""

    def __init__(self, server, replicas=1, dialect=2, group=GROUP):
        self.server, self.group = server, group
        self.store = Store(dialect)
        joining = threading.Thread(target=self._join, args=(replicas + 1,))
        joining.start()
        self.answer = self._init(server, replicas + 1)
        assert self.answer[0] == 200, self.answer
        joining.join(WAIT_S)

    def _init(self, server, world):
        answer = server.post("/init_weights_update_group", {
            "master_address": "127.0.0.1", "master_port": str(self.store.port), "rank_offset": 1, "world_size": world,
            "group_name": self.group, "backend": "gloo", "pp_rank": 0})
        assert answer[2]["success"] is True, answer
        return answer

    def _join(self, world):
        self.rank = Rank(self.store, 0, world, self.group)

    def prepare(self, buckets, flattened=True, **more):
        described = [{"names": list(bucket), "dtypes": [DTYPES[bucket[name][0]] for name in bucket],
                      "shapes": [bucket[name][1] for name in bucket]} for bucket in buckets]
        return self.server.post("/prepare_weights_update", {
            "buckets": described, "num_buckets": len(buckets), "group_name": self.group,
            "load_format": "flattened_bucket" if flattened else None, **more})

    def broadcast(self, buckets, flattened=True):
        for bucket in buckets:
            parts = [data for _, _, data in bucket.values()]
            for data in [b"".join(parts)] if flattened else parts:
                self.rank.broadcast(data)

    def complete(self, **more):
        return self.server.post("/complete_weights_update", {"group_name": self.group, "flush_cache": False, **more})

    def update(self, buckets, flattened=True, **more):
        status, _, body = self.prepare(buckets, flattened)
        assert (status, body["success"], body["status"]) == (200, True, "ready"), body
        self.broadcast(buckets, flattened)
        status, _, body = self.complete(**more)
        assert (status, body["success"], body["num_buckets_received"]) == (200, True, len(buckets)), body
        return body

    def close(self):
        self.rank.close()
        self.store.close()


def in_buckets(tensors, count):
    names = sorted(tensors)
    return [{name: tensors[name] for name in names[i::count]} for i in range(count)]


def state(server):
    return server.get("/weights_update_status")[2]


@pytest.mark.parametrize("dialect, flattened", [(2, True), (2, False), (1, True)])
def test_broadcast_weights_serve_after_complete(server, weights, texts, dialect, flattened):
    trainer = Trainer(server, dialect=dialect)
    events, ended = [], threading.Event()

    def read():
        body = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}}
        for event in server.stream("/generate", body):
            if event != "[DONE]":
                events.append(json.loads(event))
        ended.set()

    client = threading.Thread(target=read)
    client.start()
    wait_until(lambda: events, "token")
    buckets = in_buckets(weights["b"], 5)
    status, _, body = trainer.prepare(buckets, flattened)
    assert (status, body["status"], body["success"]) == (200, "ready", True), body
    assert state(server)["state"] == "receiving"
    total = sum(len(data) for _, _, data in weights["b"].values())
    trainer.broadcast(buckets[:3], flattened)
    wait_until(lambda: state(server)["buckets_received"] == 3, "three buckets")
    assert 0 < state(server)["bytes_received"] < state(server)["bytes"] == total
    assert (state(server)["buckets"], state(server)["group_name"]) == (5, GROUP)
    trainer.broadcast(buckets[3:], flattened)
    wait_until(lambda: state(server)["state"] == "staged", "staged weights")
    assert (state(server)["buckets_received"], state(server)["bytes_received"]) == (5, total)
    assert generate(server)["text"] == texts["a"]  # received, and not in service
    status, _, body = trainer.complete(weight_version="step-7")
    assert status == 200 and body["num_buckets_received"] == 5 and body["weight_version"] == "step-7", body
    answer = generate(server)
    assert (answer["text"], answer["meta_info"]["weight_version"]) == (texts["b"], "step-7")
    client.join(WAIT_S)
    spans = events[-1]["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] in (["1", "step-7"], ["1"]) and spans[-1]["end"] == 900
    assert state(server)["updates_completed"] == 1


def test_the_same_group_updates_again_and_tensors_that_are_not_sent_stay(server, weights, texts):
    trainer = Trainer(server)
    first, second = "model.layers.1.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight"
    assert trainer.update([{first: weights["b"][first]}])["weight_version"] == "2"
    assert generate(server)["text"] == texts["b"]
    trainer.update([{first: weights["a"][first]}, {second: weights["c"][second]}], flattened=False)
    assert generate(server)["text"] == texts["c"]
    assert server.post("/update_weights_from_disk", {"model_path": str(DEMO)})[0] == 200
    assert generate(server)["text"] == texts["a"]
    trainer.update([weights["b"]])
    assert generate(server)["text"] == texts["b"]


def test_a_bucket_at_the_top_level(server, weights, texts):
    trainer = Trainer(server)
    name = "model.layers.1.mlp.down_proj.weight"
    dtype, shape, data = weights["b"][name]
    status, _, body = server.post("/prepare_weights_update", {
        "names": [name], "dtypes": [DTYPES[dtype]], "shapes": [shape], "group_name": GROUP, "transport": "nccl_broadcast"})
    assert status == 200, body
    trainer.rank.broadcast(data)
    assert trainer.complete()[2]["num_buckets_received"] == 1
    assert generate(server)["text"] == texts["b"]


def test_rounds_of_one_update_switch_together(server, weights, texts):
    trainer = Trainer(server)
    first, second = "model.layers.1.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight"
    rounds = [{first: weights["b"][first]}, {second: weights["c"][second]}, {first: weights["a"][first]}]
    for number, bucket in enumerate(rounds, 1):  # the third replaces what the first one sent: c's weights
        assert trainer.prepare([bucket])[0] == 200
        trainer.broadcast([bucket])
        status, _, body = trainer.complete(final=False)
        assert (status, body["num_buckets_received"], body["weight_version"]) == (200, number, "1"), body
        assert state(server)["state"] == "staged"
        assert generate(server)["text"] == texts["a"]
    assert trainer.complete(weight_version=[12])[0] == 400
    status, _, body = trainer.complete(weight_version=12)
    assert (status, body["num_buckets_received"], body["weight_version"]) == (200, 3, "12"), body
    assert generate(server)["text"] == texts["c"]
    # A round that does not fit drops those before it.
    assert trainer.prepare([rounds[2]])[0] == 200
    trainer.broadcast([rounds[2]])
    assert trainer.complete(final=False)[0] == 200
    assert trainer.prepare([{"unknown": weights["b"][first]}])[0] == 400
    assert state(server)["state"] == "idle"
    assert generate(server)["text"] == texts["c"]


def distributed(server, bucket, flattened, **more):
    return server.post("/update_weights_from_distributed", {
        "names": list(bucket), "dtypes": [DTYPES[dtype] for dtype, _, _ in bucket.values()],
        "shapes": [shape for _, shape, _ in bucket.values()], "group_name": GROUP,
        "load_format": "flattened_bucket" if flattened else None, **more})


@pytest.mark.parametrize("flattened", [True, False])
def test_an_update_in_one_call(server, weights, texts, flattened):
    trainer = Trainer(server)
    answers = []
    for name, version in (("b", "first"), ("c", 7)):
        call = threading.Thread(target=lambda n=name, v=version: answers.append(distributed(server, weights[n], flattened, weight_version=v)))
        call.start()
        trainer.broadcast([weights[name]], flattened)
        call.join(WAIT_S)
        status, _, body = answers[-1]
        assert (status, body["success"], body["weight_version"]) == (200, True, str(version)), body
        assert generate(server)["text"] == texts[name]
    status, _, body = distributed(server, {"unknown": weights["b"]["model.norm.weight"]}, flattened)
    assert status == 400 and "unknown" in body["message"] and body["success"] is False, body
    assert generate(server)["text"] == texts["c"]


def safetensors(tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def from_tensor(server, body, query="", kind="application/octet-stream"):
    return server.post(f"/update_weights_from_tensor{query}", body, headers={"Content-Type": kind})


@pytest.mark.parametrize("dp", [1, 2])
def test_tensors_in_the_body_of_a_request(weights, texts, dp):
    with Server("--dp", str(dp), "--max-body-mib", "1") as server:
        wait_for_all(server)
        first = "model.layers.1.mlp.down_proj.weight"
        status, _, body = from_tensor(server, safetensors({first: weights["b"][first]}), "?weight_version=31&policy=retract")
        assert (status, body["success"], body["weight_version"]) == (200, True, "31"), body
        status, _, body = from_tensor(server, safetensors(weights["c"]), "?flush_cache=false")  # over --max-body-mib
        assert (status, body["weight_version"]) == (200, "3"), body
        for rank in range(dp):
            assert generate(server, routed_dp_rank=rank)["text"] == texts["c"]
        good = safetensors({first: weights["b"][first]})
        for body, query, kind, part in (
                (json.dumps({"serialized_named_tensors": ["gASV"]}), "", "application/json", "safetensors.torch.save"),
                (b"", "", "application/octet-stream", "the body"), (good[:-1], "", "application/octet-stream", "the body"),
                (safetensors({"unknown": weights["b"][first]}), "", "application/octet-stream", "unknown"),
                (safetensors({first: ("I8", [2], b"ab")}), "", "application/octet-stream", "I8"),
                (good, "?flush_cache=maybe", "application/octet-stream", "flush_cache is 'maybe'"),
                (good, "?policy=later", "application/octet-stream", "policy"),
                (good, "?load_format=direct", "application/octet-stream", "load_format")):
            status, _, answer = from_tensor(server, body, query, kind)
            assert status == 400 and answer["success"] is False and part in answer["message"], answer
        assert generate(server)["text"] == texts["c"]
        # It leaves a trainer's group as it is.
        trainer = Trainer(server, replicas=dp)
        assert from_tensor(server, good)[0] == 200
        assert from_tensor(server, safetensors({"unknown": weights["b"][first]}))[0] == 400
        trainer.update([weights["b"]])
        assert generate(server)["text"] == texts["b"]


def test_what_other_transports_would_do_is_refused_by_name(server):
    for route in ("prepare_weights_update", "complete_weights_update", "update_weights_from_distributed"):
        for key, value in (("transport", "p2p"), ("session_id", "s"), ("run_post_process_weights", True),
                           ("sender_transfer_engine_info", {}), ("p2p_tied_weight_aliases", {})):
            status, _, body = server.post(f"/{route}", {key: value})
            assert status == 400 and body["message"].startswith(key), (route, body)


def test_what_does_not_fit_is_refused_before_a_byte(server, weights, texts):
    trainer = Trainer(server)
    name = "model.layers.1.mlp.down_proj.weight"
    dtype, shape, data = weights["b"][name]
    many = {f"model.layers.{i}.unknown.weight": (dtype, shape, data) for i in range(7)}
    for bucket, more, parts in (
            (many, {}, ["unknown.weight", "and 2 more"]),
            ({name: (dtype, shape[::-1], data)}, {}, [f"has shape {shape[::-1]}; wanted {shape}"]),
            ({name: (dtype, [*shape, 1], data)}, {}, ["has shape"]),
            ({name: weights["b"][name]}, {"num_buckets": 2}, ["num_buckets is 2"]),
            ({name: weights["b"][name]}, {"load_format": "sparse"}, ["load_format"]),
            ({name: weights["b"][name]}, {"group_name": "other"}, ["no group 'other'"])):
        status, _, body = trainer.prepare([bucket], **more)
        assert (status, body["success"], body["status"]) == (400, False, "error"), body
        assert all(part in body["message"] for part in parts), body
    status, _, body = server.post("/prepare_weights_update", {
        "buckets": [{"names": [name, name], "dtypes": ["bfloat16"] * 2, "shapes": [shape, shape]}], "group_name": GROUP})
    assert status == 400 and "named twice" in body["message"], body
    status, _, body = server.post("/prepare_weights_update", {"names": [name], "dtypes": ["int8"], "shapes": [shape]})
    assert status == 400 and "int8" in body["message"], body
    assert state(server)["state"] == "idle"
    assert trainer.complete()[0] == 400  # nothing was prepared
    trainer.update([{name: weights["b"][name]}])
    assert generate(server)["text"] == texts["b"]


def test_an_abort_leaves_the_old_weights(server, weights, texts):
    trainer = Trainer(server)
    buckets = in_buckets(weights["b"], 2)
    assert trainer.prepare(buckets)[0] == 200
    trainer.broadcast(buckets[:1])
    status, _, body = trainer.prepare(buckets)
    assert status == 400 and "already in progress" in body["message"], body
    status, _, body = server.post("/abort_weights_update", {"group_name": "other"})
    assert status == 400 and f"group_name is 'other'; wanted '{GROUP}'" in body["message"], body
    assert server.post("/abort_weights_update", {"group_name": GROUP})[0] == 200
    assert state(server)["state"] == "idle" and "was aborted" in state(server)["last_error"]
    assert server.post("/abort_weights_update", {})[0] == 400
    assert trainer.complete()[0] == 400
    assert generate(server)["text"] == texts["a"]
    again = Trainer(server)  # the stream of the group was cut
    assert again.prepare(buckets)[0] == 200
    again.broadcast(buckets)
    wait_until(lambda: state(server)["state"] == "staged", "staged weights")
    assert server.post("/abort_weights_update", {})[0] == 200  # all was received: the group is of use
    assert generate(server)["text"] == texts["a"]
    again.update(buckets)
    assert generate(server)["text"] == texts["b"]


def test_a_trainer_that_dies_or_errs_is_reported_once(server, weights, texts):
    name = "model.layers.1.mlp.down_proj.weight"
    bucket = {name: weights["b"][name]}
    data = weights["b"][name][2]

    def dies(trainer):
        trainer.close()

    def dies_inside(trainer):
        slot = trainer.rank._next_slot()
        trainer.rank._send(1, 1, slot, len(data))
        trainer.rank.sockets[1].sendall(data[:1000])
        trainer.close()

    def sends_less(trainer):
        trainer.rank._send(1, 2, trainer.rank._next_slot(), len(data) - 2)

    for error in (dies, dies_inside, sends_less):
        trainer = Trainer(server)
        assert trainer.prepare([bucket])[0] == 200
        error(trainer)
        wait_until(lambda: state(server)["state"] == "idle", "end of the update")
        status, _, body = trainer.complete()
        assert status == 400 and body["success"] is False and "rank 0" in body["message"], body
        assert "rank 0" in state(server)["last_error"]
        assert "rank 0" in server.get("/ready")[2]["weights_update"]["last_error"]
        assert "wanted an update that was prepared" in trainer.complete()[2]["message"]
        assert generate(server)["text"] == texts["a"]
        assert server.ready()
    Trainer(server).update([bucket])
    assert generate(server)["text"] == texts["b"]


def test_destroying_a_group_ends_its_update(server, weights, texts):
    trainer = Trainer(server)
    assert trainer.prepare([weights["b"]])[0] == 200
    assert server.post("/destroy_weights_update_group", {"group_name": "other"})[0] == 400
    status, _, body = server.post("/destroy_weights_update_group", {"group_name": GROUP})
    assert status == 200, body
    wait_until(lambda: state(server)["state"] == "idle", "end of the update")
    assert server.post("/destroy_weights_update_group", {"group_name": GROUP})[0] == 400
    assert generate(server)["text"] == texts["a"]


def test_a_trainer_that_starts_again_waits_for_no_join_of_before(server, weights, texts):
    answers = []
    dead = Store()  # its trainer makes no group
    body = {"master_address": "127.0.0.1", "master_port": dead.port, "world_size": 2, "group_name": GROUP}
    waiting = threading.Thread(target=lambda: answers.append(server.post("/init_weights_update_group", body)))
    waiting.start()
    wait_until(lambda: dead.values.get(b"init/"), "join")
    Trainer(server).update([weights["b"]])
    waiting.join(WAIT_S)
    assert answers[0][0] == 400 and answers[0][2]["success"] is False, answers
    assert generate(server)["text"] == texts["b"]


@processes_only
def test_a_replica_that_dies_ends_the_join_of_all(weights, texts):
    with Server("--dp", "2", "--dp-policy", "round_robin") as server:
        wait_for_all(server)
        answers = []
        silent = Store()  # its trainer makes no group
        body = {"master_address": "127.0.0.1", "master_port": silent.port, "world_size": 3, "group_name": GROUP}
        waiting = threading.Thread(target=lambda: answers.append(server.post("/init_weights_update_group", body)))
        waiting.start()
        wait_until(lambda: silent.values.get(b"init/") == b"2", "join of both")
        kill(server, "scheduler-1")
        waiting.join(WAIT_S)
        status, _, body = answers[0]
        assert status == 400 and body["success"] is False and "scheduler-1: stopped" in body["message"], body
        assert "scheduler-1: stopped" in state(server)["last_error"]
        wait_for_all(server)
        Trainer(server, replicas=2).update([weights["b"]])
        for rank in (0, 1):
            assert generate(server, routed_dp_rank=rank)["text"] == texts["b"]


@processes_only
def test_a_replica_that_dies_while_it_receives(server, weights, texts):
    trainer = Trainer(server)
    assert trainer.prepare([weights["b"]])[0] == 200
    os.kill(server.children()["scheduler"], signal.SIGKILL)
    wait_until(lambda: state(server)["state"] == "idle", "end of the update")
    status, _, body = trainer.complete()
    assert status == 400 and "scheduler" in body["message"], body
    wait_until(server.ready, "restart")
    assert generate(server)["text"] == texts["a"]
    Trainer(server).update([weights["b"]])
    assert generate(server)["text"] == texts["b"]


def test_all_replicas_switch(weights, texts):
    with Server("--dp", "2", "--dp-policy", "round_robin") as server:
        wait_for_all(server)
        trainer = Trainer(server, replicas=2)
        trainer.update(in_buckets(weights["b"], 3), weight_version="b")
        for rank in (0, 1):
            answer = generate(server, routed_dp_rank=rank)
            assert (answer["text"], answer["meta_info"]["weight_version"]) == (texts["b"], "b")


def checksums(server):
    """By tensor, of the first replica; all have the same."""
    ranks = server.post("/weights_checker", {"action": "checksum"})[2]["ranks"]
    assert all(rank["checksums"] == ranks[0]["checksums"] for rank in ranks)
    return ranks[0]["checksums"]


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_quantized_weights_are_quantized_as_at_the_start(weights, quantize):
    with Server("--quantize", quantize, model=weights["root"] / "b") as server:
        wanted = generate(server)["text"]
        sums = checksums(server)
    with Server("--quantize", quantize, "--dp", "2", "--dp-policy", "round_robin") as server:
        wait_for_all(server)
        assert checksums(server) != sums
        Trainer(server, replicas=2).update(in_buckets(weights["b"], 2))
        for rank in (0, 1):
            assert generate(server, routed_dp_rank=rank)["text"] == wanted
        assert checksums(server) == sums


def test_who_may_call_and_where_a_group_may_be(server):
    for body, part in (({"master_address": "192.0.2.7", "master_port": 1, "world_size": 2}, "--trainer-hosts"),
                       ({"master_address": "127.0.0.1", "master_port": 0, "world_size": 2}, "master_port"),
                       ({"master_address": "127.0.0.1", "master_port": 1, "world_size": 1}, "world_size"),
                       ({"master_address": "127.0.0.1", "master_port": 1, "world_size": 2, "backend": "mpi"}, "backend")):
        status, _, answer = server.post("/init_weights_update_group", body)
        assert status == 400 and part in answer["message"], answer
    with Server(admin=False) as closed:
        for route in ("init_weights_update_group", "destroy_weights_update_group", "prepare_weights_update",
                      "complete_weights_update", "abort_weights_update", "update_weights_from_distributed",
                      "update_weights_from_tensor"):
            assert closed.post(f"/{route}", {})[0] in (401, 403), route


def test_prefill_replicas_are_ranks_too(weights, texts):
    """Two schedulers and a prefill replica: all get the weights, and pages go on."""
    other = weights["root"] / "b"
    with Server(model=other) as server:
        wanted = [prefilled_answer(server, i) for i in range(8)]
    with Server("--prefill", "1", "--decode", "2") as server:
        wait_for_all(server)
        assert server.get("/get_world_size")[2]["world_size"] == 3
        trainer = Trainer(server, replicas=3)
        trainer.update(in_buckets(weights["b"], 5), flush_cache=True)
        begins(server)
        assert [prefilled_answer(server, i) for i in range(8)] == wanted
        trainer.close()
        assert server.stop() == 0, server.output()
