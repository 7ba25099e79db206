"""Two servers that know nothing of each other, and a proxy that sends each request to both (examples/disaggregation/proxy.py); and what
a wrong, used, stale or foreign transfer id gives: never another prompt's text."""
import concurrent.futures
import json
import signal
import subprocess
import sys
import uuid

import pytest

from harness import DEMO, ROOT, TRIES, WAIT_S, Server, free_port, new_key, program, wait_until
from test_disaggregation import answer, body

PROXY = ROOT / "examples" / "disaggregation" / "proxy.py"
LEASE_S = 10  # kLeaseMs


class Pair:
    """A server that computes prompts (p), one that generates (d)."""

    def __init__(self, *more, of_d=()):
        self.p_port, self.d_port = free_port(), free_port()
        self.p = Server("--kv-transfer-listen", f"127.0.0.1:{self.p_port}", *more)
        self.d = Server("--kv-transfer-listen", f"127.0.0.1:{self.d_port}", *more, *of_d)

    def __enter__(self):
        self.p.__enter__()
        self.d.__enter__()
        return self

    def __exit__(self, *exception):
        self.d.__exit__(*exception)
        self.p.__exit__(*exception)

    def compute(self, i, transfer_id, **more):
        params = {"transfer_id": transfer_id, "do_remote_decode": True, "do_remote_prefill": False}
        return self.p.post("/generate", {**body(i, max_new_tokens=1), "kv_transfer_params": {**params, **more}})

    def generate(self, i, transfer_id, **more):
        params = {"transfer_id": transfer_id, "do_remote_decode": False, "do_remote_prefill": True,
                  "remote_host": "127.0.0.1", "remote_port": self.p_port, "remote_engine_id": None, "remote_block_ids": None}
        return self.d.post("/generate", {**body(i), "kv_transfer_params": {**params, **more}})


def new_id():
    return f"xfer-{uuid.uuid4()}"


@pytest.fixture(scope="module")
def colocated():
    with Server() as server:
        return [answer(server, i) for i in range(24)]


@pytest.fixture(scope="module")
def pair():
    with Pair() as pair:
        yield pair
        for server in (pair.p, pair.d):
            wait_until(server.all_pages_back, "rest")
            assert server.stop() == 0, server.output()


def said(answer_of_d):
    status, _, found = answer_of_d
    assert status == 200, found
    return (found["text"], found["meta_info"]["finish_reason"]), found["meta_info"]["transferred_tokens"]


def transferred(attempt):
    """What `attempt()`, which computes a prompt and then generates, gives when the pages came over: text, tokens. On a machine that is so busy
    that the one is not asked within a lease of the other, the prompt is computed once more."""
    for _ in range(TRIES):
        text, tokens = said(attempt())
        if tokens > 0:
            break
    assert tokens > 200
    return text


def test_the_proxy_gives_the_answers_of_one_server(colocated, pair):
    command = [sys.executable, "-B", str(PROXY), "--port", "0", "--prefill", f"http://127.0.0.1:{pair.p.port}",
               "--prefill-transfer", f"127.0.0.1:{pair.p_port}", "--decode", f"http://127.0.0.1:{pair.d.port}"]
    proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(proxy.stdout.readline().rsplit(":", 1)[1])

        def through_the_proxy(i, path="/generate", of=body):
            import http.client
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            connection.request("POST", path, json.dumps(of(i)), {"Content-Type": "application/json"})
            response = connection.getresponse()
            found = response.read()
            connection.close()
            assert response.status == 200, found
            return found

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = [json.loads(text) for text in pool.map(through_the_proxy, range(24))]
        assert [(one["text"], one["meta_info"]["finish_reason"]) for one in found] == colocated
        tokens = [(one["meta_info"]["transferred_tokens"], one["meta_info"]["cached_tokens"]) for one in found]
        # On a machine that stands still for a lease, a prompt is computed once more: then nothing of it is transferred.
        assert all(transferred == cached and (cached == 0 or cached > 200) for transferred, cached in tokens), (tokens, pair.p.output(), pair.d.output())
        assert any(transferred > 200 for transferred, _ in tokens), (pair.p.output(), pair.d.output())

        # Streams and chats pass through too.
        chat = {"messages": [{"role": "user", "content": "Tell me a story. " * 60}], "max_tokens": 16, "temperature": 0}
        whole = json.loads(through_the_proxy(0, "/v1/chat/completions", lambda _: chat))["choices"][0]["message"]["content"]
        events = through_the_proxy(0, "/v1/chat/completions", lambda _: {**chat, "stream": True}).decode().split("\n\n")
        chunks = [json.loads(event[6:])["choices"][0]["delta"].get("content") or "" for event in events if event.startswith("data: {")]
        assert "".join(chunks) == whole == pair.d.post("/v1/chat/completions", chat)[2]["choices"][0]["message"]["content"]
        # Several texts are the second server's alone.
        assert len(json.loads(through_the_proxy(0, of=lambda i: body(i, n=2)))) == 2
    finally:
        proxy.terminate()
        proxy.wait()


