"""Hostile and clumsy clients against the whole server. After every case it still answers, and every page is back."""
import contextlib
import gzip
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
import unicodedata

import pytest

from harness import DEMO, SANITIZED, TRIES, WAIT_S, Server, program, wait_until

CHAT = "/v1/chat/completions"
STORY = {"messages": [{"role": "user", "content": "Tell me a story."}]}
SHORT = {**STORY, "max_tokens": 2, "temperature": 0}
LONG = {**STORY, "ignore_eos": True, "temperature": 0}
HOST = b"Host: localhost\r\n"
JSON = HOST + b"Content-Type: application/json\r\n"
# What an error must not tell: addresses, sockets, files, the names of libraries.
SECRETS = re.compile(r"0x[0-9a-f]{6,}|ipc:|/tmp|/proc|/dev|/usr|/home|/root|millrace-|\.cc\b|\.h:|std::|nlohmann|boost|zmq|exception", re.I)
MIB = 1 << 20
SLOWER = 15 if SANITIZED else 1


def with_context(folder, tokens):
    """The demo model there, with a context of so many tokens."""
    for file in DEMO.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((DEMO / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": tokens}))


def kept_mib(mib):
    """How much more memory may stay in use after a test."""
    return (mib + (1024 if SANITIZED else 0)) * 1024


class Wire:
    """One raw connection: bytes out, whole responses in."""

    def __init__(self, server, timeout=WAIT_S, receive_bytes=None):
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(timeout)
        self.socket.connect((server.host, server.port))
        self.file = self.socket.makefile("rb")

    def send(self, data):
        """False when the server has closed on us already, as it may after a refusal."""
        try:
            self.socket.sendall(data)
            return True
        except ConnectionError:
            return False

    def response(self, head_only=False):
        """(status, headers, body); None when the connection ended instead."""
        try:
            line = self.file.readline()
            if not line:
                return None
            assert re.match(rb"HTTP/1\.1 \d{3} ", line), line
            headers = {}
            while (field := self.file.readline()) not in (b"\r\n", b""):
                name, _, value = field.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            status = int(line[9:12])
            if status == 100:
                return status, headers, b""
            if headers.get("transfer-encoding") == "chunked":
                body = b""
                while size := int(self.file.readline(), 16):
                    body += self.file.read(size + 2)[:-2]
                self.file.readline()
            elif "content-length" in headers:
                body = b"" if head_only else self.file.read(int(headers["content-length"]))
            else:
                body = self.file.read()
            return status, headers, body
        except ConnectionError:
            return None

    def ended(self, timeout=WAIT_S):
        """Whether the server has closed its side, with nothing more to read."""
        self.socket.settimeout(timeout)
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self):
        self.file.close()
        self.socket.close()


def exchange(server, data, half_close=False):
    """Everything a connection answers to `data`: a list of responses, up to its end."""
    with contextlib.closing(Wire(server)) as wire:
        wire.send(data)
        if half_close:
            with contextlib.suppress(OSError):
                wire.socket.shutdown(socket.SHUT_WR)
        found = []
        while (answer := wire.response()) is not None:
            found.append(answer)
            if answer[1].get("connection") == "close":
                break
        return found


def post_bytes(body, path=CHAT, more=b"", close=True):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    more += b"Connection: close\r\n" if close else b""
    return b"POST " + path.encode() + b" HTTP/1.1\r\n" + JSON + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def check_error(answer, *statuses):
    status, headers, body = answer
    assert status in statuses, answer
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    counts = {"n_prompt_tokens", "n_ctx"} if "context length is" in error["message"] else set()
    assert set(error) == {"message", "type", "param", "code"} | counts and error["message"]
    assert not SECRETS.search(body.decode()), body
    assert len(body) < 2000
    return error


def refused(server, data, *statuses):
    """One refusal and the end of the connection: what follows on it must not be run."""
    answers = exchange(server, data)
    assert len(answers) == 1, answers
    return check_error(answers[0], *statuses)


def memory_kib(server):
    total = 0
    for pid in (server.process.pid, *server.children().values()):
        total += int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])
    return total


def at_work(server):
    """Its threads that run, or would if they got a processor."""
    found = set()
    for pid in (server.process.pid, *server.children().values()):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if (task / "stat").read_text().rsplit(")", 1)[1].split()[0] in "RD":
                    found.add(task.name)
    return found


def settled_kib(server):
    """Of a server that has been left alone: one without work gets KV memory ready for a while. A thread that is at it may get no
    processor for longer than the memory is looked at, and wants one all the time."""
    seen, working = [], []

    def stands():
        seen.append(memory_kib(server))
        working.append(at_work(server))
        return len(seen) > 3 and max(seen[-3:]) - min(seen[-3:]) < 64 and not set.intersection(*working[-3:])

    wait_until(stands, "the memory stands still")
    return seen[-1]


