"""New weights for a model that takes pictures: those of its language model change while it serves, from a folder and from a trainer that sends all
that it has. The vision tower is frozen: what comes of it must be what serves."""
import array
import json
import shutil
import struct

import pytest

from harness import Server
from test_vision import ask, whole
from test_vision_split import file
from test_weights_broadcast import Trainer, checksums, in_buckets, state, tensors_of
from vision_model import served, vision_model

LANGUAGE = "model.language_model.layers.0.mlp.down_proj.weight"
TOWER = "model.visual.blocks.0.attn.qkv.weight"


def reversed_tensor(data):
    values = array.array("H", data)
    values.reverse()
    return values.tobytes()


def with_other(tensors, name):
    dtype, shape, data = tensors[name]
    return {**tensors, name: (dtype, shape, reversed_tensor(data))}


def changed_folder(source, folder, name):
    """The model with one tensor's elements in another sequence."""
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    data[8 + length + begin : 8 + length + end] = reversed_tensor(data[8 + length + begin : 8 + length + end])
    path.write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("vision")
    old = vision_model(root / "old")
    return {"root": root, "old": old, "new": changed_folder(old, root / "new", LANGUAGE), "tower": changed_folder(old, root / "tower", TOWER)}


def answers(server):
    return [whole(server, ask(*one["parts"]))["choices"] for one in served()["conversations"]]


@pytest.fixture(scope="module")
def wanted(folders):
    """What fresh servers answer about the pictures, and the checksums of the new weights."""
    found = {}
    for name in ("old", "new"):
        with Server(model=folders[name]) as server:
            found[name] = answers(server)
            found["sums"] = checksums(server)
    assert found["old"] != found["new"]
    return found


def from_disk(server, folder):
    status, _, body = server.post("/update_weights_from_disk", {"model_path": str(folder)})
    return status, body["message"]


@pytest.fixture
def server(folders):
    with Server("--weights-root", str(folders["root"]), model=folders["old"]) as running:
        yield running


def test_a_folder_of_new_weights(server, folders, wanted):
    assert answers(server) == wanted["old"]  # features and prefixes are in the caches now
    assert from_disk(server, folders["new"])[0] == 200
    assert answers(server) == wanted["new"]
    assert checksums(server) == wanted["sums"]
    assert from_disk(server, folders["old"])[0] == 200
    assert answers(server) == wanted["old"]


def test_a_folder_with_another_tower_is_refused(server, folders, wanted):
    status, message = from_disk(server, folders["tower"])
    assert status == 400 and TOWER.removeprefix("model.") in message and "other values" in message, message
    assert answers(server) == wanted["old"]


@pytest.mark.parametrize("name, field, value, word", [
    ("preprocessor_config.json", "image_mean", [0.1, 0.2, 0.3], "processor"), ("config.json", "image_token_id", 3071, "image_token_id")])
def test_a_folder_that_treats_pictures_otherwise_is_refused(server, folders, wanted, tmp_path_factory, name, field, value, word):
    folder = folders["root"] / f"other-{field}"
    shutil.copytree(folders["new"], folder)
    content = json.loads((folder / name).read_text())
    assert field in content
    (folder / name).write_text(json.dumps({**content, field: value}))
    status, message = from_disk(server, folder)
    assert status == 400 and word in message, message
    assert answers(server) == wanted["old"]


def test_a_trainer_that_sends_all_tensors(server, folders, wanted):
    tensors = tensors_of(folders["new"])
    assert any(name.startswith("model.visual.") for name in tensors)
    Trainer(server).update(in_buckets(tensors, 3), weight_version="new")
    assert answers(server) == wanted["new"]
    assert checksums(server) == wanted["sums"]
    value = server.post("/get_weights_by_name", {"name": LANGUAGE, "truncate_size": 1})
    assert value[0] == 200, value


def test_a_trainer_that_sends_the_language_model_alone(server, folders, wanted):
    tensors = {name: tensor for name, tensor in tensors_of(folders["new"]).items() if not name.startswith("model.visual.")}
    Trainer(server).update(in_buckets(tensors, 2))
    assert answers(server) == wanted["new"]


def test_a_trainer_that_trains_the_tower_is_refused(server, folders, wanted):
    tensors = with_other(tensors_of(folders["new"]), TOWER)
    trainer = Trainer(server)
    assert trainer.prepare([tensors])[0] == 200
    trainer.broadcast([tensors])
    status, _, body = trainer.complete()
    assert status == 400 and TOWER.removeprefix("model.") in body["message"] and "other values" in body["message"], body
    assert state(server)["state"] == "idle"
    assert answers(server) == wanted["old"]
    # What a comparison of bytes cannot tell is refused before the first byte.
    dtype, shape, data = tensors[TOWER]
    status, _, body = Trainer(server).prepare([{TOWER: ("F32", shape, data + data)}])
    assert status == 400 and "F32" in body["message"] and dtype in body["message"], body
    Trainer(server).update([tensors_of(folders["new"])])
    assert answers(server) == wanted["new"]


def test_where_the_tower_is_a_process_of_its_own(folders, wanted):
    with Server("--pipeline", str(file(folders["old"])), "--weights-root", str(folders["root"]), model=folders["old"]) as server:
        assert answers(server) == wanted["old"]
        status, message = from_disk(server, folders["tower"])
        assert status == 400 and "other values" in message, message
        assert from_disk(server, folders["new"])[0] == 200
        assert answers(server) == wanted["new"]


EXPERTS = "model.language_model.layers.1.mlp.experts.gate_up_proj"


def test_a_trainer_of_experts_sends_them_stacked(tmp_path):
    """As transformers 5 has them in memory: one tensor for all experts of a layer."""
    old = vision_model(tmp_path / "old", "moe")
    new = changed_folder(old, tmp_path / "new", EXPERTS)
    with Server(model=new) as server:
        wanted, sums = answers(server), checksums(server)
    with Server(model=old) as server:
        before = answers(server)
        assert before != wanted
        tensors = tensors_of(new)
        assert EXPERTS in tensors
        Trainer(server).update(in_buckets(tensors, 3))
        assert answers(server) == wanted
        assert checksums(server) == sums
        dtype, shape, data = tensors[EXPERTS]
        status, _, body = Trainer(server).prepare([{EXPERTS: (dtype, [shape[0] + 1, *shape[1:]], data)}])
        assert status == 400 and "experts.gate_up_proj" in body["message"] and "wanted" in body["message"], body
        assert answers(server) == wanted
