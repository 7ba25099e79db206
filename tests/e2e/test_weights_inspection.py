"""What serves, over HTTP: values and checksums of the weights; and vLLM's routes for a trainer."""
import struct
import threading

import pytest

from harness import DEMO, WAIT_S, Server, wait_until
from test_weights import generate, wait_for_all
from test_weights_broadcast import DTYPES, GROUP, Trainer, in_buckets, safetensors, state, tensors_of, texts, weights  # noqa: F401

MATRIX, VECTOR = "model.layers.1.mlp.down_proj.weight", "model.norm.weight"


def floats(dtype, data):
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    assert dtype == "BF16"
    return list(struct.unpack(f"<{len(data) // 2}f", b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))))


def rows_of(tensor, count):
    dtype, shape, data = tensor
    values = floats(dtype, data)
    if len(shape) == 1:
        return values[:count]
    return [values[i * shape[1] : (i + 1) * shape[1]] for i in range(min(count, shape[0]))]


@pytest.fixture
def server():
    with Server("--dp", "2", "--dp-policy", "round_robin") as server:
        wait_for_all(server)
        yield server


def test_values_are_those_of_the_file_and_then_those_that_were_sent(server, weights):
    tensors = tensors_of(DEMO)
    for name, rows in ((MATRIX, 3), (VECTOR, 10), ("model.embed_tokens.weight", 2), ("lm_head.weight", 2)):
        if name == "lm_head.weight" and name not in tensors:  # tied
            wanted = rows_of(tensors["model.embed_tokens.weight"], rows)
        else:
            wanted = rows_of(tensors[name], rows)
        assert server.post("/get_weights_by_name", {"name": name, "truncate_size": rows})[2] == wanted
        assert server.get(f"/get_weights_by_name?name={name}&truncate_size={rows}")[2] == wanted
    assert len(server.post("/get_weights_by_name", {"name": MATRIX})[2]) == min(100, tensors[MATRIX][1][0])
    Trainer(server, replicas=2).update([{MATRIX: weights["b"][MATRIX]}])
    assert server.post("/get_weights_by_name", {"name": MATRIX, "truncate_size": 3})[2] == rows_of(weights["b"][MATRIX], 3)
    for body, part in (({}, "name is missing"), ({"name": "unknown"}, "unknown"), ({"name": MATRIX, "truncate_size": 0}, "truncate_size"),
                       ({"name": "model.embed_tokens.weight", "truncate_size": 1 << 40}, "")):
        status, _, answer = server.post("/get_weights_by_name", body)
        if part:
            assert status == 400 and part in answer["message"], answer


def test_quantized_values_are_those_that_serve():
    with Server("--quantize", "q8_0") as server:
        found = server.post("/get_weights_by_name", {"name": MATRIX, "truncate_size": 1})[2][0]
        wanted = rows_of(tensors_of(DEMO)[MATRIX], 1)[0]
        assert found != wanted and max(abs(a - b) for a, b in zip(found, wanted)) < max(map(abs, wanted)) / 64


def test_checksums_follow_the_bytes(server, weights):
    def check(action):
        return server.post("/weights_checker", {"action": action})

    status, _, before = check("checksum")
    assert status == 200 and before["success"] is True and len(before["ranks"]) == 2, before
    one, two = before["ranks"]
    assert one["checksums"] == two["checksums"] and set(one["checksums"]) == set(tensors_of(DEMO)) - ({"lm_head.weight"} - set(one["checksums"]))
    assert one["per_gpu_checksum"] == two["per_gpu_checksum"] and [r["parallelism_info"]["dp_rank"] for r in (one, two)] == [0, 1]
    assert check("compare")[0] == 400  # no snapshot
    assert check("snapshot")[0] == 200
    trainer = Trainer(server, replicas=2)
    trainer.update([{MATRIX: weights["b"][MATRIX]}])
    after = check("checksum")[2]["ranks"][0]["checksums"]
    assert {name for name in after if after[name] != one["checksums"][name]} == {MATRIX}
    status, _, body = check("compare")
    assert status == 400 and body["success"] is False and MATRIX in body["message"], body
    trainer.update([{MATRIX: weights["a"][MATRIX]}])
    assert check("compare")[0] == 200
    assert check("checksum")[2]["per_engine_checksum"] == before["per_engine_checksum"]
    for body, part in (({"action": "reset_tensors"}, "Unsupported"), ({"action": "checksum", "allow_quant_error": True}, "allow_quant_error")):
        status, _, answer = server.post("/weights_checker", body)
        assert status == 400 and part in answer["message"], answer


