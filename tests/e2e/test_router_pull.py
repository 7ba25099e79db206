"""Clients that get models: Ollama's /api/pull, /api/copy and /api/delete of a server that was started with --allow-pull, against a hub of
this machine (hub_server.py)."""
import contextlib
import hashlib
import json
import threading

import pytest

from harness import DEMO, Server, wait_until
from hub_server import cache_of, environment, folder_files, millrace, running_hub

NAME = "tiny-org/tiny-stories"
STORY = {"prompt": "Once upon a time", "stream": False, "options": {"temperature": 0, "num_predict": 8}}


@pytest.fixture
def hub():
    with running_hub() as running:
        running.add(NAME, {name: data for name, data in folder_files(DEMO).items() if name != "README.md"})
        yield running


def serve(hub, folder, *arguments):
    return Server("--allow-pull", "--threads", "1", *arguments, model=None, env=environment(hub, folder))


def pull(server, name, **more):
    """(status, events) of a pull; one that is refused has one."""
    status, _, body = server.post("/api/pull", {"model": name, **more})
    return status, [json.loads(line) for line in body.splitlines()] if isinstance(body, str) else [body]


def names(server, path="/api/tags"):
    """As a person writes them: the list has a tag behind those without one."""
    listed = [model["name"] for model in server.get(path)[2]["models"]]
    assert all(":" in name for name in listed)
    return [name.removesuffix(":latest") for name in listed]


def text(server, model):
    status, _, body = server.post("/api/generate", {**STORY, "model": model})
    assert status == 200, body
    return body["response"]


def check_progress(events, files):
    """File by file, a large one by its SHA-256: clients draw a bar for each digest."""
    done = {}
    for event in events:
        assert 0 <= done.get(event["status"], 0) <= event["completed"] <= event["total"]
        done[event["status"]] = event["completed"]
    digests = {name: hashlib.sha256(file.data).hexdigest() for name, file in files.items() if file.large}
    assert digests
    wanted = {f"pulling {digests[name][:12] if name in digests else name}": len(file.data) for name, file in files.items()}
    assert done == wanted
    assert {event["digest"] for event in events if "digest" in event} == {f"sha256:{digest}" for digest in digests.values()}


def test_a_pulled_model_is_served_copied_and_deleted(hub, tmp_path, server):
    wanted = text(server, "demo")
    with serve(hub, tmp_path) as several:
        assert names(several) == []
        status, events = pull(several, f"hf.co/{NAME}")
        assert status == 200 and events[0] == {"status": "pulling manifest"} and events[-1] == {"status": "success"}
        check_progress([event for event in events if "completed" in event], hub.repositories[NAME].files)
        assert names(several) == [NAME]
        for name in (NAME, f"hf.co/{NAME}", f"{NAME}:latest"):
            assert text(several, name) == wanted
        assert names(several, "/api/ps") == [NAME]

        assert several.post("/api/copy", {"source": NAME, "destination": "stories"})[0] == 200
        assert text(several, "stories:latest") == wanted
        assert several.post("/api/copy", {"source": NAME, "destination": "stories"})[0] == 409
        assert several.post("/api/copy", {"source": "nobody", "destination": "x"})[0] == 404
        assert several.request("DELETE", "/api/delete", {"model": "stories"})[0] == 200
        assert several.post("/api/generate", {**STORY, "model": "stories"})[0] == 404

        status, _, body = several.request("DELETE", "/api/delete", {"model": NAME})
        assert status == 409 and "wanted it unloaded" in body["error"]
        assert several.post("/models/unload", {"model": NAME})[0] == 200
        wait_until(lambda: several.get(f"/v1/models/{NAME}")[2]["status"]["value"] == "unloaded", "unloading")
        assert several.request("DELETE", "/api/delete", {"name": NAME})[0] == 200
        assert names(several) == [] and not cache_of(tmp_path, NAME).exists()
        assert several.request("DELETE", "/api/delete", {"name": NAME})[0] == 404
        assert several.stop() == 0, several.output()


def test_without_a_stream_there_is_one_answer_and_a_pull_again_gets_nothing(hub, tmp_path):
    with serve(hub, tmp_path) as several:
        for _ in range(2):
            status, _, body = several.post("/api/pull", {"name": NAME, "stream": False})
            assert (status, body) == (200, {"status": "success"})
        assert len(hub.files_asked("store")) == len(set(hub.files_asked("store")))
        assert names(several) == [NAME]


def test_what_the_cache_has_is_served_from_the_start(hub, tmp_path):
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    hub.requests.clear()
    with serve(hub, tmp_path, "--model", f"mine={DEMO}") as several:
        assert sorted(names(several)) == ["mine", NAME]
        assert text(several, NAME) == text(several, "mine") and hub.requests == []
        # A folder of the operator's is not a client's to delete.
        several.post("/models/unload", {"model": "mine"})
        wait_until(lambda: several.get("/v1/models/mine")[2]["status"]["value"] == "unloaded", "unloading")
        status, _, body = several.request("DELETE", "/api/delete", {"model": "mine"})
        assert status == 403 and "wanted one that was pulled" in body["error"] and (DEMO / "config.json").exists()


