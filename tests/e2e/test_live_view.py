"""/live/events as a plain HTTP client sees it: what an event has, that its counts add up, how many may look, and that nothing is
put together while nobody does."""
import contextlib
import json
import os
import signal
import threading

import pytest

from harness import Server, freeze, placement, wait_until
from omni_model import sound_of, speaking_model, spoken, spoken_body

PAGE_STATES = {"f": "free", "c": "cached", "r": "running", "h": "running", "i": "importing"}


class Watcher:
    """One client of /live/events."""

    def __init__(self, server, headers=None):
        self.connection = server.connection()
        self.connection.request("GET", "/live/events", headers=headers or {})
        self.response = self.connection.getresponse()
        self.status = self.response.status

    def event(self, whole=True):
        """The next one. A `whole` one has the state of every scheduler: who has not replied within a second is left out."""
        for line in self.response:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if not whole or all("state" in one for one in event["schedulers"]):
                    return event
        return None  # the stream has ended

    def until(self, condition, whole=True):
        """The first event for which the condition holds."""
        return wait_until(lambda: (lambda event: event if condition(event) else None)(self.event(whole)), "event that fits")

    def close(self):
        self.connection.close()
        self.response.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def scheduler(event):
    return next(one["state"] for one in event["schedulers"] if one["stage"] == "scheduler")


def requests_of(event, name):
    ids = next((one["ids"] for one in event["requests"] if one["name"] == name), [])
    return [one for one in scheduler(event)["requests"] if one["id"] in ids]


def assert_adds_up(state):
    pages = state["pages"]
    assert pages["free"] + pages["cached"] + pages["running"] + pages["importing"] == pages["total"] == len(pages["map"])
    counted = dict.fromkeys(("free", "cached", "running", "importing"), 0)
    for letter in pages["map"]:
        counted[PAGE_STATES[letter]] += 1
    assert counted == {name: pages[name] for name in counted}
    states = [request["state"] for request in state["requests"]]
    assert state["running"] == sum(one in ("prefilling", "decoding") for one in states)
    assert state["waiting"] == states.count("queued") and state["preparing"] == 0


@contextlib.contextmanager
def paused(server):
    assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
    try:
        yield
    finally:
        assert server.post("/continue_generation", {})[0] == 200


def start(server, rid, **sampling):
    """A request on a thread of its own; its answer is in the list when the thread has ended."""
    answer = []
    body = {"text": "Once upon a time", "rid": rid, "sampling_params": {"max_new_tokens": 40, "ignore_eos": True, **sampling}}
    thread = threading.Thread(target=lambda: answer.append(server.post("/generate", body)))
    thread.start()
    return thread, answer


def test_requests_are_seen_and_an_aborted_one_disappears(server):
    with Watcher(server) as watcher, paused(server):
        first, second = start(server, "seen-1"), start(server, "seen-2", n=2)
        event = watcher.until(lambda event: len(scheduler(event)["requests"]) == 3)
        state = scheduler(event)
        assert_adds_up(state)
        assert state["paused"] is True
        assert {request["state"] for request in state["requests"]} == {"queued"}
        assert len(requests_of(event, "seen-2")) == 2 and len(requests_of(event, "seen-1")) == 1
        assert all(request["prompt_tokens"] > 0 and request["age_s"] >= 0 for request in state["requests"])
        assert event["clients"] == 1 and event["ready"] and event["model"] == server.model
        assert {stage["stage"] for stage in event["stages"]} == {"scheduler", "detokenizer"}
        assert {"from": "scheduler", "to": "detokenizer", "kind": "stream"} in event["links"]

        assert server.post("/abort_request", {"rid": "seen-1"})[2] == {"aborted": 1}
        event = watcher.until(lambda event: len(scheduler(event)["requests"]) == 2)
        assert not requests_of(event, "seen-1") and all(one["name"] != "seen-1" for one in event["requests"])
        first[0].join()
        assert first[1][0][2]["meta_info"]["finish_reason"]["type"] == "abort"
    second[0].join()
    assert [one["meta_info"]["completion_tokens"] for one in second[1][0][2]] == [40, 40]


