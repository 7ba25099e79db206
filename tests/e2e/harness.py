"""Starts and watches a real `millrace serve` for the end-to-end tests.

Everything goes through the program's command line, its HTTP port and the operating system: nothing here knows its insides."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = pathlib.Path(os.environ.get("MILLRACE_MODEL", ROOT / "models" / "demo"))
FINAL_OUTPUT_S = 20  # until a dead process' pipe is read to its end; one of its children may hold it open
WAIT_S = 180  # for any event; a wait that runs out is a failure, so the limit is far from what a busy machine takes
# A shell's background job begins with SIGINT ignored, and the servers that it starts would honour that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
TRIES = 50  # to catch what a busy machine may miss
HEARTBEAT_S = 0.25  # how old the news of a stage may be
DATA = ROOT / "tests" / "data" / "models"
EXTRA_DATA = pathlib.Path(os.environ.get("MILLRACE_EXTRA_TEST_DATA", ROOT.parent / "shared"))
STORIES = EXTRA_DATA / "models" / "stories15M"  # larger, but not in the repository (tests/data/README.md)
URL = re.compile(r"(?:serves (?P<model>\S+)(?: models?)?|runs the pipeline '\S+') at http://(?P<host>[\d.]+):(?P<port>\d+)")


def program(*arguments):
    """millrace; millrace-examples where an argument is a pipeline's file that names workers of examples/workers."""
    product = os.environ["MILLRACE_PROGRAM"]
    files = [pathlib.Path(a) for a in map(str, arguments) if a.endswith(".yaml")]
    if any("worker: toy." in file.read_text() for file in files if file.is_file()):
        return os.environ.get("MILLRACE_EXAMPLES_PROGRAM", str(pathlib.Path(product).with_name("millrace-examples")))
    return product


# A program built with a sanitizer is slow, keeps freed memory for a while, and writes a report before it dies.
SANITIZED = any(name in pathlib.Path(program()).read_bytes() for name in (b"__asan_init", b"__tsan_init"))


def placement():
    return os.environ.get("MILLRACE_PLACEMENT", "processes")


class Output:
    """What a process prints, read by a thread; `process`, `lines` and `reader` are the subclass's."""

    def output(self):
        """What it has printed; of a process that has ended, all of it."""
        if self.process.poll() is not None:
            self.reader.join(FINAL_OUTPUT_S)
        return "".join(self.lines)

    def end(self):
        """Waits for it and for the last of its output; the exit code."""
        code = self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        return code


class Server(Output):
    """One running server. stdout and stderr are kept; `tmp` is its private TMPDIR, so that leftovers show. `where`: the
    host of two_hosts.py that it runs on, and whose client it is asked by; None: this one. `deaf`: who reads its output
    leaves at the line that says where it serves. `admin`: it answers admin routes without a key. `prefix`: what starts the program."""

    def __init__(self, *arguments, model=DEMO, env=None, wait=True, where=None, deaf=False, admin=True, prefix=()):
        self.tmp = tempfile.TemporaryDirectory(prefix="e2e-")
        self.where = where
        # Tests call admin routes over TCP; test_admin.py says otherwise.
        if admin and not any(a.startswith(("--api-key", "--admin-")) for a in arguments):
            arguments = (*arguments, "--admin-without-key")
        command = [*(where.prefix if where else []), *prefix, program(*arguments), "serve", *(["--model", str(model)] if model else []), *arguments]
        threads = [("--threads", "1")] if model else []  # a pipeline's stages have their own, and `serve` says so
        for option, value in (("--port", "0"), *threads, ("--placement", placement())):
            if option not in arguments:
                command += [option, value]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**os.environ, "TMPDIR": self.tmp.name, **(env or {})}, start_new_session=True)
        self.lines = []
        self.deaf = deaf
        self.url_found = threading.Event()
        self.host = self.port = self.model = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if wait and not self.url_found.wait(WAIT_S):
            self.kill()
            raise AssertionError("the server did not start:\n" + self.output())

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = URL.search(line)
            if found:
                self.model, self.host, self.port = found["model"], found["host"], int(found["port"])
                if self.deaf:
                    self.process.stdout.close()
                self.url_found.set()
                if self.deaf:
                    return
        self.url_found.set()

    # ---- requests -------------------------------------------------------------------------------------------------

    def connection(self, timeout=WAIT_S):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        if self.where:
            with self.where.inside():
                connection.connect()
        return connection

    def request(self, method, path, body=None, headers=None, timeout=WAIT_S):
        """(status, headers, parsed JSON or text)"""
        connection = self.connection(timeout)
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read().decode()
            kind = response.getheader("Content-Type", "")
            return response.status, response.headers, json.loads(data) if kind.startswith("application/json") and data else data

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def stream(self, path, body, timeout=WAIT_S, headers=None):
        """The data of every event, "[DONE]" included, as they arrive."""
        def ask():
            connection = self.connection(timeout)
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            if response.status == 200:
                return response.status, connection, response
            with contextlib.closing(connection):
                return response.status, connection, response.read().decode()

        status, connection, response = past_silence(ask)
        assert status == 200, response
        with contextlib.closing(connection):
            assert response.getheader("Content-Type").startswith("text/event-stream")
            for line in response:
                line = line.decode().rstrip("\n")
                if line.startswith("data: "):
                    yield line[6:]
                else:
                    assert line in ("", ": ping"), line

    @contextlib.contextmanager
    def held_stream(self, path, body, first):
        """A stream that has begun, with the line `first`, and gets no further: generation is paused."""
        assert self.post("/pause_generation", {"mode": "in_place"})[0] == 200
        connection = self.connection()
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200 and response.readline() == first
            yield response

    def chat(self, text, **more):
        status, _, body = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})
        assert status == 200, body
        return body["choices"][0]["message"]["content"]

    def chat_answer(self, body):
        status, _, found = self.post("/v1/chat/completions", body)
        assert status == 200, found
        return found

    def chat_refusal(self, body, status=400):
        """The message of the error."""
        seen, _, found = self.post("/v1/chat/completions", body)
        assert seen == status, found
        return found["error"]["message"]

    def ready(self):
        try:
            return self.get("/ready")[0] == 200
        except OSError:
            return False

    def stage(self, name):
        stages = self.get("/ready")[2]["stages"]
        return next(stage for stage in stages if stage["stage"] == name)

    def all_pages_back(self):
        """No request waits or runs, and every page of each scheduler and prefill replica is free or cached."""
        generating = [stage for stage in self.get("/ready")[2]["stages"] if stage["stage"].partition("-")[0] in ("scheduler", "prefill")]
        return generating and all(
            stage["running"] == 0 and stage["waiting"] == 0 and stage["pages_free"] + stage["pages_cached"] == stage["pages_total"]
            for stage in generating)

    def metrics(self):
        """{name: the sum over its labels} of /metrics. Those of the stages are as old as their last heartbeat."""
        found = {}
        for line in self.get("/metrics")[2].splitlines():
            assert "A number of the stage's own." not in line, f"{line}: src/api/stage_metric_help.cc has no help for it"
            if not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
                found[name] = found.get(name, 0) + value
        return found

    # ---- processes ------------------------------------------------------------------------------------------------

    def children(self):
        """{stage: pid} of the child processes."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and len(arguments) > 2 and arguments[1] == b"stage":
                found[arguments[2].decode()] = int(entry.name)
        return found

    def leftovers(self):
        return [path for path in pathlib.Path(self.tmp.name).rglob("*")]

    def stop(self, timeout=WAIT_S):
        """Ctrl-C, as a user stops it; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout)
        self.reader.join(WAIT_S)
        return code

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
        self.tmp.cleanup()


