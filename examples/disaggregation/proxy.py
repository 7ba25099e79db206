#!/usr/bin/env python3
"""A proxy in front of two servers: one computes prompts, the other generates, and the KV pages go from the first to the second.

    millrace serve --model DIR --port 30001 --kv-transfer-listen 127.0.0.1:31001     # computes prompts
    millrace serve --model DIR --port 30002 --kv-transfer-listen 127.0.0.1:31002     # generates
    proxy.py --port 30000 --prefill http://127.0.0.1:30001 --prefill-transfer 127.0.0.1:31001 --decode http://127.0.0.1:30002

Each request to /generate, /v1/completions or /v1/chat/completions goes to both servers at the same time, with a new transfer id. The
client gets the answer of the second one, as it comes. Whatever becomes of the first one costs time alone: the second server computes
what has not arrived. All other requests go to the second server. docs/disaggregation.md has the fields."""
import argparse
import contextlib
import http.client
import http.server
import json
import sys
import threading
import urllib.parse
import uuid

PATHS = {"/generate", "/v1/completions", "/v1/chat/completions", "/chat/completions"}
KEPT_HEADERS = ("Content-Type", "Authorization", "Accept")
TIMEOUT_S = 600
CHUNK_BYTES = 16 << 10
MAX_BODY_BYTES = 32 << 20


def one_text(path, body):
    """Several texts of one request have several transfers: those are for the second server alone."""
    sampling = body.get("sampling_params") or {}
    counts = [body.get("n"), body.get("best_of"), sampling.get("n") if isinstance(sampling, dict) else 2]
    if any(count not in (None, 1) for count in counts):
        return False
    prompt = body.get("text", body.get("input_ids")) if path == "/generate" else body.get("prompt")
    if not isinstance(prompt, list):
        return True
    return bool(prompt) and all(isinstance(token, int) for token in prompt)


def prefill_body(path, body, transfer_id):
    """The same prompt; one token, which nobody reads."""
    out = {key: value for key, value in body.items() if key not in ("stream", "stream_options", "max_completion_tokens", "min_tokens", "rid", "request_id")}
    if path == "/generate":
        sampling = {key: value for key, value in (body.get("sampling_params") or {}).items() if key != "min_new_tokens"}
        out["sampling_params"] = {**sampling, "max_new_tokens": 1}
    else:
        out["max_tokens"] = 1
    out["kv_transfer_params"] = {"transfer_id": transfer_id, "do_remote_decode": True, "do_remote_prefill": False}
    return out


def decode_body(body, transfer_id, host, port):
    return {**body, "kv_transfer_params": {"transfer_id": transfer_id, "do_remote_decode": False, "do_remote_prefill": True,
                                           "remote_host": host, "remote_port": port}}


def connect(url):
    parts = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=TIMEOUT_S)


class Prefill(threading.Thread):
    """The request at the first server. Closing it ends the computation there."""

    def __init__(self, url, path, body, headers):
        super().__init__(daemon=True)
        self.connection, self.request = connect(url), (path, body, headers)
        self.start()

    def run(self):
        path, body, headers = self.request
        try:
            self.connection.request("POST", path, json.dumps(body), headers)
            response = self.connection.getresponse()
            response.read()
            if response.status != 200:
                print(f"proxy: the prefill server answered {response.status}", flush=True)
        except (OSError, http.client.HTTPException, AttributeError) as error:
            print(f"proxy: the prefill server: {error}", flush=True)
        finally:
            self.connection.close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.forward("GET", None)

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            return self.answer(413, {"error": {"message": f"the body has {length} bytes; wanted at most {MAX_BODY_BYTES}"}})
        raw = self.rfile.read(length)
        headers = {name: self.headers[name] for name in KEPT_HEADERS if name in self.headers}
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if self.path not in PATHS or not isinstance(body, dict) or not one_text(self.path, body):
            return self.forward("POST", raw)
        transfer_id = f"xfer-{uuid.uuid4()}"
        prefill = Prefill(self.options.prefill, self.path, prefill_body(self.path, body, transfer_id), headers)
        host, _, port = self.options.prefill_transfer.rpartition(":")
        try:
            self.forward("POST", json.dumps(decode_body(body, transfer_id, host, int(port))).encode())
        finally:
            if self.close_connection:  # the client has left
                prefill.connection.close()

    def forward(self, method, body):
        connection = connect(self.options.decode)
        headers = {name: self.headers[name] for name in KEPT_HEADERS if name in self.headers}
        try:
            connection.request(method, self.path, body, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return self.answer(502, {"error": {"message": f"the decode server: {error}"}})
        try:
            self.copy(response)
        except OSError:
            self.close_connection = True  # the client has left, and closing ends the request there
        finally:
            connection.close()

    def copy(self, response):
        self.send_response(response.status)
        self.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while chunk := response.read1(CHUNK_BYTES):
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--prefill", required=True, help="URL of the server that computes prompts")
    parser.add_argument("--prefill-transfer", required=True, help="its --kv-transfer-listen, as the other server reaches it")
    parser.add_argument("--decode", required=True, help="URL of the server that generates")
    Handler.options = parser.parse_args()
    address = (Handler.options.host, Handler.options.port)
    try:
        server = http.server.ThreadingHTTPServer(address, Handler)
    except OSError as error:
        sys.exit(f"proxy: cannot listen on {address[0]}:{address[1]}: {error.strerror}; wanted a free port of this host (--port)")
    server.daemon_threads = True
    print(f"proxy: http://{server.server_address[0]}:{server.server_address[1]}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
