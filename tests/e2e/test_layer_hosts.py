"""A model whose layers are split over hosts by a pipeline's file: two network stacks (two_hosts.py), or two processes of this one. The
answers are those of one process; a range that dies or freezes costs time alone; what does not fit is refused."""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness import DEMO, WAIT_S, Joined, Server, program, strike, wait_until
from test_layer_split import answer, body, text_of
from test_text_hosts import LEASE, control_port

REQUESTS = 32


@pytest.fixture(scope="module")
def wanted():
    with Server() as server:
        return [answer(server, i) for i in range(REQUESTS)]


def pipeline(folder, *ranges, control=None, key=None, more=""):
    """A file with these ranges: (begin, end, host), the first of them the server's own."""
    names = ["generate", *(f"upper{i}" for i in range(1, len(ranges)))]
    lines = ["name: layers", f'control: "tcp://{control or f"127.0.0.1:{control_port()}"}"', LEASE, "entry: generate"]
    if key:
        lines.append(f'key_file: "{key}"')
    lines.append("stages:")
    for i, (begin, end, host) in enumerate(ranges):
        to = f", layers_to: {names[i + 1]}" if i + 1 < len(ranges) else ""
        edges = ", next: detokenize, stream_to: detokenize, resources: {max_requests: 65536}" if i == 0 else ""
        where = f", host: {host}" if host else ""
        lines.append(f"  - {{name: {names[i]}, worker: {'layers' if i else 'generate'}, layers: [{begin}, {end}]{to}{edges}{where}{more}}}")
    lines.append("  - {name: detokenize, worker: detokenize, terminal: true, can_accept_stream_before_payload: true, resources: {max_requests: 65536}}")
    path = folder / "layers.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def control_of(path):
    return next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("control:")).removeprefix("tcp://")


def lead(path, *arguments, where=None, model=DEMO):
    return Server("--pipeline", str(path), *arguments, model=model, wait=False, where=where)


def join(path, stages, where=None, model=DEMO, more=()):
    return Joined(path, stages, control_of(path), model=model, where=where, more=[*(["--listen", where.ipv4] if where else []), *more])


def wait_ready(server):
    assert server.url_found.wait(WAIT_S) and server.host, server.output()
    wait_until(server.ready, "ready stages")


def stream_text(events):
    return text_of([json.loads(event)["choices"] for event in events if event != "[DONE]"])


def all_answers(server, clients=8):
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda i: answer(server, i), range(REQUESTS)))


def test_the_answers_are_those_of_one_process(network, key, tmp_path, wanted):
    near, far = network
    path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"), control=f"{near.ipv4}:30300", key=key)
    with lead(path, where=near) as server, join(path, "upper1", where=far) as upper:
        wait_ready(server)
        assert [answer(server, i) for i in range(REQUESTS)] == wanted
        assert all_answers(server) == wanted
        assert server.stop() == 0, server.output()
        assert upper.end() == 0, upper.output()
        assert server.leftovers() == []


# The first range may be empty; a range may be here; several may be in one process; the first may be elsewhere.
LAYOUTS = {"three": ([(0, 2, None), (2, 4, "b"), (4, 6, "c")], ["upper1", "upper2"]),
           "one-here": ([(0, 1, None), (1, 3, None), (3, 6, "b")], ["upper2"]),
           "two-in-a-process": ([(0, 2, None), (2, 4, "b"), (4, 6, "b")], ["upper1,upper2"]),
           "first-elsewhere": ([(0, 2, "b"), (2, 6, None)], ["generate"]),
           "empty-first": ([(0, 0, None), (0, 6, "b")], ["upper1"])}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_same_answers(wanted, tmp_path, layout):
    ranges, joiners = LAYOUTS[layout]
    path = pipeline(tmp_path, *ranges)
    with lead(path) as server, contextlib.ExitStack() as stack:
        joined = [stack.enter_context(join(path, stages)) for stages in joiners]
        wait_ready(server)
        assert all_answers(server) == wanted
        assert server.stop() == 0, server.output()
        for one in joined:
            assert one.end() == 0, one.output()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_range_that_is_lost_costs_time_alone(wanted, tmp_path, how):
    """What was accepted goes on when the range is back, with the same answer; a request that comes meanwhile may get a 503."""
    path = pipeline(tmp_path, (0, 2, None), (2, 4, "b"), (4, 6, "c"))
    long = body(0, max_tokens=300, ignore_eos=True)
    with lead(path) as server, contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(16) as pool:
        joined = {name: stack.enter_context(join(path, name)) for name in ("upper1", "upper2")}
        wait_ready(server)
        complete = stream_text(server.stream("/v1/chat/completions", long))
        for victim in ("upper1", "upper2"):
            events = server.stream("/v1/chat/completions", long)
            first = next(events)  # it generates, and will for long
            running = [pool.submit(answer, server, i) for i in range(REQUESTS)]
            strike(joined[victim].process.pid, how)
            wait_until(lambda: victim in server.get("/ready")[2]["reason"], "a server that names the stage")
            if how == signal.SIGSTOP:
                joined[victim].process.send_signal(signal.SIGCONT)  # it joins again by itself
            else:
                joined[victim] = stack.enter_context(join(path, victim))
            assert stream_text([first, *events]) == complete
            for i, found in enumerate(future.result() for future in running):
                assert found == wanted[i] or (found[0] == 503 and "not ready" in found[1]), (i, found)
            wait_until(server.ready, "return")
            assert all_answers(server) == wanted
        assert server.stop() == 0, server.output()


