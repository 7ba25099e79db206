"""What goes wrong between `millrace pull` and a hub: each fault ends in one message with the value seen and the value wanted, or is mended, and what
has arrived is never lost nor taken on trust."""
import json
import os
import signal
import ssl
import subprocess
import urllib.parse

import pytest

from harness import DEMO, WAIT_S, program, wait_until
from hub_server import File, cache_of, environment, folder_files, millrace, running_hub

NAME = "tiny-org/tiny-stories"
WEIGHTS = "model.safetensors"
MIB = 1 << 20


@pytest.fixture
def hub():
    with running_hub() as running:
        running.add(NAME, {name: data for name, data in folder_files(DEMO).items() if name != "README.md"})
        yield running


@pytest.fixture
def weights(hub):
    return hub.repositories[NAME].files[WEIGHTS]


def pulled(hub, home):
    """The files of a complete pull."""
    return folder_files(cache_of(home, NAME) / "snapshots" / hub.repositories[NAME].commit)


def expect_whole(hub, home):
    code, _, err = millrace(hub, home, "pull", NAME)
    assert code == 0, err
    assert pulled(hub, home) == {name: file.data for name, file in hub.repositories[NAME].files.items()}
    assert not list(cache_of(home, NAME).rglob("*.incomplete"))
    return err


def expect_error(hub, home, code, *parts, **more):
    seen, _, err = millrace(hub, home, "pull", NAME, **more)
    assert seen == code, err
    line = next(line for line in err.splitlines() if line.startswith("millrace: error:"))
    for part in parts:
        assert part in line, line
    assert not (cache_of(home, NAME) / "refs").exists()
    return err


def incomplete(hub, home):
    return cache_of(home, NAME) / "blobs" / (hub.repositories[NAME].files[WEIGHTS].etag + ".incomplete")


def ranges_of(hub, kind="store"):
    return [headers.get("Range") for k, method, _, headers in hub.requests if k == kind and method == "GET"]


def test_a_cut_connection_goes_on_where_it_was(hub, weights, tmp_path):
    weights.cuts = [3 * MIB, 2 * MIB]
    err = expect_whole(hub, tmp_path)
    assert ranges_of(hub) == [None, f"bytes={3 * MIB}-", f"bytes={5 * MIB}-"]
    assert "trying again" in err


def test_a_server_without_ranges_is_read_from_the_beginning(hub, weights, tmp_path):
    hub.ranges = False
    weights.cuts = [3 * MIB]
    expect_whole(hub, tmp_path)
    assert ranges_of(hub) == [None, f"bytes={3 * MIB}-"]


def test_a_server_without_ranges_takes_nothing_away(hub, weights, tmp_path):
    hub.ranges = False
    weights.cuts = [3 * MIB] + [MIB] * 10
    expect_error(hub, tmp_path, 1, "attempts")
    assert incomplete(hub, tmp_path).read_bytes() == weights.data[:3 * MIB]
    weights.cuts = []
    expect_whole(hub, tmp_path)


@pytest.mark.parametrize("fault", [400, 410, "redirect", "length"])
def test_a_fault_that_says_nothing_about_the_bytes_keeps_what_came(hub, weights, tmp_path, fault):
    weights.cuts = [3 * MIB] + [0] * 10
    expect_error(hub, tmp_path, 1, "attempts")
    weights.cuts = []
    if fault == "length":  # a captive portal: a page, whatever was asked for
        weights.sent, hub.ranges = b"Please log in.", False
        expect_error(hub, tmp_path, 2, "sends 14 bytes", str(len(weights.data)))
        weights.sent, hub.ranges = weights.data, True
    else:
        weights.answers = [(302, {"Location": "ftp://127.0.0.1/x"}) if fault == "redirect" else (fault, {})] * 2
        expect_error(hub, tmp_path, 2, "redirects to" if fault == "redirect" else f"the hub answered {fault}")
        weights.answers = []
    assert incomplete(hub, tmp_path).read_bytes() == weights.data[:3 * MIB]
    hub.requests.clear()
    expect_whole(hub, tmp_path)
    assert ranges_of(hub) == [f"bytes={3 * MIB}-"]


