"""New weights while requests run: updates from disk, versions in answers, pauses."""
import concurrent.futures
import json
import os
import shutil
import signal
import struct
import threading
import time

import pytest

from harness import DATA, DEMO, HEARTBEAT_S, ROOT, TRIES, WAIT_S, Server, caught_running, freeze, placement, strike, wait_until
from test_text_hosts import join, leader, pipeline, wait_ready

PROMPT = "Once upon a time"
processes_only = pytest.mark.skipif(placement() != "processes", reason="a stage is a process of its own only there")


def other_weights(folder, layer=1):
    """The demo model with one layer's MLP gone: other text, same shapes."""
    shutil.copytree(DEMO, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    begin, end = header[f"model.layers.{layer}.mlp.down_proj.weight"]["data_offsets"]
    data[8 + length + begin : 8 + length + end] = bytes(end - begin)
    path.write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("weights")
    return root, other_weights(root / "b"), other_weights(root / "c", 0)


@pytest.fixture(scope="module")
def texts(models):
    """What fresh servers make of the prompt, by folder."""
    found = {}
    for folder in (DEMO, *models[1:]):
        with Server(model=folder) as server:
            found[folder] = generate(server)["text"]
    assert len(set(found.values())) == 3
    return found


@pytest.fixture
def server(models):
    with Server("--weights-root", str(models[0])) as server:
        yield server


def generate(server, tokens=40, **more):
    status, _, body = server.post("/generate", {
        "text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}, **more})
    assert status == 200, body
    return body


def update(server, folder, **more):
    return server.post("/update_weights_from_disk", {"model_path": str(folder), **more})


def updated(server, folder, **more):
    status, _, body = update(server, folder, **more)
    assert (status, body["success"], body["status"]) == (200, True, "ready"), body
    return body


def test_answers_are_those_of_a_fresh_server_with_the_same_weights(server, models, texts):
    _, b, c = models
    assert generate(server)["text"] == texts[DEMO]
    assert updated(server, b, weight_version="step-7")["weight_version"] == "step-7"
    answer = generate(server)
    meta = answer["meta_info"]
    assert answer["text"] == texts[b]
    assert meta["weight_version"] == "step-7" and meta["cached_tokens"] == 0  # no KV of the old weights
    assert meta["weight_versions"] == [{"version": "step-7", "start": 0, "end": 40}]
    assert server.get("/model_info")[2]["weight_version"] == "step-7"
    assert updated(server, c, flush_cache=False)["weight_version"] == "3"
    assert generate(server)["text"] == texts[c]
    updated(server, DEMO)  # the model's own folder needs no root
    assert generate(server)["text"] == texts[DEMO]
    status = server.get("/weights_update_status")[2]
    assert (status["state"], status["updates_completed"], status["updates_failed"]) == ("idle", 3, 0)


def test_openai_answers_name_their_weights(server, models):
    updated(server, models[1], weight_version="b")
    body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "n": 2}
    answer = server.post("/v1/completions", body)[2]
    assert answer["metadata"]["weight_version"] == "b"
    assert [(s["version"], s["start"], s["end"], s["index"]) for s in answer["metadata"]["weight_versions"]] == [
        ("b", 0, choice_tokens, i) for i, choice_tokens in enumerate((5, 5))]
    events = [json.loads(e) for e in server.stream("/v1/completions", {**body, "n": 1}) if e != "[DONE]"]
    assert [("metadata" in e) for e in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["metadata"]["weight_versions"][0]["end"] == 5


@pytest.mark.parametrize("policy", ["in_place", "retract"])
def test_a_stream_across_a_switch_tells_its_spans(server, models, policy):
    body = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}}
    whole = generate(server, 900)["output_ids"]

    def across_a_switch():
        """It is held while the folder is loaded: on a busy machine it would end before."""
        events = (json.loads(event) for event in server.stream("/generate", body) if event != "[DONE]")
        last = next(events)
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
        updated(server, models[1], policy=policy, weight_version="b")
        assert server.post("/continue_generation", {})[0] == 200
        for last in events:
            pass
        return last, last["meta_info"]["weight_versions"]

    for _ in range(TRIES):
        last, spans = across_a_switch()
        if len(spans) == 2:
            break
        updated(server, DEMO, weight_version="1")  # it ended before the pause: the machine was busy
    assert [s["version"] for s in spans] == ["1", "b"], spans
    assert spans[0]["start"] == 0 and spans[0]["end"] == spans[1]["start"] and spans[1]["end"] == 900
    cut = spans[0]["end"]
    assert last["output_ids"][:cut] == whole[:cut]
    assert last["output_ids"][cut:] != whole[cut:]
    assert last["meta_info"]["num_retractions"] == (1 if policy == "retract" else 0)
    if policy == "retract":  # the rest is what the new weights make of the whole text before it
        prompt = server.post("/tokenize", {"prompt": PROMPT})[2]["tokens"]
        again = server.post("/generate", {"input_ids": prompt + whole[:cut], "sampling_params": {
            "temperature": 0, "max_new_tokens": 900 - cut, "ignore_eos": True}})[2]
        assert again["output_ids"] == last["output_ids"][cut:]


def test_what_cannot_be_loaded_leaves_the_old_weights(server, models, texts, tmp_path):
    outside = other_weights(tmp_path / "outside")
    broken = models[0] / "broken"
    shutil.copytree(models[1], broken, dirs_exist_ok=True)
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:100000])
    other = models[0] / "other"
    shutil.copytree(next(p.parent for p in sorted(DATA.glob("*/config.json"))), other, dirs_exist_ok=True)
    for folder, part in ((outside, "--weights-root"), (models[0] / "nowhere", "is not there"), (broken, "model.safetensors"),
                         (other, ""), (f"{models[0]}/../../etc", "")):
        status, _, body = update(server, folder)
        assert status == 400 and body["success"] is False and body["status"] == "error", (folder, status, body)
        assert part in body["message"] and body["error"]["param"] == "model_path", body
    for body, part in (({}, "model_path"), ({"model_path": str(models[1]), "load_format": "dummy"}, "load_format"),
                       ({"model_path": str(models[1]), "policy": "later"}, "policy"), ({"model_path": 5}, "model_path")):
        status, _, answer = server.post("/update_weights_from_disk", body)
        assert status == 400 and part in answer["message"], answer
    answer = generate(server)
    assert answer["text"] == texts[DEMO] and answer["meta_info"]["weight_version"] == "1"
    updated(server, models[1])
    assert generate(server)["text"] == texts[models[1]]


