"""clients/python/millrace_trainer without PyTorch: buckets, the sequence of a sync, and what each failure leaves behind."""
import json
import struct
import threading
import time

import pytest

from fake_endpoint import LIMITS, WAIT_S, FakeBroadcaster, FakeEndpoint, refusal
from millrace_trainer import (ConflictError, EndpointError, InferenceEndpoint, InputError, LimitError, Limits, PartialSyncError, TorchBroadcaster,
                              TrainerError, WeightSync, WeightTensor, as_tensors, fill_buckets, read_safetensors)

KIB = 1 / 1024
SEQUENCE = ["/init_weights_update_group", "/prepare_weights_update", "/complete_weights_update"]


def tensor(name, count, byte=7):
    return WeightTensor.of_bytes(name, "bfloat16", [count], bytes([byte]) * (2 * count))


TENSORS = [tensor("a", 300, 1), tensor("b", 200, 2), tensor("c", 100, 3)]  # 600, 400 and 200 bytes
BYTES = b"\1" * 600 + b"\2" * 400 + b"\3" * 200


@pytest.fixture
def pair():
    endpoints = [FakeEndpoint(), FakeEndpoint(replicas=2)]
    yield endpoints
    for endpoint in endpoints:
        endpoint.close()


def sync_of(pair, calls=None, limits=LIMITS, fail=None, stuck=None, **more):
    return WeightSync([e.endpoint() for e in pair], limits=limits, broadcaster=lambda: FakeBroadcaster(pair, calls, fail, stuck),
                      **{"buffer_size_mb": KIB, **more})


# ---- buckets and tensors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts, sizes", [
    ([512], [1024]),                        # exactly full
    ([256, 256, 1], [1024, 2]),             # full, then the next one
    ([300, 300, 300], [600, 600, 600]),     # never more than the limit
    ([1, 2000, 1], [2, 4000, 2]),           # a larger tensor is alone
    ([2000, 1, 1], [4000, 4]),
    ([1], [2])])
def test_buckets_fill_in_sequence_up_to_the_size(counts, sizes):
    tensors = [tensor(f"t{i}", count) for i, count in enumerate(counts)]
    buckets = fill_buckets(tensors, KIB)
    assert [bucket.nbytes for bucket in buckets] == sizes
    assert [t for bucket in buckets for t in bucket.tensors] == tensors


def test_a_bucket_is_described_and_written_in_the_same_sequence():
    (bucket,) = fill_buckets(TENSORS, 1)
    assert bucket.describe() == {"names": ["a", "b", "c"], "dtypes": ["bfloat16"] * 3, "shapes": [[300], [200], [100]]}
    assert bytes(bucket.write_into(bytearray(2000))) == BYTES


@pytest.mark.parametrize("size", [0, -1, True, "64", None, float("nan")])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match="buffer_size_mb is .*; wanted a number of MiB"):
        fill_buckets(TENSORS, size)


def test_tensors_that_cannot_be_sent_are_named():
    for make, part in ((lambda: fill_buckets([], 1), "there are no tensors"),
                       (lambda: fill_buckets([tensor("a", 1), tensor("a", 1)], 1), "the tensor a comes twice"),
                       (lambda: WeightTensor.of_bytes("x", "int64", [1], bytes(8)), "x has dtype int64; wanted bfloat16"),
                       (lambda: WeightTensor.of_bytes("x", "float32", [2, 2], bytes(8)), "x has 8 bytes; wanted 16"),
                       (lambda: WeightTensor.of_bytes("x", "float32", [2, 0], b""), "x has shape .2, 0.; wanted at least one element"),
                       (lambda: as_tensors([3]), "the weights hold a int"),
                       (lambda: as_tensors(TENSORS, "float32"), "only PyTorch tensors are converted"),
                       (lambda: fill_buckets([tensor(f"t{i}", 1) for i in range(4097)], 1e-6), "makes 4097 buckets; wanted at most 4096")):
        with pytest.raises(InputError, match=part):
            make()


