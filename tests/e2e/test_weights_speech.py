"""New weights for a model that takes audio and speaks: those of its thinker change while it serves, from a folder and from a trainer that sends
all that it has. Towers, talker and vocoder are frozen, and so is the embedding, which the talker reads: what comes of them must be what serves."""
import base64
import json
import shutil

import pytest

from harness import Server
from omni_model import speaking_model, spoken, spoken_body
from test_weights_broadcast import Trainer, checksums, in_buckets, state, tensors_of
from test_weights_vision import changed_folder, from_disk, with_other

THINKER = "thinker.model.layers.0.self_attn.o_proj.weight"
FROZEN = {"thinker.visual.patch_embed.proj.weight": "vision tower", "thinker.audio_tower.conv_out.weight": "audio tower",
          "talker.model.norm.weight": "talker", "talker.code_predictor.lm_head.0.weight": "talker",
          "code2wav.code_embedding.weight": "vocoder", "thinker.model.embed_tokens.weight": "the talker"}
BODIES = [spoken_body(case, max_tokens=12, talker_max_new_tokens=12) for case in spoken()]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("speech")
    old = speaking_model(root / "old")
    return {"root": root, "old": old, "new": changed_folder(old, root / "new", THINKER)}


def answers(server):
    """Texts and sounds."""
    found = []
    for body in BODIES:
        status, _, answer = server.post(CHAT, body)
        assert status == 200, answer
        message = answer["choices"][0]["message"]
        found.append((message["content"], base64.b64decode(message["audio"]["data"])))
    return found


@pytest.fixture(scope="module")
def wanted(folders):
    found = {}
    for name in ("old", "new"):
        with Server(model=folders[name]) as server:
            found[name] = answers(server)
            found["sums"] = checksums(server)
    for old, new in zip(found["old"], found["new"]):
        assert old[0] != new[0] and old[1] != new[1]
    return found


@pytest.fixture(scope="module")
def server(folders):
    with Server("--weights-root", str(folders["root"]), model=folders["old"]) as running:
        yield running
        assert running.stop() == 0, running.output()


def test_a_folder_of_new_weights(server, folders, wanted):
    assert answers(server) == wanted["old"]  # features, rows for the talker and prefixes are in the caches now
    assert from_disk(server, folders["new"])[0] == 200
    assert answers(server) == wanted["new"]
    assert checksums(server) == wanted["sums"]
    assert from_disk(server, folders["old"])[0] == 200
    assert answers(server) == wanted["old"]


@pytest.mark.parametrize("name", FROZEN)
def test_a_folder_in_which_another_part_has_changed_is_refused(server, folders, wanted, name):
    folder = changed_folder(folders["new"], folders["root"] / name, name)
    status, message = from_disk(server, folder)
    assert status == 400 and name.removeprefix("thinker.") in message and "other values" in message and FROZEN[name] in message, message
    assert answers(server)[:1] == wanted["old"][:1]


@pytest.mark.parametrize("file, change, words", [
    ("config.json", lambda c: c["talker_config"].update(accept_hidden_layer=2), "talker_config"),
    ("config.json", lambda c: c["talker_config"]["text_config"]["rope_parameters"].update(rope_theta=5.0), "rope_theta"),
    ("config.json", lambda c: c["code2wav_config"].update(sliding_window=3), "code2wav_config"),
    ("config.json", lambda c: c["thinker_config"].update(position_id_per_seconds=7), "position_id_per_seconds"),
    ("preprocessor_config.json", lambda c: c.update(hop_length=200), "hop_length")], ids=lambda value: value if isinstance(value, str) else "")
def test_a_folder_that_describes_a_part_otherwise_is_refused(server, folders, wanted, tmp_path, file, change, words):
    folder = folders["root"] / tmp_path.name
    shutil.copytree(folders["new"], folder)
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))
    status, message = from_disk(server, folder)
    assert status == 400 and words in message, message
    assert answers(server)[:1] == wanted["old"][:1]


def test_a_trainer_that_sends_all_tensors(folders, wanted):
    with Server(model=folders["old"]) as server:
        trainer = Trainer(server)
        trainer.update(in_buckets(tensors_of(folders["new"]), 3), weight_version="new")
        assert answers(server) == wanted["new"]
        assert checksums(server) == wanted["sums"]
        # Another talker is refused when all has come, and the weights before serve on.
        tensors = with_other(tensors_of(folders["old"]), "talker.model.norm.weight")
        assert trainer.prepare([tensors])[0] == 200
        trainer.broadcast([tensors])
        status, _, body = trainer.complete()
        assert status == 400 and "the talker takes no new weights" in body["message"], body
        assert state(server)["state"] == "idle"
        assert answers(server) == wanted["new"]
        assert server.stop() == 0, server.output()


def test_a_trainer_that_sends_the_thinker_alone(folders, wanted):
    with Server(model=folders["old"]) as server:
        layers = {name: tensor for name, tensor in tensors_of(folders["new"]).items() if name.startswith("thinker.model.layers.")}
        Trainer(server).update(in_buckets(layers, 2))
        assert answers(server) == wanted["new"]
        assert server.stop() == 0, server.output()


def test_without_a_talker_the_embedding_changes_too(folders):
    """And what the folder has of a talker is not looked at."""
    other = changed_folder(folders["old"], folders["root"] / "embedding", "thinker.model.embed_tokens.weight")
    other = changed_folder(other, folders["root"] / "talker-too", "talker.model.norm.weight")
    silent = [{key: value for key, value in body.items() if key not in ("modalities", "audio") and not key.startswith("talker")} for body in BODIES]

    def texts(server):
        return [server.post(CHAT, body)[2]["choices"][0]["message"]["content"] for body in silent]

    with Server("--speech", "off", model=other) as server:
        fresh = texts(server)
    with Server("--speech", "off", "--weights-root", str(folders["root"]), model=folders["old"]) as server:
        assert texts(server) != fresh
        assert from_disk(server, other)[0] == 200
        assert texts(server) == fresh
        assert server.stop() == 0, server.output()
