"""The program in a terminal: its command line, `inspect`, and `chat` through pipes and through a pty."""
import contextlib
import http.server
import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from harness import DEMO, WAIT_S, Server, free_port, program, wait_until

STORY = "Tell me a short story about a dog."


def run(*arguments, text="", timeout=WAIT_S, env=None):
    result = subprocess.run([program(), *map(str, arguments)], input=text, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
    return result.returncode, result.stdout, result.stderr


def chat(server, text, *arguments, **more):
    return run("chat", "--url", f"http://{server.host}:{server.port}", *arguments, text=text, **more)


# ---- the command line ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments,words", [
    (["--help"], ["serve", "chat", "inspect", "--version"]), (["serve", "--help"], ["--model", "--port", "--api-key", "--placement", "--kv-gib"]),
    (["chat", "--help"], ["--url", "--system", "--temperature"]), (["top", "--help"], ["--url", "--api-key", "--once"]), (["inspect", "--help"], ["--tensors", "--relays"])])
def test_help_goes_to_stdout(arguments, words):
    code, out, err = run(*arguments)
    assert code == 0 and err == ""
    assert all(word in out for word in words)
    assert max(map(len, out.splitlines())) <= 120


def test_version():
    code, out, _ = run("--version")
    assert code == 0 and re.fullmatch(r"millrace \d+\.\d+\.\d+(-\d+)?(-g[0-9a-f]+)?(-dirty)?\n", out), out


@pytest.mark.parametrize("arguments,word", [
    (["frobnicate"], "frobnicate"), (["--frob"], "--frob"), (["serve"], "--model"), (["serve", "--model", DEMO, "--frob"], "--frob"), (["serve", "--frob"], "--frob"),
    (["serve", "--model", DEMO, "--port", "70000"], "70000"), (["serve", "--model", DEMO, "--port", "x"], "x"), (["serve", "--model", DEMO, "--placement", "moon"], "moon"),
    (["serve", "--model", DEMO, "--page-size", "0"], "--page-size"), (["chat", "--temperature", "3"], "--temperature"), (["chat", "extra"], "extra"), (["inspect"], "model"),
    (["inspect", DEMO, "more"], "more"), (["inspect", "--relays", DEMO], "--relays"), (["inspect", "--relay"], "--relay"), (["serve", "--model", "/nonexistent"], "/nonexistent"), (["chat", "--url", "ftp://x"], "ftp://x"), (["chat", "--url", "http://h:port"], "port")])
def test_wrong_arguments_are_exit_code_2_and_named(arguments, word):
    code, out, err = run(*arguments)
    assert code == 2 and out == ""
    assert word in err and len(err.splitlines()) <= 3


# ---- inspect -------------------------------------------------------------------------------------------------------