def pages_are_back(stage):
    return stage["running"] == stage["waiting"] == 0 and stage["pages_free"] + stage["pages_cached"] == stage["pages_total"]


# Shorter than what a connection outlasts; longer, but not than the lease, so that only the rows are lost; longer than both.
@pytest.mark.parametrize("cut_s", [1, 3, 6])
def test_a_cut_wire_costs_time_alone(network, key, tmp_path, wanted, cut_s):
    near, far = network
    path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"), control=f"{near.ipv4}:30302", key=key)
    long = body(0, max_tokens=300, ignore_eos=True)
    with lead(path, where=near) as server, join(path, "upper1", where=far) as upper, concurrent.futures.ThreadPoolExecutor(16) as pool:
        wait_ready(server)
        complete = stream_text(server.stream("/v1/chat/completions", long))
        events = server.stream("/v1/chat/completions", long)
        first = next(events)  # it generates, and will for long
        running = [pool.submit(answer, server, i) for i in range(REQUESTS)]
        try:
            far.plug(False)
            time.sleep(cut_s)  # the subject: how long it is cut
        finally:
            far.plug(True)
        assert stream_text([first, *events]) == complete
        for i, found in enumerate(future.result() for future in running):
            assert found == wanted[i] or (found[0] == 503 and "not ready" in found[1]), (i, found)
        wait_until(server.ready, "return")
        assert all_answers(server) == wanted
        wait_until(lambda: pages_are_back(server.stage("generate")), "rest")
        assert upper.process.poll() is None, upper.output()


def test_a_slow_wire_changes_no_answer(network, key, tmp_path, wanted):
    """1 Mbit/s: the rows of a prompt take seconds, and all that waits for the wire is bounded."""
    near, far = network
    try:
        for host in network:
            host.exec("tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", "1mbit", "burst", "32kb", "latency", "400ms")
    except (OSError, subprocess.CalledProcessError) as why:
        pytest.skip(f"no token bucket here: {why}")
    try:
        path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"), control=f"{near.ipv4}:30303", key=key)
        with lead(path, where=near) as server, join(path, "upper1", where=far) as upper:
            wait_ready(server)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                assert list(pool.map(lambda i: answer(server, i), range(8))) == wanted[:8]
            assert server.stop() == 0, server.output()
            assert upper.end() == 0, upper.output()
    finally:
        for host in network:
            host.exec("tc", "qdisc", "delete", "dev", "wire", "root")


def test_a_first_range_that_dies_begins_the_chain_anew(wanted, tmp_path):
    path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"))
    with join(path, "upper1") as upper:
        for pages in ("0.01", "0.02"):  # of KV memory: the range takes what the first one has
            with lead(path, "--kv-gib", pages) as server:
                wait_ready(server)
                assert all_answers(server) == wanted
                server.process.kill()
                server.process.wait()
        assert upper.process.poll() is None, upper.output()