def test_one_update_at_a_time(server, models):
    answers = []
    clients = [threading.Thread(target=lambda: answers.append(update(server, models[1])[0])) for _ in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert sorted(set(answers)) in ([200], [200, 400]) and 200 in answers, answers
    assert server.post("/update_weights_from_disk", {"model_path": str(models[2]), "is_async": True})[0] == 200
    wait_until(lambda: server.get("/weights_update_status")[2]["state"] == "idle", "end of the update")


def test_no_request_fails_while_weights_change(server, models):
    failures, stop = [], threading.Event()

    def work(number):
        while not stop.is_set():
            status, _, body = server.post("/generate", {"text": f"{PROMPT} {number}", "sampling_params": {
                "temperature": 0, "max_new_tokens": 60, "ignore_eos": True}})
            ends = body["meta_info"]["weight_versions"][-1]["end"] if status == 200 else 0
            if status != 200 or body["meta_info"]["completion_tokens"] != 60 or ends != 60:
                failures.append(body)

    clients = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for client in clients:
        client.start()
    for i in range(20):
        updated(server, models[1 + i % 2], policy=("in_place", "retract")[i // 2 % 2], flush_cache=i % 3 == 0)
    stop.set()
    for client in clients:
        client.join()
    assert not failures, failures[:2]
    assert server.get("/weights_update_status")[2]["updates_completed"] == 20


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_keeps_requests(server, texts, mode):
    whole = generate(server, 900)["text"]
    answers = []

    def start():
        answers.clear()
        client = threading.Thread(target=lambda: answers.append(generate(server, 900)))
        client.start()
        return client

    client = caught_running(server, start, lambda client: not client.is_alive())
    status, _, body = server.post("/pause_generation", {"mode": mode})
    assert (status, body["status"]) == (200, "ok"), body
    late = []
    for count in (1, 2):  # each is in news from after the pause; the second's is later by a heartbeat or more
        late.append(threading.Thread(target=lambda: answers.append(generate(server))))
        late[-1].start()
        wait_until(lambda: server.stage("scheduler")["waiting"] >= count, "the late one")
        if count == 1:
            steps = server.stage("scheduler")["steps"]
    assert server.stage("scheduler")["steps"] == steps and all(one.is_alive() for one in late)  # nothing is computed meanwhile
    assert server.ready()
    if mode == "retract":
        assert server.post("/flush_cache", {})[0] == 200
    assert server.get("/weights_update_status")[2]["paused"] is True
    assert server.post("/continue_generation", {})[2]["status"] == "ok"
    for one in (client, *late):
        one.join(WAIT_S)
    assert sorted(a["text"] for a in answers) == sorted([whole, texts[DEMO], texts[DEMO]])


def test_a_pause_that_aborts_ends_requests_with_what_they_have(server):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(TRIES):
            running = caught_running(server, lambda: pool.submit(generate, server, 900), lambda request: request.done())
            assert server.post("/pause_generation", {})[0] == 200
            answer = running.result(WAIT_S)["meta_info"]
            if answer["finish_reason"]["type"] == "abort" and answer["completion_tokens"] > 0:
                break
            server.post("/continue_generation", {})  # it was through before the pause, or had not its first token
    assert answer["finish_reason"]["type"] == "abort"
    assert 0 < answer["completion_tokens"] < 900
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 5}, "timeout_s": 1}
    assert server.post("/generate", body)[0] == 504  # deadlines go on
    server.post("/continue_generation", {})
    assert generate(server, 5)["meta_info"]["completion_tokens"] == 5


def test_the_serving_weights_can_be_renamed(server):
    status, _, body = server.post("/update_weight_version", {"new_version": "v-a"})
    assert status == 200 and body["new_version"] == "v-a"
    assert generate(server)["meta_info"]["weight_version"] == "v-a"
    assert server.post("/update_weight_version", {})[0] == 400


def test_all_replicas_switch(models, texts):
    with Server("--dp", "2", "--dp-policy", "round_robin", "--weights-root", str(models[0])) as server:
        wait_for_all(server)
        assert {generate(server, routed_dp_rank=r)["text"] for r in (0, 1)} == {texts[DEMO]}
        updated(server, models[1])
        for rank in (0, 1):
            answer = generate(server, routed_dp_rank=rank)
            assert (answer["text"], answer["meta_info"]["weight_version"]) == (texts[models[1]], "2")


@processes_only
def test_a_scheduler_that_restarts_gets_the_new_weights_and_serves_no_old_ones(server, models, texts):
    updated(server, models[1], weight_version="b")
    pid = server.children()["scheduler"]
    os.kill(pid, signal.SIGKILL)
    seen = []
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and not (seen and seen[-1][0] == 200):
        status, _, body = server.post("/generate", {"text": PROMPT, "sampling_params": {
            "temperature": 0, "max_new_tokens": 40, "ignore_eos": True}})
        seen.append((status, body.get("text")))
        time.sleep(0.02)
    assert {status for status, _ in seen} <= {200, 503}, seen
    assert {text for status, text in seen if status == 200} == {texts[models[1]]}
    assert generate(server)["meta_info"]["weight_version"] == "b"


@processes_only
def test_a_scheduler_that_restarts_stays_paused(server):
    assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
    pid = server.children()["scheduler"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.ready() and server.children().get("scheduler") not in (None, pid), "restart")
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 5}, "timeout_s": 1}
    assert server.post("/generate", body)[0] == 504
    server.post("/continue_generation", {})
    assert generate(server, 5)["meta_info"]["completion_tokens"] == 5


