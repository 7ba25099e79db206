"""A hub for tests: the part of the Hugging Face protocol that a pull uses, written from the protocol's description, with faults on request.

A `Hub` listens on one port and sends the bytes of large files from another one, the `store`, as real hubs redirect to a content network."""
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import re
import subprocess
import threading
import urllib.parse

from harness import WAIT_S, program

LARGE = 100_000  # bytes from which on a file is stored as git LFS has it


class File:
    """One file of a repository and what goes wrong with it."""

    def __init__(self, data, large=None):
        self.data = data
        self.large = len(data) >= LARGE if large is None else large
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.blob_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.sent = data  # instead of the data
        self.cuts = []  # after so many bytes of an answer, the connection ends; one a request
        self.answers = []  # (status, headers), instead of the file; one a request
        self.held_after = None  # bytes of an answer; then it waits until `release` is set
        self.held, self.release = threading.Event(), threading.Event()

    @property
    def etag(self):
        return self.sha256 if self.large else self.blob_id


class Repository:
    def __init__(self, files, token=None, error_code=None):
        self.files = {name: data if isinstance(data, File) else File(data) for name, data in files.items()}
        self.token, self.error_code = token, error_code
        self.commit = hashlib.sha1(json.dumps({n: f.etag for n, f in self.files.items()}).encode()).hexdigest()
        self.revisions = {"main"}
        self.listing = None  # a function that changes it

    def describe(self):
        siblings = []
        for name, file in self.files.items():
            entry = {"rfilename": name, "size": len(file.data), "blobId": file.blob_id}
            if file.large:
                entry["lfs"] = {"sha256": file.sha256, "size": len(file.data), "pointerSize": 134}
            siblings.append(entry)
        listing = {"id": "x", "sha": self.commit, "siblings": siblings}
        return self.listing(listing) if self.listing else listing


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, headers=None, body=b""):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        hub.requests.append((self.server.kind, self.command, self.path, dict(self.headers.items())))
        try:
            hub.answer(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class Hub:
    def __init__(self):
        self.repositories, self.requests, self.ranges, self.answers = {}, [], True, []
        self.servers = []
        for kind in ("hub", "store"):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.daemon_threads, server.hub, server.kind = True, self, kind
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)
        self.url, self.store_url = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def close(self):
        for repository in self.repositories.values():
            for file in repository.files.values():
                file.release.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, name, files, **more):
        self.repositories[name] = Repository(files, **more)
        return self.repositories[name]

    def files_asked(self, kind="hub"):
        """The names of the files of which the bytes were asked for, in sequence."""
        found = [re.search(r"/resolve/\w+/(.*)|/bytes/[\w.-]+/[\w.-]+/(.*)", path) for k, method, path, _ in self.requests if k == kind and method == "GET"]
        return [urllib.parse.unquote(match[1] or match[2]) for match in found if match]

    # ---- answers --------------------------------------------------------------------------------------------------

    def answer(self, handler):
        if self.answers:
            status, headers = self.answers.pop(0)
            return handler.answer(status, headers)
        url = urllib.parse.urlsplit(handler.path)
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        if handler.server.kind == "store":
            return self.send_file(handler, self.repositories["/".join(parts[1:3])].files["/".join(parts[3:])])
        api = parts[:2] == ["api", "models"]
        name, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        repository = self.repositories.get(name)
        if repository is None:
            return handler.answer(404, {"X-Error-Code": "RepoNotFound"})
        revision = rest[1]
        if revision not in repository.revisions | {repository.commit}:
            return handler.answer(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        if api:
            return handler.answer(200, {"Content-Type": "application/json"}, json.dumps(repository.describe()).encode())
        if repository.token and handler.headers.get("Authorization") != f"Bearer {repository.token}":
            return handler.answer(401, {"X-Error-Code": "GatedRepo"} if repository.error_code is None else {"X-Error-Code": repository.error_code})
        self.resolve(handler, repository, name, "/".join(rest[2:]))

    def resolve(self, handler, repository, name, path):
        file = repository.files.get(path)
        if file is None:
            return handler.answer(404, {"X-Error-Code": "EntryNotFound"})
        if not file.large:
            return self.send_file(handler, file, {"ETag": f'"{file.etag}"', "X-Repo-Commit": repository.commit})
        fields = {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.data)), "X-Repo-Commit": repository.commit,
                  "Location": f"{self.store_url}/bytes/{name}/{urllib.parse.quote(path)}"}
        handler.answer(302, fields)

    def send_file(self, handler, file, fields=None):
        if file.answers:
            status, headers = file.answers.pop(0)
            return handler.answer(status, headers)
        data, status, fields = file.sent, 200, dict(fields or {})
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        if asked and self.ranges:
            first, last = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
            if first >= len(data):
                return handler.answer(416, {"Content-Range": f"bytes */{len(data)}"})
            fields["Content-Range"], status = f"bytes {first}-{last}/{len(data)}", 206
            data = data[first:last + 1]
        handler.send_response(status)
        for name, value in {**fields, "Content-Length": str(len(data))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        cut = file.cuts.pop(0) if file.cuts else None
        if file.held_after is not None:
            handler.wfile.write(data[:file.held_after])
            handler.wfile.flush()
            file.held.set()
            file.release.wait(WAIT_S)
            data = data[file.held_after:]
        if cut is None:
            handler.wfile.write(data)
        else:
            handler.wfile.write(data[:cut])
            handler.wfile.flush()
            handler.close_connection = True


@contextlib.contextmanager
def running_hub():
    with contextlib.closing(Hub()) as hub:
        yield hub


def environment(hub, home, **more):
    """The variables of a process that pulls from `hub` into a cache below `home`, and of nothing else of this user."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING")) and name.lower() not in ("http_proxy", "https_proxy", "all_proxy")}
    return {**clean, "HF_ENDPOINT": hub.url if hub else "", "HF_HOME": str(home), "HOME": str(home), **more}


def millrace(hub, home, *arguments, **more):
    """(exit code, standard output, standard error) of a command."""
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S, env=environment(hub, home, **more))
    return done.returncode, done.stdout, done.stderr


def folder_files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file()}


def cache_of(home, name):
    return pathlib.Path(home) / "hub" / ("models--" + name.replace("/", "--"))
