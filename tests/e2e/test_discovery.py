"""A pipeline over several hosts that is found by its name in etcd: one server leads, the others stand by, and the stages of other hosts
go with the one that leads, with the weights they have. Against Debian's etcd."""
import base64
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

from harness import WAIT_S, Joined, Server, freeze, wait_until
from test_text_hosts import COMPLETIONS, control_port, pipeline
from test_weights import other_weights

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd; Debian has it in etcd-server")
TRIES = 20  # to get ports
ASKED = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Etcd:
    """One member, whose data outlives its process."""

    def __init__(self, folder):
        self.folder, self.process = folder, None
        for _ in range(TRIES):
            self.port, self.peers = free_port(), free_port()
            if self.start():
                return
        raise AssertionError(f"etcd ended {TRIES} times, each time with ports that were free before")

    def start(self):
        """False: it ended, as where a program has taken one of its ports meanwhile."""
        url, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peers}"
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", str(self.folder), "--name", "one", "--listen-client-urls", url, "--advertise-client-urls", url,
             "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"})
        wait_until(lambda: self.process.poll() is not None or self.answers(), "etcd")
        return self.process.poll() is None

    def answers(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as response:
            return json.load(response)["health"] == "true"
        return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def post(self, path, body, token=""):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v3/{path}", json.dumps(body).encode(), {"Authorization": token} if token else {})
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return json.load(response)

    def want_users(self):
        """From now on: root:toor may do everything, millrace:s3:cret reads and writes keys that begin with millrace/, other:pw nothing."""
        first, end = (base64.b64encode(key).decode() for key in (b"millrace/", b"millrace0"))
        for user, password in (("root", "toor"), ("millrace", "s3:cret"), ("other", "pw")):
            self.post("auth/user/add", {"name": user, "password": password})
            self.post("auth/role/add", {"name": user})
            self.post("auth/user/grant", {"user": user, "role": user})
        self.post("auth/role/grant", {"name": "millrace", "perm": {"permType": "READWRITE", "key": first, "range_end": end}})
        self.post("auth/enable", {})

    def name(self, name):
        return f"etcd://127.0.0.1:{self.port}/{name}"


@pytest.fixture(scope="module")
def etcd():
    with tempfile.TemporaryDirectory(prefix="etcd-") as folder:
        one = Etcd(folder)
        yield one
        one.kill()


def server_of(path, name, control, *more, env=None):
    return Server("--pipeline", str(path), "--discovery", name, "--listen", f"127.0.0.1:{control}", *more, wait=False, env=env)


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
                wait_until(lambda: f"the coordinator is at tcp://127.0.0.1:{second} now" in stage.output(), "word of it")
                assert stage.output().count("KV pages of") == 1, "loaded twice"
        assert stage.process.poll() is None


@needs_etcd
def test_who_ends_in_order_is_followed_at_once_and_takes_its_requests_along(etcd, tmp_path):
    path, name = pipeline(tmp_path, "scheduler"), etcd.name("ordered/with-a.longer_name")
    with Joined(path, "scheduler", name), server_of(path, name, control_port(), "--drain-timeout-s", str(WAIT_S)) as a:
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
            freeze(a.process.pid)
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
            assert etcd.start()
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
    ("etcd://root:secret@127.0.0.1:2379/a", "wanted them by --discovery-user-file"),
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


def user_file(folder, user, mode=0o600):
    file = folder / "etcd-user"
    file.write_text(user + "\n")
    file.chmod(mode)
    return file


@needs_etcd
def test_an_etcd_that_wants_a_user_gets_one_and_a_token_that_is_gone_is_got_anew(tmp_path):
    path = pipeline(tmp_path, "scheduler")
    etcd = Etcd(tmp_path / "data")
    etcd.want_users()
    name, file = etcd.name("guarded"), user_file(tmp_path, "millrace:s3:cret")
    with Joined(path, "scheduler", name, more=["--discovery-user-file", str(file)]), \
            server_of(path, name, control_port(), env={"MILLRACE_DISCOVERY_USER": "millrace:s3:cret"}) as a:
        text = serves(a)
        etcd.kill()  # and with it its tokens
        wait_until(lambda: "is not renewed" in a.output(), "warning")
        assert etcd.start()
        wait_until(lambda: "etcd answers again" in a.output(), "renewal")
        second = control_port()
        with server_of(path, name, second, "--discovery-user-file", str(file)) as b:
            stands_by(b)
            a.process.kill()
            assert serves(b) == text
            assert "cret" not in a.output() + b.output()
            assert "cret" not in json.dumps(b.get("/server_info")[2])
    etcd.kill()


@needs_etcd
def test_an_etcd_that_refuses_is_an_error_that_names_the_user(tmp_path):
    path = pipeline(tmp_path, "scheduler")
    etcd = Etcd(tmp_path / "data")
    etcd.want_users()
    name = etcd.name("guarded")
    for more, words in (([], "wanted --discovery-user-file"), (["--discovery-user", "millrace:wrong"], "gives the user 'millrace' no token"),
                        (["--discovery-user", "other:pw"], "permission denied"), (["--discovery-user", "nobody"], "wanted USER:PASSWORD"),
                        (["--discovery-user-file", str(user_file(tmp_path, "millrace:s3:cret", 0o644))], "has mode 0644; wanted 0600")):
        with server_of(path, name, control_port(), *more) as refused, Joined(path, "scheduler", name, more=more) as stage:
            for one in (refused, stage):
                assert one.process.wait(WAIT_S) != 0
                assert words in one.output() and "wrong" not in one.output(), one.output()
    etcd.kill()


def test_a_user_of_etcd_without_a_name_in_etcd_is_refused(tmp_path):
    path = pipeline(tmp_path, "scheduler")
    with Joined(path, "scheduler", "127.0.0.1:9", more=["--discovery-user", "a:b"]) as stage:
        assert stage.process.wait(WAIT_S) == 2
        assert "wanted --join etcd://HOST:PORT/NAME too" in stage.output()