def test_inspect_says_what_the_demo_is():
    config = json.loads((DEMO / "config.json").read_text())
    data = (DEMO / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    parameters = 0
    for entry in header.values():
        count = 1
        for length in entry["shape"]:
            count *= length
        parameters += count
    code, out, err = run("inspect", DEMO, "--tensors")
    assert code == 0 and err == ""
    assert config["architectures"][0] in out and str(parameters) in out and f"{config['max_position_embeddings']} tokens" in out
    assert all(name in out for name in header)
    code, short, _ = run("inspect", DEMO)
    assert code == 0 and out.startswith(short)


@pytest.mark.parametrize("name,content", [
    ("config.json", None), ("config.json", ""), ("config.json", "{"), ("config.json", "[]"), ("config.json", '{"architectures": ["GPT5"]}'), ("tokenizer.json", None), ("tokenizer.json", "{}"),
    ("model.safetensors", None), ("model.safetensors", ""), ("model.safetensors", "short"), ("model.safetensors", "x" * 100)])
def test_inspect_of_a_broken_folder_is_one_line_with_the_file(tmp_path, name, content):
    for file in DEMO.iterdir():
        if file.name != name:
            (tmp_path / file.name).symlink_to(file.resolve())
    if content is not None:
        (tmp_path / name).write_text(content)
    code, _, err = run("inspect", tmp_path)
    assert code == 2
    assert err.startswith("millrace: error: ") and len(err.splitlines()) == 1 and name in err


@pytest.mark.parametrize("path", ["/nonexistent", "/dev/null", "/proc/self/mem", ""])
def test_inspect_of_no_folder(path):
    code, _, err = run("inspect", path)
    assert code == 2 and len(err.splitlines()) <= 2 and "error" in err or "required" in err


def relays(**env):
    """Of each relay, by name and in the order of the list: (here, what stands behind it)."""
    code, out, err = run("inspect", "--relays", env=env)
    assert (code, err) == (0, "")
    table, note = out.split("\n\n")
    head, *lines = table.splitlines()
    assert head.split() == ["relay", "here", "spans", "receives"] and note.startswith("Here means ")
    return {name: (here, rest) for name, here, rest in (line.split(None, 2) for line in lines)}


def test_inspect_says_which_relays_are_here_and_why_others_are_not():
    found = relays()
    assert list(found) == ["local", "shm", "tcp", "ucx", "nccl", "nixl", "mooncake"]
    # These need nothing that a machine might lack.
    assert [re.split(r"  +", found[name][1]) for name in ("local", "shm")] == [["process", "the sender's own bytes"], ["process, host", "mapped, no copy"]]
    assert [found[name][0] for name in ("local", "shm", "tcp")] == ["yes"] * 3 and found["tcp"][1].endswith("a copy")
    # The others may be here; where one is not, its line says what is missing.
    why = {"ucx": ("ucx", "UCX"), "nccl": ("nccl", "cuda", "CUDA"), "nixl": ("nixl",), "mooncake": ("mooncake",)}
    for name, words in why.items():
        here, rest = found[name]
        assert here in ("yes", "absent")
        assert here == "yes" or any(word in rest for word in words), (name, rest)


def test_inspect_says_why_ucx_cannot_run_as_it_was_told_to():
    here, why = relays(UCX_TLS="tcp", UCX_NET_DEVICES="no_such_device")["ucx"]
    assert here == "absent" and ("no_such_device" in why or "libucp" in why), why


# ---- chat through pipes --------------------------------------------------------------------------------------------

def test_a_piped_question_is_answered_with_the_text_alone(server):
    code, out, err = chat(server, STORY + "\n", "--temperature", "0", "--max-tokens", "20")
    assert (code, err) == (0, "")
    assert out == server.chat(STORY, temperature=0, max_tokens=20) + "\n"


def test_several_turns_are_one_conversation(server):
    code, out, _ = chat(server, f"{STORY}\nAnd then?\n", "--temperature", "0", "--max-tokens", "12", "--system", "You tell stories.")
    messages = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": STORY}]
    answers = []
    for question in ("And then?", None):
        body = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 12})[2]
        answers.append(body["choices"][0]["message"]["content"])
        messages += [{"role": "assistant", "content": answers[-1]}, {"role": "user", "content": question}]
    assert code == 0 and out == "".join(answer + "\n" for answer in answers)