def test_steps_pages_prefixes_and_latencies_after_work(server):
    for _ in range(2):  # the second finds the first's prefix
        assert server.post("/generate", {"text": "The brave dog " * 12, "sampling_params": {"max_new_tokens": 24, "ignore_eos": True}})[0] == 200
    list(server.stream("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}))
    with Watcher(server) as watcher:
        event = watcher.event()
    state = scheduler(event)
    assert_adds_up(state)
    steps = state["steps"]
    assert steps and [step[0] for step in steps] == list(range(steps[0][0], state["steps_total"] + 1))
    if steps[0][0] == 1:
        assert sum(step[1] for step in steps) == state["prefill_rows_total"]
        assert sum(step[2] for step in steps) == state["decode_rows_total"]
    assert all(step[1] + step[2] > 0 and step[3] > 0 for step in steps)
    assert state["cached_tokens_total"] > 0

    nodes = state["cache"]["nodes"]
    for number, node in enumerate(nodes):
        parent = nodes[node["parent"]] if node["parent"] >= 0 else None
        assert node["parent"] < number and node["begin"] == (parent["begin"] + parent["tokens"] if parent else 0)
    assert state["cache"]["nodes_total"] == sum(node["parent"] >= 0 for node in nodes)
    page = state["pages"]
    assert sum(node["tokens"] for node in nodes) == (page["cached"] + page["map"].count("r")) * page["size"]

    for name in ("time_to_first_token", "inter_token", "end_to_end", "queue"):
        latency = event["latency"][name]
        assert latency["count"] == sum(latency["counts"]) > 0, name
        assert len(latency["counts"]) == len(latency["bounds"]) + 1
        assert latency["p50"] <= latency["p90"] <= latency["p99"]


def test_a_head_request_is_no_client(server):
    wait_until(lambda: server.metrics()["millrace:live_view_clients"] == 0, "leaving of the others")
    status, headers, body = server.request("HEAD", "/live/events")
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream") and body == ""
    assert server.metrics()["millrace:live_view_clients"] == 0


def test_a_page_of_another_origin_is_no_client(server):
    for name, value in (("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site"), ("Referer", "https://evil.example/")):
        assert server.get("/live/events", headers={name: value})[0] == 403, name


def test_prompts_and_the_log_are_shown_to_this_machine_and_not_through_a_proxy(server):
    with Watcher(server) as near, Watcher(server, {"X-Forwarded-For": "203.0.113.9"}) as far:
        assert near.event() and far.event()
        with paused(server):
            threads = [start(server, "private", max_new_tokens=2)[0]]
            body = {"messages": [{"role": "system", "content": "Hush."}, {"role": "user", "content": "A tale of " + 300 * "x"}], "rid": "talk", "max_tokens": 2}
            threads.append(threading.Thread(target=lambda: server.post("/v1/chat/completions", body)))
            threads[-1].start()
            event = near.until(lambda event: len(event["prompts"]) == 2)
            assert event["prompts"] == {"private": "Once upon a time", "talk": ("A tale of " + 300 * "x")[:240]}
            event = far.until(lambda event: len(scheduler(event)["requests"]) == 2)
            assert "prompts" not in event and "log" not in event and "Once" not in json.dumps(event) and "tale" not in json.dumps(event)
        for thread in threads:
            thread.join()
        event = near.until(lambda event: sum("/generate" in line["text"] or "/chat/completions" in line["text"] for line in event["log"]) >= 2)
        assert all(len(line["text"].encode()) <= 400 and line["stage"] for line in event["log"])
        lines = [line for line in event["log"] if line["stage"] == "server"]
        assert len(lines) <= 50 and [line["number"] for line in lines] == list(range(lines[0]["number"], lines[-1]["number"] + 1))
        assert all(line["level"] in ("info", "warning", "error") and len(line["text"].encode()) <= 400 and line["time_ms"] > 1e12 for line in lines)
        assert "Once" not in json.dumps(lines) and not event["prompts"]


@pytest.mark.skipif(placement() != "processes", reason="stages have processes of their own only there")
def test_the_log_of_a_stage_in_a_process_of_its_own_comes_with_its_name():
    with Server("--log-level", "debug") as server, Watcher(server) as watcher:
        assert watcher.event() and watcher.event()  # the stages were asked once, and keep their lines from then on
        for _ in range(3):  # the scheduler compiles grammars
            assert server.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 2, "ebnf": "root ::= nowhere"}})[0] == 400
        lines = watcher.until(lambda event: sum(line["stage"] == "scheduler" and "failed" in line["text"] for line in event["log"]) == 3)["log"]
        assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
        of_stage = [line["number"] for line in lines if line["stage"] == "scheduler"]
        assert of_stage == list(range(of_stage[0], of_stage[0] + len(of_stage)))
        assert {line["stage"] for line in lines} <= {"server", "scheduler", "detokenizer"}