def test_a_pipeline_from_a_file_takes_new_weights(models, texts, tmp_path):
    path = tmp_path / "generate.yaml"
    text = (ROOT / "examples" / "pipelines" / "generate.yaml").read_text().replace("models/demo", str(DEMO))
    path.write_text(text.replace("max_running_requests: 64", f"max_running_requests: 64, weights_root: {models[0]}"))
    with Server("--pipeline", str(path), model=None) as server:
        wait_until(server.ready, "readiness")
        assert generate(server)["text"] == texts[DEMO]
        updated(server, models[1], weight_version="b")
        answer = generate(server)
        assert (answer["text"], answer["meta_info"]["weight_version"]) == (texts[models[1]], "b")


@processes_only
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_replicas_on_other_hosts_switch_and_one_that_missed_it_catches_up(models, texts, tmp_path, how):
    path = pipeline(tmp_path, "scheduler", replicas=2)
    more = ("--weights-root", str(models[0]))
    with leader(path) as server, join(path, "scheduler:0", more=more), join(path, "scheduler:1", more=more) as second:
        wait_ready(server)
        both = lambda: all(server.stage(f"scheduler-{i}")["state"] == "ready" for i in (0, 1)) and server.get("/ready")[2]["reason"] == ""
        wait_until(both, "both schedulers")
        updated(server, models[1], weight_version="b")
        assert {generate(server, routed_dp_rank=i)["text"] for i in (0, 1)} == {texts[models[1]]}
        strike(second.process.pid, how)
        wait_until(lambda: server.stage("scheduler-1")["state"] != "ready", "its loss")
        updated(server, models[2], weight_version="c")  # without it
        assert generate(server)["text"] == texts[models[2]]
        if how == signal.SIGSTOP:
            second.process.send_signal(signal.SIGCONT)
            wait_until(both, "its return")
            assert generate(server, routed_dp_rank=1)["text"] == texts[models[2]]
            return
        with join(path, "scheduler:1", more=more):
            wait_until(both, "its return")
            assert generate(server, routed_dp_rank=1)["text"] == texts[models[2]]


