"""What serves, over HTTP: values and checksums of the weights; and vLLM's routes for a trainer."""
import json
import struct
import threading

import pytest

from harness import DEMO, WAIT_S, Server, wait_until
from test_weights import PROMPT, generate, wait_for_all
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

    def __init__(self, server, packed=None, **more):
        self.packed = packed or {}
        super().__init__(server, **more)

    def _init(self, server, world):
        return server.post("/init_weight_transfer_engine", {"init_info": {
            "master_address": "127.0.0.1", "master_port": self.store.port, "rank_offset": 1, "world_size": world,
            "group_name": self.group, **self.packed}})

    def update_weights(self, bucket, buffers=None, **more):
        """`buffers`: the tensors that are sent at once, where they are packed."""
        answers = []
        info = {"names": list(bucket), "dtype_names": [DTYPES[dtype] for dtype, _, _ in bucket.values()],
                "shapes": [shape for _, shape, _ in bucket.values()], "group_name": self.group, **more}
        call = threading.Thread(target=lambda: answers.append(self.server.post("/update_weights", {"update_info": info})))
        call.start()
        self.broadcast(buffers or [bucket], flattened=buffers is not None)
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
    status, _, body = server.post("/finish_weight_update", {"weight_version": 8})
    assert status == 200 and body["weight_version"] == "8", body
    assert server.post("/finish_weight_update", {})[0] == 400  # nothing was sent
    assert server.post("/resume", "")[2] == {"status": "resumed"}
    assert server.get("/is_paused")[2] == {"is_paused": False}
    for rank in (0, 1):
        assert generate(server, routed_dp_rank=rank)["text"] == texts["b"]
    info = server.get("/weight_info")[2]
    assert (info["weight_version"], info["world_size"]) == ("8", 2)
    found = {t["name"]: t["shape"] for t in info["tensors"]}
    assert found == {name: weights["b"][name][1] for name in found} and MATRIX in found


def in_buffers(tensors, size):
    """vLLM's rule: a buffer is complete as soon as it is larger than the size."""
    buffers, filled = [{}], 0
    for name, tensor in tensors.items():
        if filled > size:
            buffers.append({})
            filled = 0
        buffers[-1][name] = tensor
        filled += len(tensor[2])
    return buffers


@pytest.mark.parametrize("at", ["init", "update"])
def test_packed_tensors_come_in_buffers(server, weights, texts, at):
    size = 100_000
    packed = {"packed": True, "packed_buffer_size_bytes": size, "packed_num_buffers": 2}
    buffers = in_buffers(weights["b"], size)
    assert len(buffers) > 3 and any(len(buffer) > 1 for buffer in buffers)
    trainer = VllmTrainer(server, replicas=2, packed=packed if at == "init" else None)
    status, _, body = trainer.update_weights(weights["b"], buffers, **(packed if at == "update" else {}))
    assert status == 200, body
    assert (state(server)["buckets_received"], state(server)["state"]) == (len(buffers), "staged")
    assert server.post("/finish_weight_update", {"weight_version": "b"})[0] == 200
    for rank in (0, 1):
        assert generate(server, routed_dp_rank=rank)["text"] == texts["b"]
    # An update that says otherwise counts, and one buffer holds all by default.
    for more, sent in (({"packed": False}, None), ({"packed": True, "packed_buffer_size_bytes": None if at == "update" else 1 << 30}, [weights["a"]])):
        status, _, body = trainer.update_weights(weights["a"], sent, **more)
        assert status == 200, body
        assert server.post("/finish_weight_update", {})[0] == 200
        assert generate(server, routed_dp_rank=1)["text"] == texts["a"]


@pytest.mark.parametrize("query", ["mode=wait", "wait_for_inflight_requests=true"])
def test_a_pause_waits_for_the_requests_in_flight(server, query):
    texts = {number: generate(server, 30, text=f"{PROMPT} {number}")["text"] for number in range(3)}
    answers, events = {}, []

    def stream():
        body = {"text": f"{PROMPT} 0", "sampling_params": {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}, "stream": True}
        for event in server.stream("/generate", body):
            if event != "[DONE]":
                events.append(json.loads(event))

    def pause():
        answers["pause"] = server.post(f"/pause?{query}", "")

    def ask(number):
        answers[number] = generate(server, 30, text=f"{PROMPT} {number}")

    threads = [threading.Thread(target=stream)]
    threads[0].start()
    # One that is live and has not begun is held by the pause as the later ones are.
    wait_until(lambda: events, "request in flight")
    threads.append(threading.Thread(target=pause))
    threads[1].start()
    wait_until(lambda: state(server)["pausing"] or "pause" in answers, "pause that waits")
    for number in (1, 2):
        threads.append(threading.Thread(target=ask, args=(number,)))
        threads[-1].start()
    threads[1].join(WAIT_S)
    assert answers["pause"][0] == 200 and answers["pause"][2] == {"status": "paused"}, answers
    threads[0].join(WAIT_S)
    assert events[-1]["meta_info"]["completion_tokens"] == 900  # it has ended by itself
    assert server.get("/is_paused")[2] == {"is_paused": True} and not state(server)["pausing"]
    wait_until(lambda: server.metrics()["millrace:live_requests"] == 2, "requests that wait")
    assert 1 not in answers and 2 not in answers
    assert server.post("/resume", "")[0] == 200
    for thread in threads[2:]:
        thread.join(WAIT_S)
    assert {number: answers[number]["text"] for number in (1, 2)} == {number: texts[number] for number in (1, 2)}


def test_a_pause_cannot_wait_for_requests_that_stand_still(server):
    assert server.post("/pause?mode=keep", "")[0] == 200
    answers = []
    client = threading.Thread(target=lambda: answers.append(generate(server, 5)))
    client.start()
    wait_until(lambda: server.metrics()["millrace:num_queue_reqs"] == 1, "request that waits")
    status, _, body = server.post("/pause?mode=wait", "")
    assert status == 400 and "1 requests in flight stand still in another pause" in body["message"], body
    assert server.post("/resume", "")[0] == 200
    client.join(WAIT_S)
    assert answers and not state(server)["paused"]


def test_what_vllms_routes_do_not_serve_is_refused_by_name(server):
    for route, body, part in (
            ("pause?mode=later", {}, "mode is 'later'"),
            ("init_weight_transfer_engine", {}, "init_info is missing"),
            ("init_weight_transfer_engine", {"init_info": {"master_address": "127.0.0.1", "master_port": 1, "world_size": 2, "backend": "mpi"}}, "backend"),
            ("start_weight_update", {"is_checkpoint_format": False}, "is_checkpoint_format"), ("update_weights", {}, "update_info is missing"),
            ("update_weights", {"update_info": {"names": [VECTOR], "dtype_names": ["bfloat16"], "shapes": [[1]], "packed": True, "packed_buffer_size_bytes": 0}}, "packed_buffer_size_bytes"),
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
