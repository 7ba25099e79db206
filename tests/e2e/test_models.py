"""Several models in one server: loaded when they are asked for, unloaded when they are idle, in the way or told to."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal

import pytest

from harness import DEMO, WAIT_S, Server, alive, wait_until
from test_command_line import run

STORY = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "max_tokens": 8}
LONG = {**STORY, "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """tiny, org/other: the demo model twice; broken: one without weights."""
    root = tmp_path_factory.mktemp("models")
    for name in ("tiny", "org/other", "broken"):
        (root / name).mkdir(parents=True)
        for file in DEMO.iterdir():
            if name != "broken" or file.name != "model.safetensors":
                (root / name / file.name).symlink_to(file.resolve())
    (root / "README.md").write_text("no model")
    return root


def serve(folder, *arguments, **more):
    return Server("--models-dir", str(folder), "--threads", "1", *arguments, model=None, **more)


@pytest.fixture(scope="module")
def models(folder):
    with serve(folder, "--model-alias", "story=tiny") as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def states(server):
    return {model["id"]: model["status"]["value"] for model in server.get("/v1/models")[2]["data"]}


def ask(server, model, **more):
    return server.post("/v1/chat/completions", {**STORY, "model": model, **more})


def text_of(answer):
    status, _, body = answer
    assert status == 200, body
    return body["choices"][0]["message"]["content"]


def processes(server):
    """The servers of models: {name: pid}."""
    found = {}
    for pid in map(int, pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()):
        arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        found[arguments[arguments.index("--served-model-name") + 1]] = pid
    return found


def metric(server, name, model):
    for line in server.get("/metrics")[2].splitlines():
        if line.startswith(name + "{") and f'model="{model}"' in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name} of {model}")


# ---- on demand -----------------------------------------------------------------------------------------------------

def test_a_model_is_loaded_when_it_is_asked_for(folder, server):
    expected = server.chat_answer(STORY)["choices"][0]["message"]["content"]
    with serve(folder) as several:
        assert states(several) == {"broken": "unloaded", "org/other": "unloaded", "tiny": "unloaded"}
        assert several.ready() and processes(several) == {}
        assert text_of(ask(several, "tiny")) == expected
        assert states(several) == {"broken": "unloaded", "org/other": "unloaded", "tiny": "loaded"}
        assert text_of(ask(several, "org/other")) == expected
        assert set(processes(several)) == {"tiny", "org/other"}
        children = list(processes(several).values())
        assert several.stop() == 0, several.output()
        assert several.leftovers() == [] and not any(map(alive, children))


def test_requests_that_come_meanwhile_wait_for_one_load(folder):
    with serve(folder) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: text_of(ask(server, "tiny")), range(16)))
        assert len(set(answers)) == 1
        assert metric(server, "millrace:model_loads_total", "tiny") == 1


def test_streams_come_through(models):
    events = list(models.stream("/v1/chat/completions", {**STORY, "model": "tiny"}))
    assert events[-1] == "[DONE]" and len(events) > 5
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert text == text_of(ask(models, "tiny"))


def test_every_family_of_endpoints_names_its_model(models):
    body = {"model": "tiny", "max_tokens": 4, "messages": STORY["messages"]}
    status, _, answer = models.post("/v1/messages", body)
    assert status == 200 and answer["model"] == "tiny"
    status, _, answer = models.post("/api/chat", {"model": "story:latest", "messages": STORY["messages"], "stream": False, "options": {"num_predict": 4}})
    assert status == 200 and answer["model"] == "story:latest", answer
    assert models.post("/v1/responses", {"model": "story", "input": "Hi", "max_output_tokens": 4})[0] == 200
    assert models.post("/tokenize", {"model": "tiny", "prompt": "Hi"})[0] == 200
    assert models.get("/server_info?model=tiny")[2]["served_model_name"] == "tiny"
    tags = models.get("/api/tags")[2]["models"]
    assert [model["name"] for model in tags] == [model["model"] for model in tags] == ["broken:latest", "org/other:latest", "tiny:latest"]
    assert all(re.fullmatch("[0-9a-f]{64}", model["digest"]) for model in tags)
    running = next(model for model in models.get("/api/ps")[2]["models"] if model["name"] == "tiny:latest")
    assert running["context_length"] == models.get("/model_info?model=tiny")[2]["context_length"] and running["details"] == tags[-1]["details"]
    shown = models.post("/api/show", {"model": "tiny:latest"})[2]
    assert shown["details"] == running["details"] and shown["details"]["family"] == "qwen3" and shown["model_info"]["qwen3.embedding_length"] == 288
    assert models.get("/api/version")[2] == {"version": "0.9.6"} != models.get("/version")[2]
    # An upload: the model takes no audio, and its own server says so.
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--x--\r\n'
    status, _, answer = models.request("POST", "/v1/audio/transcriptions", form, {"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 400 and "audio" in answer["error"]["message"]


def test_paths_of_one_model_are_those_of_several(models):
    chat = {**STORY, "model": "tiny"}
    text = text_of(ask(models, "tiny"))
    assert text_of(models.post("/chat/completions", chat)) == text
    status, _, answer = models.post("/messages", {**chat, "model": "nobody"})
    assert status == 404 and answer["type"] == "error"
    assert models.post("/messages/count_tokens", chat)[2]["input_tokens"] > 0
    tokens = models.post("/v1/tokenize", {"model": "tiny", "prompt": "Hi"})[2]["tokens"]
    assert models.post("/v1/detokenize", {"model": "tiny", "tokens": tokens})[2]["text"] == "Hi"
    status, _, stored = models.post("/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 4})
    assert status == 200 and models.get(f"/responses/{stored['id']}?model=tiny")[2]["id"] == stored["id"]
    for path in ("/v1/responses/compact", "/responses/compact"):
        status, _, answer = models.post(path, {"model": "tiny"})
        assert status == 404 and "Compacted responses are not served" in answer["error"]["message"]
    assert models.get("/flush_cache?model=tiny")[0] == 200
    status, _, answer = models.get("/v1/realtime?model=tiny")
    assert status == 400 and answer["error"]["param"] is None


def test_a_put_loads_its_model(folder):
    with serve(folder, "--require-model") as server:
        body = {"text": "Hi", "sampling_params": {"max_new_tokens": 1}}
        assert server.request("PUT", "/generate", body)[0] == 400
        assert server.request("PUT", "/generate?model=tiny", body)[0] == 200
        assert states(server)["tiny"] == "loaded"


def test_names_that_are_unknown_or_missing(models):
    for path, body in (("/v1/chat/completions", STORY), ("/v1/messages", {**STORY, "max_tokens": 2}), ("/api/chat", STORY)):
        status, _, answer = models.post(path, {**body, "model": "nobody"})
        assert status == 404 and "'nobody'" in json.dumps(answer) and "org/other" in json.dumps(answer)
    assert models.get("/v1/models/nobody")[0] == 404
    assert models.get("/v1/models/org/other")[2]["id"] == "org/other"
    story = models.get("/v1/models/story")[2]
    assert story["root"] == "tiny" and story["display_name"] == "story" and story["type"] == "model" and story["created_at"].endswith("Z")
    listed = models.get("/v1/models")[2]
    assert listed["first_id"] == listed["data"][0]["id"] and listed["last_id"] == listed["data"][-1]["id"] and listed["has_more"] is False
    assert models.post("/v1/chat/completions", b"{")[0] == 400
    assert models.post("/v1/nothing", STORY)[0] == 404
    text_of(ask(models, "tiny"))
    text_of(ask(models, "org/other"))
    status, _, answer = models.post("/v1/chat/completions", STORY)
    assert status == 400 and "model is missing" in answer["error"]["message"]


def test_a_model_that_does_not_load_costs_the_others_nothing(models):
    text_of(ask(models, "tiny"))
    status, headers, answer = ask(models, "broken")
    assert status == 503 and "model.safetensors" in answer["error"]["message"] and "'broken'" in answer["error"]["message"]
    listed = models.get("/v1/models/broken")[2]["status"]
    assert listed["failed"] and "model.safetensors" in listed["error"]
    assert metric(models, "millrace:model_load_failures_total", "broken") >= 1
    text_of(ask(models, "tiny"))


def test_top_says_how_a_model_is_named(models):
    text_of(ask(models, "tiny"))
    text_of(ask(models, "org/other"))
    url = f"http://{models.host}:{models.port}"
    code, _, err = run("top", "--once", "--url", url)
    assert code == 1 and "model is missing; wanted one of" in err and "name it with --model-name" in err, err
    code, out, err = run("top", "--once", "--url", url, "--model-name", "tiny")
    assert code == 0 and "tiny" in out, err


def test_what_a_proxy_forwards_sees_no_prompts_of_a_model(models):
    text_of(ask(models, "tiny"))
    for headers, shown in (({}, True), ({"X-Forwarded-For": "203.0.113.9"}, False)):
        connection = models.connection()
        with contextlib.closing(connection):
            connection.request("GET", "/live/events?model=tiny", headers=headers)
            response = connection.getresponse()
            with contextlib.closing(response):
                assert response.status == 200
                event = json.loads(next(line for line in response if line.startswith(b"data: "))[6:])
                assert ("prompts" in event and "log" in event) is shown, headers


def test_what_only_looks_neither_loads_a_model_nor_keeps_it(folder):
    with serve(folder, "--model-ttl", "1") as server:
        for path in ("/server_info?model=tiny", "/model_info?model=tiny", "/live/events?model=tiny"):
            status, _, answer = server.get(path)
            assert status == 409 and "'tiny' is unloaded" in answer["error"]["message"]
        text_of(ask(server, "tiny"))
        connection = server.connection()
        with contextlib.closing(connection):
            connection.request("GET", "/live/events?model=tiny")
            response = connection.getresponse()
            assert response.status == 200 and response.readline()
            wait_until(lambda: states(server)["tiny"] == "unloaded", "unloaded model")


def test_commands_name_one_of_several_models(models):
    url = f"http://{models.host}:{models.port}"
    text = text_of(ask(models, "org/other"))
    code, out, err = run("run", "--url", url, "--temperature", "0", "--max-tokens", "8", "org/other", "Tell me a story.")
    assert (code, out) == (0, text + "\n"), err
    code, out, err = run("top", "--url", url, "--model-name", "org/other", "--once")
    assert code == 0 and "org/other" in out, err
    code, _, err = run("top", "--url", url, "--model-name", "nobody", "--once")
    assert code == 1 and "'nobody'" in err


# ---- and away again ------------------------------------------------------------------------------------------------

def test_loading_and_unloading_by_hand(folder):
    with serve(folder) as server:
        assert server.post("/models/load", {"model": "tiny"})[2] == {"success": True}
        assert states(server)["tiny"] == "loaded"
        pid = processes(server)["tiny"]
        assert server.post("/models/unload", {"model": "tiny"})[2] == {"success": True}
        wait_until(lambda: states(server)["tiny"] == "unloaded", "unloaded model")
        assert not alive(pid)
        assert server.post("/models/unload", {"model": "tiny"})[0] == 409
        assert server.post("/models/load", {"model": "nobody"})[0] == 404
        assert server.post("/models/load", {"model": "broken"})[0] == 503
        text_of(ask(server, "tiny"))


def test_a_running_request_ends_well_when_its_model_is_unloaded(folder):
    with serve(folder, "--drain-timeout-s", str(WAIT_S)) as server:
        stream = server.stream("/v1/chat/completions", {**LONG, "model": "tiny", "max_tokens": 200})
        next(stream)
        assert server.post("/models/unload", {"model": "tiny"})[0] == 200
        assert list(stream)[-1] == "[DONE]"
        wait_until(lambda: states(server)["tiny"] == "unloaded", "unloaded model")


def test_a_second_signal_ends_running_requests_with_an_error(folder):
    with serve(folder, "--drain-timeout-s", str(WAIT_S)) as server:
        stream = server.stream("/v1/chat/completions", {**LONG, "model": "tiny", "max_tokens": 900})
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping when" in server.output(), "a drain")
        server.process.send_signal(signal.SIGTERM)
        last = list(stream)[-1]
        assert last == "[DONE]" or "error" in json.loads(last), last  # on a fast machine it is through
        assert server.process.wait(WAIT_S) == 0


def test_an_idle_model_is_unloaded_and_loaded_again(folder):
    with serve(folder, "--model-ttl", "1") as server:
        text_of(ask(server, "tiny"))
        wait_until(lambda: states(server)["tiny"] == "unloaded", "unloaded model")
        assert metric(server, "millrace:model_unloads_total", "tiny") == 1
        text_of(ask(server, "tiny"))


def test_one_model_may_come_and_go_too():
    with Server("--model-ttl", "1") as server:
        assert states(server) == {"demo": "unloaded"}
        server.chat("A story.", max_tokens=2)  # its name may be left out
        wait_until(lambda: states(server)["demo"] == "unloaded", "unloaded model")


def test_requests_have_to_name_the_only_model_too():
    with Server("--model-ttl", "600", "--require-model") as server:
        status, _, answer = server.post("/v1/chat/completions", STORY)
        assert status == 400 and answer["error"]["param"] == "model" and answer["error"]["message"] == "model is missing; wanted one of 'demo'"
        assert server.post("/v1/messages", STORY)[2]["error"]["message"] == answer["error"]["message"]
        assert server.post("/api/chat", STORY)[2]["error"] == answer["error"]["message"]
        assert server.post("/generate", {"text": "a"})[0] == server.post("/models/load", {})[0] == 400
        assert states(server) == {"demo": "unloaded"}
        text_of(ask(server, "demo"))
        assert server.post("/generate?model=demo", {"text": "a", "sampling_params": {"max_new_tokens": 1}})[0] == 200
        assert server.get("/model_info")[0] == 200  # a request without a body


@pytest.mark.parametrize("limit", [("--models-max", "1"), ("--models-memory-gib", "0.015")])
def test_the_least_recently_used_makes_room_and_a_pinned_one_stays(folder, limit):
    with serve(folder, *limit) as server:
        text_of(ask(server, "tiny"))
        text_of(ask(server, "org/other"))
        assert states(server) == {"broken": "unloaded", "tiny": "unloaded", "org/other": "loaded"}
        text_of(ask(server, "tiny"))


def test_a_pinned_model_is_there_from_the_start_and_stays(folder):
    with serve(folder, "--pin-model", "org/other", "--model-ttl", "1", "--models-max", "2") as server:
        wait_until(lambda: states(server)["org/other"] == "loaded", "pinned model")
        text_of(ask(server, "tiny"))
        wait_until(lambda: states(server)["tiny"] == "unloaded", "unloaded model")
        assert states(server)["org/other"] == "loaded"


# ---- faults --------------------------------------------------------------------------------------------------------

def test_a_model_whose_server_dies_is_loaded_again(folder):
    with serve(folder) as server:
        text_of(ask(server, "tiny"))
        text_of(ask(server, "org/other"))
        other = processes(server)["org/other"]
        stream = server.stream("/v1/chat/completions", {**LONG, "model": "tiny"})
        next(stream)
        os.kill(processes(server)["tiny"], signal.SIGKILL)
        events = []
        with contextlib.suppress(Exception):  # it breaks off
            events.extend(stream)
        assert "[DONE]" not in events
        wait_until(lambda: states(server)["tiny"] == "unloaded", "end of the model")
        text_of(ask(server, "tiny"))
        assert processes(server)["org/other"] == other


def test_a_client_that_leaves_ends_its_request_there(models):
    text_of(ask(models, "tiny"))
    connection = models.connection()
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps({**LONG, "model": "tiny", "stream": True}), {"Content-Type": "application/json"})
        assert connection.getresponse().readline().startswith(b"data: ")
    wait_until(lambda: metric(models, "millrace:model_requests_running", "tiny") == 0, "end of the request")
    wait_until(lambda: all(stage["running"] == 0 for stage in models.get("/server_info?model=tiny")[2]["internal_states"]), "end of the request in its server")


def test_the_servers_of_models_end_with_the_one_in_front(folder):
    with serve(folder) as server:
        text_of(ask(server, "tiny"))
        pid = processes(server)["tiny"]
        server.process.kill()
        wait_until(lambda: not alive(pid), "end of the model's server")


# ---- who may, and options ------------------------------------------------------------------------------------------

def test_keys_are_asked_in_front(folder):
    with serve(folder, "--api-key", "user", "--admin-api-key", "admin") as server:
        assert ask(server, "tiny")[0] == 401
        key, admin = {"Authorization": "Bearer user"}, {"Authorization": "Bearer admin"}
        assert server.post("/v1/chat/completions", {**STORY, "model": "tiny"}, headers=key)[0] == 200
        assert server.get("/v1/models")[0] == 401 and server.post("/models/unload", {"model": "tiny"})[0] == 401
        assert server.post("/flush_cache?model=tiny", {}, headers=key)[0] == 403
        assert server.post("/flush_cache?model=tiny", {}, headers=admin)[0] == 200
    with serve(folder, admin=False) as server:
        assert server.post("/flush_cache?model=tiny", {})[0] == 403


def test_metrics_have_the_label_of_the_model(models):
    text_of(ask(models, "tiny"))
    text_of(ask(models, "org/other"))
    page = models.get("/metrics")[2]
    for model in ("tiny", "org/other"):
        assert metric(models, "millrace:model_loaded", model) == 1
        assert metric(models, "millrace:generation_tokens_total", model) >= 8
    assert page.count("# TYPE millrace:generation_tokens_total ") == 1


def test_ready_says_what_loads(folder):
    with serve(folder) as server:
        answer = server.get("/ready")
        assert answer[0] == 200 and {model["id"]: model["status"] for model in answer[2]["models"]}["tiny"] == "unloaded"
        text_of(ask(server, "tiny"))

        def rests():
            tiny = next(model for model in server.get("/ready")[2]["models"] if model["id"] == "tiny")
            return (tiny["status"], tiny["running"], tiny["waiting"], tiny["progress"]) == ("loaded", 0, 0, 1)

        wait_until(rests, "a loaded model at rest")


@pytest.mark.parametrize("arguments,words", [
    (["--model", DEMO, "--model", DEMO], ["'demo'", "NAME=PATH"]), (["--models-dir", "/nonexistent"], ["/nonexistent"]), (["--model", DEMO, "--model", "/nonexistent/x"], ["/nonexistent/x"]),
    (["--model", f"a={DEMO}", "--model", f"b={DEMO}", "--pin-model", "c"], ["--pin-model", "'c'"]), (["--model", f"a={DEMO}", "--model-alias", "b"], ["ALIAS=NAME"]),
    (["--model", f"a={DEMO}", "--model", f"b={DEMO}", "--served-model-name", "c"], ["--served-model-name"]), (["--model", f"a={DEMO}", "--pipeline", "x.yaml"], ["--pipeline"]),
    (["--model", DEMO, "--models-max", "2"], ["--models-max", "one model"]), (["--model", DEMO, "--models-memory-gib", "1"], ["--models-memory-gib", "one model"])])
def test_options_that_do_not_fit_are_named(arguments, words):
    code, _, err = run("serve", *arguments)
    assert code == 2 and len(err.splitlines()) == 1 and all(word in err for word in words), err


def test_an_empty_folder_is_refused(tmp_path):
    code, _, err = run("serve", "--models-dir", tmp_path)
    assert code == 2 and str(tmp_path) in err and "config.json" in err


def test_names_of_their_own():
    with Server("--model", f"one={DEMO}", "--model", f"two={DEMO}", "--threads", "1", model=None) as server:
        assert set(states(server)) == {"one", "two"}
        assert ask(server, "two")[2]["model"] == "two"


# ---- options of their own ------------------------------------------------------------------------------------------

def test_options_of_pictures_and_videos_cost_a_model_of_text_nothing(folder, tmp_path):
    with serve(folder, "--media-root", str(tmp_path), "--video-max-mib", "3") as server:
        text_of(ask(server, "tiny"))
    file = tmp_path / "models.yaml"
    file.write_text(f"tiny:\n  media-root: {tmp_path}\n")
    with serve(folder, "--models-file", str(file)) as server:
        status, _, body = ask(server, "tiny")
        assert status == 503 and "--media-root has no use" in body["error"]["message"], body


def test_models_have_options_of_their_own(folder, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(f"""
tiny:
  alias: [mini, petit]
  max-running-requests: 3
big:
  model: {DEMO}
  pin: true
  kv-dtype: bf16
""")
    with serve(folder, "--models-file", str(file), "--max-running-requests", "7") as server:
        wait_until(lambda: states(server)["big"] == "loaded", "the pinned one")
        for name in ("mini", "org/other"):
            text_of(ask(server, name))
        shown = {name: server.get(f"/server_info?model={name}")[2]["options"] for name in ("petit", "big", "org/other")}
        assert [shown[name]["max-running-requests"] for name in ("petit", "big", "org/other")] == [3, 7, 7]
        assert [shown[name]["kv-dtype"] for name in ("petit", "big", "org/other")] == ["f32", "bf16", "f32"]
    file.write_text("tiny: {max-runing-requests: 3}\n")
    code, _, error = run("serve", "--models-dir", folder, "--models-file", file)
    assert code == 2 and f"{file}:1" in error and "max-running-requests" in error