def assert_well(server):
    assert server.process.poll() is None, server.output()
    assert server.chat("Tell me a story.", max_tokens=2, temperature=0)
    wait_until(server.all_pages_back, "pages back")
    assert all(stage["incarnation"] >> 20 == 1 for stage in server.get("/ready")[2]["stages"]), server.output()
    assert " E " not in server.output(), server.output()


@pytest.fixture(autouse=True)
def well_afterwards(server):
    yield
    assert_well(server)


class Listener(threading.Thread):
    """A well-behaved streaming client that goes on beside an attack; its events are counted."""

    def __init__(self, server):
        super().__init__()
        self.server, self.stop, self.events, self.started, self.served = server, threading.Event(), 0, threading.Event(), False

    def run(self):
        while not self.stop.is_set():
            for event in self.server.stream(CHAT, {**LONG, "max_tokens": 400}):
                self.events += 1
                if self.events > 10:
                    self.started.set()
            assert event == "[DONE]"
        self.served = True  # no stream was refused or cut, which would have been an exception

    def __enter__(self):
        self.start()
        assert self.started.wait(WAIT_S)
        return self

    def __exit__(self, *exception):
        self.stop.set()
        self.join(WAIT_S)
        assert exception[0] or self.served


# ---- framing: A3 to A6, A10 ----------------------------------------------------------------------------------------

GET = b"GET /version HTTP/1.1\r\n" + HOST
SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
FRAMING = {
    "length and chunked": post_bytes(SHORT, more=b"Transfer-Encoding: chunked\r\n", close=False),
    "two lengths": post_bytes(SHORT, more=b"Content-Length: 3\r\n", close=False),
    "the same length twice": post_bytes(b"{}", more=b"Content-Length: 2\r\n", close=False),
    "length with a sign": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Content-Length: +2\r\n\r\n{}",
    "negative length": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Content-Length: -2\r\n\r\n{}",
    "length of 30 digits": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "hexadecimal length": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Content-Length: 0x2\r\n\r\n{}",
    "list of lengths": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Content-Length: 2, 2\r\n\r\n{}",
    "unknown coding": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding before chunked": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /v1/chat/completions HTTP/1.0\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "vertical tab before chunked": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "space before the colon": GET + b"Content-Length : 5\r\n\r\nabcde",
    "folded line": GET + b"X-A: 1\r\n folded: 2\r\n\r\n",
    "bare line feeds": b"GET /version HTTP/1.1\nHost: localhost\n\n",
    "bare carriage return": GET + b"X-A: 1\rX-B: 2\r\n\r\n",
    "NUL in a field": GET + b"X-A: 1\x002\r\n\r\n",
    "NUL in a name": GET + b"X\x00A: 1\r\n\r\n",
    "no colon": GET + b"nonsense\r\n\r\n",
    "empty name": GET + b": 1\r\n\r\n",
    "no host": b"GET /version HTTP/1.1\r\n\r\n",
    "two hosts": GET + HOST + b"\r\n",
    "host with a slash": b"GET /version HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "host with a question mark": b"GET /version HTTP/1.1\r\nHost: localhost?\r\n\r\n",
    "host with userinfo": b"GET /version HTTP/1.1\r\nHost: localhost@evil\r\n\r\n",
    "negative chunk": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "chunk of 17 digits": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunk without its line end": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
    "chunk with a bare line feed": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
    "a hundred thousand bytes of trailer": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"X: 1\r\n" * 20000 + b"\r\n",
    "an endless extension": b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"x" * 100_000,
    "a request line alone": b"GET /\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": b"GET /version HTTP/9.9\r\n" + HOST + b"\r\n",
    "lower case version": b"GET /version http/1.1\r\n" + HOST + b"\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    "random bytes": random.Random(1).randbytes(3000),
    "an unknown expectation": post_bytes(SHORT, more=b"Expect: a-miracle\r\n", close=False),
}


@pytest.mark.parametrize("name", FRAMING)
def test_ambiguous_framing_is_refused_and_nothing_behind_it_runs(server, name):
    refused(server, FRAMING[name] + SMUGGLED, 400, 413, 417, 505)


@pytest.mark.parametrize("target,statuses", [
    (b"/" + b"a" * 8193, (414,)), (b"/v1/models/%00", (400,)), (b"/v1/models/%zz", (400,)), (b"/v1/models/%", (400,)),
    (b"/v1/models/%ff%fe", (400, 404)), (b"/v1/models/..%2f..%2fetc%2fpasswd", (400, 404)), (b"/../../etc/passwd", (400, 404)),
    (b"/v1/models/\xff\xfe", (400,)), (b"/v1//models", (400, 404)), (b"/V1/MODELS", (404,)), (b"/v1/models/" + b"x/" * 1000, (404,)),
    (b"http://evil.example/v1/models", (400, 421)), (b"*", (400, 404)), (b"/v1/models/<script>", (400, 404)), (b"/a b", (400,))])
