"""The trainer's HTTP server.

    python3 -m millrace_trainer.server --weights MODEL_FOLDER      sends that folder's tensors, as they are at each sync

    POST /add_inference_endpoint   {"host": "127.0.0.1", "port": 30000, "world_size": 1}
    POST /sync_inference_weights   {"master_port": 29600, "buffer_size_mb": 1024}
    GET  /healthz

A training process embeds it with TrainerServer(SyncService(weights)), where `weights` returns its model.
"""
import argparse
import hmac
import http.server
import json
import os
import pathlib
import signal
import socket
import sys
import threading

from .errors import InputError, TrainerError
from .service import LOOPBACK, SyncService
from .tensors import read_safetensors
from .weight_sync import DEFAULT_BUFFER_MB, MODES

DEFAULT_PORT = 8990
MAX_BODY_BYTES = 1 << 20
MAX_CONNECTIONS = 32
IDLE_S = 30  # a connection without a byte is closed
PREFIX = "/api/v1"  # each route may have it in front
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HttpError(TrainerError):
    def __init__(self, status, message):
        super().__init__(message)
        self.http_status = status


class TrainerServer(http.server.ThreadingHTTPServer):
    """`port` 0: a free one, see server_address. `api_key`: requests must carry it; null: none must."""

    daemon_threads = True

    def __init__(self, service, host="127.0.0.1", port=DEFAULT_PORT, api_key=None):
        if host not in LOOPBACK and not api_key:
            raise InputError(f"host is {host!r} and there is no key; wanted --api-key-file, or an address of this host alone")
        self.service, self.api_key = service, api_key
        self.free = threading.Semaphore(MAX_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    def start(self):
        """Serves on a thread of its own until shutdown()."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def process_request(self, request, client_address):
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        try:
            request.sendall(REFUSED)
        except OSError:
            pass
        self.shutdown_request(request)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request, client_address):
        pass  # a client that closed its connection


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "millrace-trainer"
    timeout = IDLE_S

    def do_GET(self):
        self._serve({"/healthz": lambda: self.server.service.health()})

    def do_POST(self):
        service = self.server.service
        self._serve({"/add_inference_endpoint": lambda: service.add_endpoint(self._body()),
                     "/sync_inference_weights": lambda: service.sync(self._body())})

    def _serve(self, routes):
        self.body_read = self.command == "GET"
        path = self.path.split("?", 1)[0]
        path = path[len(PREFIX):] if path.startswith(PREFIX + "/") else path
        try:
            if path not in routes:
                raise HttpError(404, f"there is no {self.command} {path[:80]}; wanted {', '.join(routes)}")
            if path != "/healthz":
                self._check_key()
            self._answer(200, routes[path]())
        except TrainerError as error:
            message = "; ".join([str(error), *getattr(error, "__notes__", [])])
            self._answer(error.http_status, {"success": False, "status": "error", "message": message})
        except OSError as error:  # of the weights' files, or of the master's port
            self._answer(500, {"success": False, "status": "error", "message": f"{type(error).__name__}: {error}"})
        except Exception as error:  # noqa: BLE001: PyTorch's, or the trainer's own function: the server goes on
            self._answer(500, {"success": False, "status": "error", "message": f"{type(error).__name__}: {error}"})

    def _check_key(self):
        key = self.server.api_key
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if key and not hmac.compare_digest(given.encode(), key.encode()):
            raise HttpError(401, "the header Authorization is missing or wrong; wanted 'Bearer KEY'")

    def _body(self):
        kind = self.headers.get("Content-Type", "")
        if kind.split(";")[0].strip().lower() != "application/json":  # forms of web pages have others
            raise HttpError(415, f"the header Content-Type is {kind[:80]!r}; wanted 'application/json'")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise HttpError(411, f"the header Content-Length is {length[:20]!r}; wanted a number")
        if len(length) > 12 or int(length) > MAX_BODY_BYTES:
            raise HttpError(413, f"the body has {length[:20]} bytes; wanted at most {MAX_BODY_BYTES}")
        data = self.rfile.read(int(length))
        self.body_read = True
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise HttpError(400, f"the body is a JSON {type(body).__name__}; wanted an object")
        return body

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if not self.body_read:  # what is unread of the body is no next request
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *arguments):
        sys.stderr.write(f"{self.address_string()} {format % arguments}\n")


def read_key(path):
    if path is None:
        return os.environ.get("MILLRACE_ADMIN_API_KEY") or None
    key = pathlib.Path(path).read_text().strip()
    if not key:
        raise InputError(f"{path} is empty; wanted a key")
    return key


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python3 -m millrace_trainer.server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True, metavar="FOLDER", help="a model folder; its *.safetensors are read anew for each sync")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--api-key-file", help="requests must carry this key; needed for a --host that others reach")
    parser.add_argument("--endpoint-hosts", default="", metavar="HOST,HOST", help="where endpoints may be, beside this host")
    parser.add_argument("--endpoint-key-file", help="the endpoints' admin key (default: the variable MILLRACE_ADMIN_API_KEY)")
    parser.add_argument("--master-address", default="127.0.0.1", help="this host, as the endpoints reach it")
    parser.add_argument("--buffer-size-mb", type=float, default=DEFAULT_BUFFER_MB, help="of a bucket, where the request has none")
    parser.add_argument("--pause-mode", choices=MODES, help="pause generation during a sync (default: it goes on)")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    try:
        read_safetensors(options.weights)
        service = SyncService(lambda: read_safetensors(options.weights), hosts=[h for h in options.endpoint_hosts.split(",") if h],
                              endpoint_key=read_key(options.endpoint_key_file), master_address=options.master_address,
                              buffer_size_mb=options.buffer_size_mb, pause_mode=options.pause_mode)
        key = read_key(options.api_key_file) if options.api_key_file else None
        server = TrainerServer(service, options.host, options.port, key)
    except (TrainerError, OSError, OverflowError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    host, port = server.server_address[:2]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"sends the weights of {options.weights}; requests at http://{host}:{port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