class VllmTrainer(Trainer):
    """Rank 0 with vLLM's requests."""

    def _init(self, server, world):
        return server.post("/init_weight_transfer_engine", {"init_info": {
            "master_address": "127.0.0.1", "master_port": self.store.port, "rank_offset": 1, "world_size": world,
            "group_name": self.group}})

    def update_weights(self, bucket, **more):
        answers = []
        info = {"names": list(bucket), "dtype_names": [DTYPES[dtype] for dtype, _, _ in bucket.values()],
                "shapes": [shape for _, shape, _ in bucket.values()], "group_name": self.group, **more}
        call = threading.Thread(target=lambda: answers.append(self.server.post("/update_weights", {"update_info": info})))
        call.start()
        self.broadcast([bucket], flattened=False)
        call.join(WAIT_S)
        return answers[0]


def test_vllms_routes(server, weights, texts):
    assert server.get("/get_world_size")[2] == {"world_size": 2}
    trainer = VllmTrainer(server, replicas=2)
    for mode in ("keep", "abort"):
        assert server.post(f"/pause?mode={mode}", "")[2] == {"status": "paused"}
        assert server.get("/is_paused")[2] == {"is_paused": True}
    assert server.post("/start_weight_update", {"is_checkpoint_format": True})[0] == 200
    for number, bucket in enumerate(in_buckets(weights["b"], 3), 1):
        status, _, body = trainer.update_weights(bucket)
        assert status == 200, body
        assert (state(server)["state"], state(server)["buckets_received"], state(server)["version_number"]) == ("staged", number, 1)
    assert server.post("/start_weight_update", {})[0] == 400  # one is under way
    status, _, body = server.post("/finish_weight_update", {"weight_version": "b"})
    assert status == 200 and body["weight_version"] == "b", body
    assert server.post("/finish_weight_update", {})[0] == 400  # nothing was sent
    assert server.post("/resume", "")[2] == {"status": "resumed"}
    assert server.get("/is_paused")[2] == {"is_paused": False}
    for rank in (0, 1):
        assert generate(server, routed_dp_rank=rank)["text"] == texts["b"]
    info = server.get("/weight_info")[2]
    assert (info["weight_version"], info["world_size"]) == ("b", 2)
    found = {t["name"]: t["shape"] for t in info["tensors"]}
    assert found == {name: weights["b"][name][1] for name in found} and MATRIX in found


def test_what_vllms_routes_do_not_serve_is_refused_by_name(server):
    for route, body, part in (
            ("pause?mode=wait", {}, "mode is 'wait'"), ("pause?wait_for_inflight_requests=true", {}, "mode is 'wait'"),
            ("init_weight_transfer_engine", {}, "init_info is missing"),
            ("init_weight_transfer_engine", {"init_info": {"master_address": "127.0.0.1", "master_port": 1, "world_size": 2, "backend": "nccl"}}, "backend"),
            ("start_weight_update", {"is_checkpoint_format": False}, "is_checkpoint_format"), ("update_weights", {}, "update_info is missing"),
            ("update_weights", {"update_info": {"names": [VECTOR], "dtype_names": ["bfloat16"], "shapes": [[1]], "packed": True}}, "packed"),
            ("update_weights", {"update_info": {"names": [VECTOR], "dtype_names": ["bfloat16"], "shapes": [[288]]}}, "no group")):
        status, _, answer = server.post(f"/{route}", body)
        assert status == 400 and part in answer["message"], (route, answer)
    assert state(server)["state"] == "idle"
    with Server(admin=False) as closed:
        for route in ("pause", "resume", "init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update",
                      "weights_checker", "get_weights_by_name"):
            assert closed.post(f"/{route}", {})[0] in (401, 403), route
        for route in ("is_paused", "get_world_size", "weight_info", "get_weights_by_name"):
            assert closed.get(f"/{route}")[0] in (401, 403), route