class Joined(Output):
    """A running `millrace stage --join`."""

    def __init__(self, path, stages, leader, model=DEMO, more=(), where=None):
        command = [*(where.prefix if where else []), program(path), "stage", "--join", leader, "--pipeline", str(path), "--stages", stages, *more]
        if model:
            command += ["--model", str(model)]
        if "--threads" not in more:
            command += ["--threads", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def new_key(path):
    path.write_text(os.urandom(32).hex() + "\n")
    path.chmod(0o600)
    return path


def wait_until(condition, what="condition"):
    """The first true value of the condition."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {WAIT_S} s")


def past_silence(ask):
    """What `ask()` answers, asked again while that is a 503 for a stage's silence: whatever its lease, a stage that gets no processor for 2 s
    gets no new request until it is heard of again."""
    def answer():
        found = ask()
        return None if is_silence(found[0], found[2]) else found

    return wait_until(answer, "answer but that a stage is silent")


def is_silence(status, body):
    return status == 503 and "silent for" in str(body)


def patient(text, lease_ms=20_000, stalled_ms=15_000):
    """A pipeline's file of whose stages none is lost or stalled because it gets no processor for seconds. Shorter limits are for a test whose
    subject is a death by silence."""
    assert "lease_ms" not in text and "stalled_ms" not in text
    text = re.sub(r"^(name: .*)$", rf"\1\nlease_ms: {lease_ms}", text, count=1, flags=re.M)
    return re.sub(r"^(  - name: \w+)$", rf"\1\n    stalled_ms: {stalled_ms}", text, flags=re.M)


def caught_running(server, start, over, stage="scheduler", least=1):
    """What `start()` gave for a request of which `least` choices were seen to run. Heartbeats report what runs: a short request may be
    through, which over(request) tells, before they and a busy machine's test get to it. Then another one is started."""
    for _ in range(TRIES):
        wait_until(lambda: server.stage(stage)["running"] == 0, f"rest in {stage}")
        request = start()
        wait_until(lambda: over(request) or server.stage(stage)["running"] >= least, f"running request in {stage}")
        if not over(request):
            return request
    raise AssertionError(f"{TRIES} requests were through before one was seen to run")


def held_running(server, start, over, stage="scheduler", least=1):
    """caught_running() that does not end before /continue_generation: generation is paused in place."""
    for _ in range(TRIES):
        request = caught_running(server, start, over, stage, least)
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
        if not over(request):
            return request
        assert server.post("/continue_generation", {})[0] == 200
    raise AssertionError(f"{TRIES} requests were through before one was held")


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def thread_states(pid):
    """Of /proc: T is a stopped one. None of a process that is gone."""
    found = set()
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            found.add(path.read_text().rsplit(")", 1)[1].split()[0])
    return found


def freeze(pid):
    """SIGSTOP, and its effect: on a busy machine, a process's other threads run until the one that gets the signal does."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: thread_states(pid) <= {"T", "Z"}, "a process that stands still")


def strike(pid, how):
    """With SIGKILL or SIGSTOP."""
    if how == signal.SIGSTOP:
        freeze(pid)
    else:
        os.kill(pid, how)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