def test_a_pipeline_without_text_refuses_what_it_cannot_abort(tmp_path):
    path = tmp_path / "ids.yaml"
    path.write_text(f"""name: ids
entry: tokenize
stages:
  - {{name: tokenize, worker: tokenize, args: {{model: {DEMO}}}, next: generate}}
  - {{name: generate, worker: generate, args: {{model: {DEMO}}}, terminal: true}}
""")
    with Server("--pipeline", str(path), model=None) as server:
        wait_until(server.ready, "readiness")
        status, _, body = server.post("/update_weight_version", {"new_version": "a", "abort_all_requests": True})
        assert status == 400 and "abort_all_requests" in body["message"]
        assert server.get("/weights_update_status")[2]["weight_version"] == "1"
        assert server.post("/update_weight_version", {"new_version": "a"})[0] == 200
        assert server.get("/weights_update_status")[2]["weight_version"] == "a"


# ---- the same bytes under one version, on every replica, whatever dies


def zeroed_rows(folder, source=DEMO, name="model.layers.1.mlp.down_proj.weight"):
    """A model with a quarter of one matrix's rows gone, away from its beginning, middle and end."""
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    quarter = (end - begin) // 4
    at = 8 + length + begin + quarter // 2
    data[at : at + quarter] = bytes(quarter)
    path.write_bytes(data)
    return folder