def test_a_second_process_for_a_range_is_refused(wanted, tmp_path):
    path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"))
    with lead(path) as server, join(path, "upper1") as first:
        wait_ready(server)
        with join(path, "upper1") as second:
            wait_until(lambda: "taken by a live other one" in second.output(), "refusal")
            assert all_answers(server) == wanted
        assert first.process.poll() is None


@pytest.mark.parametrize("placement", ["single", "processes"])
def test_a_host_without_the_memory_refuses_and_says_how_much(wanted, tmp_path, placement):
    path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"))
    with lead(path, "--kv-gib", "0.02", "--placement", placement) as server:
        with join(path, "upper1", more=["--kv-gib", "0.001"]) as small:
            wait_until(lambda: "wanted space for all" in small.output(), "refusal")
            assert "1073741 bytes are the --kv-gib here" in small.output()
            wait_until(lambda: "1073741 bytes are the --kv-gib here" in server.output(), "the server's report")
        if placement == "single":  # no child process that could be started again
            assert server.process.wait(WAIT_S) != 0
            return
        with join(path, "upper1"):
            wait_ready(server)
            assert all_answers(server) == wanted


def test_replicas_are_chains_of_their_own(wanted, tmp_path):
    path = pipeline(tmp_path, (0, 3, None), (3, 6, "b"), more=", replicas: 2")
    with lead(path) as server, join(path, "upper1:0"), join(path, "upper1:1") as second:
        wait_ready(server)
        wait_until(lambda: all(stage["state"] == "ready" for stage in server.get("/ready")[2]["stages"]), "both chains")
        assert all_answers(server) == wanted
        os.kill(second.process.pid, signal.SIGKILL)
        wait_until(lambda: "upper1-1" in server.get("/ready")[2]["reason"], "a server that names the replica")
        assert server.ready()  # with the other chain
        with join(path, "upper1:1"):
            wait_until(lambda: all(stage["state"] == "ready" for stage in server.get("/ready")[2]["stages"]), "both chains")
            assert all_answers(server) == wanted


def test_layers_that_the_model_does_not_have_are_refused(tmp_path):
    path = pipeline(tmp_path, (0, 3, None), (3, 5, "b"))
    with lead(path) as server, join(path, "upper1") as upper:
        assert upper.process.wait(WAIT_S) == 2
        upper.reader.join(WAIT_S)
        assert "end at 5; wanted 6" in upper.output()
        assert server.process.wait(WAIT_S) == 2
        server.reader.join(WAIT_S)
        assert "end at 5; wanted 6" in server.output()


# ---- shards


def split(model, out, *arguments):
    return subprocess.run([program(), "split", str(model), "--out", str(out), *arguments], capture_output=True, text=True, timeout=WAIT_S)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("split") / "shards"
    done = split(DEMO, out, "--split", "2,4")
    assert done.returncode == 0, done
    assert f"{out}/1: layers [2, 6)" in done.stdout
    return out


def tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file, which is covered without a hole."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    end = 0
    for entry in sorted(header.values(), key=lambda entry: entry["data_offsets"]):
        assert entry["data_offsets"][0] == end
        end = entry["data_offsets"][1]
    assert 8 + size + end == len(data)
    return {name: (entry["dtype"], entry["shape"], data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def range_of(name, begin, end):
    """Whether the range of layers [begin, end) has this tensor, by the rule in docs/layers.md."""
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return begin <= int(match[1]) < end if match else begin == 0


def test_a_shard_has_the_tensors_of_its_range_byte_for_byte(shards):
    complete = tensors(DEMO / "model.safetensors")
    assert sorted(path.name for path in shards.iterdir()) == ["0", "1"]
    for index, (begin, end) in enumerate([(0, 2), (2, 6)]):
        folder = shards / str(index)
        assert tensors(folder / "model.safetensors") == {name: tensor for name, tensor in complete.items() if range_of(name, begin, end)}
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            assert (folder / name).read_bytes() == (DEMO / name).read_bytes()
        manifest = json.loads((folder / "millrace-shard.json").read_text())
        assert (manifest["range"], manifest["ranges"], manifest["begin"], manifest["end"], manifest["layers"]) == (index, 2, begin, end, 6)
        assert {path.name for path in folder.iterdir()} == {*manifest["files"], "millrace-shard.json"}
        for name, entry in manifest["files"].items():
            assert entry["bytes"] == (folder / name).stat().st_size


def test_inspect_shows_the_range_of_a_shard(shards):
    done = subprocess.run([program(), "inspect", str(shards / "1")], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0 and "range 1 of 2: layers [2, 6) of 6" in done.stdout, done
    done = subprocess.run([program(), "inspect", str(shards / "1"), "--pp", "2"], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2 and "wanted the complete model" in done.stderr, done


def other_weights(folder, copy):
    """A copy of a model whose weights are other ones of the same shape."""
    shutil.copytree(folder, copy)
    data = bytearray((copy / "model.safetensors").read_bytes())
    for at in range(len(data) // 2, len(data)):
        data[at] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    return copy


def test_hosts_with_shards_give_the_answers_of_the_complete_model(network, key, shards, tmp_path, wanted):
    near, far = network
    path = pipeline(tmp_path, (0, 2, None), (2, 6, "b"), control=f"{near.ipv4}:30301", key=key)
    with lead(path, where=near, model=shards / "0") as server, join(path, "upper1", where=far, model=shards / "1"):
        wait_ready(server)
        assert all_answers(server) == wanted
        assert server.stop() == 0, server.output()


def test_a_shard_and_a_complete_model_agree(shards, tmp_path, wanted):
    path = pipeline(tmp_path, (0, 1, None), (1, 4, "b"), (4, 6, "c"))  # a shard may have more than its stage computes
    with lead(path, model=shards / "0") as server, join(path, "upper1"), join(path, "upper2", model=shards / "1"):
        wait_ready(server)
        assert all_answers(server) == wanted


@pytest.mark.parametrize("what", ["wrong shard", "other weights", "shard of other weights", "changed shard"])
def test_other_layers_or_weights_are_refused_at_the_start(shards, tmp_path, what, wanted):
    path = pipeline(tmp_path, (0, 2, None), (2, 6, "b"))
    if what == "wrong shard":
        model, words = shards / "0", "is a shard with the layers [0, 2) of 6; wanted one with [2, 6)"
    elif what == "other weights":
        model, words = other_weights(DEMO, tmp_path / "other"), "another model: the weights, --kv-dtype, --quantize or --activations differ"
    elif what == "shard of other weights":
        assert split(other_weights(DEMO, tmp_path / "other"), tmp_path / "split", "--split", "2,4").returncode == 0
        model, words = tmp_path / "split" / "1", "another model: the weights, --kv-dtype, --quantize or --activations differ"
    else:
        model, words = other_weights(shards / "1", tmp_path / "changed"), "wanted"
    with lead(path, model=shards / "0") as server:
        with join(path, "upper1", model=model) as upper:
            assert upper.process.wait(WAIT_S) == 2, upper.output()
            upper.reader.join(WAIT_S)
            assert words in upper.output(), upper.output()
            if what == "changed shard":
                assert "the checksum of" in upper.output() and "millrace-shard.json" in upper.output()
        with join(path, "upper1", model=shards / "1"):
            wait_ready(server)
            assert answer(server, 1) == wanted[1]


def test_a_shard_alone_is_no_model(shards):
    with Server(model=shards / "1", wait=False) as server:
        assert server.process.wait(WAIT_S) == 2
        server.reader.join(WAIT_S)
        assert "is a shard with the layers [2, 6) of 6; wanted one with [0, 6), or the complete model" in server.output()


@pytest.mark.parametrize("arguments, words", [
    (["--pp", "7"], "wanted 1 to 6"),
    (["--split", "2,5"], "wanted 6"),
    ([], "--pp is missing"),
])
def test_a_split_that_cannot_be_is_refused_and_leaves_nothing(tmp_path, arguments, words):
    done = split(DEMO, tmp_path / "out", *arguments)
    assert done.returncode == 2 and words in done.stderr, done
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_overwritten(shards, tmp_path):
    (tmp_path / "out").mkdir()
    done = split(DEMO, tmp_path / "out", "--pp", "2")
    assert done.returncode == 2 and "is there already" in done.stderr, done
    assert list((tmp_path / "out").iterdir()) == []
    done = split(shards / "0", tmp_path / "more", "--pp", "2")
    assert done.returncode == 2 and "is a shard" in done.stderr, done
    done = split(DEMO, tmp_path / "no" / "folder", "--pp", "2")
    assert done.returncode == 2 and "is no folder" in done.stderr, done
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