def test_no_line_is_kept_while_nobody_looks(server):
    wait_until(lambda: server.metrics()["millrace:live_view_clients"] == 0, "leaving of the others")
    assert server.post("/generate", {"text": "Once", "rid": "unseen", "sampling_params": {"max_new_tokens": 2}})[0] == 200
    with Watcher(server) as watcher:
        assert watcher.event()["log"] == []


def test_a_ninth_client_is_refused_until_one_leaves(server):
    wait_until(lambda: server.metrics()["millrace:live_view_clients"] == 0, "leaving of the others")
    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(Watcher(server)) for _ in range(8)]
        assert all(watcher.event() for watcher in watchers)
        status, _, body = server.get("/live/events")
        assert status == 429 and "8 clients look at /live/events, the limit" in body["error"]["message"], body
        watchers[3].close()
        wait_until(lambda: server.metrics()["millrace:live_view_clients"] == 7, "leaving of one")
        assert stack.enter_context(Watcher(server)).until(lambda event: event["clients"] == 8)


def test_nothing_is_put_together_without_a_client(server):
    wait_until(lambda: server.metrics()["millrace:live_view_clients"] == 0, "leaving of the others")
    before = server.metrics()["millrace:live_view_events_total"]
    text = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}
    steps = server.stage("scheduler")["steps"]
    wait_until(lambda: server.post("/generate", text)[0] == 200 and server.stage("scheduler")["steps"] > steps + 600, "steps")
    assert server.metrics()["millrace:live_view_events_total"] == before
    with Watcher(server) as watcher:
        assert watcher.event() and watcher.event()
    assert server.metrics()["millrace:live_view_events_total"] >= before + 2


def test_stages_of_a_model_that_speaks_are_all_there(tmp_path):
    with Server(model=speaking_model(tmp_path / "speaker")) as speaker:
        sound_of(speaker, spoken_body(spoken()[0]))
        with Watcher(speaker) as watcher:
            event = watcher.until(lambda event: len(event["schedulers"]) == 2)
        names = {stage["stage"] for stage in event["stages"]}
        assert len(names) == 4 and {link[end] for link in event["links"] for end in ("from", "to")} == names
        for one in event["schedulers"]:
            assert one["state"]["steps"] and one["stage"] in names
            assert_adds_up(one["state"])


def test_the_key_is_wanted_and_an_open_stream_does_not_hold_up_the_end():
    with Server("--api-key", "secret") as server:
        with Watcher(server) as watcher:
            assert watcher.status == 401
        with Watcher(server, {"Authorization": "Bearer secret", "X-Forwarded-For": "203.0.113.9"}) as watcher:
            event = watcher.event()
            assert event["ready"] and "prompts" in event and "log" in event
            server.process.send_signal(signal.SIGINT)
            while watcher.event():
                pass
        assert server.end() == 0


@pytest.mark.skipif(placement() == "single", reason="nothing can be stopped alone in one process")
def test_a_scheduler_that_stands_still_is_named_and_the_rest_is_shown():
    with Server() as server, Watcher(server) as watcher:
        assert scheduler(watcher.event())
        pid = server.children()["scheduler"]
        freeze(pid)
        try:
            event = watcher.until(lambda event: not any("state" in one for one in event["schedulers"]), whole=False)
            assert {stage["stage"] for stage in event["stages"]} == {"scheduler", "detokenizer"}
        finally:
            os.kill(pid, signal.SIGCONT)
        assert scheduler(watcher.until(lambda event: any("state" in one for one in event["schedulers"])))
