"""`millrace launch`: coding agents get the settings of a server. The agents are stand-ins that write down how they were started."""
import json
import os
import pathlib
import re
import subprocess

import pytest

from harness import WAIT_S, Server, program

CLIENTS = {"codex": "codex", "opencode": "opencode", "continue": "cn", "claude": "claude"}
STAND_IN = """#!/bin/sh
{ env; printf 'ARGUMENT=%s\\n' "$@"; } > "$SEEN"
exit 7
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in CLIENTS.values():
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def launch(home, *arguments, path=None):
    env = {"HOME": str(home), "PATH": path or f"{home}/bin:{os.environ['PATH']}", "SEEN": str(home / "seen")}
    done = subprocess.run([program(), "launch", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S, env=env)
    return done.returncode, done.stdout, done.stderr


def started(home):
    """(variables, arguments) of the stand-in."""
    lines = (home / "seen").read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line]
    return {name: value for name, value in pairs if name != "ARGUMENT"}, [value for name, value in pairs if name == "ARGUMENT" and value]


def url_of(server):
    return f"http://{server.host}:{server.port}"


def settings(home, client, name):
    path = home / ".config" / "millrace" / "launch" / client / name
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    return path.read_text()


def test_codex_gets_a_home_of_its_own(server, home):
    code, out, err = launch(home, "codex", "--url", url_of(server), "--", "exec", "Say hi.")
    assert (code, out) == (7, ""), err  # the client's own exit code
    env, arguments = started(home)
    assert arguments == ["exec", "Say hi."]
    assert env["CODEX_HOME"] == str(home / ".config/millrace/launch/codex")
    text = settings(home, "codex", "config.toml")
    assert 'model = "demo"' in text and f'base_url = "{url_of(server)}/v1"' in text and 'wire_api = "responses"' in text
    assert f"model_context_window = {server.get('/v1/models')[2]['data'][0]['max_model_len']}" in text


def test_opencode_gets_a_file(server, home):
    assert launch(home, "opencode", "--url", url_of(server))[0] == 7
    env, arguments = started(home)
    file = pathlib.Path(env["OPENCODE_CONFIG"])
    assert arguments == [] and file == home / ".config/millrace/launch/opencode/opencode.json"
    found = json.loads(settings(home, "opencode", "opencode.json"))
    assert found["model"] == "millrace/demo" and found["provider"]["millrace"]["options"] == {"baseURL": url_of(server) + "/v1", "apiKey": "unused"}
    assert found["provider"]["millrace"]["models"]["demo"]["limit"] == {"context": 1024, "output": 256}


def test_continue_gets_a_file_as_an_argument(server, home):
    assert launch(home, "continue", "--url", url_of(server), "--", "-p", "hi")[0] == 7
    _, arguments = started(home)
    assert arguments == ["--config", str(home / ".config/millrace/launch/continue/config.yaml"), "-p", "hi"]
    assert f'apiBase: "{url_of(server)}/v1"' in settings(home, "continue", "config.yaml")


def test_claude_gets_variables(server, home):
    assert launch(home, "claude", "--url", url_of(server))[0] == 7
    env, arguments = started(home)
    assert arguments == [] and (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_MODEL"]) == (url_of(server), "unused", "demo")
    assert not (home / ".config").exists()


def test_keys_and_names(home):
    with Server("--api-key", "secret", "--served-model-name", "one", "--served-model-name", "two") as server:
        url = url_of(server)
        assert launch(home, "claude", "--url", url, "--api-key", "secret", "--model-name", "two")[0] == 7
        env, _ = started(home)
        assert (env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_MODEL"]) == ("secret", "two")
        assert launch(home, "codex", "--url", url, "--api-key", "secret")[0] == 7
        env, _ = started(home)
        assert env["MILLRACE_API_KEY"] == "secret"
        text = settings(home, "codex", "config.toml")
        assert 'env_key = "MILLRACE_API_KEY"' in text and "secret" not in text
        code, _, err = launch(home, "claude", "--url", url)
        assert code == 1 and "401" in err
        code, _, err = launch(home, "claude", "--url", url, "--api-key", "secret", "--model-name", "three")
        assert code == 2 and "'three'" in err and "'one', 'two'" in err


@pytest.mark.parametrize("client", CLIENTS)
def test_print_shows_and_changes_nothing(server, home, client):
    code, out, err = launch(home, client, "--url", url_of(server), "--print", "--", "it's")
    assert (code, err) == (0, "")
    assert url_of(server) in out and re.search(rf"^{CLIENTS[client]} .*'it'\\''s'$", out, re.MULTILINE)
    assert not (home / ".config").exists() and not (home / "seen").exists()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_is_missing_is_said_with_how_to_install_it(server, home, client):
    code, out, err = launch(home, client, "--url", url_of(server), path="/nonexistent")
    assert (code, out) == (1, "") and f"'{CLIENTS[client]}'" in err and "npm install -g " in err and len(err.splitlines()) == 1
    assert not (home / ".config").exists()


def test_changed_settings_are_kept_and_said(server, home):
    assert launch(home, "opencode", "--url", url_of(server))[0] == 7
    file = home / ".config/millrace/launch/opencode/opencode.json"
    _, _, err = launch(home, "opencode", "--url", url_of(server))
    assert err == ""  # they are the same
    file.write_text("my own")
    _, _, err = launch(home, "opencode", "--url", url_of(server))
    assert str(file) + ".old" in err and pathlib.Path(str(file) + ".old").read_text() == "my own"
    assert json.loads(file.read_text())["model"] == "millrace/demo"


def test_a_server_that_is_away_and_a_client_that_is_unknown(home):
    code, _, err = launch(home, "claude", "--url", "http://127.0.0.1:1")
    assert code == 1 and "127.0.0.1:1" in err
    code, _, err = launch(home, "emacs")
    assert code == 2 and "emacs" in err and "codex" in err