def test_the_want_may_come_first(colocated, pair):
    def wanted_first():
        pair.d.post("/flush_cache", {})
        transfer = new_id()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pair.generate, 1, transfer)
            wait_until(lambda: waiting.done() or pair.p.metrics()["millrace:kv_transfers_early"] == 1, "a want without its request")
            assert pair.compute(1, transfer)[0] == 200
            return waiting.result()

    assert transferred(wanted_first) == colocated[1]


def test_a_server_that_is_stopped_gives_the_pages_that_it_promised(colocated):
    def stopped_between():
        with Pair() as pair:
            transfer = new_id()
            assert pair.compute(3, transfer)[0] == 200
            pair.p.process.send_signal(signal.SIGTERM)
            wait_until(lambda: refuses(pair), "a server that takes no new request")
            found = pair.generate(3, transfer)
            assert pair.p.process.wait(WAIT_S) == 0, pair.p.output()
            return found

    def refuses(pair):
        try:
            return pair.compute(4, new_id())[0] == 503
        except OSError:  # the lease is over, and so is the server
            return True

    assert transferred(stopped_between) == colocated[3]


def test_pages_of_another_size_are_refused_with_both_values(colocated):
    """And the request is computed where it is generated."""
    with Pair(of_d=["--page-size", "32"]) as pair:
        transfer = new_id()
        assert pair.compute(5, transfer)[0] == 200
        assert said(pair.generate(5, transfer)) == (colocated[5], 0)
        wait_until(lambda: "the page size is 32 there and 16 here; wanted the same" in pair.d.output(), "the reason")


# ---- direct attacks on the server that generates: each is a recompute, or a 400

def test_an_unknown_id_is_a_recompute(colocated, pair):
    pair.d.post("/flush_cache", {})
    assert said(pair.generate(2, new_id())) == (colocated[2], 0)


def test_an_id_of_another_prompt_is_a_recompute(colocated, pair):
    pair.d.post("/flush_cache", {})
    transfer = new_id()
    assert pair.compute(3, transfer)[0] == 200
    assert said(pair.generate(4, transfer)) == (colocated[4], 0)


def test_pages_of_another_salt_are_not_given(colocated, pair):
    pair.d.post("/flush_cache", {})
    transfer = new_id()
    assert pair.compute(3, transfer)[0] == 200
    params = {"transfer_id": transfer, "do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": pair.p_port}
    status, _, found = pair.d.post("/generate", {**body(3), "cache_salt": "another tenant", "kv_transfer_params": params})
    assert status == 200 and found["text"] == colocated[3][0] and found["meta_info"]["transferred_tokens"] == 0


def test_a_used_id_is_a_400_that_names_it(colocated, pair):
    def used():
        nonlocal transfer
        pair.d.post("/flush_cache", {})
        transfer = new_id()
        assert pair.compute(5, transfer)[0] == 200
        return pair.generate(5, transfer)

    transfer = None
    assert transferred(used) == colocated[5]
    for again in (pair.generate(5, transfer), pair.generate(6, transfer), pair.compute(6, transfer)):
        assert again[0] == 400 and transfer in again[2]["error"]["message"], again


def test_pages_that_were_evicted_meanwhile_are_a_recompute(colocated, pair):
    pair.d.post("/flush_cache", {})
    transfer = new_id()
    assert pair.compute(7, transfer)[0] == 200
    assert pair.p.post("/flush_cache", {"timeout": 60})[0] == 200
    for i in range(8, 12):  # others have the pages now
        answer(pair.p, i)
    assert said(pair.generate(7, transfer)) == (colocated[7], 0)


def test_an_expired_lease_is_a_recompute(colocated, pair):
    pair.d.post("/flush_cache", {})
    transfer = new_id()
    assert pair.compute(12, transfer)[0] == 200
    wait_until(lambda: pair.p.metrics()["millrace:kv_leases"] == 1, "a lease")
    wait_until(lambda: pair.p.metrics()["millrace:kv_leases"] == 0, f"the lease's end, after {LEASE_S} s")
    assert said(pair.generate(12, transfer)) == (colocated[12], 0)


