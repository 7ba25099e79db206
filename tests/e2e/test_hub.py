"""Models by name: `millrace pull`, `list`, `rm` and `serve ORG/NAME`, against a hub of this machine (hub_server.py)."""
import json
import os
import pathlib
import pty
import struct
import subprocess

import pytest

from harness import DEMO, ROOT, WAIT_S, Server, program
from hub_server import cache_of, environment, folder_files, millrace, running_hub
from vision_model import GOLDEN

NAME = "tiny-org/tiny-stories"
NOT_NEEDED = {"pytorch_model.bin": b"x" * 2000, "onnx/model.onnx": b"x" * 2000, "consolidated.safetensors": b"x" * 2000, "model.pth": b"x",
              "pytorch_model.bin.index.json": b"{}", ".gitattributes": b"", "README.md": b"# x"}


def demo_files():
    return {name: data for name, data in folder_files(DEMO).items() if name != "README.md"}


@pytest.fixture
def hub():
    with running_hub() as running:
        running.add(NAME, {**demo_files(), **NOT_NEEDED})
        yield running


def test_pull_takes_what_a_folder_of_safetensors_needs(hub, tmp_path):
    code, out, err = millrace(hub, tmp_path, "pull", NAME)
    assert code == 0, err
    commit = hub.repositories[NAME].commit
    cache = cache_of(tmp_path, NAME)
    assert folder_files(cache / "snapshots" / commit) == demo_files()
    assert (cache / "refs" / "main").read_text() == commit
    # The layout of the Hugging Face tools: a relative link to a blob that is named by its checksum.
    for name, file in hub.repositories[NAME].files.items():
        if name in demo_files():
            assert os.readlink(cache / "snapshots" / commit / name) == f"../../blobs/{file.etag}"
    assert str(cache / "snapshots" / commit) in out
    assert "100%" in err and "\r" not in err  # plain lines where it is no terminal


def test_pull_again_gets_nothing_but_the_listing(hub, tmp_path):
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    hub.requests.clear()
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    assert [path for _, _, path, _ in hub.requests] == [f"/api/models/{NAME}/revision/main?blobs=true"]


def test_list_and_rm(hub, tmp_path):
    code, out, _ = millrace(hub, tmp_path, "list")
    assert code == 0 and "no models" in out
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    code, out, _ = millrace(hub, tmp_path, "list")
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith(NAME))
    assert "main " + hub.repositories[NAME].commit[:8] in row and "11.5 MB" in row, row
    code, out, _ = millrace(hub, tmp_path, "rm", NAME)
    assert code == 0 and f"removed {NAME}" in out and "11.5 MB are free" in out, out
    assert not cache_of(tmp_path, NAME).exists()
    code, _, err = millrace(hub, tmp_path, "rm", NAME)
    assert code == 2 and NAME in err


def test_list_as_json(hub, tmp_path):
    assert millrace(hub, tmp_path, "list", "--json")[1] == "[]\n"
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    code, out, _ = millrace(hub, tmp_path, "list", "--json")
    (one,) = json.loads(out)
    assert code == 0 and (one["model"], one["complete"], one["commit"], one["revisions"]) == (NAME, True, hub.repositories[NAME].commit, ["main"])
    assert pathlib.Path(one["path"]).samefile(cache_of(tmp_path, NAME) / "snapshots" / one["commit"]) and one["bytes"] > 11e6 and one["modified"] > 1e9


def test_a_stage_of_a_file_names_a_model_of_the_cache(hub, tmp_path):
    file = tmp_path / "generate.yaml"
    file.write_text((ROOT / "examples" / "pipelines" / "generate.yaml").read_text().replace("model: models/demo", f"model: {NAME}"))
    missing, _, err = millrace(hub, tmp_path, "serve", "--pipeline", str(file), "--port", "0")
    assert missing == 2 and NAME in err, err
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    hub.requests.clear()
    with Server("--pipeline", str(file), model=None, env=environment(hub, tmp_path)) as server:
        status, _, answer = server.post("/v1/pipeline", {"inputs": {"text": "Once upon a time", "sampling": {"max_tokens": 4}}})
        assert status == 200, answer
        assert [one["id"] for one in server.get("/v1/models")[2]["data"]] == [NAME]
    assert hub.requests == []