def ask(server, **more):
    status, _, body = server.post("/generate", {"text": PROMPT, "sampling_params": {
        "temperature": 0, "max_new_tokens": 40, "ignore_eos": True}, **more})
    return status, body.get("text") if status == 200 else json.dumps(body)


def reason(server):
    return server.get("/ready")[2]["reason"]


def wait_for_all(server):
    wait_until(lambda: server.ready() and reason(server) == "", "all replicas")


def kill(server, name):
    pid = server.children()[name]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.children().get(name) not in (None, pid), "restart")


@pytest.fixture
def two(models):
    with Server("--dp", "2", "--dp-policy", "round_robin", "--stall-restart-s", "0", "--weights-root", str(models[0])) as server:
        wait_for_all(server)
        yield server


@processes_only
def test_a_stale_replica_serves_nobody_and_waits_for_its_folder(two, models, texts):
    folder, away = models[0] / "moving", models[0] / "away"
    shutil.copytree(models[1], folder)
    updated(two, folder, weight_version="b")
    folder.rename(away)
    kill(two, "scheduler-1")
    wait_until(lambda: "trying again" in reason(two), "a try without the folder")
    assert "scheduler-1: stale, has weight version 1; wanted 2" in reason(two)
    assert {one["stage"]: one["state"] for one in two.get("/ready")[2]["stages"] if "scheduler" in one["stage"]} == {
        "scheduler-0": "ready", "scheduler-1": "loading"}
    status, body = ask(two, routed_dp_rank=1)
    assert status == 503 and "scheduler-1: stale" in body, body
    assert ask(two, routed_dp_rank=0) == (200, texts[models[1]])
    away.rename(folder)
    seen = []
    wait_until(lambda: seen.append(ask(two, routed_dp_rank=1)) or seen[-1][0] == 200, "its return")
    assert {text for status, text in seen if status == 200} == {texts[models[1]]}
    assert {status for status, _ in seen} <= {200, 503}
    wait_for_all(two)


@processes_only
def test_other_files_under_the_same_path_are_not_served_as_the_same_version(server, models, texts):
    path = models[0] / "current"
    path.symlink_to(models[1])
    updated(server, path, weight_version="b")
    path.unlink()
    path.symlink_to(models[2])
    kill(server, "scheduler")
    wait_until(lambda: "has changed since" in reason(server), "the refusal")
    assert not server.ready() and "wanted" in reason(server)
    assert ask(server)[0] == 503
    updated(server, models[2], weight_version="c")  # what is there now is served under another version
    assert ask(server) == (200, texts[models[2]])
    path.unlink()


