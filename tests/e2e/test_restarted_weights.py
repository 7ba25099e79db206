"""Files that were replaced while a server runs, by ones whose difference no sample of a tensor shows: a stage that is started again loads
other bytes under the version that serves. It is refused with both checksums, whatever part of the model it has, until the files are back."""
import os
import pathlib
import shutil
import signal

import pytest

from harness import DEMO, Server, placement, wait_until
from omni_model import omni_model, sound_of, speaking_model, spoken, spoken_body
from test_layer_hosts import join, lead, pipeline, wait_ready
from test_layer_split import answer, ranges
from test_vision import CHAT, ask, whole
from test_vision_split import encoder_pid, file
from test_weights import kill, reason, wait_for_all, zeroed_rows
from vision_model import served, vision_model

pytestmark = pytest.mark.skipif(placement() != "processes", reason="it is about child processes that are started again")
FIRST, UPPER = "model.layers.0.mlp.down_proj.weight", "model.layers.5.mlp.down_proj.weight"  # of 6 layers
SPOKEN = spoken_body(spoken()[0], max_tokens=8, ignore_eos=True, talker_max_new_tokens=20)


class Files:
    """A model whose weights can be replaced and put back. A process that has mapped the earlier ones keeps them."""

    def __init__(self, folder):
        self.folder, self.kept, self.next = folder, folder.parent / "kept", folder.parent / "next"
        shutil.copytree(folder, self.kept)

    def put(self, source):
        os.replace(source / "model.safetensors", self.folder / "model.safetensors")

    def replace(self, name):
        self.put(zeroed_rows(self.next, self.kept, name))
        shutil.rmtree(self.next)

    def put_back(self):
        shutil.copytree(self.kept, self.next)
        self.put(self.next)
        shutil.rmtree(self.next)


@pytest.fixture
def demo(tmp_path):
    return Files(pathlib.Path(shutil.copytree(DEMO, tmp_path / "model")))


def kill_pid(pid):
    os.kill(pid, signal.SIGKILL)


def wait_refused(server, *stages):
    """Until it is said why one of the stages does not serve."""
    def refused():
        seen = reason(server)
        return any(seen.startswith(f"{stage}: ") for stage in stages) and "have the checksum" in seen and "; wanted " in seen

    wait_until(refused, "the comparison")


def kill_range(server, index):
    pid = ranges(server)[index]
    kill_pid(pid)
    wait_until(lambda: ranges(server).get(index) not in (None, pid), "restart")


@pytest.mark.parametrize("killed", ["range", "scheduler"])
@pytest.mark.parametrize("name", [FIRST, UPPER])
def test_a_part_of_a_layer_split(demo, killed, name):
    if (killed, name) == ("range", FIRST):
        pytest.skip("the range that is killed has other tensors")
    kill_it = (lambda server: kill_range(server, 1)) if killed == "range" else (lambda server: kill(server, "scheduler"))
    with Server("--pp", "2", model=demo.folder) as server:
        wanted = [answer(server, i) for i in range(4)]
        demo.replace(name)
        kill_it(server)
        wait_refused(server, "scheduler")
        assert [answer(server, i)[0] for i in range(4)] == [503] * 4
        demo.put_back()
        kill_it(server)
        wait_for_all(server)
        assert [answer(server, i) for i in range(4)] == wanted


def test_the_range_that_restarts_may_have_other_tensors_than_those_that_changed(demo):
    with Server("--pp", "2", model=demo.folder) as server:
        wanted = answer(server, 1)
        demo.replace(FIRST)
        kill_range(server, 1)
        wait_until(lambda: answer(server, 1)[0] == 200, "its return")
        assert answer(server, 1) == wanted


@pytest.mark.parametrize("killed,name", [("generate", FIRST), ("upper1", UPPER)])
def test_a_stage_that_is_a_range(demo, tmp_path, killed, name):
    with lead(pipeline(tmp_path, (0, 3, None), (3, 6, None)), model=demo.folder) as server:
        wait_ready(server)
        wanted = [answer(server, i) for i in range(4)]
        demo.replace(name)
        kill(server, killed)
        wait_refused(server, killed, "generate")  # the first range refuses the chain, and comes first in the reason
        assert [answer(server, i)[0] for i in range(4)] == [503] * 4
        demo.put_back()
        kill(server, killed)
        wait_until(server.ready, "its return")
        assert [answer(server, i) for i in range(4)] == wanted


def test_a_range_of_another_host(demo, tmp_path):
    path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"))
    with lead(path) as server:
        with join(path, "upper1", model=demo.folder) as upper:
            wait_ready(server)
            wanted = [answer(server, i) for i in range(4)]
            kill_pid(upper.process.pid)
        demo.replace(UPPER)
        with join(path, "upper1", model=demo.folder):
            wait_refused(server, "upper1", "generate")
            assert answer(server, 0)[0] == 503
        demo.put_back()
        with join(path, "upper1", model=demo.folder):
            wait_until(server.ready, "its return")
            assert [answer(server, i) for i in range(4)] == wanted


def pictures(server):
    return [whole(server, ask(*one["parts"]))["choices"] for one in served()["conversations"]]


def test_an_encoder(tmp_path):
    files = Files(vision_model(tmp_path / "model"))
    body = ask(*served()["conversations"][0]["parts"])
    with Server("--pipeline", str(file(tmp_path)), model=files.folder) as server:
        wanted = pictures(server)
        files.replace("model.visual.blocks.0.attn.qkv.weight")
        kill_pid(encoder_pid(server))
        wait_refused(server, "vision")
        assert server.post("/flush_cache", None)[0] == 200
        status, _, found = server.post(CHAT, body)
        assert status == 503, found
        status, _, found = server.post(CHAT, ask("Tell me of it."))  # which needs no encoder
        assert status == 200, found
        files.put_back()
        kill_pid(encoder_pid(server))
        wait_for_all(server)
        wait_until(lambda: server.post(CHAT, body)[0] == 200, "its return")
        assert pictures(server) == wanted


@pytest.mark.parametrize("make,name", [(vision_model, "model.visual.blocks.0.attn.qkv.weight"),
                                       (omni_model, "thinker.audio_tower.layers.0.fc1.weight")], ids=["vision", "audio"])
def test_a_tower_beside_the_scheduler(tmp_path, make, name):
    files = Files(make(tmp_path / "model"))
    with Server(model=files.folder) as server:
        files.replace(name)
        kill(server, "scheduler")
        wait_refused(server, "scheduler")
        assert server.post(CHAT, ask("Tell me of it."))[0] == 503
        files.put_back()
        kill(server, "scheduler")
        wait_for_all(server)
        assert server.post(CHAT, ask("Tell me of it."))[0] == 200


@pytest.mark.parametrize("stage,name", [
    ("talker", "talker.model.layers.0.self_attn.o_proj.weight"), ("talker", "talker.code_predictor.model.layers.0.mlp.up_proj.weight"),
    ("talker", "talker.text_projection.linear_fc1.weight"), ("talker", "thinker.model.embed_tokens.weight"),
    ("vocoder", "code2wav.decoder.0.conv.weight")])
def test_a_part_that_speaks(tmp_path, stage, name):
    files = Files(speaking_model(tmp_path / "model"))
    with Server(model=files.folder) as server:
        wanted = sound_of(server, SPOKEN)
        files.replace(name)
        kill(server, stage)
        wait_refused(server, stage)
        status, _, found = server.post(CHAT, SPOKEN)
        assert status == 503, found
        files.put_back()
        kill(server, stage)
        wait_for_all(server)
        assert sound_of(server, SPOKEN) == wanted