@pytest.mark.parametrize("checksums", [True, False])
def test_shards_are_those_of_the_index(tmp_path, checksums):
    # The demo model once more, as two files: a safetensors file with half of the tensors each.
    raw = (DEMO / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    header.pop("__metadata__", None)
    names = sorted(header)
    shards, index = {}, {"metadata": {}, "weight_map": {}}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        file, at, body, entries = f"model-0000{i}-of-00002.safetensors", 0, b"", {}
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [at, at + end - begin]}
            body, at = body + data[begin:end], at + end - begin
            index["weight_map"][name] = file
        text = json.dumps(entries).encode()
        shards[file] = struct.pack("<Q", len(text)) + text + body
    files = {name: data for name, data in demo_files().items() if name != "model.safetensors"}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files.update(shards)
    with running_hub() as hub:
        hub.add(NAME, {**files, "model-00009-of-00009.safetensors": b"of an older upload", **NOT_NEEDED})
        if not checksums:  # some mirrors list names alone
            hub.repositories[NAME].listing = lambda listing: {**listing, "siblings": [{"rfilename": one["rfilename"]} for one in listing["siblings"]]}
        code, _, err = millrace(hub, tmp_path, "pull", NAME)
        assert code == 0, err
        snapshot = cache_of(tmp_path, NAME) / "snapshots" / hub.repositories[NAME].commit
        assert folder_files(snapshot) == files
        # Without one of its shards the model is not in the cache, and serve gets the rest.
        (snapshot / "model-00002-of-00002.safetensors").unlink()
        with Server(NAME, model=None, env=environment(hub, tmp_path)) as server:
            assert server.model == NAME and server.chat("Tell me a story.", max_tokens=4)


def test_serve_by_name_pulls_and_then_needs_no_network(hub, tmp_path):
    with Server(NAME, model=None, env=environment(hub, tmp_path)) as server:
        assert "100%" in server.output()
        assert [model["id"] for model in server.get("/v1/models")[2]["data"]] == [NAME]
        text = server.chat("Tell me a story.", max_tokens=8, temperature=0)
    with Server(model=DEMO) as local:
        assert local.chat("Tell me a story.", max_tokens=8, temperature=0) == text
    hub.requests.clear()
    for variables in ({}, {"HF_HUB_OFFLINE": "1"}):
        with Server("--model", NAME, model=None, env=environment(None, tmp_path, **variables)) as server:
            assert server.model == NAME and server.chat("Tell me a story.", max_tokens=8, temperature=0) == text
    assert hub.requests == []


def test_a_local_path_of_that_name_wins(hub, tmp_path):
    (tmp_path / "tiny-org").mkdir()
    (tmp_path / NAME).symlink_to(DEMO)
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        with Server(NAME, model=None, env=environment(hub, tmp_path)) as server:
            assert server.model == "tiny-stories"
    finally:
        os.chdir(here)
    assert hub.requests == []


def test_offline_pulls_nothing(hub, tmp_path):
    for command in (["pull", NAME], ["serve", NAME, "--port", "0"]):
        code, _, err = millrace(hub, tmp_path, *command, HF_HUB_OFFLINE="1")
        assert code == 1 and "HF_HUB_OFFLINE is set" in err, err
    assert hub.requests == []


def test_without_a_hub_the_message_tells_what_to_set(tmp_path):
    code, _, err = millrace(None, tmp_path, "pull", NAME)
    assert code == 2 and "HF_ENDPOINT is not set" in err
    code, _, err = millrace(None, tmp_path, "serve", NAME, "--port", "0")
    assert code == 2 and "HF_ENDPOINT is not set" in err and f"{NAME} is neither a path nor in the cache" in err


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "../b", "a/..", "a/b:", "-a/b", "a--b/c", "a/b.git", "a/b:../c", "a/b\x1b[2J"])
def test_names_that_are_none(hub, tmp_path, name):
    code, _, err = millrace(hub, tmp_path, "pull", "--", name)
    assert code == 2 and "wanted" in err and "\x1b" not in err, err
    assert hub.requests == []


def test_revisions(hub, tmp_path):
    hub.repositories[NAME].revisions.add("refs/pr/1")
    for revision in ("refs/pr/1", hub.repositories[NAME].commit):
        code, _, err = millrace(hub, tmp_path, "pull", NAME, "--revision", revision)
        assert code == 0, err
    assert hub.requests[0][2] == f"/api/models/{NAME}/revision/refs%2Fpr%2F1?blobs=true"
    cache = cache_of(tmp_path, NAME)
    assert (cache / "refs" / "refs" / "pr" / "1").read_text() == hub.repositories[NAME].commit
    assert not (cache / "refs" / "main").exists()
    code, _, err = millrace(hub, tmp_path, "pull", NAME, "--revision", "none")
    assert code == 2 and "no such revision" in err and "Invalid rev id" in err
    code, _, err = millrace(hub, tmp_path, "pull", NAME, "--revision", "../x")
    assert code == 2 and "revision" in err
    with Server(NAME, "--revision", "refs/pr/1", model=None, env=environment(None, tmp_path)) as server:
        assert server.model == NAME
    code, _, err = millrace(hub, tmp_path, "serve", str(DEMO), "--revision", "main")
    assert code == 2 and "--revision is main" in err


