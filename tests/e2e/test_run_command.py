"""`millrace run`: a model in the terminal with one command, with a server of its own or a running one."""
import contextlib
import os
import pathlib
import pty
import signal
import subprocess
import tempfile
import threading

import pytest

from harness import DEMO, WAIT_S, alive, freeze, program, wait_until
from hub_server import environment, folder_files, running_hub
from test_terminal import STORY, Terminal, odd_server

SHORT = ("--temperature", "0", "--max-tokens", "12", "--threads", "1")


def run(tmp_path, *arguments, text=None, env=None):
    """(exit code, stdout, stderr), with no input where `text` is None."""
    feed = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    done = subprocess.run([program(), "run", *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S,
                          env={**os.environ, "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), **(env or {})}, **feed)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def tmp_path():
    """A short path: the sockets of servers lie below it."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        yield pathlib.Path(folder)


@pytest.fixture(scope="module")
def answer(server):
    return server.chat(STORY, temperature=0, max_tokens=12)


def leftovers(folder):
    return [path for path in pathlib.Path(folder).rglob("*")]


def test_a_prompt_is_answered_and_nothing_is_left(tmp_path, answer):
    code, out, err = run(tmp_path, DEMO, STORY, *SHORT)
    assert (code, out) == (0, answer + "\n"), err
    assert leftovers(tmp_path) == []
    # The words of a prompt need no quotes.
    assert run(tmp_path, DEMO, *STORY.split(), *SHORT)[1] == answer + "\n"


def test_a_pipe_is_the_prompt_or_stands_before_it(tmp_path, server, answer):
    assert run(tmp_path, DEMO, *SHORT, text=STORY + "\n")[:2] == (0, answer + "\n")
    both = server.chat("Once.\n\n" + STORY, temperature=0, max_tokens=12)
    assert run(tmp_path, DEMO, STORY, *SHORT, text="Once.\n")[:2] == (0, both + "\n")
    code, out, err = run(tmp_path, DEMO, *SHORT, text="")
    assert (code, out) == (2, "") and "empty" in err


def test_a_running_server_is_used(tmp_path, server, answer):
    url = f"http://{server.host}:{server.port}"
    assert run(tmp_path, "--url", url, "--temperature", "0", "--max-tokens", "12", "demo", STORY)[:2] == (0, answer + "\n")
    code, _, err = run(tmp_path, "--url", url, "other", STORY)
    assert code == 1 and "'other'" in err and "404" in err
    code, _, err = run(tmp_path, "--url", url, "--threads", "2", "demo", STORY)
    assert code == 2 and "--threads" in err and "--url" in err


def test_what_cannot_be_served_ends_with_the_servers_error(tmp_path):
    code, out, err = run(tmp_path, "/nonexistent/model", STORY)
    assert (code, out) == (2, "") and err.startswith("millrace: error: ") and "/nonexistent/model" in err and len(err.splitlines()) == 1
    code, out, err = run(tmp_path)
    assert (code, out) == (2, "") and "model" in err
    assert leftovers(tmp_path) == []


def test_the_servers_options_and_the_requests_errors(tmp_path):
    code, _, err = run(tmp_path, DEMO, "dog " * 200, "--context-length", "64", "--threads", "1")
    assert code == 1 and "maximum context length" in err
    # Variables that are for a server of the user's own are not this one's.
    code, out, _ = run(tmp_path, DEMO, "Hi", *SHORT, env={"MILLRACE_PORT": "1", "MILLRACE_HOST": "192.0.2.1", "MILLRACE_PIPELINE": "/nonexistent"})
    assert code == 0 and out


def test_a_name_of_the_hub_is_pulled(tmp_path, answer):
    with running_hub() as hub:
        hub.add("tiny-org/demo", {name: data for name, data in folder_files(DEMO).items() if name != "README.md"})
        (tmp_path / "run").mkdir()
        code, out, err = run(tmp_path / "run", "tiny-org/demo", STORY, *SHORT, env=environment(hub, tmp_path / "home", TMPDIR=str(tmp_path / "run"), XDG_RUNTIME_DIR=str(tmp_path / "run")))
        assert (code, out) == (0, answer + "\n"), err
        assert "tiny-org/demo" in err and "100%" in err


# ---- in a terminal -------------------------------------------------------------------------------------------------

class RunTerminal(Terminal):
    """`millrace run` on a pty."""

    def __init__(self, tmp_path, *arguments):
        self.tmp = tmp_path
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", TMPDIR=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path))
            os.execv(program(), [program(), "run", *map(str, arguments)])
        self.seen = ""

    def server(self):
        """The pid of its server, once it has one."""
        return wait_until(lambda: next(iter(children(self.pid)), None), "server")


def children(parent):
    with contextlib.suppress(OSError):
        return [int(pid) for pid in pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return []


def family(pid):
    return [pid, *(each for child in children(pid) for each in family(child))]


def test_a_chat_answers_and_ends_with_its_server(tmp_path, answer):
    with contextlib.closing(RunTerminal(tmp_path, DEMO, *SHORT)) as screen:
        screen.read_until(r"/help[^\n]*\n> ")
        processes = family(screen.server())
        screen.type(STORY + "\r")
        assert answer.replace("\n", "\r\n") in screen.read_until(r"12 tokens[^\n]*\n> ")
        screen.type("\x04")
        assert screen.exit_code() == 0
        wait_until(lambda: not any(map(alive, processes)), "end of the server")
        assert leftovers(tmp_path) == []


def test_ctrl_c_stops_an_answer_and_not_the_chat(tmp_path):
    with contextlib.closing(RunTerminal(tmp_path, DEMO, "--threads", "1")) as screen:
        screen.read_until(r"/help[^\n]*\n> ")
        server = screen.server()
        screen.type("Tell me a very, very long story.\r")
        screen.read_until(r"\r\n\S+ ")
        screen.type("\x03")
        screen.read_until("> ")
        assert alive(server)
        screen.type("/quit\r")
        assert screen.exit_code() == 0


def test_ctrl_c_ends_a_single_answer(tmp_path):
    asked = threading.Event()
    with odd_server(None, asked) as url, contextlib.closing(RunTerminal(tmp_path, "--url", url, "odd", "Hi")) as screen:
        assert asked.wait(WAIT_S)
        screen.type("\x03")
        assert screen.exit_code() == 130


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGKILL"])
def test_whatever_ends_it_ends_its_server(tmp_path, name):
    with contextlib.closing(RunTerminal(tmp_path, DEMO, "--threads", "1")) as screen:
        screen.read_until(r"/help[^\n]*\n> ")
        processes = family(screen.server())
        number = getattr(signal, name)
        os.kill(screen.pid, number)
        assert screen.exit_code() in (128 + number, -number)
        wait_until(lambda: not any(map(alive, processes)), "end of the server")
        wait_until(lambda: leftovers(tmp_path) == [], "empty folder")


def test_ctrl_c_stops_the_load(tmp_path):
    with contextlib.closing(RunTerminal(tmp_path, DEMO, "Hi", *SHORT)) as screen:
        server = screen.server()
        with contextlib.suppress(ProcessLookupError):  # it is through already
            freeze(server)  # it does not get further than this, wherever it is
            screen.type("\x03")
            os.kill(server, signal.SIGCONT)
        assert screen.exit_code() in (130, 0)  # 0: the answer was there already
        wait_until(lambda: not alive(server), "end of the server")
        assert leftovers(tmp_path) == []