def test_odd_targets_are_refused(server, target, statuses):
    check_error(exchange(server, b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")[0], *statuses)


@pytest.mark.parametrize("fields", [b"X: " + b"a" * 65536 + b"\r\n", b"X: 1\r\n" * 101, b"Authorization: Bearer " + b"k" * MIB + b"\r\n",
                                    b"X-Request-Id: " + b"r" * 40_000 + b"\r\n"])
def test_heads_over_the_limits_are_431(server, fields):
    refused(server, GET + fields + b"\r\n" + SMUGGLED, 431)


def test_a_head_that_never_ends_is_cut_off(server):
    before = settled_kib(server)
    with contextlib.closing(Wire(server)) as wire:
        wire.send(GET)
        while wire.send(b"X-Filler: " + b"a" * 8000 + b"\r\n"):  # until the server closes
            pass
    assert memory_kib(server) - before < kept_mib(4)


def test_bodies_over_the_limit_are_413_before_they_are_read(server):
    answers = exchange(server, b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Content-Length: 9000000000\r\n\r\n{")
    assert len(answers) == 1
    check_error(answers[0], 413)
    with contextlib.closing(Wire(server)) as wire:
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
        while wire.send(chunk):  # until the server closes
            pass
        answer = wire.response()
        assert answer is None or check_error(answer, 413)


def test_compressed_bodies_are_415(server):
    bomb = gzip.compress(b" " * (64 * MIB))
    refused(server, post_bytes(bomb, more=b"Content-Encoding: gzip\r\n"), 415)


def test_a_million_chunks_of_one_byte_are_refused(server):
    before = settled_kib(server)
    with contextlib.closing(Wire(server)) as wire:
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            if not wire.send(b"1\r\n \r\n" * 10_000):
                break
        wire.send(b"0\r\n\r\n")
        answer = wire.response()
        assert answer is None or check_error(answer, 400, 413)
    assert memory_kib(server) - before < kept_mib(8)


def test_chunks_with_extensions_and_trailers_are_one_body(server):
    body = json.dumps(SHORT).encode()
    chunks = b"".join(b"%x;name=\"value\";x\r\n" % len(piece) + piece + b"\r\n" for piece in (body[:1], body[1:9], body[9:]))
    request = b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: Chunked\r\n\r\n" + chunks + b"0;last\r\nX-Trailer: 1\r\nContent-Length: 5\r\n\r\n"
    answers = exchange(server, request + GET + b"Connection: close\r\n\r\n")
    assert [answer[0] for answer in answers] == [200, 200]
    assert json.loads(answers[0][2])["choices"][0]["message"]["content"] == server.chat("Tell me a story.", max_tokens=2, temperature=0)
    assert json.loads(answers[1][2])["version"]


def test_two_hundred_pipelined_requests_are_answered_in_order(server):
    tokens = server.post("/tokenize", {"prompt": "a b c"})[2]["tokens"]
    kinds = [
        (GET + b"\r\n", 200, b'{"version"'),
        (b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n", 404, b'{"error"'),
        (post_bytes({"prompt": "a b c"}, "/tokenize", close=False), 200, b'{"tokens":%s' % json.dumps(tokens, separators=(",", ":")).encode()),
        (post_bytes(SHORT, close=False), 200, b'{"id":"chatcmpl-'),
        (post_bytes({**SHORT, "stream": True}, close=False), 200, b'data: {"id":"chatcmpl-'),
        (post_bytes({**SHORT, "temperature": "hot"}, close=False), 400, b'{"error":{"message":"temperature'),
        (post_bytes(b"{", close=False), 400, b'{"error"'),
        (b"HEAD /version HTTP/1.1\r\n" + HOST + b"\r\n", 200, b""),
        (b"DELETE /v1/models HTTP/1.1\r\n" + HOST + b"\r\n", 405, b'{"error"'),
    ]
    order = [random.Random(3).choice(kinds) for _ in range(200)]
    with contextlib.closing(Wire(server)) as wire:
        writer = threading.Thread(target=wire.send, args=(b"".join(kind[0] for kind in order),))
        writer.start()
        for number, (data, status, begin) in enumerate(order):
            answer = wire.response(head_only=data.startswith(b"HEAD"))
            assert answer and answer[0] == status and answer[2].startswith(begin), (number, data[:60], answer)
        writer.join()


def test_expect_100_continue(server):
    body = json.dumps(SHORT).encode()
    with contextlib.closing(Wire(server)) as wire:
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert wire.response()[0] == 100
        wire.send(body)
        assert wire.response()[0] == 200
    # A refusal comes instead of the 100.
    refused(server, b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 415)
    refused(server, b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n", 413)


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_a_whole_answer_and_the_end(server, stream):
    body = json.dumps({**SHORT, "stream": stream}).encode()
    answers = exchange(server, b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert len(answers) == 1 and answers[0][0] == 200 and "transfer-encoding" not in answers[0][1]
    if stream:
        assert answers[0][2].endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answers[0][2])["choices"]


@pytest.mark.parametrize("data", [b"", b"GET", GET, post_bytes(SHORT)[:-5], b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"])
def test_a_request_cut_short_is_a_400_or_nothing(server, data):
    for answer in exchange(server, data, half_close=True):
        check_error(answer, 400)


def test_a_half_closed_stream_is_aborted(server):
    with contextlib.closing(Wire(server)) as wire:
        wire.send(post_bytes({**LONG, "stream": True}))
        assert wire.socket.recv(100)
        wire.socket.shutdown(socket.SHUT_WR)
        wait_until(server.all_pages_back, "pages back")


@pytest.mark.parametrize("kind", [b"", b"Content-Type: text/plain\r\n", b"Content-Type: application/jsonx\r\n", b"Content-Type: application/x-www-form-urlencoded\r\n",
                                  b"Content-Type: multipart/form-data\r\n", b"Content-Type: multipart/form-data; filename*=" + b"a" * 20_000 + b"\r\n"])
def test_wrong_content_types_are_415(server, kind):
    body = json.dumps(SHORT).encode()
    check_error(exchange(server, b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body)[0], 415)


# ---- labels: A17, A20 ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("label", [b"x" * 10_000, b"a b", b"<script>", b"%0d%0aX-Evil:1", "ünï".encode(), b"\x7f"])
def test_odd_request_ids_are_replaced_or_refused(server, label):
    status, headers, _ = exchange(server, post_bytes(SHORT, more=b"X-Request-Id: " + label + b"\r\n"))[0]
    assert status in (200, 400)
    assert re.fullmatch(r"[\w.:-]{1,128}", headers["x-request-id"]) and "x-evil" not in headers


@pytest.mark.parametrize("label", [b"a\rb", b"a\nb", b"a\n\r\nb", b"a\0b"])
def test_control_bytes_in_a_request_id_are_refused(server, label):
    refused(server, GET + b"X-Request-Id: " + label + b"\r\n\r\n" + SMUGGLED, 400)


def test_a_request_id_in_use_is_a_label_only(server):
    answers = []

    def run(seed):
        answers.append(server.post(CHAT, {**STORY, "max_tokens": 30, "seed": seed}, headers={"X-Request-Id": "same"}))
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(status == 200 and headers["x-request-id"] == "same" for status, headers, _ in answers)
    assert len({body["id"] for _, _, body in answers}) == 8


@pytest.mark.parametrize("authorization", [b"", b"Authorization: \r\n", b"Authorization: Bearer\r\n", b"Authorization: Bearer \r\n", b"Authorization: Bearer secre\r\n",
                                           b"Authorization: Bearer secrets\r\n", b"Authorization: Basic secret\r\n", b"Authorization: secret\r\n",
                                           b"Authorization: Bearer secret\r\nAuthorization: Bearer secret\r\n", b"Authorization: Bearer secret, Bearer x\r\n",
                                           b"X-Api-Key: secrets\r\n", b"Authorization: Bearer " + b"x" * 20_000 + b"\r\n"])
def test_every_spelling_of_a_wrong_key_is_refused(guarded, authorization):
    for line in (b"GET /v1/models", b"GET /v1/models/demo", b"POST /v1/chat/completions", b"POST /v1/completions", b"POST /tokenize", b"POST /v1/detokenize",
                 b"GET /nowhere", b"GET //v1/models", b"GET /v1/%6dodels", b"GET /v1/./models", b"GET /live/../v1/models", b"GET http://localhost/v1/models"):
        answer = exchange(guarded, line + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + authorization + b"\r\n")[0]
        check_error(answer, 400, 401)
        assert b"secret" not in answer[2]


@pytest.fixture(scope="module")
def guarded():
    with Server("--api-key", "secret") as running:
        assert running.get("/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
        yield running


# ---- JSON and fields: A1, A2, A12 to A16 ---------------------------------------------------------------------------

def deep(opening, closing, depth, inside=b"1"):
    return b'{"messages":' + opening * depth + inside + closing * depth + b"}"


@pytest.mark.parametrize("body", [
    deep(b"[", b"]", 129), deep(b"[", b"]", 100_000), deep(b"[", b"]", 2_000_000), deep(b'{"a":', b"}", 1_000_000), deep(b'[{"a":', b"}]", 500_000), b"[" * 2_000_000,
    b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"messages":[{"role":"user","content":"\\udc00\\ud800"}]}', b'{"messages":[{"role":"user","content":"\\ud800\\u0041"}]}',
    b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}', b'{"messages":[{"role":"user","content":"\xc0\x80"}]}', b'{"messages":[{"role":"user","content":"\xf5\x80\x80\x80"}]}',
    b'{"messages":[{"role":"user","content":"\x00"}]}', b'{"messages":[{"role":"user","content":"a\nb"}]}', b'{"messages":[{"role":"user","content":"\\x41"}]}',
    b'{"messages":[{"role":"user","content":"a"}],}', b"{'messages':[]}", b'{"messages":[{"role":"user","role":"system","content":"a"}]}', b'{"max_tokens":0x10}', b'{"max_tokens":1e}',
    b'{"a":1}{"b":2}', b'{"max_tokens":01}', b'{"temperature":Infinity}', b"\x00" * 1000, b"\xff\xfe{\x00}\x00"], ids=lambda body: repr(body[:60])[2:])
def test_broken_json_is_a_400(server, body):
    assert check_error(exchange(server, post_bytes(body))[0], 400)["type"] == "invalid_request_error"


BOMBS = {
    "eleven million empty objects": (CHAT, b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"x":[' + b"{}," * 11_000_000 + b"1]}"),
    "eleven million empty arrays": (CHAT, b'{"messages":[' + b"[]," * 11_000_000 + b"1]}"),
    "millions of members": (CHAT, b"{" + b",".join(b'"%x":0' % i for i in range(2_500_000)) + b"}"),
    "sixteen million numbers": ("/v1/completions", b'{"prompt":[' + b"1," * 16_000_000 + b"1]}"),
    "a million ids to detokenize": ("/detokenize", json.dumps({"tokens": [5] * 1_000_000}).encode()),
    "a hundred thousand messages": (CHAT, json.dumps({"messages": [{"role": "user", "content": "a"}] * 100_000}).encode()),
    "three hundred thousand parts": (CHAT, json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 300_000}]}).encode()),
    "a million stop strings": (CHAT, json.dumps({**SHORT, "stop": ["a"] * 1_000_000}).encode()),
    "a million stop ids": (CHAT, json.dumps({**SHORT, "stop_token_ids": [1] * 1_000_000}).encode()),
    "a long word": (CHAT, json.dumps({"messages": [{"role": "user", "content": "a" * 4_000_000}]}).encode()),
    "a long role": (CHAT, json.dumps({"messages": [{"role": "é" * 4_000_000, "content": "a"}]}).encode()),
    "a long model": (CHAT, json.dumps({**SHORT, "model": "é" * 4_000_000}).encode()),
}


def test_huge_bodies_are_refused_while_others_stream(server):
    """Each is at most 32 MiB, the limit of bodies. None may end another's stream, or leave the memory taken."""
    before = settled_kib(server)
    with Listener(server):
        for path, body in BOMBS.values():
            check_error(exchange(server, post_bytes(body, path))[0], 400, 404, 413)
    assert memory_kib(server) - before < kept_mib(200)


def test_a_stream_goes_on_while_a_large_body_is_parsed(server):
    """It gets events between the body's end and its answer."""
    body = post_bytes(b'{"messages":[{"role":"user","content":"%s"}]}' % (b"\\u00e9" * (20 * MIB // 6)))
    with Listener(server) as listener:
        for _ in range(TRIES):  # it may be between two streams, or its thread may get no processor meanwhile
            with contextlib.closing(Wire(server)) as wire:
                assert wire.send(body)
                before = listener.events
                assert check_error(wire.response(), 400)["code"] == "context_length_exceeded"
                if listener.events > before:
                    return
    pytest.fail(f"no event came while a body was parsed, {TRIES} times")


LONG_TEXTS = {
    "a word of 4 MB": "a" * 4_000_000, "a word of mixed letters": "".join(chr(97 + i * 7919 % 26) for i in range(4_000_000)), "a million combining marks": "e" + "\u0301" * 1_000_000,
    "mixed combining marks": "e" + "".join(chr(0x300 + i * 31 % 0x60) for i in range(1_000_000)), "a megabyte of spaces": " " * 1_000_000, "spaces and line ends": " \n" * 500_000,
    "a megabyte of digits": "1" * 1_000_000, "a megabyte of quotes": "'" * 1_000_000, "no spaces": "你" * 330_000, "conjoining letters": "\u1100\u1161" * 300_000}


def test_texts_without_end_are_tokenized_while_others_stream(tmp_path):
    """A context of half a million tokens, so that the texts are really tokenized and not refused by their size in bytes.
    Were the time not linear in the length, it would be hours."""
    with_context(tmp_path, 1 << 19)
    with Server("--kv-gib", "0.1", model=tmp_path) as server:
        with Listener(server):
            for text in LONG_TEXTS.values():
                error = check_error(exchange(server, post_bytes({"prompt": text, "max_tokens": 1}, "/v1/completions"))[0], 400)
                assert "tokens" in error["message"] and "bytes" not in error["message"]
        assert_well(server)


# The demo tokenizer composes (NFC) before it encodes.
@pytest.mark.parametrize("text", ["\0", "\0" * 100, "a\0b", "\ufffe\uffff", "\u202e\u200b\u2028", "🙂" * 50, "e" + "\u0301" * 200, " " * 900, "\n" * 300, "ﷺ" * 40, "<|im_end|>" * 20,
                                  "{{ 7*7 }}{% for x in y %}", "\x1b[31m", "\U0010ffff"], ids=lambda text: ascii(text)[:30])
def test_any_unicode_is_a_prompt_and_comes_back_from_its_tokens(server, text):
    ids = server.post("/tokenize", {"prompt": text})[2]["tokens"]
    assert server.post("/detokenize", {"tokens": ids, "skip_special_tokens": False})[2]["text"] == unicodedata.normalize("NFC", text)
    assert server.post(CHAT, {**SHORT, "messages": [{"role": "user", "content": text}]})[0] == 200
    assert server.post("/v1/completions", {"prompt": text, "max_tokens": 2, "temperature": 0})[0] == 200


@pytest.mark.parametrize("path,body", [
    ("/v1/completions", {"prompt": ""}), ("/v1/completions", {"prompt": []}), ("/v1/completions", {"prompt": [[]]}), ("/v1/completions", {"prompt": [""]}), ("/v1/completions", {}),
    ("/v1/completions", {"prompt": None}), ("/v1/completions", {"prompt": {"a": 1}}), ("/v1/completions", {"prompt": [1, "a"]}), ("/v1/completions", {"prompt": ["a", 1]}),
    ("/v1/completions", {"prompt": [-1]}), ("/v1/completions", {"prompt": [10**6]}), ("/v1/completions", {"prompt": [2**63]}), ("/v1/completions", {"prompt": [2**64]}),
    ("/v1/completions", {"prompt": [1.0]}), ("/v1/completions", {"prompt": [True]}), ("/v1/completions", {"prompt": [None]}), ("/v1/completions", {"prompt": ["a"] * 65}),
    ("/v1/completions", {"prompt": [1] * 5000}), ("/v1/completions", {"prompt": "a", "max_tokens": 10**10}),
    ("/detokenize", {}), ("/detokenize", {"tokens": "a"}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [2**40]}), ("/detokenize", {"tokens": [[1]]}),
    ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": []}), ("/tokenize", {"prompt": 1}), ("/tokenize", {"messages": []}), ("/tokenize", []),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}), (CHAT, {"messages": [{"role": "user", "content": [{"text": "a"}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": ["a"]}]}), (CHAT, {"messages": [{"role": ["user"], "content": "a"}]}), (CHAT, {"messages": {"role": "user", "content": "a"}}),
    (CHAT, {**SHORT, "chat_template_kwargs": {"bos_token": "x"}}), (CHAT, {**SHORT, "continue_final_message": True, "add_generation_prompt": True}),
    (CHAT, {**SHORT, "model": 5}), (CHAT, {**SHORT, "stop": [None]}), (CHAT, {**SHORT, "stream": 1}), (CHAT, {**SHORT, "cache_salt": 1}), (CHAT, {**SHORT, "tools": [{"type": "function"}]})],
    ids=lambda value: str(value)[:60])
def test_bad_values_are_400_and_tell_no_secrets(server, path, body):
    check_error(exchange(server, post_bytes(body, path))[0], 400)


# ---- slowness: A8, A9 ----------------------------------------------------------------------------------------------

def test_patterns_that_need_too_much_work_end_their_request_alone(server):
    patterns = [r"(?s)(?:[^~^]|q)*[~^]{%d}" % count for count in range(1, 17)]
    long = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
    status, _, body = server.post("/v1/completions", {**long, "stop_regex": patterns})
    assert status == 400 and "steps a character" in body["error"]["message"], body
    # A stream is refused the same way where the steps run out before its first event.
    status, _, body = server.post("/v1/completions", {**long, "stop_regex": patterns, "stream": True})
    if status == 200:
        body = json.loads(re.findall("data: ({.*)", body)[-1])
    assert status in (200, 400) and "steps a character" in body["error"]["message"], body
    assert server.post("/v1/completions", {**long, "max_tokens": 10, "stop_regex": patterns[:1]})[0] == 200
    wait_until(server.all_pages_back, "pages back")


def test_an_answer_of_hundreds_of_megabytes_is_refused(server):
    """A body of 150 KB: 32 prompts, with the logprobs of 500 ids at each place; it took a gigabyte."""
    limit = server.get("/v1/models")[2]["data"][0]["max_model_len"]
    before = settled_kib(server)
    body = {"input_ids": [[5 + index] * (limit - 2) for index in range(32)], "return_logprob": True, "logprob_start_len": 0,
            "token_ids_logprob": list(range(500)), "sampling_params": {"max_new_tokens": 1}}
    status, _, answer = server.post("/generate", body)
    assert status == 400 and "the answer holds" in answer["error"]["message"], answer
    assert memory_kib(server) - before < kept_mib(450)  # of that the KV pages are a half
    body.update(input_ids=body["input_ids"][:8], token_ids_logprob=list(range(20)))
    status, _, answer = server.post("/generate", body)  # megabytes, written aside
    assert status == 200 and len(answer) == 8 and len(answer[7]["meta_info"]["input_token_ids_logprobs"]) == limit - 2
    wait_until(server.all_pages_back, "pages back")


def test_readers_that_stop_reading_lose_their_pages_soon(tmp_path):
    """A model name of 20 kB makes each event that long, so that few tokens fill the unread buffers. A request could take
    all pages, some 7,000 steps: however late a busy machine sends the events, it is aborted before."""
    with_context(tmp_path, 1 << 16)
    with Server("--served-model-name", "m" * 20_000, "--kv-gib", "0.05", model=tmp_path) as server:
        before = settled_kib(server)
        readers = [Wire(server, receive_bytes=4096) for _ in range(8)]
        for reader in readers:
            reader.send(post_bytes({**LONG, "stream": True}))
        wait_until(lambda: server.stage("scheduler")["steps"] > 0, "begun requests")
        wait_until(server.all_pages_back, "pages back while the readers still hold their connections")
        assert server.stage("scheduler")["steps"] < 6000  # aborted, not run to the end
        assert memory_kib(server) - before < kept_mib(64)
        for reader in readers:
            reader.close()
        assert server.chat("Tell me a story.", max_tokens=2)


def test_out_of_file_descriptors_others_wait_and_then_are_served():
    with Server() as server:
        # The stages of one process have sockets and relays of their own: room for 40 connections beside them.
        limit = len(os.listdir(f"/proc/{server.process.pid}/fd")) + 40
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        crowd = []
        for _ in range(150):
            with contextlib.suppress(OSError):
                crowd.append(Wire(server, timeout=WAIT_S))
        cpu = lambda: sum(int(field) for field in pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])

        def rests():
            begin, began = cpu(), time.monotonic()
            time.sleep(1)  # the subject: what it computes in a time
            return cpu() - begin < os.sysconf("SC_CLK_TCK") * 0.6 * (time.monotonic() - began)

        wait_until(rests, "a second without much work: it does not spin")  # it may still have connections to accept
        assert server.process.poll() is None
        for wire in crowd:
            wire.close()
        wait_until(server.ready, "an answer")
        assert server.chat("Tell me a story.", max_tokens=2)
        wait_until(server.all_pages_back, "pages back")


def test_clients_cannot_take_the_descriptors_of_the_server_itself():
    """All connections that fit are taken, and more wait; a process that dies then can be started again."""
    with Server(prefix=("prlimit", "--nofile=200", "--")) as server:
        crowd = []
        for _ in range(400):
            with contextlib.suppress(OSError):
                crowd.append(Wire(server, timeout=WAIT_S))
        assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 160
        victims = server.children()
        for pid in victims.values():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(f"the {name} stopped" in server.output() for name in victims), "the deaths")
        for wire in crowd:
            wire.close()
        wait_until(server.ready, "200 from /ready")
        assert server.chat("Tell me a story.", max_tokens=2)


@pytest.mark.parametrize("limit, wanted", [(["--nofile=7"], "may open 7 files; wanted at least"), (["--nofile=25"], "may open 25 files"),
                                           *(pytest.param([f"--as={mib << 20}"], f"{mib} MiB of address space; wanted at least",
                                                          marks=pytest.mark.skipif(SANITIZED, reason="a sanitizer maps terabytes before main")) for mib in (64, 1100, 2000, 2400))])
def test_a_start_with_tiny_limits_is_one_line(limit, wanted):
    found = subprocess.run(["prlimit", *limit, "--", program(), "serve", "--model", str(DEMO), "--port", "0"], capture_output=True, text=True, timeout=WAIT_S)
    assert found.returncode == 2 and wanted in found.stderr and len(found.stderr.splitlines()) == 1, found


def test_slow_heads_and_bodies_do_not_hold_up_others(server):
    slow = []
    for index in range(200):
        wire = Wire(server)
        wire.send(b"GET /v" if index % 2 else b"POST /v1/chat/completions HTTP/1.1\r\n" + JSON + b"Content-Length: 1000\r\n\r\n{")
        slow.append(wire)
    for _ in range(5):
        assert server.chat("Tell me a story.", max_tokens=2)
    for wire in slow[1::2]:  # a head has ten seconds; the slow bodies have thirty and are left to the idle limit
        check_error(wire.response(), 408)
        assert wire.ended()
    for wire in slow:
        wire.close()


# ---- streams: every event is whole UTF-8 ----------------------------------------------------------------------------

CIRCLE = "🙂é你ж★ "  # no byte occurs twice, so each byte can have one successor


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A model that writes CIRCLE for ever, one byte a token: token embeddings are random signs, no layer adds anything,
    and the head's row of a token is the embedding of its predecessor."""
    model = tmp_path_factory.mktemp("chain")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (model / name).symlink_to(DEMO / name)
    config = json.loads((DEMO / "config.json").read_text())
    hidden, vocab = 256, config["vocab_size"]
    config.update(hidden_size=hidden, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=32, num_hidden_layers=1, tie_word_embeddings=False)
    (model / "config.json").write_text(json.dumps(config))
    vocabulary = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    # The byte-level alphabet of GPT-2: printable Latin-1 stands for itself, the other bytes for 256 and on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letter = {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}
    ids = [vocabulary[letter[byte]] for byte in CIRCLE.encode()]
    assert len(set(ids)) == len(ids)
    signs = random.Random(5)
    rows = [b"".join(signs.choice((b"\x80\x3f", b"\x80\xbf")) for _ in range(hidden)) for _ in range(vocab)]
    head = [bytes(2 * hidden)] * vocab
    for before, after in zip(ids, ids[1:] + ids[:1]):
        head[after] = rows[before]
    tensors = {"model.embed_tokens.weight": ([vocab, hidden], b"".join(rows)), "lm_head.weight": ([vocab, hidden], b"".join(head))}
    shapes = {"self_attn.q_proj": [64, hidden], "self_attn.k_proj": [32, hidden], "self_attn.v_proj": [32, hidden], "self_attn.o_proj": [hidden, 64],
              "mlp.gate_proj": [32, hidden], "mlp.up_proj": [32, hidden], "mlp.down_proj": [hidden, 32]}
    for name, shape in shapes.items():
        tensors[f"model.layers.0.{name}.weight"] = (shape, bytes(2 * shape[0] * shape[1]))
    for name, size in (("layers.0.input_layernorm", hidden), ("layers.0.post_attention_layernorm", hidden), ("layers.0.self_attn.q_norm", 32), ("layers.0.self_attn.k_norm", 32), ("norm", hidden)):
        tensors[f"model.{name}.weight"] = ([size], b"\x80\x3f" * size)
    header, payload = {}, b""
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + payload)
    with Server(model=model) as running:
        yield running, ids