def rows_of(text):
    """{name: value} of the rows that `inspect` and `show` print."""
    return {line[2:24].strip(): line[25:] for line in text.splitlines() if line.startswith("  ") and line[2] != " "}


def test_show_of_a_path_is_inspect_and_an_estimate(tmp_path):
    code, out, err = millrace(None, tmp_path, "show", DEMO)
    assert code == 0, err
    shown, inspected = rows_of(out), rows_of(millrace(None, tmp_path, "inspect", DEMO)[1])
    for name in ("architecture", "parameters", "weights", "layers", "attention", "context length"):
        assert shown[name] == inspected[name]
    config = json.loads((DEMO / "config.json").read_text())
    kv = config["max_position_embeddings"] * config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * config["head_dim"] * 4
    assert f"KV of {config['max_position_embeddings']} tokens {kv / 1e6:.2f} MB (f32)" in shown["memory"], shown
    half = rows_of(millrace(None, tmp_path, "show", DEMO, "--context-length", "512", "--kv-dtype", "bf16")[1])
    assert f"KV of 512 tokens {kv / 4e6:.2f} MB (bf16)" in half["memory"], half


def test_show_without_a_hub_says_that_no_path_is_there(tmp_path):
    code, _, err = millrace(None, tmp_path, "show", "models/misspelt")
    assert code == 2 and "models/misspelt is neither a path nor in the cache" in err and "HF_ENDPOINT" in err, err


def test_show_before_a_pull_gets_headers_alone(hub, tmp_path):
    here = rows_of(millrace(None, tmp_path, "show", DEMO)[1])
    code, out, err = millrace(hub, tmp_path, "show", NAME, TMPDIR=str(tmp_path))
    assert code == 0, err
    shown = rows_of(out)
    assert out.startswith(f"{NAME}, not pulled\n") and shown["commit"] == hub.repositories[NAME].commit
    for name in ("architecture", "parameters", "weights", "layers", "attention", "context length", "memory"):
        assert shown[name] == here[name]
    assert shown["to pull"].startswith("11.5 MB in 6 files"), shown
    sent = [headers.get("Range") for kind, _, path, headers in hub.requests if "model.safetensors" in path]
    assert sent and all(one == "bytes=0-262143" for one in sent)
    assert not cache_of(tmp_path, NAME).exists() and not list(tmp_path.glob("millrace-show-*"))
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    code, out, _ = millrace(None, tmp_path, "show", NAME)
    cached = rows_of(out)
    assert code == 0 and cached["architecture"] == here["architecture"] and "model.safetensors" in out
    assert cached["files"].startswith("11.5 MB in 6 files")


