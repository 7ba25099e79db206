"""Data parallel: the same bits with one scheduler and with two, and a scheduler that dies under load takes only its own requests."""
import json
import os
import random
import shutil
import signal
import threading
import time

import pytest

from harness import DEMO, WAIT_S, Server, is_silence, past_silence, placement

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def requests():
    things = ["a dog", "a cat", "the moon", "a red ball", "rain", "a bear", "a boat", "cake"]
    out = []
    for i, thing in enumerate(things):
        for sampled in (False, True):
            more = {"temperature": 0.9, "top_p": 0.9, "seed": i} if sampled else {"temperature": 0}
            out.append({"messages": [{"role": "user", "content": f"Tell me a short story about {thing}."}], "max_tokens": 32, **more})
    return out


def answers(server, order):
    found = {}

    def run(index, body):
        status, _, answer = server.post(CHAT, body)
        assert status == 200, answer
        found[index] = (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"])
    everything = requests()
    threads = [threading.Thread(target=run, args=(index, everything[index])) for index in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in sorted(found)]


def schedulers(server):
    return {stage["stage"]: stage for stage in server.get("/ready")[2]["stages"] if stage["stage"].startswith("scheduler")}


def wait_for(condition, timeout=WAIT_S):
    end = time.time() + timeout
    while not condition():
        assert time.time() < end, "timed out"
        time.sleep(0.05)


def all_ready(server, count):
    found = schedulers(server)
    return len(found) == count and all(stage["state"] == "ready" for stage in found.values())


def scheduler_pid(server, replica):
    return server.children()[f"scheduler-{replica}"]


@pytest.fixture(scope="module")
def one():
    with Server("--no-prefix-cache") as server:
        return answers(server, list(range(len(requests()))))


@pytest.mark.parametrize("policy", ["round_robin", "least_requests", "least_tokens", "prefix_aware"])
def test_two_schedulers_give_the_texts_of_one(one, policy):
    with Server("--dp", "2", "--dp-policy", policy) as server:
        wait_for(lambda: all_ready(server, 2))
        order = list(range(len(one)))
        for round_number in range(2):
            random.Random(round_number).shuffle(order)
            assert answers(server, order) == one
        wait_for(lambda: all(stage["steps"] > 0 for stage in schedulers(server).values()))  # both had work
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []


def test_a_conversation_stays_where_its_prefix_is():
    with Server("--dp", "2", "--dp-policy", "prefix_aware") as server:
        wait_for(lambda: all_ready(server, 2))
        prompt = "Once upon a time there was a little mouse who lived in a very big house with a very old cat. " * 2
        for turn in range(4):
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
            usage = server.post(COMPLETIONS, body)[2]["usage"]
            if turn > 0:
                assert usage["prompt_tokens_details"]["cached_tokens"] >= 32, (turn, usage)
            prompt += " And then the mouse went out to play, and the cat went out to play too, all day long."


def test_a_rank_pins_a_request_to_its_scheduler():
    with Server("--dp", "2", "--dp-policy", "round_robin") as server:
        wait_for(lambda: all_ready(server, 2))
        body = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
        for _ in range(4):
            assert server.post(COMPLETIONS, body, headers={"X-Data-Parallel-Rank": "1"})[0] == 200
        wait_for(lambda: schedulers(server)["scheduler-1"]["steps"] >= 16)
        assert server.post(COMPLETIONS, body, headers={"X-Data-Parallel-Rank": "0"})[0] == 200
        wait_for(lambda: schedulers(server)["scheduler-0"]["steps"] >= 4)
        found = schedulers(server)
        assert found["scheduler-0"]["steps"] < 8, found  # it had this one alone
        for rank, words in (("2", "0 to 1"), ("-1", "X-Data-Parallel-Rank"), ("x", "X-Data-Parallel-Rank")):
            status, _, answer = server.post(COMPLETIONS, body, headers={"X-Data-Parallel-Rank": rank})
            assert status == 400 and words in answer["error"]["message"], (rank, status, answer)


@pytest.mark.skipif(placement() != "processes", reason="a thread cannot be killed: only child processes are")
def test_a_scheduler_that_dies_takes_its_own_requests_and_comes_back(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    with Server("--dp", "2", "--dp-policy", "round_robin", model=model) as server:
        wait_for(lambda: all_ready(server, 2))
        stop, results, lock = threading.Event(), [], threading.Lock()

        def client(number):
            body = {"prompt": f"Story {number}. Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
            while not stop.is_set():
                began = time.time()
                status, _, answer = past_silence(lambda: server.post(COMPLETIONS, body))
                with lock:
                    results.append((status, time.time() - began, answer))
        ready = []

        def watch():
            while not stop.is_set():
                status, _, body = server.get("/ready")
                ready.append(200 if is_silence(status, body) else status)  # the other one's heartbeat is late where the machine is busy
                time.sleep(0.05)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)] + [threading.Thread(target=watch)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(results) >= 8)
        # It has requests as it dies: they are held. And it is away until that was seen: it cannot load.
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
        wait_for(lambda: schedulers(server)["scheduler-1"]["running"] + schedulers(server)["scheduler-1"]["waiting"] > 0)
        weights = model / "model.safetensors"
        weights.rename(model / "away")
        os.kill(scheduler_pid(server, 1), signal.SIGKILL)
        wait_for(lambda: schedulers(server)["scheduler-1"]["state"] != "ready")
        during = server.get("/ready")[2]
        assert during["ready"] and "scheduler-1" in during["reason"]
        assert server.post("/continue_generation", {})[0] == 200
        (model / "away").rename(weights)
        wait_for(lambda: all_ready(server, 2))
        after = len(results)
        wait_for(lambda: len(results) >= after + 8)
        stop.set()
        for thread in threads:
            thread.join()
        assert set(ready) == {200}
        statuses = [status for status, _, _ in results]
        assert set(statuses) <= {200, 503}, statuses
        assert 1 <= statuses.count(503) <= 8, statuses  # those that the dead one had, each once
        for status, _, answer in results:
            if status == 503:
                assert "scheduler-1" in answer["error"]["message"], answer
        texts = {}
        for status, _, answer in results:  # nobody's text changed
            if status == 200:
                texts.setdefault(json.dumps(answer["choices"][0]["text"]), 0)
        assert len(texts) <= 8
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []


def test_bad_values_are_refused_with_one_line():
    for arguments, words in ((["--dp", "0"], ["--dp"]), (["--dp", "65"], ["--dp"]), (["--dp-policy", "best"], ["--dp-policy", "best"])):
        server = Server(*arguments, wait=False)
        assert server.process.wait(WAIT_S) != 0
        server.reader.join()
        for word in words:
            assert word in server.output(), server.output()
        server.tmp.cleanup()
