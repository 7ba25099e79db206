"""`millrace top`: one frame into a pipe, frames in place on a terminal, and its errors."""
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading

from harness import WAIT_S, Server, free_port, program, wait_until
from test_terminal import odd_server


def top(url, *arguments, env=None):
    result = subprocess.run([program(), "top", "--url", url, *arguments], capture_output=True, text=True, timeout=WAIT_S, env={**os.environ, **(env or {})})
    return result.returncode, result.stdout, result.stderr


def url_of(server):
    return f"http://{server.host}:{server.port}"


class Screen:
    """`millrace top` on a pty of 100 columns."""

    def __init__(self, url):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm")
            os.execv(program(), [program(), "top", "--url", url])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.text = b""

    def read(self):
        """True while it may write more."""
        ready, _, _ = select.select([self.fd], [], [], 0.02)
        if ready:
            with contextlib.suppress(OSError):  # the end of a pty
                got = os.read(self.fd, 1 << 16)
                self.text += got
                return bool(got)
            return False
        return True

    def until(self, text):
        wait_until(lambda: self.read() and text in self.text, repr(text))

    def end(self):
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_once_prints_one_frame_without_colors():
    with Server() as server:
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
        answers = [threading.Thread(target=server.post, args=("/generate", {"text": "Once upon a time", "rid": f"top-{i}", "sampling_params": {"max_new_tokens": 5}})) for i in range(3)]
        for answer in answers:
            answer.start()
        wait_until(lambda: server.stage("scheduler")["waiting"] == 3, "three that wait")
        code, out, err = top(url_of(server), "--once")
        assert (code, err) == (0, "") and "\033" not in out
        assert f"millrace {server.model}  ready  0 running, 3 waiting" in out and ", paused" in out
        lines = out.splitlines()
        assert max(map(len, lines)) <= 120
        rows = [line.split() for line in lines if line.startswith("queued")]
        assert {row[1] for row in rows} == {"top-0", "top-1", "top-2"}
        found = re.search(r"(\d+) running, (\d+) cached, (\d+) free of (\d+) pages", out)
        running, cached, free, total = map(int, found.groups())
        assert running + cached + free == total == server.stage("scheduler")["pages_total"]
        assert server.post("/continue_generation", {})[0] == 200
        for answer in answers:
            answer.join()
        code, out, _ = top(url_of(server), "--once")
        assert code == 0 and "no request runs or waits" in out and re.search(r"answer [\d.]+ m?s [\d.]+ m?s", out) and "prefill +" in out
        assert server.stop() == 0


def test_frames_are_drawn_in_place_until_ctrl_c():
    with Server() as server:
        screen = Screen(url_of(server))
        screen.until(b"no request runs or waits")
        assert screen.text.startswith(b"\033[?1049h\033[?25l")
        first = screen.text.count(b"\033[H")
        wait_until(lambda: screen.read() and screen.text.count(b"\033[H") > first + 1, "further frames")
        os.kill(screen.pid, signal.SIGINT)
        assert screen.end() == 0
        assert screen.text.endswith(b"\033[?25h\033[?1049l")
        wait_until(lambda: server.metrics()["millrace:live_view_clients"] == 0, "end of the stream")


def test_a_server_that_ends_is_an_error_and_the_terminal_is_as_before():
    with Server() as server:
        screen = Screen(url_of(server))
        screen.until(b"no request runs or waits")
        server.stop()
        assert screen.end() == 1
        tail = screen.text[screen.text.rindex(b"\033[?1049l"):].decode()
        assert "error" in tail and ("shuts down" in tail or "broke off" in tail)


def test_keys_and_servers_that_are_away_or_strange():
    port = free_port()
    code, out, err = top(f"http://127.0.0.1:{port}", "--once")
    assert (code, out) == (1, "") and str(port) in err and "refused" in err.lower() and len(err.splitlines()) == 1
    code, _, err = top("ftp://x")
    assert code == 2 and "ftp://x" in err
    with Server("--api-key", "secret") as server:
        code, out, err = top(url_of(server), "--once")
        assert (code, out) == (1, "") and "401" in err
        assert top(url_of(server), "--once", env={"MILLRACE_API_KEY": "secret"})[0] == 0
    with odd_server(b"") as url:  # its /live/events is no stream of events
        code, out, err = top(url, "--once")
        assert (code, out) == (1, "") and len(err.splitlines()) == 1


def test_into_a_pipe_frames_follow_each_other():
    with Server() as server:
        process = subprocess.Popen([program(), "top", "--url", url_of(server)], stdout=subprocess.PIPE, text=True)
        frames = 0
        for line in process.stdout:
            assert "\033" not in line
            frames += line.startswith("millrace ")
            if frames == 3:
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(WAIT_S) == 0