def test_a_server_that_is_not_there_is_a_recompute(colocated, pair):
    pair.d.post("/flush_cache", {})
    assert said(pair.generate(13, new_id(), remote_port=free_port())) == (colocated[13], 0)
    # Beyond loopback a server without a key does not go.
    assert said(pair.generate(14, new_id(), remote_host="192.0.2.1")) == (colocated[14], 0)


GOOD = {"transfer_id": "xfer-1", "do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1}


@pytest.mark.parametrize("params, wanted", [
    ({**GOOD, "transfer_id": None}, "kv_transfer_params.transfer_id is missing"),
    ({**GOOD, "transfer_id": "a b"}, "kv_transfer_params.transfer_id is 'a b'"),
    ({**GOOD, "transfer_id": "x" * 129}, "kv_transfer_params.transfer_id is"),
    ({**GOOD, "transfer_id": 5}, "kv_transfer_params.transfer_id"),
    ({**GOOD, "do_remote_decode": True}, "kv_transfer_params.do_remote_prefill is true"),
    ({**GOOD, "do_remote_prefill": False}, "kv_transfer_params.do_remote_prefill is false"),
    ({**GOOD, "remote_host": None}, "kv_transfer_params.remote_host is missing"),
    ({**GOOD, "remote_host": "a/b"}, "kv_transfer_params.remote_host"),
    ({**GOOD, "remote_port": 0}, "kv_transfer_params.remote_port"),
    ({**GOOD, "remote_port": None}, "kv_transfer_params.remote_port is missing"),
    ({**GOOD, "remote_block_ids": [1, 2]}, "kv_transfer_params.remote_block_ids"),
    ({**GOOD, "tp_size": 1}, "kv_transfer_params.tp_size is unknown"),
    ([], "kv_transfer_params is of type array"),
])
def test_bad_parameters_are_a_400_that_names_them(pair, params, wanted):
    for path, request in (("/generate", body(0)), ("/v1/completions", {"prompt": "a"}),
                          ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        status, _, found = pair.d.post(path, {**request, "kv_transfer_params": params})
        assert status == 400 and wanted in found["error"]["message"], (path, found)


def test_several_texts_have_no_transfer(pair):
    for path, request in (("/generate", body(0, n=2)), ("/v1/completions", {"prompt": ["a", "b"]}),
                          ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 2})):
        status, _, found = pair.d.post(path, {**request, "kv_transfer_params": GOOD})
        assert status == 400 and "kv_transfer_params is set in a request for 2 texts" in found["error"]["message"], found


def test_a_server_without_transfers_refuses_them():
    with Server() as server:
        status, _, found = server.post("/generate", {**body(0), "kv_transfer_params": GOOD})
        assert status == 400 and "--kv-transfer-listen" in found["error"]["message"], found


def test_a_key_is_wanted_at_both_ends(colocated, tmp_path):
    key = tmp_path / "key"
    new_key(key)
    with Pair("--kv-transfer-key-file", str(key)) as pair, Server("--kv-transfer-listen", f"127.0.0.1:{free_port()}") as stranger:
        transfer = new_id()
        assert pair.compute(1, transfer)[0] == 200
        params = {"transfer_id": transfer, "do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": pair.p_port}
        assert said(stranger.post("/generate", {**body(1), "kv_transfer_params": params})) == (colocated[1], 0)

        def with_the_key():
            pair.d.post("/flush_cache", {})
            transfer = new_id()
            assert pair.compute(1, transfer)[0] == 200
            return pair.generate(1, transfer)

        assert transferred(with_the_key) == colocated[1]


@pytest.mark.parametrize("arguments, wanted", [
    (["--kv-transfer-listen", "192.0.2.1:31000"], "beyond loopback"),
    (["--kv-transfer-listen", "0.0.0.0:31000"], "--kv-transfer-listen"),
    (["--kv-transfer-listen", "nonsense"], "--kv-transfer-listen"),
    (["--kv-transfer-listen", "127.0.0.1:31000", "--dp", "2"], "--dp"),
    (["--kv-transfer-listen", "127.0.0.1:31000", "--kv-transfer-key-file", "/no/such/file"], "--kv-transfer-key-file"),
    (["--kv-transfer-key-file", "/no/such/file"], "without --kv-transfer-listen"),
])
def test_what_cannot_be_is_refused_at_the_start(arguments, wanted):
    done = subprocess.run([program(), "serve", "--model", str(DEMO), "--port", "0", "--threads", "1", *arguments],
                          capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2, done
    assert wanted in done.stderr + done.stdout, done
