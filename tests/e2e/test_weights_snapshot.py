"""Snapshots of weights that a trainer sent: replicas that die come back to them, and a server starts with the newest one."""
import os
import pathlib
import signal

import pytest

from harness import DEMO, Server, placement, wait_until
from test_weights import generate, kill, processes_only, updated, wait_for_all
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


def starts_from(server):
    return server.get("/server_info")[2]["options"]["start-weights"]


def test_a_server_starts_with_the_newest_snapshot(folder, weights, texts):
    with Server("--weights-snapshot-dir", str(folder)) as server:
        assert starts_from(server) == "model"  # there is none yet
        trainer = Trainer(server)
        trainer.update([weights["c"]], weight_version="step-c")
        older = kept(server)
        trainer.update([weights["b"]])
        newest = kept(server)
    with Server("--weights-snapshot-dir", str(folder), "--dp", "2", "--dp-policy", "round_robin") as server:
        wait_for_all(server)
        assert f"serves from the snapshot {newest}" in server.output()
        assert (starts_from(server), server.get("/model_info")[2]["weight_version"]) == (str(newest), "3")
        assert [state(server)[name] for name in ("version_number", "snapshot_version", "snapshot_path")] == [3, 3, str(newest)]
        for rank in (0, 1):
            answer = generate(server, routed_dp_rank=rank)
            assert (answer["text"], answer["meta_info"]["weight_version"]) == (texts["b"], "3")
        if placement() == "processes":  # one that is started again comes to the same weights
            kill(server, "scheduler-1")
            wait_for_all(server)
            assert generate(server, routed_dp_rank=1)["text"] == texts["b"]
        # The versions go on from there, and what the replicas start with stays.
        trainer = Trainer(server, replicas=2)
        for name in ("a", "c", "a"):
            trainer.update([weights[name]])
            last = kept(server)
        assert state(server)["version_number"] == 6 and len(list(folder.iterdir())) == 3
        if placement() == "processes":
            kill(server, "scheduler-1")
            wait_for_all(server)
        assert generate(server, routed_dp_rank=1)["text"] == texts["a"]
        assert newest.is_dir() and last.is_dir() and not older.is_dir()


def test_the_snapshot_to_start_with_may_be_chosen(folder, weights, texts):
    arguments = ("--weights-snapshot-dir", str(folder))
    with Server(*arguments) as server:
        trainer = Trainer(server)
        trainer.update([weights["c"]], weight_version="step-c")
        older = kept(server)
        trainer.update([weights["b"]], weight_version="step-b")
        newest = kept(server)
    for choice, text, version in (("model", "a", "1"), (str(older), "c", "step-c"), ("newest", "b", "step-b")):
        with Server(*arguments, "--start-weights", choice) as server:
            answer = generate(server)
            assert (answer["text"], answer["meta_info"]["weight_version"]) == (texts[text], version)
    # One that is damaged is skipped, and one of another model refused.
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "model.safetensors").write_bytes(data)
    with Server(*arguments) as server:
        assert generate(server)["text"] == texts["c"]
        assert "a snapshot is skipped" in server.output() and str(newest) in server.output()
    for more, model, parts in (((), weights["root"] / "b", (str(newest), str(DEMO), "--start-weights model")),
                               (("--start-weights", str(newest)), DEMO, ("--start-weights", str(newest), "checksum"))):
        with Server(*arguments, *more, model=model, wait=False) as server:
            assert server.end() != 0
            assert all(part in server.output() for part in parts), server.output()


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