def test_cuts_without_progress_end(hub, weights, tmp_path):
    weights.cuts = [3 * MIB] + [1000] * 10
    expect_error(hub, tmp_path, 1, NAME, "5 attempts were made")
    assert incomplete(hub, tmp_path).stat().st_size == 3 * MIB + 4 * 1000  # the first cut came behind progress
    weights.cuts = []
    hub.requests.clear()
    expect_whole(hub, tmp_path)
    assert ranges_of(hub) == [f"bytes={3 * MIB + 4000}-"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_passing_statuses_are_tried_again(hub, weights, tmp_path, status):
    weights.answers = [(status, {"Retry-After": "1"})]
    hub.answers = [(status, {})]
    err = expect_whole(hub, tmp_path)
    assert err.count(f"the hub answered {status}") == 2 and "trying again in 1.0 s" in err, err


def test_tries_are_bounded(hub, weights, tmp_path):
    weights.answers = [(503, {})] * 20
    expect_error(hub, tmp_path, 1, WEIGHTS, "503", "5 attempts were made")
    assert len(weights.answers) == 15


def test_a_long_retry_after_is_refused(hub, weights, tmp_path):
    weights.answers = [(429, {"Retry-After": "86400"})]
    expect_error(hub, tmp_path, 1, "429", "86400", "wanted at most 300 s")


def test_no_hub_at_all(hub, tmp_path):
    hub.close()
    expect_error(hub, tmp_path, 1, hub.url, "5 attempts were made")


def test_a_gated_model_wants_a_token(hub, tmp_path):
    hub.repositories[NAME].token = "hf_secret"
    expect_error(hub, tmp_path, 1, "401", "access is restricted", "HF_TOKEN")
    err = expect_error(hub, tmp_path, 1, "401", "HF_TOKEN", HF_TOKEN="hf_wrong")
    assert "hf_wrong" not in err
    code, _, err = millrace(hub, tmp_path, "pull", NAME, HF_TOKEN="hf_secret")
    assert code == 0 and "hf_secret" not in err, err


def test_the_token_goes_to_the_hub_alone(hub, tmp_path):
    hub.repositories[NAME].token = "hf_secret"
    (tmp_path / "token").write_text("hf_secret\n")  # where the Hugging Face tools keep it
    expect_whole(hub, tmp_path)
    seen = {kind: {headers.get("Authorization") for k, _, _, headers in hub.requests if k == kind} for kind in ("hub", "store")}
    assert seen == {"hub": {"Bearer hf_secret"}, "store": {None}}


def test_a_token_with_a_line_break_is_no_header(hub, tmp_path):
    expect_error(hub, tmp_path, 2, "HF_TOKEN", HF_TOKEN="a\r\nX-Evil: 1")
    assert hub.requests == []


def test_no_such_model(hub, tmp_path):
    del hub.repositories[NAME]
    code, _, err = millrace(hub, tmp_path, "pull", NAME)
    assert code == 2 and "404" in err and "no such model" in err
    assert not cache_of(tmp_path, NAME).exists()


def test_wrong_bytes_are_removed(hub, weights, tmp_path):
    weights.sent = weights.data[:-1] + bytes([weights.data[-1] ^ 1])
    expect_error(hub, tmp_path, 2, WEIGHTS, File(weights.sent).sha256, weights.sha256)
    assert not incomplete(hub, tmp_path).exists()
    weights.sent = weights.data
    expect_whole(hub, tmp_path)


def test_wrong_bytes_of_a_small_file(hub, tmp_path):
    config = hub.repositories[NAME].files["config.json"]
    config.sent = config.data.replace(b"1", b"2", 1)
    expect_error(hub, tmp_path, 2, "config.json", File(config.sent).blob_id, config.blob_id)


def test_a_spoilt_beginning_is_noticed(hub, weights, tmp_path):
    weights.cuts = [3 * MIB] + [0] * 10
    expect_error(hub, tmp_path, 1, "attempts")
    with open(incomplete(hub, tmp_path), "r+b") as file:
        file.write(b"spoilt")
    weights.cuts = []
    hub.requests.clear()
    err = expect_whole(hub, tmp_path)
    assert weights.sha256 in err and "from the beginning" in err
    assert ranges_of(hub) == [f"bytes={3 * MIB}-", None]


@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_size(hub, weights, tmp_path, change):
    weights.sent = weights.data[:change] if change < 0 else weights.data + b"x"
    expect_error(hub, tmp_path, 2, str(len(weights.sent)), str(len(weights.data)))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a//b", ".", "a\\b", "x" * 300, "a\nb", ""])
def test_hostile_file_names(hub, tmp_path, name):
    hub.repositories[NAME].listing = lambda listing: {**listing, "siblings": [*listing["siblings"], {"rfilename": name, "size": 1, "blobId": "a" * 40}]}
    expect_error(hub, tmp_path, 2, "a file is named", "wanted a path")
    assert hub.files_asked() == []


@pytest.mark.parametrize("change,parts", [
    (lambda listing: {**listing, "sha": "../../x"}, ("sha", "../../x", "40 hexadecimal digits")),
    (lambda listing: {**listing, "siblings": 3}, ("siblings",)),
    (lambda listing: [], ("array", "wanted an object")),
    (lambda listing: {**listing, "siblings": [{"rfilename": "model.safetensors", "size": 1, "blobId": "../../x"}]}, ("../../x", "checksum")),
    (lambda listing: {**listing, "siblings": [{"rfilename": "model.safetensors", "size": -1, "blobId": "a" * 40}]}, ("size is -1",)),
    (lambda listing: {**listing, "siblings": [{"rfilename": "pytorch_model.bin", "size": 1, "blobId": "a" * 40}]}, (".bin", "model.safetensors"))])
def test_hostile_listings(hub, tmp_path, change, parts):
    hub.repositories[NAME].listing = change
    expect_error(hub, tmp_path, 2, *parts)


def test_a_listing_without_checksums_is_completed_by_the_files_fields(hub, tmp_path):
    hub.repositories[NAME].listing = lambda listing: {**listing, "siblings": [{"rfilename": one["rfilename"]} for one in listing["siblings"]]}
    expect_whole(hub, tmp_path)
    heads = {urllib.parse.unquote(path.rsplit("/", 1)[1]) for kind, method, path, _ in hub.requests if method == "HEAD" and kind == "hub"}
    assert WEIGHTS in heads and "config.json" in heads


def test_a_redirect_within_the_hub_has_other_fields_than_the_file(hub, tmp_path):
    """As of a repository with a new name. The size is compared with what is pulled."""
    hub.repositories[NAME].listing = lambda listing: {**listing, "siblings": [{"rfilename": one["rfilename"]} for one in listing["siblings"]]}
    repository = hub.repositories[NAME]
    redirect = {"Location": f"/{NAME}/resolve/{repository.commit}/config.json", "ETag": '"' + "b" * 40 + '"', "Content-Type": "text/plain"}
    repository.files["config.json"].answers = [(307, redirect)]
    expect_whole(hub, tmp_path)


def start(hub, home):
    return subprocess.Popen([program(), "pull", NAME], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(hub, home))


def test_an_interrupted_pull_goes_on(hub, weights, tmp_path):
    weights.held_after = 3 * MIB
    with start(hub, tmp_path) as process:
        assert weights.held.wait(WAIT_S)
        wait_until(lambda: incomplete(hub, tmp_path).exists() and incomplete(hub, tmp_path).stat().st_size == 3 * MIB, "3 MiB")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1 and "what has arrived is kept" in err, err
    weights.held_after = None
    weights.release.set()
    assert not (cache_of(tmp_path, NAME) / "refs").exists()
    code, out, _ = millrace(hub, tmp_path, "list")
    assert code == 0 and f"{NAME}" in out and "incomplete" in out
    hub.requests.clear()
    expect_whole(hub, tmp_path)
    assert ranges_of(hub) == [f"bytes={3 * MIB}-"]
    assert "incomplete" not in millrace(hub, tmp_path, "list")[1]


def test_a_killed_pull_goes_on(hub, weights, tmp_path):
    weights.held_after = 3 * MIB
    with start(hub, tmp_path) as process:
        assert weights.held.wait(WAIT_S)
        wait_until(lambda: incomplete(hub, tmp_path).exists() and incomplete(hub, tmp_path).stat().st_size == 3 * MIB, "3 MiB")
        process.kill()
        process.communicate(timeout=WAIT_S)
    weights.held_after = None
    weights.release.set()
    hub.requests.clear()
    expect_whole(hub, tmp_path)
    assert ranges_of(hub) == [f"bytes={3 * MIB}-"]


def test_two_pulls_at_once_get_each_file_once(hub, weights, tmp_path):
    weights.held_after = 3 * MIB
    with start(hub, tmp_path) as first:
        assert weights.held.wait(WAIT_S)
        with start(hub, tmp_path) as second:
            line = second.stderr.readline()
            while "another process is getting it" not in line:
                assert line, "the second pull ended"
                line = second.stderr.readline()
            code, _, err = millrace(hub, tmp_path, "rm", NAME)
            assert code == 1 and "it is being pulled" in err
            weights.release.set()
            for process in (first, second):
                _, err = process.communicate(timeout=WAIT_S)
                assert process.returncode == 0, err
    assert hub.files_asked("store").count(WEIGHTS) == 1
    assert pulled(hub, tmp_path)[WEIGHTS] == weights.data


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 80 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={80 * MIB}", "tmpfs", str(folder)], capture_output=True).returncode != 0:
        pytest.skip("this user mounts nothing")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_noticed_before(hub, weights, small_disk):
    (small_disk / "other").write_bytes(bytes(10 * MIB))
    expect_error(hub, small_disk, 1, str(sum(len(f.data) for f in hub.repositories[NAME].files.values())), "are free", "HF_HUB_CACHE")
    assert hub.files_asked() == []


def test_a_disk_that_fills_up_keeps_what_came(hub, weights, small_disk):
    weights.held_after = 3 * MIB
    with start(hub, small_disk) as process:
        assert weights.held.wait(WAIT_S)
        with open(small_disk / "other", "wb") as other:
            with pytest.raises(OSError):
                while True:
                    other.write(bytes(MIB))
                    other.flush()
        weights.release.set()
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1 and "No space left on device" in err and "bytes are kept" in err, err
    assert incomplete(hub, small_disk).stat().st_size >= 3 * MIB
    os.unlink(small_disk / "other")
    weights.held_after = None
    expect_whole(hub, small_disk)


def test_redirects_end(hub, weights, tmp_path):
    weights.answers = [(302, {"Location": f"{hub.store_url}/bytes/{NAME}/{WEIGHTS}"})] * 20
    expect_error(hub, tmp_path, 2, "redirects more than 5 times")
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/x"):
        weights.answers = [(302, {"Location": target})]
        expect_error(hub, tmp_path, 2, "redirects to", target)


def test_an_index_that_names_files_elsewhere(hub, tmp_path):
    files = hub.repositories[NAME].files
    del files[WEIGHTS]
    for shard in ("../../evil.safetensors", "missing.safetensors"):
        files["model.safetensors.index.json"] = File(json.dumps({"weight_map": {"a": shard}}).encode())
        expect_error(hub, tmp_path, 2, shard)


def test_a_certificate_that_fails_is_no_passing_fault(hub, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out",
                    str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = hub.servers[0]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    expect_error(hub, tmp_path, 2, "certificate", HF_ENDPOINT=hub.url.replace("http:", "https:"), HF_TOKEN="hf_secret")
    assert hub.requests == []
