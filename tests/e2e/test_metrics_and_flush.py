"""What an operator asks a running server for: a flush of the cache, a profile, metrics."""
import json
import pathlib
import re

from harness import TRIES, WAIT_S, Server, placement, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def generate(server, **more):
    return server.post(COMPLETIONS, {"prompt": "Once upon a time there was a little dog", "max_tokens": 8, "temperature": 0, **more})


def test_flush_forgets_the_cache_and_waits_for_idleness(server):
    text = "A mouse and an elephant went to the sea together, and there they met a whale and a crab. " * 2
    generate(server, prompt=text)
    assert generate(server, prompt=text)[2]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    assert server.post("/flush_cache", {})[0] == 200
    assert generate(server, prompt=text)[2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for _ in range(TRIES):
        # Its first text is here, so it runs: a heartbeat might still tell of the request before.
        events = server.stream(COMPLETIONS, {**LONG, "max_tokens": 900})
        next(events)
        status, _, body = server.post("/flush_cache", {})
        if status == 409:
            break
        assert list(events)[-1] == "[DONE]"  # it was through before
    assert status == 409 and "run" in body["error"]["message"], body
    assert server.post("/flush_cache", {"timeout": WAIT_S}, timeout=2 * WAIT_S)[0] == 200  # after it
    assert len(list(events)) > 2


def test_a_profile_is_json_with_steps_kernels_and_requests_and_its_spans_nest(tmp_path):
    folder = tmp_path / "profiles"
    with Server("--profile-dir", str(folder)) as server:
        status, _, body = server.post("/stop_profile", {})
        assert status == 409, body
        status, _, body = server.post("/start_profile", {})
        assert status == 200, body
        assert server.post("/start_profile", {})[0] == 409
        assert generate(server)[0] == 200
        status, _, body = server.post("/stop_profile", {})
        assert status == 200, body
        assert server.post("/stop_profile", {})[0] == 409
        paths = re.findall(r"/[^\"\s]*trace-\d+[^\"\s]*\.json", json.dumps(body))
        path = pathlib.Path(paths[0])
        assert path.parent == folder and path.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [entry for entry in folder.iterdir()] == [path]
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {"step", "batch", "layers", "linear", "attention", "request", "deliver", "process_name"} <= names, names
    spans = [event for event in events if event["ph"] == "X"]
    assert sum(event["args"]["rows"] for event in spans if event["name"] == "step") >= 8
    by_thread = {}
    for span in spans:
        by_thread.setdefault((span["pid"], span["tid"]), []).append((span["ts"], span["ts"] + span["dur"]))
    for intervals in by_thread.values():
        stack = []
        for begin, end in sorted(intervals, key=lambda interval: (interval[0], -interval[1])):
            while stack and stack[-1] <= begin + 0.002:
                stack.pop()
            assert not stack or end <= stack[-1] + 0.002  # inside its parent, or after it
            stack.append(end)
    assert len({event["pid"] for event in spans}) == (3 if placement() == "processes" else 1)


def test_metrics_tell_of_the_scheduler(server):
    generate(server)
    def value(name):
        found = re.findall(rf"^\w+:{name}{{[^}}]*}} (\S+)$", server.get("/metrics")[2], re.MULTILINE)
        return float(found[0]) if found else None
    wait_until(lambda: (value("num_ended_requests_total") or 0) >= 1, "count of ended requests")
    assert value("sampled_tokens_total") >= 8
    wait_until(lambda: value("num_running_reqs") == 0, "a heartbeat without running requests")
    assert value("forward_execution_seconds_total") > 0
