"""A model whose layers are split over processes (--pp): the same answers, and what becomes of them when a range dies."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess

import pytest

from harness import DEMO, TRIES, WAIT_S, Server, freeze, program, wait_until
from test_bits import check_greedy

LAYERS = 6
THINGS = ["a dog", "a cat", "the moon", "a red ball", "rain", "a bear", "a boat", "cake"]


def ranges(server):
    """{index: pid} of the range processes that descend from the server."""
    parents, found = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if fields[0] == "Z":
            continue
        parents[int(entry.name)] = int(fields[1])
        if len(arguments) > 2 and arguments[1] == b"range":
            found[int(entry.name)] = int(arguments[arguments.index(b"--index") + 1])

    def descends(pid):
        while pid in parents:
            if pid == server.process.pid:
                return True
            pid = parents[pid]
        return False

    return {index: pid for pid, index in found.items() if descends(pid)}


def body(i, **more):
    return {"messages": [{"role": "user", "content": f"Tell me a story about {THINGS[i % len(THINGS)]} and the number {i}."}],
            "max_tokens": 48, "seed": i, "temperature": 0 if i % 2 else 0.8, "logprobs": True, "top_logprobs": 2, **more}


def answer(server, i):
    status, _, found = server.post("/v1/chat/completions", body(i))
    if status != 200:
        return status, found["error"]["message"]
    return 200, found["choices"]


def text_of(chunks):
    return "".join(choice["delta"].get("content") or "" for choices in chunks for choice in choices)


@pytest.fixture(scope="module")
def whole():
    with Server() as server:
        return [answer(server, i) for i in range(32)]


@pytest.fixture(scope="module")
def split():
    with Server("--pp", "3") as server:
        yield server
        pids = ranges(server)
        assert sorted(pids) == [1, 2]
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []
        for pid in pids.values():
            assert not pathlib.Path(f"/proc/{pid}").exists()


def test_the_answers_are_those_of_one_process(whole, split):
    assert [answer(split, i) for i in range(32)] == whole
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda i: answer(split, i), range(32))) == whole
    wait_until(split.all_pages_back, "rest")


def test_greedy_equals_transformers(split):
    check_greedy(split)


def test_the_server_says_how_it_is_split(split):
    status, _, info = split.get("/server_info")
    assert status == 200 and info["options"]["pp"] == 3 and info["options"]["split"] == "even", info


def test_a_stream_that_its_client_leaves_frees_its_pages(split):
    events = split.stream("/v1/chat/completions", body(0, max_tokens=400, ignore_eos=True))
    for _ in range(3):
        next(events)
    events.close()
    wait_until(split.all_pages_back, "rest")


def test_new_weights_are_refused(split):
    status, _, found = split.post("/update_weights_from_disk", {"model_path": str(DEMO)})
    assert status in (400, 409, 501), (status, found)
    assert "weights" in str(found)
    assert answer(split, 1)[0] == 200


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_range_that_dies_costs_time_alone(whole, signal_number):
    """Sixteen clients and a long stream: whatever was accepted goes on when the range is back, with the same answer; who comes meanwhile
    may get a 503. The other ranges keep their weights."""
    with Server("--pp", "3") as server:
        long = body(0, max_tokens=300, ignore_eos=True)
        whole_stream = [json.loads(event)["choices"] for event in server.stream("/v1/chat/completions", long) if event != "[DONE]"]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for victim in (1, 2):
                before = ranges(server)
                events = server.stream("/v1/chat/completions", long)
                first = next(events)  # it generates, and will for long
                running = [pool.submit(answer, server, i) for i in range(32)]
                os.kill(before[victim], signal_number)
                rest_of_stream = [json.loads(event)["choices"] for event in events if event != "[DONE]"]
                assert text_of([json.loads(first)["choices"], *rest_of_stream]) == text_of(whole_stream)
                for i, found in enumerate(future.result() for future in running):
                    assert found == whole[i] or (found[0] == 503 and f"range {victim}" in found[1]), (i, found)
                wait_until(lambda: answer(server, 0)[0] == 200, "a range that is back")
                assert [answer(server, i) for i in range(8)] == whole[:8]
                after = ranges(server)
                assert after[victim] != before[victim] and after[3 - victim] == before[3 - victim]
                wait_until(server.all_pages_back, "rest")
        wait_until(lambda: server.metrics()["millrace:chain_breaks_total"] >= 2, "count of the breaks")
        assert server.stop() == 0, server.output()


def check_frozen(server, whole, whole_stream, long):
    """Freezes a range until the server names it, and checks what becomes of requests. Whether it was thawed before it counted as hung, which
    it does 8 s later: a busy machine may come too late."""
    frozen = ranges(server)[1]
    events = server.stream("/v1/chat/completions", long)
    first = next(events)  # it generates, and will for long
    freeze(frozen)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(answer, server, i) for i in range(4)]
        named = wait_until(lambda: ("range 1 (silent for 2 s)" in server.get("/ready")[2]["reason"] and "silent") or (ranges(server).get(1) != frozen and "gone"),
                           "a server that names the range")
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
        for i, found in enumerate(future.result() for future in running):
            assert found == whole[i] or (found[0] == 503 and "range 1" in found[1]), (i, found)
    rest_of_stream = [json.loads(event)["choices"] for event in events if event != "[DONE]"]
    assert text_of([json.loads(first)["choices"], *rest_of_stream]) == text_of(whole_stream)
    wait_until(server.ready, "a server that is ready")
    wait_until(lambda: answer(server, 0) == whole[0], "an answer")
    return named == "silent" and ranges(server)[1] == frozen


def test_a_range_that_is_frozen_is_noticed_and_goes_on_when_it_thaws(whole):
    """What was accepted goes on; who comes when the range is known to be silent may get a 503."""
    with Server("--pp", "2") as server:
        long = body(0, max_tokens=300, ignore_eos=True)
        whole_stream = [json.loads(event)["choices"] for event in server.stream("/v1/chat/completions", long) if event != "[DONE]"]
        assert any(check_frozen(server, whole, whole_stream, long) for _ in range(TRIES)), server.output()


def test_a_range_that_stays_frozen_is_started_again(whole):
    with Server("--pp", "2") as server:
        frozen = ranges(server)[1]
        freeze(frozen)
        assert answer(server, 1) == whole[1]
        assert ranges(server)[1] != frozen


def test_metrics_show_each_range(split):
    answer(split, 3)
    found = split.get("/metrics")[2]
    for index in range(3):
        assert f'range="{index}"' in found
    wait_until(lambda: split.metrics()["millrace:range_compute_seconds_total"] > 0, "news of the ranges")


def test_the_ranges_do_not_outlive_a_server_that_is_killed():
    with Server("--pp", "2") as server:
        pids = list(ranges(server).values())
        assert len(pids) == 1
        server.process.kill()
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids), "end of the ranges")


@pytest.mark.parametrize("arguments, wanted", [
    (["--pp", str(LAYERS + 1)], str(LAYERS)),
    (["--pp", "0"], "--pp"),
    (["--pp", "2", "--split", "3,2"], str(LAYERS)),
    (["--pp", "2", "--split", "x"], "split"),
    (["--pp", "2", "--prefill", "1"], "--prefill is 1 with --pp 2; wanted one of them"),
    (["--pp", "2", "--kv-transfer-listen", "tcp://127.0.0.1:30199"], "--kv-transfer-listen with --prefill, --dp, --pp"),
])
def test_a_split_that_cannot_be_is_refused_at_the_start(arguments, wanted):
    done = subprocess.run([program(), "serve", "--model", str(DEMO), "--port", "0", "--threads", "1", *arguments],
                          capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode != 0 and done.returncode >= 0, done
    assert wanted in done.stderr + done.stdout, done