def test_characters_of_several_tokens_are_never_cut(chain):
    server, ids = chain
    circle = CIRCLE.encode()
    for length in range(1, 2 * len(ids) + 1):
        request = {"prompt": [ids[-1]], "max_tokens": length, "temperature": 0}
        expected = (circle * 3)[:length].decode(errors="replace")
        assert server.post("/v1/completions", request)[2]["choices"][0]["text"] == expected
        pieces = [json.loads(event)["choices"][0] for event in server.stream("/v1/completions", request) if event != "[DONE]"]
        assert "".join(piece["text"] for piece in pieces) == expected
        # Only the end of the output may be an incomplete character.
        assert not any("\ufffd" in piece["text"] for piece in pieces[:-2])


def test_stop_strings_of_split_characters_match(chain):
    server, ids = chain
    for stop, expected in (("你", "🙂é"), ("★ 🙂", "🙂é你ж"), ("é你ж", "🙂"), ("🙂", "")):
        request = {"prompt": [ids[-1]], "max_tokens": 60, "temperature": 0, "stop": ["☆", stop]}
        choice = server.post("/v1/completions", request)[2]["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == (expected, "stop", stop)
        pieces = [json.loads(event)["choices"][0]["text"] for event in server.stream("/v1/completions", request) if event != "[DONE]"]
        assert "".join(pieces) == expected
    wait_until(server.all_pages_back, "pages back")


def test_wild_sampling_streams_what_it_answers(server):
    """At this temperature the demo model writes broken bytes, special tokens and everything else."""
    for seed in range(12):
        request = {"prompt": "🙂 once", "max_tokens": 60, "temperature": 2, "top_p": 1, "top_k": -1, "seed": seed, "ignore_eos": True, "skip_special_tokens": seed % 2 == 0}
        whole = server.post("/v1/completions", request)[2]["choices"][0]["text"]
        pieces = [json.loads(event)["choices"][0]["text"] for event in server.stream("/v1/completions", request) if event != "[DONE]"]
        assert "".join(pieces) == whole


# ---- memory -------------------------------------------------------------------------------------------------------

def test_a_hundred_rounds_of_everything_leave_the_memory_flat(server):
    cheap = [*FRAMING.values(), post_bytes(b"{"), post_bytes(deep(b"[", b"]", 5000)), post_bytes({**SHORT, "stop": ["é" * 400] * 16}), post_bytes(SHORT), post_bytes({**SHORT, "stream": True}),
             post_bytes({"messages": [{"role": "user", "content": "x" * 70_000}]}), post_bytes({"prompt": "a " * 200}, "/tokenize"), b"GET /v1/models/" + b"x" * 5000 + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"]

    def everything():
        for data in cheap:
            exchange(server, data, half_close=False)
        with contextlib.closing(Wire(server)) as wire:
            wire.send(post_bytes({**LONG, "stream": True}))
            wire.socket.recv(10)
    for _ in range(20 // SLOWER + 1):
        everything()
    wait_until(server.all_pages_back, "pages back")
    before = settled_kib(server)
    for _ in range(100 // SLOWER):
        everything()
    wait_until(server.all_pages_back, "pages back")
    assert memory_kib(server) - before < kept_mib(6)
