"""Pictures and audio by URL: http: from domains that an option allows, file: below a folder; the answers are those of data: URLs, and nothing else
on this host or its networks can be reached."""
import contextlib
import http.server
import json
import os
import socket
import ssl
import subprocess
import threading

import pytest

import omni_model
from harness import Server, placement, program, wait_until
from vision_model import picture, served, vision_model

CHAT, MESSAGES, COUNT, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
UNREACHABLE = "could not be reached; wanted a server that answers"


class Pictures(http.server.ThreadingHTTPServer):
    """A server of the pictures and clips of the golden data, and of paths that behave badly."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen, self.closed, self.stopped = [], threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    def url(self, name, host="127.0.0.1"):
        return f"http://{host}:{self.server_address[1]}/{name}"

    def end(self):
        self.stopped.set()
        self.shutdown()
        self.thread.join()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.seen.append(self.path)
        name = self.path.strip("/").split("?")[0]
        if name == "redirect":
            self.send_response(302)
            self.send_header("Location", "/photo.jpg")
            self.end_headers()
        elif name == "slow":
            self.wait_for_the_end()
        elif name == "short":
            self.answer(picture("photo.jpg")[:100], 200)
        elif name == "endless":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not self.server.stopped.is_set():
                    self.wfile.write(b"x" * 65536)
        elif name.endswith(".wav"):
            self.answer(omni_model.clip(name))
        elif name == "page":
            self.answer(b"<html>a secret page</html>")
        elif name in ("photo.jpg", "gradient.png", "tall.webp"):
            self.answer(picture(name))
        else:
            self.send_error(404)

    def answer(self, data, more=0):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) + more))
        self.end_headers()
        self.wfile.write(data)

    def wait_for_the_end(self):
        self.connection.settimeout(0.05)
        while not self.server.stopped.is_set():
            with contextlib.suppress(TimeoutError):
                if self.connection.recv(1) == b"":
                    return self.server.closed.set()


@pytest.fixture(scope="module")
def pictures():
    running = Pictures()
    yield running
    running.end()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return vision_model(tmp_path_factory.mktemp("vision") / "vl")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "below").mkdir()
    (root / "below" / "a photo.jpg").write_bytes(picture("photo.jpg"))
    (root / "gradient.png").write_bytes(picture("gradient.png"))
    (root / "tall.webp").write_bytes(picture("tall.webp"))
    (root / "link.png").symlink_to(root / "gradient.png")
    (root / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture(scope="module")
def vision(folder, root):
    options = ("--media-allowed-domains", "127.0.0.1", "--media-allowed-domains", "localhost", "--media-allow-private-networks",
               "--media-root", str(root))
    with Server(*options, model=folder) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def chat_body(url, **more):
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]}],
            "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


def refused(server, url, status=400):
    seen, _, answer = server.post(CHAT, chat_body(url))
    assert seen == status, answer
    return answer["error"]["message"]


def by_url(pictures, part):
    return pictures.url(part) if part.rsplit(".", 1)[-1] in ("png", "jpg", "webp") else None


@pytest.mark.parametrize("one", [one for one in served()["conversations"] if all(not part.endswith((".png", ".jpg", ".webp")) or
                                 part in ("photo.jpg", "gradient.png", "tall.webp") for part in one["parts"])], ids=lambda one: one["parts"][0][:20])
def test_answers_are_those_of_transformers(vision, pictures, one):
    system = served()["system"]
    url = {part: by_url(pictures, part) for part in one["parts"]}
    options = {"temperature": 0, "ignore_eos": True}
    content = [{"type": "image_url", "image_url": {"url": url[part]}} if url[part] else {"type": "text", "text": part} for part in one["parts"]]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    status, _, answer = vision.post(CHAT, {"messages": messages, "max_tokens": 16, **options})
    assert status == 200 and answer["choices"][0]["message"]["content"] == one["text"], answer
    assert vision.post("/tokenize", {"messages": messages})[2]["tokens"] == one["prompt"]
    content = [{"type": "image", "source": {"type": "url", "url": url[part]}} if url[part] else {"type": "text", "text": part} for part in one["parts"]]
    body = {"system": system, "messages": [{"role": "user", "content": content}], "max_tokens": 16, **options}
    status, _, answer = vision.post(MESSAGES, body)
    assert status == 200 and answer["content"][0]["text"] == one["text"], answer
    assert vision.post(COUNT, body)[2] == {"input_tokens": len(one["prompt"])}
    content = [{"type": "input_image", "image_url": url[part]} if url[part] else {"type": "input_text", "text": part} for part in one["parts"]]
    body = {"instructions": system, "input": [{"role": "user", "content": content}], "max_output_tokens": 16, **options}
    status, _, answer = vision.post(RESPONSES, body)
    assert status == 200 and answer["output"][0]["content"][0]["text"] == one["text"], answer


def test_files_below_the_folder_are_read(vision, pictures, root):
    wanted = vision.post(CHAT, chat_body(pictures.url("photo.jpg")))[2]["choices"]
    answer = vision.post(CHAT, chat_body(f"file://{root}/below/a%20photo.jpg"))[2]
    assert answer["choices"] == wanted
    none = "messages[0].content[0].image_url.url: there is no such regular file below --media-root, or it is a link"
    for name in ("missing.png", "link.png", "passwd", "pipe", "below", "below/../gradient.png"):
        assert refused(vision, f"file://{root}/{name}") == none, name
    for url in ("file:///etc/passwd", f"file://{root}", f"file://{root}/../passwd", f"file://{root}x/a"):
        assert "--media-root" in refused(vision, url), url
    assert "is no path of a file" in refused(vision, f"file://evil.example{root}/gradient.png")


def test_what_is_not_allowed_is_refused_by_name(vision, pictures):
    port = pictures.server_address[1]
    before = len(pictures.seen)
    name = "messages[0].content[0].image_url.url: "
    assert refused(vision, "http://example.org/a.png") == name + "the URL's host is 'example.org'; wanted one of --media-allowed-domains"
    for url in (f"http://localhost@example.org:{port}/photo.jpg", f"http://example.org\\@localhost:{port}/photo.jpg",
                f"http://u:p@localhost:{port}/photo.jpg", f"http://[::1]:{port}/photo.jpg", f"http://[::ffff:127.0.0.1]:{port}/photo.jpg",
                f"http://0.0.0.0:{port}/photo.jpg", f"http://127.0.0.2:{port}/photo.jpg", f"http://localhost.example.org:{port}/photo.jpg",
                f"http://localhost%2eexample.org:{port}/", "ftp://localhost/a", "gopher://localhost/", "http:///photo.jpg", "photo.jpg", "",
                f"http://localhost:{port}/a b", f"http://localhost:{port}/é", "http://localhost/" + "a" * 9000):
        assert refused(vision, url).startswith(name), url
    assert len(pictures.seen) == before, "nothing was connected to"


def test_addresses_have_one_meaning(vision, pictures):
    """Decimal, octal and hexadecimal forms are the address that they are, which is allowed here."""
    port = pictures.server_address[1]
    wanted = vision.post(CHAT, chat_body(pictures.url("photo.jpg")))[2]["choices"]
    for host in ("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "LOCALHOST"):
        status, _, answer = vision.post(CHAT, chat_body(f"http://{host}:{port}/photo.jpg"))
        assert status == 200 and answer["choices"] == wanted, (host, answer)


def test_private_addresses_cannot_be_reached_without_the_option(folder, pictures):
    """Whatever their form, and also behind a name that is allowed: the answer does not show that something listens there."""
    port = pictures.server_address[1]
    before = len(pictures.seen)
    domains = ("localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254")
    options = [word for domain in domains for word in ("--media-allowed-domains", domain)]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        closed = probe.getsockname()[1]
    with Server(*options, model=folder) as server:
        for host in (*(f"[{domain}]" if ":" in domain else domain for domain in domains), "2130706433", "0x7f.1", "0177.0.0.1"):
            found = refused(server, f"http://{host}:{port}/photo.jpg")
            assert UNREACHABLE in found, found
        assert refused(server, f"http://localhost:{port}/a") == refused(server, f"http://localhost:{closed}/a")
        wait_until(lambda: "its address is not public" in server.output(), "the reason in the log")
    assert len(pictures.seen) == before


def test_servers_that_behave_badly(vision, pictures):
    name = "messages[0].content[0].image_url.url: "
    assert refused(vision, pictures.url("redirect")) == name + "its server answered 302; wanted 200: redirects are not followed"
    assert refused(vision, pictures.url("missing")) == name + "its server answered 404; wanted 200"
    assert refused(vision, pictures.url("short")) == name + "its server broke off; wanted all that it announced"
    assert "over 33554432 bytes" in refused(vision, pictures.url("endless"))
    found = refused(vision, pictures.url("page"))
    assert "messages[0].content[0]" in found and "secret" not in found


def test_a_slow_server_holds_up_nobody_and_a_hang_up_ends_it(vision, pictures):
    """While a fetch waits, other requests are answered; a client that leaves ends it long before its time limit."""
    pictures.closed.clear()
    connection = vision.connection()
    connection.request("POST", CHAT, json.dumps(chat_body(pictures.url("slow"))), {"Content-Type": "application/json"})
    wait_until(lambda: "/slow" in pictures.seen, "the fetch")
    assert vision.post(CHAT, chat_body(pictures.url("photo.jpg")))[0] == 200
    assert not pictures.closed.is_set()
    connection.close()
    assert pictures.closed.wait(60), "the fetch went on"


def test_nothing_is_fetched_for_a_request_that_is_refused(vision, pictures):
    before = len(pictures.seen)
    url = pictures.url("photo.jpg")
    for more in ({"temperature": 9}, {"model": "other"}, {"mm_processor_kwargs": {}}, {"continue_final_message": True, "add_generation_prompt": True}):
        assert vision.post(CHAT, chat_body(url, **more))[0] in (400, 404), more
    many = chat_body(url)
    many["messages"][0]["content"] *= 65
    status, _, answer = vision.post(CHAT, many)
    assert status == 400 and "is one more than 64 pictures, audios and groups of frames" in answer["error"]["message"], answer
    assert len(pictures.seen) == before


def test_a_url_is_fetched_once_for_a_request(vision, pictures):
    pictures.seen.clear()
    body = chat_body(pictures.url("gradient.png"))
    body["messages"][0]["content"] *= 3
    assert vision.post(CHAT, body)[0] == 200
    assert pictures.seen == ["/gradient.png"]


def test_audio_comes_by_url_too(tmp_path, pictures):
    one = next(one for one in omni_model.served()["conversations"] if any(part.endswith(".wav") for part in one["parts"]))
    parts = []
    for part in one["parts"]:
        if part.endswith(".wav"):
            parts.append({"type": "audio_url", "audio_url": {"url": pictures.url(part)}})
        else:
            parts.append(omni_model.part_of(part))
    messages = [{"role": "system", "content": omni_model.served()["system"]}] if "system" in omni_model.served() else []
    with Server("--media-allowed-domains", "127.0.0.1", "--media-allow-private-networks", model=omni_model.omni_model(tmp_path / "omni")) as omni:
        body = {"messages": [*messages, {"role": "user", "content": parts}], "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        status, _, answer = omni.post(CHAT, body)
        assert status == 200 and answer["choices"][0]["message"]["content"] == one["text"], answer


def run(*arguments):
    return subprocess.run([program(), "serve", "--port", "0", "--placement", placement(), *arguments], capture_output=True, text=True, timeout=120,
                          check=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of pictures.test, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=pictures.test", "-addext",
                    "subjectAltName=DNS:pictures.test", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")], check=True, capture_output=True,
                   timeout=60)
    (folder / "hosts").write_text("127.0.0.1 localhost pictures.test other.test\n")
    (folder / "trusted.pem").write_bytes((folder / "cert.pem").read_bytes())
    return folder


def inside(certificate, trusted):
    """What starts a program that finds its hosts in another file, and perhaps trusts another certificate: in mounts of its own."""
    mounts = f"mount --bind {certificate}/hosts /etc/hosts"
    if trusted:
        mounts += f" && mount --bind {certificate}/trusted.pem /etc/ssl/certs/ca-certificates.crt"
    return ("unshare", "--mount", "sh", "-c", mounts + ' && exec "$0" "$@"')


@pytest.mark.skipif(os.getuid() != 0, reason="mounts need root")
def test_names_are_looked_up_and_certificates_checked(folder, certificate):
    """A name of the hosts file that is this host; TLS with a certificate that the system trusts, and without."""
    secure, plain = Pictures(), Pictures()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    port = secure.server_address[1]
    names = ("--media-allowed-domains", "*.test", "--media-allowed-domains", "pictures.test")
    url = f"https://pictures.test:{port}/photo.jpg"
    with Server(*names, "--media-allow-private-networks", model=folder, prefix=inside(certificate, True)) as trusting:
        status, _, answer = trusting.post(CHAT, chat_body(url))
        assert status == 200, answer
        plainly = trusting.post(CHAT, chat_body(plain.url("photo.jpg", host="pictures.test")))
        assert plainly[0] == 200 and plainly[2]["choices"] == answer["choices"]
        assert UNREACHABLE in refused(trusting, url.replace("pictures.test", "other.test")), "the certificate is another name's"
        assert UNREACHABLE in refused(trusting, plain.url("photo.jpg", host="pictures.test").replace("http:", "https:")), "no TLS"
        assert UNREACHABLE in refused(trusting, "http://missing.test/photo.jpg")
    with Server(*names, "--media-allow-private-networks", model=folder, prefix=inside(certificate, False)) as strict:
        assert UNREACHABLE in refused(strict, url), "no certificate that is trusted"
    seen = len(plain.seen)
    with Server(*names, model=folder, prefix=inside(certificate, True)) as outside:
        assert UNREACHABLE in refused(outside, plain.url("photo.jpg", host="pictures.test")), "the name's address is this host's"
    assert len(plain.seen) == seen
    secure.end()
    plain.end()


@pytest.mark.parametrize("options, message", [
    (("--media-allowed-domains", "*"), "'*' is no domain; wanted a host such as example.com"),
    (("--media-allowed-domains", "http://example.com/"), "'http://example.com/' is no domain"),
    (("--media-root", "/no/such/folder"), "--media-root is '/no/such/folder'"),
    (("--media-allow-private-networks",), "--media-allowed-domains"),
])
def test_options_that_cannot_be(folder, options, message):
    result = run("--model", str(folder), *options)
    assert result.returncode != 0 and message in result.stdout + result.stderr, result


def test_a_text_model_has_no_use_for_them(tmp_path):
    result = run("--media-root", str(tmp_path), "--model", str(omni_model.DEMO))
    assert result.returncode != 0 and "--media-root has no use: the model 'demo' takes text only" in result.stdout + result.stderr, result
