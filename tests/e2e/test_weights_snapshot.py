"""Snapshots of weights that a trainer sent: replicas that die come back to them, and a server is started with them."""
import os
import pathlib
import signal

import pytest

from harness import DEMO, Server, wait_until
from test_weights import generate, processes_only, updated, wait_for_all
from test_weights_broadcast import Trainer, in_buckets, safetensors, state, texts, weights  # noqa: F401


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "snapshots"
    made.mkdir()
    return made


def kept(server):
    """The path of the snapshot of the weights that serve."""
    wait_until(lambda: state(server)["snapshot_version"] == state(server)["version_number"], "snapshot")
    found = state(server)
    assert found["snapshot_error"] == ""
    return pathlib.Path(found["snapshot_path"])


def test_a_snapshot_is_the_model_of_another_server(folder, weights, texts):
    with Server("--weights-snapshot-dir", str(folder)) as server:
        assert (state(server)["snapshot_version"], state(server)["snapshot_path"]) == (0, "")
        Trainer(server).update(in_buckets(weights["b"], 3), weight_version="b")
        path = kept(server)
        assert path.parent == folder and generate(server)["text"] == texts["b"]
        assert {p.name for p in path.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}
        # A body is an update too; a folder is kept already.
        assert server.request("POST", "/update_weights_from_tensor", safetensors(weights["a"]), {"Content-Type": "application/octet-stream"})[0] == 200
        second = kept(server)
        updated(server, path)  # without --weights-root
        assert generate(server)["text"] == texts["b"]
        assert state(server)["snapshot_version"] == 3 and state(server)["version_number"] == 4
        assert server.request("POST", "/update_weights_from_tensor", safetensors(weights["b"]), {"Content-Type": "application/octet-stream"})[0] == 200
        third = kept(server)
        assert {p for p in folder.iterdir()} == {second, third}  # two are kept
    for path, text in ((second, texts["a"]), (third, texts["b"])):
        with Server(model=path) as server:
            assert generate(server)["text"] == text


@processes_only
def test_replicas_that_die_come_back_to_what_serves(folder, weights, texts):
    with Server("--dp", "2", "--dp-policy", "round_robin", "--weights-snapshot-dir", str(folder)) as server:
        wait_for_all(server)
        Trainer(server, replicas=2).update([weights["b"]], weight_version="b")
        kept(server)
        for stages in (("scheduler-1",), ("scheduler-0", "scheduler-1")):
            children = server.children()
            for stage in stages:
                os.kill(children[stage], signal.SIGKILL)
            wait_until(lambda: all(server.children().get(stage) not in (None, children[stage]) for stage in stages), "restart")
            wait_for_all(server)
            for rank in (0, 1):
                answer = generate(server, routed_dp_rank=rank)
                assert answer["text"] == texts["b"] and answer["meta_info"]["weight_version"] == "b"
        # The trainer goes on from there, with a part of the tensors.
        Trainer(server, replicas=2).update([weights["a"]], weight_version="a")
        assert generate(server, routed_dp_rank=1)["text"] == texts["a"]


@processes_only
def test_a_snapshot_that_is_gone_is_named(folder, weights, texts):
    with Server("--weights-snapshot-dir", str(folder)) as server:
        Trainer(server).update([weights["b"]])
        path = kept(server)
        path.rename(folder / "elsewhere")
        os.kill(server.children()["scheduler"], signal.SIGKILL)
        wait_until(lambda: f"{path} is not there" in str(server.get("/ready")[2]), "reason")
        assert server.get("/ready")[0] == 503
        (folder / "elsewhere").rename(path)
        wait_until(server.ready, "snapshot")
        assert generate(server)["text"] == texts["b"]


def test_what_cannot_be_kept_is_refused_at_the_start(folder):
    for more, part in ((("--quantize", "q8_0"), "--quantize is 'q8_0'"), ((), "no folder")):
        where = folder if more else folder / "none"
        with Server("--weights-snapshot-dir", str(where), *more, wait=False) as server:
            assert server.end() != 0
            assert part in server.output() and "--weights-snapshot-dir" in server.output()


def test_a_snapshot_that_cannot_be_written_costs_nothing(folder, weights, texts):
    with Server("--weights-snapshot-dir", str(folder)) as server:
        folder.rmdir()
        Trainer(server).update([weights["b"]])
        wait_until(lambda: str(folder) in state(server)["snapshot_error"], "error")
        assert generate(server)["text"] == texts["b"] and server.ready()
        folder.mkdir()
        kept(server)


def test_without_the_option_nothing_is_written(weights):
    with Server() as server:
        Trainer(server).update([weights["b"]])
        generate(server)
        assert (state(server)["snapshot_version"], state(server)["snapshot_error"]) == (0, "")
        assert DEMO.is_dir()