def test_show_names_what_this_program_does_not_run(hub, tmp_path):
    hub.add("org/other", {**demo_files(), "config.json": json.dumps({"architectures": ["OtherForCausalLM"], "model_type": "other"}).encode()})
    code, _, err = millrace(hub, tmp_path, "show", "org/other", TMPDIR=str(tmp_path))
    assert code == 2 and "OtherForCausalLM" in err and "org/other" in err and "millrace-show" not in err, err


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """{quantization: bytes} of the demo model."""
    folder = tmp_path_factory.mktemp("gguf")
    found = {}
    for kind in ("q8_0", "bf16"):
        path = folder / f"{kind}.gguf"
        done = subprocess.run([program(), "quantize", str(DEMO), str(path), "--type", kind], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        found[kind] = path.read_bytes()
    return found


GGUF = "tiny-org/tiny-GGUF"


def test_one_gguf_model_of_several(hub, gguf, tmp_path):
    hub.add(GGUF, {"tiny-Q8_0.gguf": gguf["q8_0"], "tiny-BF16.gguf": gguf["bf16"], "README.md": b"x"})
    code, _, err = millrace(hub, tmp_path, "pull", GGUF)
    assert code == 2 and "BF16, Q8_0" in err and f"{GGUF}:BF16" in err
    code, _, err = millrace(hub, tmp_path, "pull", GGUF + ":Q5_K_M")
    assert code == 2 and "Q5_K_M" in err and "BF16, Q8_0" in err
    shown = rows_of(millrace(hub, tmp_path, "show", GGUF + ":q8_0")[1])
    assert "Q8_0" in shown["weights"] and shown["architecture"] == "Qwen3ForCausalLM"
    code, out, err = millrace(hub, tmp_path, "pull", GGUF + ":q8_0")
    assert code == 0 and "tiny-Q8_0.gguf" in out, err
    assert hub.files_asked("store").count("tiny-BF16.gguf") == 0
    with Server(GGUF, model=None, env=environment(None, tmp_path)) as server:  # the one of the cache
        assert server.model == GGUF + ":Q8_0" and server.chat("Tell me a story.", max_tokens=4)
    with Server(GGUF + ":BF16", model=None, env=environment(hub, tmp_path)) as server:
        assert server.model == GGUF + ":BF16"
        text = server.chat("Tell me a story.", max_tokens=8, temperature=0)
    with Server(model=DEMO) as local:
        assert local.chat("Tell me a story.", max_tokens=8, temperature=0) == text
    listed = millrace(None, tmp_path, "list")[1]
    assert f"{GGUF}:BF16 " in listed and f"{GGUF}:Q8_0 " in listed
    code, out, _ = millrace(None, tmp_path, "rm", GGUF + ":Q8_0")
    assert code == 0 and f"removed {GGUF}:Q8_0" in out
    listed = millrace(None, tmp_path, "list")[1]
    assert f"{GGUF}:BF16" in listed and "Q8_0" not in listed
    assert sorted(path.name for path in cache_of(tmp_path, GGUF).glob("blobs/*")) == [hub.repositories[GGUF].files["tiny-BF16.gguf"].etag]


def test_the_customary_quantization(hub, gguf, tmp_path):
    hub.add(GGUF, {"tiny-Q4_K_M.gguf": gguf["q8_0"], "tiny-BF16.gguf": gguf["bf16"]})
    code, out, err = millrace(hub, tmp_path, "pull", GGUF)
    assert code == 0 and out.startswith(f"{GGUF}:Q4_K_M:") and "taking Q4_K_M" in err


def test_a_name_of_the_cache_for_other_commands(hub, tmp_path):
    for command in (["inspect", NAME], ["stage", "--join", "127.0.0.1:1", "--pipeline", "x.yaml", "--stages", "scheduler", "--model", NAME]):
        code, _, err = millrace(hub, tmp_path, *command)
        assert code == 2 and f"millrace pull {NAME}" in err
    assert hub.requests == []
    assert millrace(hub, tmp_path, "pull", NAME)[0] == 0
    code, out, _ = millrace(None, tmp_path, "inspect", NAME)
    assert code == 0 and "Qwen3ForCausalLM" in out
    code, _, err = millrace(None, tmp_path, "quantize", NAME, tmp_path / "out.gguf")
    assert code == 0 and (tmp_path / "out.gguf").exists(), err


def test_a_tower_comes_along_and_sees(hub, tmp_path):
    vision = {"tiny-vl-F32.gguf": (GOLDEN / "gguf" / "model.gguf").read_bytes(), "mmproj-F32.gguf": (GOLDEN / "gguf" / "mmproj.gguf").read_bytes(),
              "preprocessor_config.json": (GOLDEN / "dense" / "preprocessor_config.json").read_bytes()}
    hub.add("org/tiny-vl", {**vision, "README.md": b"x"})
    with Server("org/tiny-vl", model=None, env=environment(hub, tmp_path)) as server:
        assert server.model == "org/tiny-vl:F32"
        assert server.get("/model_info")[2]["has_image_understanding"] is True
    snapshot = cache_of(tmp_path, "org/tiny-vl") / "snapshots" / hub.repositories["org/tiny-vl"].commit
    assert folder_files(snapshot) == vision


def test_a_model_that_another_tool_pulled(tmp_path):
    """The layout as huggingface_hub writes it, with a link and with a file of its own (where links are not to be had)."""
    commit = "1234567890" * 4
    cache = cache_of(tmp_path, NAME)
    (cache / "blobs").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    snapshot = cache / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, data in demo_files().items():
        if name == "config.json":
            (snapshot / name).write_bytes(data)
        else:
            (cache / "blobs" / ("blob-of-" + name)).write_bytes(data)
            (snapshot / name).symlink_to(f"../../blobs/blob-of-{name}")
    (tmp_path / "hub" / "version.txt").write_text("1")
    (tmp_path / "hub" / "datasets--a--b").mkdir()
    with Server(NAME, model=None, env=environment(None, tmp_path)) as server:
        assert server.model == NAME
    listed = millrace(None, tmp_path, "list")[1].splitlines()
    assert len(listed) == 2 and listed[1].startswith(NAME) and f"main {commit[:8]}" in listed[1]
    # A link without a blob: the model is not there any more.
    (cache / "blobs" / "blob-of-model.safetensors").unlink()
    code, _, err = millrace(None, tmp_path, "inspect", NAME)
    assert code == 2 and "nor in the cache" in err


def test_a_bar_on_a_terminal(hub, tmp_path):
    terminal, theirs = pty.openpty()
    with subprocess.Popen([program(), "pull", NAME], stdout=subprocess.PIPE, stderr=theirs, env=environment(hub, tmp_path)) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
        assert process.wait(WAIT_S) == 0
    os.close(terminal)
    assert b"\r\x1b[K[" in shown and b"100% 11.5 MB of 11.5 MB" in shown, shown
    assert shown.endswith(b"\r\x1b[K"), "the bar is gone at the end"
