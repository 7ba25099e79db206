"""The page at /: its files over HTTP, its modules in node, and the page itself in headless Chromium."""
import gzip
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from harness import DEMO, ROOT, Server, wait_until
from omni_model import speaking_model
from vision_model import vision_model

FOLDER = pathlib.Path(__file__).resolve().parent / "web"
LIMIT_S = 900  # of a hung script; no test waits for it


def raw(server, path, headers=None, method="GET"):
    connection = server.connection()
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_every_file_that_the_page_names_is_served(server):
    pages, seen = ["/"], {}
    while pages:
        path = pages.pop()
        response, body = raw(server, path)
        assert response.status == 200, path
        seen[path] = body
        source = ROOT / "web" / ("index.html" if path == "/" else path.removeprefix("/web/"))
        assert body == source.read_bytes(), path
        kind = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
        assert response.getheader("Content-Type") == kind[source.suffix], path
        if "/vendor/" not in path:
            text = body.decode()
            found = re.findall(r'(?:href|src)="(/web/[^"]+)"', text)
            found += [str(pathlib.PurePosixPath("/web") / name) for name in re.findall(r"(?:from|import) '\./([^']+)'", text)]
            pages += [name for name in found if name not in seen]
    assert len(seen) > 10


def test_the_wire_is_small_and_asked_for_once(server):
    total = 0
    for file in sorted((ROOT / "web").rglob("*")):
        if file.suffix not in {".html", ".css", ".js", ".svg"}:
            continue
        path = "/" if file.name == "index.html" else f"/web/{file.relative_to(ROOT / 'web')}"
        response, body = raw(server, path, {"Accept-Encoding": "gzip"})
        assert response.getheader("Content-Encoding") == "gzip"
        assert gzip.decompress(body) == file.read_bytes()
        total += len(body)
        tag = response.getheader("ETag")
        again, nothing = raw(server, path, {"Accept-Encoding": "gzip", "If-None-Match": tag})
        assert (again.status, nothing, again.getheader("ETag")) == (304, b"", tag)
        head, nothing = raw(server, path, {"Accept-Encoding": "gzip"}, "HEAD")
        assert (head.status, nothing, head.getheader("Content-Length")) == (200, b"", str(len(body)))
    assert total < 90_000


def test_no_web_leaves_the_api_alone():
    with Server("--no-web") as server:
        response, body = raw(server, "/", {"Accept": "text/html"})
        assert response.status == 200 and response.getheader("Content-Type").startswith("text/plain") and b"serves demo" in body
        assert raw(server, "/web/app.js")[0].status == 404
        assert "browser" not in server.output()


def test_the_address_can_be_clicked_and_an_open_server_is_named():
    with Server("--host", "0.0.0.0") as server:
        assert server.host == "127.0.0.1"
        for words in (f"Chat in a browser: http://127.0.0.1:{server.port}/", "--host 0.0.0.0 without --api-key"):
            wait_until(lambda words=words: words in server.output(), words)
    with Server("--host", "0.0.0.0", "--api-key", "secret") as server:
        assert "without --api-key" not in server.output()


def test_vendored_modules_are_those_of_the_packages():
    result = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=ROOT / "web" / "vendor", capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    names = {line.split()[1] for line in (ROOT / "web" / "vendor" / "SHA256SUMS").read_text().splitlines()}
    assert names == {file.name for file in (ROOT / "web" / "vendor").glob("*.js")}


def node(script, **env):
    result = subprocess.run(["node", "--test", script], cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **env})
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_modules_in_node():
    node("modules.test.mjs")
    node("live.test.mjs")


@pytest.fixture(scope="module")
def pages(server):
    """What the tests in a browser get: where it is, and the addresses of a server without and of one with a key."""
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is not installed; wanted: apt-get install chromium, as scripts/test --ci does")
    if not (FOLDER / "node_modules" / "puppeteer-core").is_dir():
        pytest.fail("tests/e2e/web/node_modules is missing; wanted: ./scripts/test, which installs it")
    with Server("--api-key", "secret") as with_key:
        url = "http://{0.host}:{0.port}"
        yield {"MILLRACE_CHROMIUM": chromium, "MILLRACE_URL": url.format(server), "MILLRACE_KEY_URL": url.format(with_key)}


def test_the_page_in_a_browser(pages):
    node("browser.test.mjs", **pages)


def test_pictures_in_a_browser(pages, tmp_path):
    with Server(model=vision_model(tmp_path / "vision")) as vision:
        node("pictures.browser.test.mjs", **pages, MILLRACE_VISION_URL=f"http://{vision.host}:{vision.port}")


def test_sounds_in_a_browser(pages, tmp_path):
    with Server(model=speaking_model(tmp_path / "speaker")) as speaker:
        node("sounds.browser.test.mjs", **pages, MILLRACE_SPEECH_URL=f"http://{speaker.host}:{speaker.port}")


def test_several_models_in_a_browser(pages, tmp_path):
    for name in ("tiny", "org/other", "broken"):
        (tmp_path / name).mkdir(parents=True)
        for file in DEMO.iterdir():
            if name != "broken" or file.name != "model.safetensors":
                (tmp_path / name / file.name).symlink_to(file.resolve())
    with Server("--models-dir", str(tmp_path), "--threads", "1", model=None) as several:
        node("models.browser.test.mjs", **pages, MILLRACE_MODELS_URL=f"http://{several.host}:{several.port}")


def test_the_live_view_in_a_browser(pages):
    node("live.browser.test.mjs", **pages)


def test_panels_of_models_in_several_processes(pages):
    with Server("--pp", "2") as split, Server("--prefill", "1", "--decode", "1", "--min-remote-tokens", "16") as apart:
        urls = {name: f"http://{one.host}:{one.port}" for name, one in (("MILLRACE_SPLIT_URL", split), ("MILLRACE_APART_URL", apart))}
        node("live-panels.browser.test.mjs", **pages, **urls)


def test_the_pictures_of_the_readme(pages, tmp_path):
    """Taken, and looked at for what is cut or lies over each other. MILLRACE_PICTURES=docs/img writes them where README.md has them."""
    folder = pathlib.Path(os.environ.get("MILLRACE_PICTURES", tmp_path)).resolve()
    with Server("--kv-gib", "0.06") as busy:
        node("readme.browser.test.mjs", **pages | {"MILLRACE_URL": f"http://{busy.host}:{busy.port}", "MILLRACE_PICTURES": str(folder)})
    assert {f"{name}{dark}.webp" for name in ("chat", "live") for dark in ("", "-dark")} <= {file.name for file in folder.iterdir()}
