"""Who may call the admin routes: with an admin key, with an API key, with none."""
import http.client
import json
import os
import pathlib
import socket
import stat
import subprocess

import pytest

from harness import DEMO, WAIT_S, Server, program

ADMIN = [("POST", "/flush_cache"), ("POST", "/start_profile"), ("POST", "/stop_profile")]
KEY = "sk-admin-5eb6"


def call(server, key=None):
    """The status of each admin route."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return [server.request(method, path, {}, headers=headers)[0] for method, path in ADMIN]


class Local(http.client.HTTPConnection):
    """A connection over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def local(path, method, route, body=None):
    connection = Local(path)
    connection.request(method, route, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def key_file(folder, text=KEY + "\n", mode=0o600):
    path = folder / "admin.key"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def fifo(folder):
    os.mkfifo(folder / "fifo", 0o600)
    return str(folder / "fifo")


def test_without_a_key_only_the_unix_socket(tmp_path):
    path = str(tmp_path / "admin.sock")
    with Server("--uds", path, admin=False) as server:
        assert call(server) == [403, 403, 403]
        message = server.post("/flush_cache", {})[2]["error"]["message"]
        assert all(option in message for option in ("--admin-api-key-file", "--uds", "--admin-without-key")), message
        assert server.post("/abort_request", {"rid": "none"})[0] == 200  # for clients
        assert server.get("/v1/models")[0] == 200
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert [local(path, method, route, {})[0] for method, route in ADMIN] == [200, 200, 200]
        status, body = local(path, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 2})
        assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 2
    assert not os.path.exists(path)


def test_an_admin_key_from_a_file_and_where_it_is_not(tmp_path):
    with Server("--admin-api-key-file", key_file(tmp_path), "--api-key", "sk-user", "--log-level", "debug") as server:
        assert call(server) == [401, 401, 401]
        assert call(server, "sk-user") == [403, 403, 403]
        assert call(server, KEY) == [200, 200, 200]
        info = server.get("/server_info", headers={"Authorization": "Bearer sk-user"})
        assert info[0] == 200 and KEY not in json.dumps(info[2])
        assert KEY not in server.output()
        for process in (server.process.pid, *server.children().values()):
            for name in ("cmdline", "environ"):
                assert KEY.encode() not in pathlib.Path(f"/proc/{process}/{name}").read_bytes()
    assert KEY not in server.output()


def test_an_admin_key_alone_leaves_users_free():
    with Server("--admin-api-key", KEY) as server:
        assert call(server) == [401, 401, 401]
        assert call(server, KEY) == [200, 200, 200]
        assert server.get("/v1/models")[0] == 200
        for process in server.children().values():  # on its own command line it stands
            for name in ("cmdline", "environ"):
                assert KEY.encode() not in pathlib.Path(f"/proc/{process}/{name}").read_bytes()


@pytest.mark.parametrize("admin, seen", [({"MILLRACE_ADMIN_API_KEY": KEY}, [403, 403, 403]), ({}, [200, 200, 200])], ids=["two keys", "one"])
def test_keys_of_the_environment(admin, seen):
    with Server(env={"MILLRACE_API_KEY": "sk-user", **admin}, admin=False) as server:
        assert call(server) == [401, 401, 401]
        assert call(server, "sk-user") == seen
        assert call(server, KEY) == ([200, 200, 200] if admin else [401, 401, 401])
        for pid in server.children().values():
            assert KEY.encode() not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()


def test_an_api_key_alone_opens_them_too():
    with Server("--api-key", "sk-user") as server:
        assert call(server) == [401, 401, 401]
        assert call(server, "sk-user") == [200, 200, 200]


def refused(*arguments, **environment):
    """The run of a server that must not start."""
    return subprocess.run(
        [program(), "serve", "--model", str(DEMO), "--port", "0", *arguments],
        capture_output=True, text=True, timeout=WAIT_S, env={**os.environ, **environment})


@pytest.mark.parametrize("words, arguments", [
    ("has mode 0644; wanted 0600", lambda f: ["--admin-api-key-file", key_file(f, mode=0o644)]),
    ("0 bytes; wanted 1 to 1024", lambda f: ["--admin-api-key-file", key_file(f, "\n")]),
    ("1026 bytes; wanted 1 to 1024", lambda f: ["--admin-api-key-file", key_file(f, "x" * 5000)]),
    ("without spaces", lambda f: ["--admin-api-key-file", key_file(f, "two words")]),
    ("No such file", lambda f: ["--admin-api-key-file", str(f / "none")]),
    ("not a regular file", lambda f: ["--admin-api-key-file", str(f)]),
    ("not a regular file", lambda f: ["--admin-api-key-file", fifo(f)]),
    ("--api-key: the key has 0 bytes; wanted 1 to 1024", lambda f: ["--api-key", ""]),
    ("--admin-api-key: the key has 0 bytes; wanted 1 to 1024", lambda f: ["--admin-api-key", ""]),
    ("--admin-api-key-file: cannot read", lambda f: ["--admin-api-key-file", ""]),
    ("is that of --api-key", lambda f: ["--admin-api-key", "same", "--api-key", "same"]),
    ("--admin-without-key with --api-key", lambda f: ["--admin-without-key", "--api-key", "k"]),
    ("excludes", lambda f: ["--admin-without-key", "--admin-api-key", "k"]),
    ("excludes", lambda f: ["--admin-api-key-file", "f", "--admin-api-key", "k"]),
])
def test_wrong_options_are_named(tmp_path, words, arguments):
    given = arguments(tmp_path)
    done = refused(*given)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert "two words" not in done.stderr


@pytest.mark.parametrize("environment, option", [({"MILLRACE_API_KEY": ""}, "--api-key"), ({"MILLRACE_API_KEY": "k", "MILLRACE_ADMIN_API_KEY": ""}, "--admin-api-key")])
def test_an_empty_variable_opens_no_server(environment, option):
    done = refused(**environment)
    assert done.returncode == 2 and f"{option}: the key has 0 bytes" in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user, and read it")
def test_a_file_of_another_user_is_refused(tmp_path):
    path = key_file(tmp_path)
    try:
        os.chown(path, 12345, -1)
    except OSError as error:  # a user namespace without this user
        pytest.skip(str(error))
    done = refused("--admin-api-key-file", path)
    assert done.returncode == 2 and "belongs to user 12345; wanted user 0" in done.stderr, done.stderr


def test_pages_of_other_origins_cannot_get_admin_routes():
    with Server("--admin-without-key") as server:
        for path in ("/flush_cache", "/start_profile", "/stop_profile"):
            for fields in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Referer": "http://evil.example/"}):
                status, _, answer = server.get(path, headers=fields)
                assert status == 403 and "cross-origin" in answer["error"]["message"], (path, fields, answer)
        assert server.get("/flush_cache")[0] == 200