def test_a_model_of_the_same_files_stays_while_it_is_loaded(hub, tmp_path):
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    with serve(hub, tmp_path, "--model", f"small={NAME}") as several:
        assert names(several) == ["small"]  # not under two names
        wanted = text(several, "small")
        assert pull(several, NAME)[0] == 200 and sorted(names(several)) == ["small", NAME]
        status, _, body = several.request("DELETE", "/api/delete", {"model": NAME})
        assert status == 409 and "'small' is loaded" in body["error"]
        assert text(several, "small") == wanted and sorted(names(several)) == ["small", NAME]
        several.post("/models/unload", {"model": "small"})
        wait_until(lambda: several.get("/v1/models/small")[2]["status"]["value"] == "unloaded", "unloading")
        assert several.request("DELETE", "/api/delete", {"model": NAME})[0] == 200
        assert names(several) == [] and not cache_of(tmp_path, NAME).exists()


def test_a_client_that_leaves_ends_its_pull_and_the_next_one_goes_on(hub, tmp_path):
    file = hub.repositories[NAME].files["model.safetensors"]
    file.held_after = len(file.data) // 2
    with serve(hub, tmp_path) as several:
        with contextlib.closing(several.connection()) as connection:
            connection.request("POST", "/api/pull", json.dumps({"model": NAME}), {"Content-Type": "application/json"})
            assert json.loads(connection.getresponse().readline()) == {"status": "pulling manifest"}
            assert file.held.wait(180)
        wait_until(lambda: "the client has left; what has arrived is kept" in several.output(), "end of the pull")
        file.held_after = None
        file.release.set()
        status, events = pull(several, NAME)
        assert status == 200 and events[-1] == {"status": "success"}
        ours = [event["completed"] for event in events if event.get("digest") == f"sha256:{file.sha256}"]
        assert ours[0] > 0, "begun anew"


def test_more_pulls_than_the_limit_are_refused_and_all_end_with_the_server(hub, tmp_path):
    for i in range(3):
        hub.add(f"org/held-{i}", {name: data for name, data in folder_files(DEMO).items() if name != "README.md"})
        hub.repositories[f"org/held-{i}"].files["model.safetensors"].held_after = 1000
    with serve(hub, tmp_path) as several:
        answers = []
        threads = [threading.Thread(target=lambda i=i: answers.append(pull(several, f"org/held-{i}"))) for i in range(2)]
        for thread in threads:
            thread.start()
        for i in range(2):
            assert hub.repositories[f"org/held-{i}"].files["model.safetensors"].held.wait(180)
        status, (event,) = pull(several, "org/held-2")
        assert status == 429 and "2 models are pulled already" in event["error"]
        assert several.stop() == 0, several.output()
        for thread in threads:
            thread.join()
        assert [events[-1] for _, events in answers] == [{"error": "the server stops"}] * 2


def test_faults_have_their_status(hub, tmp_path):
    with serve(hub, tmp_path) as several:
        for body, code, words in (({"model": "org/nobody"}, 404, "org/nobody"), ({"model": "llama3"}, 400, "ORG/NAME"), ({}, 400, "model is missing"),
                                  ({"model": NAME, "insecure": True}, 400, "insecure is true"), ({"model": 7}, 400, "model")):
            status, _, answer = several.post("/api/pull", body)
            assert status == code and words in answer["error"], (body, answer)
        for destination in ("", "a b", "x" * 257):
            assert pull(several, NAME)[0] == 200
            assert several.post("/api/copy", {"source": NAME, "destination": destination})[0] == 400
        for path in ("/api/push", "/api/create", "/api/blobs/sha256:0"):
            assert several.post(path, {"model": NAME})[0] == 501
        assert several.post("/api/pull", {"model": NAME}, headers={"Origin": "https://evil.example"})[0] == 403


def test_without_the_option_nothing_is_pulled_and_the_answer_names_it(hub, tmp_path):
    with Server("--model", f"one={DEMO}", "--model", f"two={DEMO}", "--threads", "1", model=None, env=environment(hub, tmp_path)) as several:
        for method, path, body in (("POST", "/api/pull", {"model": NAME}), ("POST", "/api/copy", {"source": "one", "destination": "three"}), ("DELETE", "/api/delete", {"model": "one"})):
            status, _, answer = several.request(method, path, body)
            assert status == 403 and "--allow-pull" in answer["error"] and path in answer["error"], answer
        assert hub.requests == [] and names(several) == ["one", "two"]