@processes_only
def test_a_stage_of_a_file_that_restarts_over_other_weights_does_not_serve(texts, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    path = tmp_path / "generate.yaml"
    path.write_text((ROOT / "examples" / "pipelines" / "generate.yaml").read_text().replace("models/demo", str(model)))
    with Server("--pipeline", str(path), model=None) as server:
        wait_until(server.ready, "readiness")
        assert ask(server) == (200, texts[DEMO])
        zeroed = zeroed_rows(tmp_path / "zeroed") / "model.safetensors"
        os.replace(zeroed, model / "model.safetensors")
        kill(server, "generate")
        wait_until(lambda: "its weights of version 1 have the checksum" in reason(server), "the comparison")
        assert ask(server)[0] == 503
        shutil.copy(DEMO / "model.safetensors", tmp_path / "again")
        os.replace(tmp_path / "again", model / "model.safetensors")
        kill(server, "generate")
        wait_until(server.ready, "its return")
        assert ask(server) == (200, texts[DEMO])
        (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text() + "\n")
        kill(server, "detokenize")
        wait_until(lambda: "configuration and tokenizer have the checksum" in reason(server), "the comparison")
        assert ask(server)[0] == 503


@processes_only
def test_every_byte_of_the_model_counts_when_a_scheduler_restarts(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    with Server(model=model) as server:
        os.replace(zeroed_rows(tmp_path / "zeroed") / "model.safetensors", model / "model.safetensors")
        os.kill(server.children()["scheduler"], signal.SIGKILL)
        seen = []
        wait_until(lambda: seen.append(ask(server)[0]) or "have the checksum" in reason(server), "the comparison")
        assert set(seen[1:]) <= {503} and ask(server)[0] == 503


def test_another_configuration_is_refused_by_name(server, models, texts):
    for name, key, value in (("theta", "rope_theta", 4321.0), ("eps", "rms_norm_eps", 0.01)):
        folder = other_weights(models[0] / name)
        config = json.loads((folder / "config.json").read_text())
        for place in (config, *(v for v in config.values() if isinstance(v, dict) and key in v)):
            if key in place or place is config:
                place[key] = value
        (folder / "config.json").write_text(json.dumps(config))
        status, _, body = update(server, folder)
        assert status == 400 and f"{key} is {value:g}; wanted" in body["message"], body
    assert ask(server) == (200, texts[DEMO])


@processes_only
def test_a_scheduler_that_dies_in_an_update_gets_the_weights_all_the_same(two, models, texts):
    for number, folder in enumerate((*models[1:], *models[1:]), 2):
        status, _, body = update(two, folder, is_async=True)
        assert status == 200, body
        kill(two, "scheduler-1")
        wait_until(lambda: two.get("/weights_update_status")[2]["state"] == "idle", "end of the update")
        wait_for_all(two)
        assert two.get("/weights_update_status")[2]["version_number"] == number
        for rank in (0, 1):
            assert ask(two, routed_dp_rank=rank) == (200, texts[folder])


@processes_only
def test_an_update_may_come_while_a_replica_catches_up(two, models, texts):
    updated(two, models[1])
    killed = two.stage("scheduler-1")["incarnation"]
    os.kill(two.children()["scheduler-1"], signal.SIGKILL)

    def is_back():  # stale, or already not any more
        stage = two.stage("scheduler-1")
        return (stage["state"] == "ready" or "stale" in stage["message"]) and stage["incarnation"] != killed

    wait_until(is_back, "its return")
    status, _, body = update(two, models[0] / "nowhere")
    assert status == 400 and "is not there" in body["message"], body
    updated(two, models[2])
    wait_for_all(two)
    for rank in (0, 1):
        assert ask(two, routed_dp_rank=rank) == (200, texts[models[2]])


@processes_only
def test_an_update_does_not_wait_for_a_frozen_replica(two, models, texts):
    pid = two.children()["scheduler-1"]
    freeze(pid)  # until after the update: nothing restarts it
    try:
        updated(two, models[1])
        assert "scheduler-1: stalled" in reason(two)
        assert ask(two) == (200, texts[models[1]])
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for_all(two)
    assert ask(two, routed_dp_rank=1) == (200, texts[models[1]])


def test_a_version_may_be_a_number(server, models):
    assert updated(server, models[1], weight_version=120)["weight_version"] == "120"
    status, _, body = server.post("/update_weight_version", {"new_version": 121})
    assert status == 200 and body["new_version"] == "121"
    assert update(server, models[1], weight_version=[1])[0] == 400


def test_metrics_and_answers_count_updates_and_paused_requests(server, models):
    assert updated(server, models[1])["num_paused_requests"] == 0
    assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
    client = threading.Thread(target=generate, args=(server,))
    client.start()
    wait_until(lambda: server.metrics()["millrace:num_queue_reqs"] + server.metrics()["millrace:num_running_reqs"] == 1,
               "request")
    assert updated(server, models[2])["num_paused_requests"] == 1
    assert update(server, models[0] / "nowhere")[0] == 400
    found = server.metrics()
    assert (found["millrace:weight_updates_total"], found["millrace:generation_paused"]) == (3, 1)
    server.post("/continue_generation", {})
    client.join()
    assert server.metrics()["millrace:generation_paused"] == 0
