"""A pipeline over several hosts that is found by its name in etcd: one server leads, the others stand by, and the stages of other hosts
go with the one that leads, with the weights they have. Against Debian's etcd."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.request

import pytest

from harness import WAIT_S, Joined, Server, wait_until
from test_text_hosts import COMPLETIONS, control_port, pipeline
from test_weights import other_weights

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd; Debian has it in etcd-server")
ASKED = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Etcd:
    """One member, whose data outlives its process."""

    def __init__(self, folder):
        self.folder, self.port, self.peers, self.process = folder, free_port(), free_port(), None
        self.start()

    def start(self):
        url, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peers}"
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", str(self.folder), "--name", "one", "--listen-client-urls", url, "--advertise-client-urls", url,
             "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"})
        wait_until(self.answers, "etcd")

    def answers(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as response:
            return json.load(response)["health"] == "true"
        return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def name(self, name):
        return f"etcd://127.0.0.1:{self.port}/{name}"


@pytest.fixture(scope="module")
def etcd():
    with tempfile.TemporaryDirectory(prefix="etcd-") as folder:
        one = Etcd(folder)
        yield one
        one.kill()


def server_of(path, name, control):
    return Server("--pipeline", str(path), "--discovery", name, "--listen", f"127.0.0.1:{control}", wait=False)


def serves(server):
    assert server.url_found.wait(WAIT_S) and server.host, server.output()
    status, _, body = server.post(COMPLETIONS, ASKED)
    assert status == 200, body
    return body["choices"][0]["text"]


def stands_by(server):
    return wait_until(lambda: re.search(r"stands by for \S+: (.*)\. Ctrl-C", server.output()), "standby")[1]


@needs_etcd
def test_a_killed_leader_is_followed_and_the_stages_keep_their_weights(etcd, tmp_path):
    path, name = pipeline(tmp_path, "scheduler"), etcd.name("killed")
    first, second = control_port(), control_port()
    with Joined(path, "scheduler", name) as stage:
        wait_until(lambda: "no server of that name leads yet" in stage.output(), "waiting")
        with server_of(path, name, first) as a:
            text = serves(a)
            with server_of(path, name, second) as b:
                assert stands_by(b) == f"tcp://127.0.0.1:{first} leads"
                a.process.kill()
                assert serves(b) == text
                assert f"the coordinator is at tcp://127.0.0.1:{second} now" in stage.output()
                assert stage.output().count("KV pages of") == 1, "loaded twice"
        assert stage.process.poll() is None


@needs_etcd
def test_who_ends_in_order_is_followed_at_once_and_takes_its_requests_along(etcd, tmp_path):
    path, name = pipeline(tmp_path, "scheduler"), etcd.name("ordered/with-a.longer_name")
    with Joined(path, "scheduler", name), server_of(path, name, control_port()) as a:
        text = serves(a)
        with server_of(path, name, control_port()) as b:
            stands_by(b)
            events = a.stream(COMPLETIONS, {"prompt": "It rained", "ignore_eos": True, "max_tokens": 300})
            next(events)
            a.process.terminate()
            pieces = [json.loads(event) for event in events if event != "[DONE]"]
            assert all("error" not in piece for piece in pieces), pieces[-1]
            assert pieces[-1]["choices"][0]["finish_reason"] == "length"
            assert a.process.wait(WAIT_S) == 0
            assert serves(b) == text


@needs_etcd
def test_a_leader_that_was_frozen_too_long_ends(etcd, tmp_path):
    path, name = pipeline(tmp_path, "scheduler"), etcd.name("frozen")
    with Joined(path, "scheduler", name), server_of(path, name, control_port()) as a:
        text = serves(a)
        second = control_port()
        with server_of(path, name, second) as b:
            stands_by(b)
            a.process.send_signal(signal.SIGSTOP)
            assert serves(b) == text
            a.process.send_signal(signal.SIGCONT)
            assert a.process.wait(WAIT_S) == 1
            assert f"and tcp://127.0.0.1:{second} leads now" in a.output()
            assert serves(b) == text


@needs_etcd
def test_without_etcd_what_runs_goes_on(tmp_path):
    path = pipeline(tmp_path, "scheduler")
    etcd = Etcd(tmp_path / "data")
    name = etcd.name("away")
    with Joined(path, "scheduler", name), server_of(path, name, control_port()) as a:
        text = serves(a)
        etcd.kill()
        wait_until(lambda: "is not renewed" in a.output(), "warning")
        assert serves(a) == text
        with server_of(path, name, control_port()) as b:
            assert "Couldn't connect" in stands_by(b)
            etcd.start()
            wait_until(lambda: "etcd answers again" in a.output(), "renewal")
            wait_until(lambda: b.output().count("stands by") == 2, "the leader's address")
            assert serves(a) == text
            b.process.send_signal(signal.SIGINT)
            assert b.process.wait(WAIT_S) == 0
    etcd.kill()


@needs_etcd
def test_who_waits_can_be_ended(etcd, tmp_path):
    with Joined(pipeline(tmp_path, "scheduler"), "scheduler", etcd.name("absent")) as stage:
        wait_until(lambda: "waits for the coordinator" in stage.output(), "waiting")
        stage.process.send_signal(signal.SIGINT)
        assert stage.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("name, wanted", [
    ("etc://127.0.0.1:2379/a", "wanted etcd:// or etcds:// at its start"),
    ("etcd://127.0.0.1:2379", "the name behind the members is ''"),
    ("etcd://127.0.0.1/a", "the member '127.0.0.1'; wanted HOST:PORT"),
    ("etcd://root:secret@127.0.0.1:2379/a", "etcd's own authentication is not served"),
])
def test_a_name_that_is_none(tmp_path, name, wanted):
    server = server_of(pipeline(tmp_path, "scheduler"), name, control_port())
    with server:
        assert server.process.wait(WAIT_S) == 2
        server.reader.join(WAIT_S)
        assert wanted in server.output()


@needs_etcd
def test_new_weights_outlive_the_server_that_loaded_them(etcd, tmp_path):
    path, name = pipeline(tmp_path, "scheduler"), etcd.name("weights")
    folders = [other_weights(tmp_path / name, layer) for name, layer in (("b", 0), ("c", 1))]

    def update(server, folder):
        status, _, body = server.post("/update_weights_from_disk", {"model_path": str(folder), "weight_version": folder.name})
        assert status == 200, body

    def answer(server):
        body = server.post(COMPLETIONS, ASKED)[2]
        return body["choices"][0]["text"], body["metadata"]["weight_version"]

    with Joined(path, "scheduler", name, more=("--weights-root", str(tmp_path))), server_of(path, name, control_port()) as a:
        old = serves(a)
        update(a, folders[0])
        new, version = answer(a)
        assert new != old and version == "b"
        with server_of(path, name, control_port()) as b:
            stands_by(b)
            a.process.kill()
            assert serves(b) == new
            assert answer(b) == (new, "2")  # the server that follows knows the number, not the label
            update(b, folders[1])
            newest, version = answer(b)
            assert newest not in (old, new) and version == "c"
