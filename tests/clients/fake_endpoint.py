"""A Millrace endpoint without weights, over real HTTP, and a broadcaster without a process group: for the trainer client's tests."""
import http.server
import json
import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))
from millrace_trainer import Broadcaster, InferenceEndpoint, Limits  # noqa: E402

WAIT_S = 60
LIMITS = Limits(poll_s=0.02)


class FakeEndpoint:
    """Answers as docs/weights.md has it. `answers`: a path to what it answers instead, (status, body), or a function of the body
    that returns that."""

    def __init__(self, replicas=1):
        self.requests, self.answers, self.replicas = [], {}, replicas
        self.state, self.last_error, self.version, self.received, self.wanted = "idle", "", "1", b"", None
        self.lock = threading.Lock()
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.do_POST()

            def do_POST(self):
                size = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(size)) if size else None
                status, answer = endpoint.answer(self.path, body, self.headers)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that waits no longer
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def endpoint(self, **more):
        return InferenceEndpoint("127.0.0.1", self.port, self.replicas, **more)

    def paths(self):
        return [path for path, _ in self.requests if path not in ("/weights_update_status", "/server_info")]

    def body(self, path):
        """Of the last request of this path."""
        return [body for seen, body in self.requests if seen == path][-1]

    def answer(self, path, body, headers):
        with self.lock:
            self.requests.append((path, body))
            instead = self.answers.get(path)
        if instead is not None:  # without the lock: it may wait
            found = instead(body) if callable(instead) else instead
            if found is not None:
                return found
        with self.lock:
            return self._act(path, body)

    def _act(self, path, body):
        if path == "/weights_update_status":
            return 200, {"state": self.state, "last_error": self.last_error, "weight_version": self.version}
        if path == "/server_info":
            return 200, {"internal_states": [{"stage": f"scheduler-{i}"} for i in range(self.replicas)]}
        if path == "/prepare_weights_update":
            self.state, self.received, self.wanted = "receiving", b"", body
        elif path == "/abort_weights_update":
            if self.state == "idle":
                return refusal("the state of the weights is 'idle'")
            self.state = "idle"
        elif path == "/complete_weights_update":
            if self.state != "staged":
                return refusal(f"the state of the weights is '{self.state}'")
            self.state, self.version = "idle", body.get("weight_version", "2")
            return 200, {"success": True, "status": "ready", "message": "", "num_buckets_received": self.wanted["num_buckets"], "weight_version": self.version}
        return 200, {"success": True, "status": "ready", "message": ""}

    def receive(self, data):
        with self.lock:
            self.received += data
            if self.state == "receiving" and len(self.received) == self.nbytes():
                self.state = "staged"

    def nbytes(self):
        size = {"bfloat16": 2, "float16": 2, "float32": 4}
        total = 0
        for bucket in self.wanted["buckets"]:
            for dtype, shape in zip(bucket["dtypes"], bucket["shapes"]):
                count = size[dtype]
                for extent in shape:
                    count *= extent
                total += count
        return total


def refusal(message, status=400):
    return status, {"error": {"message": message}, "success": False, "status": "error", "message": message}


class FakeBroadcaster(Broadcaster):
    """Gives the bytes to the endpoints. `calls` are the names of its calls."""

    def __init__(self, endpoints, calls=None, fail=None, stuck=None):
        self.endpoints, self.calls, self.fail, self.stuck = endpoints, [] if calls is None else calls, fail, stuck

    def listen(self, address, port, world_size, group_name, limit_s):
        self.calls.append(("listen", port, world_size, group_name))
        return port or 29600

    def join(self):
        self.calls.append(("join",))

    def broadcast(self, buffer):
        self.calls.append(("broadcast", len(buffer)))
        if self.fail:
            raise self.fail
        if self.stuck:
            self.stuck.wait(WAIT_S)
        for endpoint in self.endpoints:
            endpoint.receive(bytes(buffer))

    def close(self):
        self.calls.append(("close",))