def test_commands(server):
    alone = server.chat(STORY, temperature=0, max_tokens=8)
    code, out, _ = chat(server, f"Hi\n/new\n/max 8\n{STORY}\n/retry\n/quit\nnever asked\n", "--temperature", "0", "--max-tokens", "4")
    assert code == 0 and out.endswith(f"{alone}\n{alone}\n") and out.count(alone) == 2
    body = server.post("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}], "temperature": 0, "max_tokens": 8})[2]
    code, out, _ = chat(server, f"/system Be brief.\n/temperature 0\n/max 8\n{STORY}\n")
    assert code == 0 and out.endswith(body["choices"][0]["message"]["content"] + "\n")
    code, out, _ = chat(server, "/help\n")
    assert code == 0 and all(name in out for name in ("/new", "/system", "/temperature", "/max", "/retry", "/quit"))
    code, out, _ = chat(server, "/frobnicate\n")
    assert code == 0 and "/frobnicate" in out and "/help" in out
    for line in ("/max", "/max 0", "/max -1", "/max ten", "/max 5x", "/temperature", "/temperature 3", "/temperature x", "/temperature 1x", "/temperature nan"):
        code, out, _ = chat(server, line + "\n")
        assert code == 0 and "wanted" in out and line.split()[-1].lstrip("/") in out, (line, out)


def test_retry_of_nothing_is_said(server):
    _, out, err = chat(server, "/retry\n")
    assert "nothing to answer" in out + err


def test_a_line_that_goes_on(server):
    code, out, _ = chat(server, "Tell me a story\\\nabout a dog.\n", "--temperature", "0", "--max-tokens", "8")
    assert code == 0 and out == server.chat("Tell me a story\nabout a dog.", temperature=0, max_tokens=8) + "\n"


def test_a_question_without_its_line_end_is_still_asked(server):
    code, out, _ = chat(server, STORY, "--temperature", "0", "--max-tokens", "8")
    assert code == 0 and out == server.chat(STORY, temperature=0, max_tokens=8) + "\n"


def test_a_refused_question_is_said_and_not_remembered(server):
    code, out, err = chat(server, "dog " * 5000 + "\n" + STORY + "\n", "--temperature", "0", "--max-tokens", "8")
    assert code == 1 and "maximum context length" in err or "bytes" in err
    assert out.endswith(server.chat(STORY, temperature=0, max_tokens=8) + "\n")


def test_keys():
    with Server("--api-key", "secret") as server:
        code, _, err = chat(server, STORY)
        assert code == 1 and "401" in err and len(err.splitlines()) == 1
        code, _, err = chat(server, STORY, "--api-key", "wrong")
        assert code == 1 and "wrong" not in err
        assert chat(server, STORY, "--api-key", "secret", "--max-tokens", "2")[0] == 0
        assert chat(server, STORY, "--max-tokens", "2", env={"MILLRACE_API_KEY": "secret"})[0] == 0


def test_no_server_is_one_clear_line():
    port = free_port()
    code, out, err = run("chat", "--url", f"http://127.0.0.1:{port}")
    assert (code, out) == (1, "") and len(err.splitlines()) == 1 and str(port) in err and "refused" in err.lower()
    code, _, err = run("chat", "--url", "http://no-such-host.invalid:1")
    assert code == 1 and "no-such-host.invalid" in err


class Odd(http.server.BaseHTTPRequestHandler):
    """A server that is no Millrace: /v1/models is fine, the chat is whatever the test says."""

    answer = b""
    asked = threading.Event()  # the test's own

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.reply(b"application/json", b'{"data": [{"id": "odd"}]}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.set()
        if self.answer is None:
            time.sleep(WAIT_S)  # the subject: it does not answer
        self.reply(b"text/event-stream", self.answer)

    def reply(self, kind, body):
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: " + kind + b"\r\n\r\n" + body)


@contextlib.contextmanager
def odd_server(answer, asked=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Odd,), {"answer": answer, "asked": asked or threading.Event()}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.mark.parametrize("answer", [b"", b"data: [DONE]\n\n", b"data: {\n\n", b"data: []\n\n", b'data: {"choices": 5}\n\n', b'data: {"choices": [5]}\n\n', b'data: {"choices": [{"delta": 5}]}\n\n',
                                    b'data: {"choices": [{"delta": {"content": 5}}]}\n\n', b'data: {"choices": {"a": 1}}\n\n', b'data: {"usage": 5}\n\n', b"data: " + b"[" * 100_000 + b"\n\n",
                                    b'data: {"error": "broken"}\n\n', b"\xff\xfe\n\n"], ids=lambda answer: repr(answer[:40])[2:])
def test_answers_of_strange_servers_do_not_crash(answer):
    with odd_server(answer) as url:
        code, _, err = run("chat", "--url", url, text="hi\nagain\n")
        assert code in (0, 1) and len(err.splitlines()) <= 2


def test_control_characters_of_a_server_do_not_reach_the_terminal():
    with odd_server(b'data: {"choices": [{"delta": {"content": "a\\u001b[31mb\\u0007\\tc\\n\\u009bd"}}]}\n\ndata: [DONE]\n\n') as url:
        code, out, _ = run("chat", "--url", url, text="hi\n")
        assert code == 0 and not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", out) and "[31mb\tc\n" in out


# ---- chat in a terminal --------------------------------------------------------------------------------------------

class Terminal:
    """`millrace chat` on a pty, as a person has it."""

    def __init__(self, url, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(program(), [program(), "chat", "--url", url, *arguments])
        self.seen = ""

    def read_until(self, pattern, timeout=WAIT_S):
        """The text up to the pattern, which is then forgotten."""
        deadline = time.monotonic() + timeout
        while True:
            if found := re.search(pattern, self.seen):
                text, self.seen = self.seen[:found.end()], self.seen[found.end():]
                return text
            ready = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, f"no {pattern!r} in {self.seen!r}"
            try:
                data = os.read(self.fd, 4096)
            except OSError:
                data = b""
            assert data, f"ended without {pattern!r}: {self.seen!r}"
            self.seen += data.decode(errors="replace")

    def type(self, text):
        os.write(self.fd, text.encode())

    def exit_code(self, timeout=WAIT_S):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if select.select([self.fd], [], [], 0.02)[0]:
                    self.seen += os.read(self.fd, 4096).decode(errors="replace")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = None
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("it did not end")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(server):
    with contextlib.closing(Terminal(f"http://{server.host}:{server.port}", "--temperature", "0")) as screen:
        screen.read_until(r"/help[^\n]*\n> ")
        yield screen


def test_a_terminal_greets_streams_and_counts(terminal, server):
    terminal.type("/max 12\r")
    terminal.read_until("> ")
    terminal.type(STORY + "\r")
    text = terminal.read_until(r"12 tokens, [\d.]+ s, \d+ tokens/s[^\n]*\n> ")
    assert server.chat(STORY, temperature=0, max_tokens=12).replace("\n", "\r\n") in text
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    assert terminal.seen.endswith("\n")  # the shell's prompt begins on a line of its own


def test_ctrl_c_while_the_terminal_takes_no_output(tmp_path):
    text = "x" * 500_000  # more than a terminal keeps for its reader
    with odd_server(b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\ndata: [DONE]\n\n' % text.encode()) as url:
        terminal = Terminal(url)
        try:
            terminal.read_until("> ")
            terminal.type("hi\r")
            wait_until(lambda: pathlib.Path(f"/proc/{terminal.pid}/syscall").read_text().startswith("1 "), "a write that waits")
            os.kill(terminal.pid, signal.SIGINT)
            assert len(terminal.read_until(r"x\s*> ")) > len(text)
            terminal.type("/quit\r")
            assert terminal.exit_code() == 0, terminal.seen
        finally:
            terminal.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal, server):
    for _ in range(2):
        terminal.type("Tell me a very, very long story.\r")
        terminal.read_until(r"\r\n\S+ ")
        terminal.type("\x03")
        terminal.read_until("> ")
        wait_until(lambda: server.stage("scheduler")["running"] == 0, "end of the request")
    terminal.type("/max 4\r")
    terminal.read_until("> ")
    terminal.type("Hi\r")
    terminal.read_until(r"4 tokens[^\n]*\n> ")
    terminal.type("/quit\r")
    assert terminal.exit_code() == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(terminal):
    terminal.type("half a line\x03")
    terminal.read_until("Ctrl-D")
    terminal.read_until("> ")
    terminal.type("/quit\r")
    assert terminal.exit_code() == 0


def test_ctrl_c_stops_waiting_for_a_server_that_says_nothing():
    asked = threading.Event()
    with odd_server(None, asked) as url, contextlib.closing(Terminal(url)) as screen:
        screen.read_until("> ")
        screen.type("hi\r")
        assert asked.wait(WAIT_S)
        screen.type("\x03")
        screen.read_until("> ")
        screen.type("\x04")
        assert screen.exit_code() == 0


def test_reasoning_is_shown_dim_and_in_a_terminal_alone():
    answer = (b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\ndata: {"choices": [{"delta": {"reasoning_content": "Let me "}}]}\n\n'
              b'data: {"choices": [{"delta": {"reasoning_content": "think."}}]}\n\ndata: {"choices": [{"delta": {"content": "Yes."}}]}\n\ndata: [DONE]\n\n')
    with odd_server(answer) as url:
        with contextlib.closing(Terminal(url)) as screen:
            screen.read_until("> ")
            screen.type("hi\r")
            shown = screen.read_until(r"Yes\.\r\n> ")
            assert "\x1b[2mLet me \x1b[0m\x1b[2mthink.\x1b[0m\r\n\r\nYes." in shown
            screen.type("\x04")
            assert screen.exit_code() == 0
        assert run("chat", "--url", url, text="hi\n")[:2] == (0, "Yes.\n")


def test_a_server_that_dies_is_said_and_the_program_goes_on():
    with Server() as server, contextlib.closing(Terminal(f"http://{server.host}:{server.port}")) as screen:
        screen.read_until("> ")
        server.kill()
        screen.type("hi\r")
        screen.read_until(r"error: [^\n]*\n")
        screen.type("\x04")
        assert screen.exit_code() == 0