def test_a_model_folder_is_read(tmp_path):
    header = json.dumps({"__metadata__": {"format": "pt"}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
                         "a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"abcdefgh")
    found = read_safetensors(tmp_path)
    assert [(t.name, t.dtype, t.shape) for t in found] == [("b", "float32", (1,)), ("a", "bfloat16", (2, 1))]
    assert bytes(fill_buckets(found, 1)[0].write_into(bytearray(8))) == b"efghabcd"
    for data in (b"", b"abc", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b'{"a"',
                 struct.pack("<Q", len(header)) + header + b"abcd"):
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(InputError, match="wanted a safetensors file"):
            read_safetensors(tmp_path)
    with pytest.raises(InputError, match="no .*safetensors"):
        read_safetensors(tmp_path / "none")


# ---- a sync --------------------------------------------------------------------------------------------------------


def test_two_endpoints_receive_in_one_group_and_switch(pair):
    calls = []
    result = sync_of(pair, calls, group_name="g", master_port=4711, flush_cache=True).sync(TENSORS, weight_version="step-1")
    assert [call for call in calls] == [("listen", 4711, 4, "g"), ("join",), ("broadcast", 1000), ("broadcast", 200)]
    for endpoint, rank in zip(pair, (1, 2)):
        assert endpoint.paths() == SEQUENCE and endpoint.received == BYTES and endpoint.version == "step-1"
        assert endpoint.body(SEQUENCE[0]) == {"master_address": "127.0.0.1", "master_port": 4711, "rank_offset": rank, "world_size": 4,
                                              "group_name": "g", "backend": "gloo"}
        assert endpoint.body(SEQUENCE[1]) == {
            "buckets": [{"names": ["a", "b"], "dtypes": ["bfloat16"] * 2, "shapes": [[300], [200]]},
                        {"names": ["c"], "dtypes": ["bfloat16"], "shapes": [[100]]}],
            "num_buckets": 2, "load_format": "flattened_bucket", "group_name": "g"}
        assert endpoint.body(SEQUENCE[2]) == {"group_name": "g", "flush_cache": True, "policy": "in_place", "weight_version": "step-1"}
    assert (result.num_tensors, result.num_buckets, result.total_bytes) == (3, 2, 1200)
    assert result.weight_versions == {f"127.0.0.1:{e.port}": "step-1" for e in pair}
    assert set(result.seconds) == {"check", "join", "prepare", "broadcast", "staged", "complete"}


def test_the_group_is_kept_and_left_by_close(pair):
    calls = []
    with sync_of(pair, calls) as sync:
        sync.sync(TENSORS)
        sync.sync(TENSORS)
    assert [call[0] for call in calls] == ["listen", "join", *["broadcast"] * 4, "close"]
    assert pair[0].paths() == [*SEQUENCE, *SEQUENCE[1:], "/destroy_weights_update_group"]


def test_an_endpoint_that_was_started_again_is_joined_again(pair):
    calls = []
    sync = sync_of(pair, calls)
    sync.sync(TENSORS)
    pair[1].answers["/prepare_weights_update"] = lambda body: (
        refusal("there is no group") if pair[1].paths().count("/init_weights_update_group") == 1 else None)
    sync.sync(TENSORS)
    assert [call[0] for call in calls] == ["listen", "join", "broadcast", "broadcast", "close", "listen", "join", "broadcast", "broadcast"]
    assert pair[0].paths() == [*SEQUENCE, "/prepare_weights_update", "/abort_weights_update", *SEQUENCE]


def test_generation_is_paused_for_the_sync_and_goes_on(pair):
    sync_of(pair, pause_mode="retract").sync(TENSORS)
    assert pair[0].paths() == [SEQUENCE[0], "/pause_generation", *SEQUENCE[1:], "/continue_generation"]
    assert pair[0].body("/pause_generation") == {"mode": "retract"}


def test_the_admin_key_is_sent_and_not_printed(pair):
    keys = []
    act = pair[0].answer
    pair[0].answer = lambda path, body, headers: (keys.append(headers["Authorization"]), act(path, body, headers))[1]
    endpoint = pair[0].endpoint(api_key="secret")
    WeightSync([endpoint], limits=LIMITS, broadcaster=lambda: FakeBroadcaster(pair[:1])).sync(TENSORS)
    assert set(keys) == {"Bearer secret"} and "secret" not in repr(endpoint)


# ---- failures: the old weights serve everywhere, and the next sync works -------------------------------------------


def fails(pair, error, match, wanted, **more):
    """`wanted`: the requests that the first endpoint got."""
    calls = []
    versions = [e.version for e in pair]
    with pytest.raises(error, match=match) as caught:
        sync_of(pair, calls, **more).sync(TENSORS)
    assert pair[0].paths() == wanted
    assert [e.version for e in pair] == versions and all(e.state == "idle" for e in pair)
    for endpoint in pair:
        endpoint.answers.clear()
        endpoint.requests.clear()
    if calls:
        assert calls[-1] == ("close",)
    sync_of(pair).sync(TENSORS, weight_version="after")
    assert all(e.version == "after" for e in pair)
    return caught.value


def test_an_endpoint_that_is_away_is_found_before_a_group_is_made(pair):
    away = FakeEndpoint()
    away.close()
    calls = []
    with pytest.raises(EndpointError, match=f"127.0.0.1:{away.port}/weights_update_status: ConnectionRefusedError.*; wanted a Millrace server"):
        sync_of([*pair, away], calls).sync(TENSORS)
    assert calls == [] and pair[0].paths() == []


def test_an_endpoint_that_does_not_answer_is_given_up(pair):
    ended = threading.Event()
    pair[1].answers["/weights_update_status"] = lambda body: ended.wait(WAIT_S) and None
    with pytest.raises(LimitError, match="/weights_update_status: no answer within 0.2 s"):
        sync_of(pair, limits=Limits(status_s=0.2)).sync(TENSORS)
    ended.set()


@pytest.mark.parametrize("status, body, part", [
    (401, {"error": {"message": "the key is missing"}}, "status 401: the key is missing"),
    (200, b"<html>", "wanted a JSON object"),
    (200, b"[]", "wanted a JSON object"),
    (200, {"success": False, "message": "no"}, "status 200: no"),
    (404, {}, "status 404"),
    (200, {}, "no state in the answer")])
def test_a_server_of_another_kind_is_named(pair, status, body, part):
    pair[1].answers["/weights_update_status"] = (status, body)
    fails(pair, EndpointError, f"127.0.0.1:{pair[1].port}.*{part}", [])


def test_an_update_under_way_is_left_alone(pair):
    pair[1].state = "receiving"
    with pytest.raises(ConflictError, match="is receiving; wanted idle"):
        sync_of(pair).sync(TENSORS)
    assert pair[0].paths() == pair[1].paths() == []


def test_a_port_that_is_taken_is_named(pair, monkeypatch):
    def taken(*_):
        raise OSError("Address already in use")

    monkeypatch.setattr(FakeBroadcaster, "listen", taken)
    with pytest.raises(TrainerError, match="no store at 127.0.0.1:4711: Address already in use; wanted this host's address and a free port"):
        sync_of(pair, master_port=4711).sync(TENSORS)
    assert pair[0].paths() == []


def test_replicas_without_a_rank_are_found_before_the_join(pair):
    pair[1].answers["/server_info"] = (200, {"internal_states": [{}, {}, {}]})
    fails(pair, InputError, "has 3 replicas and world_size is 2; wanted world_size 3", [])


class SleeplessClock:
    """Time as a thread that sleeps would see it: it does not sleep, and its own clock alone is put forward."""

    def __init__(self):
        self.of_thread = threading.local()

    def monotonic(self):
        return time.monotonic() + getattr(self.of_thread, "slept_s", 0)

    def sleep(self, seconds):
        self.of_thread.slept_s = getattr(self.of_thread, "slept_s", 0) + seconds


def test_a_replica_that_restarts_is_waited_for(pair, monkeypatch):
    seen = []

    def restarts(body):
        seen.append(body)
        return (200, {"internal_states": [{"stage": "s0", "state": "ready"}, {"stage": "s1", "state": "failed"}]}) if len(seen) < 3 else None

    pair[1].answers["/server_info"] = restarts
    sync_of(pair).sync(TENSORS)
    assert len(seen) == 3 and pair[1].version == "2"
    pair[1].answers["/server_info"] = (200, {"internal_states": [{"stage": "s0"}, {"stage": "s1", "state": "stalled"}]})
    monkeypatch.setattr("millrace_trainer.endpoint.time", SleeplessClock())  # the other server has all of its minute
    fails(pair, LimitError, "s1 is stalled; wanted ready within 60 s", [*SEQUENCE], limits=Limits(ready_s=60))


def test_a_refused_join_waits_for_no_other_rank(pair):
    joining = threading.Event()
    pair[0].answers["/init_weights_update_group"] = lambda body: joining.wait(WAIT_S) and None
    pair[1].answers["/init_weights_update_group"] = refusal("master_address is not allowed")
    with pytest.raises(EndpointError, match="master_address is not allowed"):
        sync_of(pair).sync(TENSORS)
    joining.set()


def test_a_join_that_does_not_end_has_a_limit(pair):
    joining = threading.Event()
    pair[0].answers["/init_weights_update_group"] = lambda body: joining.wait(WAIT_S) and None
    with pytest.raises(LimitError, match="no answer within 0.2 s|not complete within join_s 0.2 s"):
        sync_of(pair, limits=Limits(join_s=0.2)).sync(TENSORS)
    joining.set()


def test_a_refused_prepare_aborts_the_others_before_a_byte(pair):
    pair[1].answers["/prepare_weights_update"] = refusal("a has shape [1]; wanted [2]")
    fails(pair, EndpointError, f"127.0.0.1:{pair[1].port}/prepare.*wanted .2.", [*SEQUENCE[:2], "/abort_weights_update"])


def test_another_trainers_update_is_not_aborted(pair):
    def other(body):
        pair[1].state = "receiving"  # since the endpoint was asked
        return refusal("an update is already in progress")

    pair[1].answers["/prepare_weights_update"] = other
    with pytest.raises(EndpointError, match="already in progress"):
        sync_of(pair).sync(TENSORS)
    assert pair[0].paths()[-1] == "/abort_weights_update" and pair[0].state == "idle"
    assert pair[1].paths() == SEQUENCE[:2] and pair[1].state == "receiving"


def test_a_prepare_without_an_answer_is_aborted(pair):
    pair[1].answers["/prepare_weights_update"] = (500, b"?")
    with pytest.raises(EndpointError, match="status 500"):
        sync_of(pair).sync(TENSORS)
    assert all(e.paths()[-1] == "/abort_weights_update" for e in pair)


def test_a_failed_broadcast_names_the_endpoints_that_gave_up(pair):
    def lost(body):
        return (200, {"state": "idle", "last_error": "scheduler-1 ended"}) if pair[1].state == "receiving" else None

    pair[1].answers["/weights_update_status"] = lost
    with pytest.raises(TrainerError, match=f"RuntimeError: cut; 127.0.0.1:{pair[1].port} is idle: scheduler-1 ended"):
        sync_of(pair, fail=RuntimeError("cut")).sync(TENSORS)


def test_a_broadcast_that_raises_is_aborted(pair):
    fails(pair, TrainerError, "the broadcast of bucket 1 of 2 .1000 bytes. failed: RuntimeError: cut", [*SEQUENCE[:2], "/abort_weights_update"],
          fail=RuntimeError("cut"))


def test_a_broadcast_to_an_endpoint_that_gave_up_is_aborted(pair):
    stuck = threading.Event()

    def lost(body):
        if pair[1].state == "receiving":
            return 200, {"state": "idle", "last_error": "rank 0 sent nothing"}
        return None

    pair[1].answers["/weights_update_status"] = lost
    fails(pair, EndpointError, f"127.0.0.1:{pair[1].port} is idle at bucket 1 of 2.*rank 0 sent nothing", [*SEQUENCE[:2], "/abort_weights_update"],
          stuck=stuck)
    stuck.set()


def test_a_broadcast_that_does_not_end_has_a_limit(pair):
    stuck = threading.Event()
    fails(pair, LimitError, "bucket 1 of 2 .* took more than bucket_s 0.1 s", [*SEQUENCE[:2], "/abort_weights_update"], stuck=stuck,
          limits=Limits(bucket_s=0.1, poll_s=0.02))
    stuck.set()


def test_weights_that_are_not_staged_have_a_limit_and_do_not_switch(pair):
    pair[1].receive = lambda data: None
    with pytest.raises(LimitError, match="did not stage the weights within staged_s 0.1 s"):
        sync_of(pair, limits=Limits(staged_s=0.1, poll_s=0.02)).sync(TENSORS)
    assert pair[0].paths()[-1] == "/abort_weights_update" and [e.version for e in pair] == ["1", "1"]


def test_another_count_of_buckets_is_an_error(pair):
    pair[1].answers["/complete_weights_update"] = (200, {"success": True, "num_buckets_received": 1})
    with pytest.raises(PartialSyncError, match=f"127.0.0.1:{pair[1].port} received 1 buckets; wanted 2") as caught:
        sync_of(pair).sync(TENSORS)
    assert caught.value.switched == [f"127.0.0.1:{pair[0].port}"] and caught.value.unswitched == [f"127.0.0.1:{pair[1].port}"]
    assert pair[1].paths()[-1] == "/abort_weights_update" and pair[1].version == "1"


def test_a_refused_complete_names_who_serves_what(pair):
    pair[0].answers["/complete_weights_update"] = pair[1].answers["/complete_weights_update"] = refusal("the checksums differ")
    with pytest.raises(EndpointError, match="the checksums differ.*the checksums differ") as caught:
        sync_of(pair).sync(TENSORS)
    assert not isinstance(caught.value, PartialSyncError)
    assert all(e.paths()[-1] == "/abort_weights_update" and e.version == "1" for e in pair)


def test_generation_goes_on_after_a_failure(pair):
    pair[1].answers["/prepare_weights_update"] = refusal("no")
    fails(pair, EndpointError, "no", [SEQUENCE[0], "/pause_generation", SEQUENCE[1], "/abort_weights_update", "/continue_generation"],
          pause_mode="in_place")


def test_generation_that_stays_paused_is_reported(pair):
    pair[1].answers["/continue_generation"] = refusal("busy", 500)
    with pytest.raises(EndpointError, match="generation is paused: /continue_generation failed 3 times: .*busy"):
        sync_of(pair, pause_mode="abort").sync(TENSORS)


def test_a_refused_pause_lets_the_others_go_on(pair):
    pair[1].answers["/pause_generation"] = refusal("no", 500)
    with pytest.raises(EndpointError, match="/pause_generation: status 500: no"):
        sync_of(pair, pause_mode="abort").sync(TENSORS)
    assert pair[0].paths() == [SEQUENCE[0], "/pause_generation", "/continue_generation"]


def test_one_sync_at_a_time(pair):
    begun, stuck = threading.Event(), threading.Event()
    sync = sync_of(pair, stuck=stuck)
    pair[0].answers["/prepare_weights_update"] = lambda body: begun.set()
    first = threading.Thread(target=sync.sync, args=(TENSORS,))
    first.start()
    assert begun.wait(WAIT_S)
    with pytest.raises(ConflictError, match="a sync is in progress"):
        sync.sync(TENSORS)
    stuck.set()
    first.join(WAIT_S)
    assert pair[0].version == "2"


def test_values_that_cannot_be(pair):
    endpoint = pair[0].endpoint()
    for make, part in ((lambda: InferenceEndpoint("", 1), "host is ''"),
                       (lambda: InferenceEndpoint("h", 0), "port is 0; wanted an integer from 1 to 65535"),
                       (lambda: InferenceEndpoint("h", "1"), "port is '1'"),
                       (lambda: InferenceEndpoint("h", 1, 0), "world_size is 0"),
                       (lambda: InferenceEndpoint("h", 1, True), "world_size is True"),
                       (lambda: WeightSync([]), "there are no endpoints"),
                       (lambda: WeightSync([endpoint, endpoint]), "an endpoint comes twice"),
                       (lambda: WeightSync([endpoint], pause_mode="stop"), "pause_mode is 'stop'; wanted abort, retract, in_place or None"),
                       (lambda: WeightSync([endpoint], policy=None), "policy is None; wanted abort, retract, in_place"),
                       (lambda: WeightSync([endpoint], master_port=70000), "master_port is 70000"),
                       (lambda: WeightSync([endpoint], master_address=""), "master_address is ''"),
                       (lambda: WeightSync([endpoint], group_name="x" * 300), "wanted 1 to 200 bytes"),
                       (lambda: WeightSync([endpoint]).sync(TENSORS, buffer_size_mb=0), "buffer_size_mb is 0"),
                       (lambda: WeightSync([endpoint]).sync(TENSORS, weight_version=1.5), "weight_version is 1.5")):
        with pytest.raises(InputError, match=part):
            make()


def test_without_pytorch_the_error_names_it(pair, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(TrainerError, match="PyTorch is missing .*; wanted the package torch"):
        TorchBroadcaster()
