"""The command line's help, its errors, and where an option's value comes from: arguments, environment, a file, defaults."""
import contextlib
import os
import re
import subprocess

import pytest

from harness import DEMO, WAIT_S, Server, program, wait_until
from test_admin import local

# A variable of the tests themselves has an option's name (tests/CMakeLists.txt).
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}


def run(*arguments, env=None):
    result = subprocess.run([program(), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S, env={**CLEAN, **(env or {})})
    return result.returncode, result.stdout, result.stderr


def commands():
    listed = re.search(r"Subcommands:\n((?:  .*\n)+)", run("--help")[1])[1]
    return re.findall(r"^  (\w+)", listed, re.MULTILINE)


# ---- help ----------------------------------------------------------------------------------------------------------

def test_the_bare_program_prints_its_help():
    code, out, err = run()
    assert (code, err) == (0, "") and out == run("--help")[1]


def test_every_command_has_examples_and_fits_a_terminal():
    names = commands()
    assert {"serve", "run", "chat", "pull", "launch", "top"} <= set(names)
    for name in names:
        code, out, err = run(name, "--help")
        assert (code, err) == (0, "")
        assert f"\n  millrace {name}" in out[out.index("Examples:"):] or f"| millrace {name}" in out, name
        assert max(map(len, out.splitlines())) <= 120, name


def test_options_say_what_they_take():
    out = run("serve", "--help")[1]
    assert "--threads N (0 to 256, default 0)" in out
    assert "--kv-dtype DTYPE (f32, bf16, f16, int8, default f32)" in out
    assert re.search(r"--api-key KEY +\S", out)
    assert "-p,--port N (0 to 65535, default 30000)" in out
    assert not re.search(r"\b(INT|TEXT)\b", out) and "[default]" not in out
    assert re.search(r"^  --no-web +\S", out, re.MULTILINE) and "--prefix-cache,--no-prefix-cache\n" in out and "{" not in out
    bench = run("bench", "serve", "--help")[1]
    assert "--endpoint ENDPOINT (completions, chat, default completions)" in bench and re.search(r"--stop-at-eos +\S", bench)


# ---- errors --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments,seen,nearest", [
    (["srve"], "'srve'", "serve"), (["serve", "--thread", "2"], "'--thread'", "--threads"), (["serve", "x", "--kv_gib=2"], "'--kv_gib'", "--kv-gib"),
    (["chat", "--uri", "x"], "'--uri'", "--url"), (["bench", "serv"], "'serv'", "serve"), (["bench", "offline", "m", "--bach", "1"], "'--bach'", "--batch")])
def test_what_is_unknown_is_named_with_the_nearest(arguments, seen, nearest):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    first = err.splitlines()[0]
    assert seen in first and first.endswith(f"perhaps '{nearest}'"), err


@pytest.mark.parametrize("arguments,word", [(["chat", "more"], "'more'"), (["bench"], "bench"), (["pull"], "model"), (["bench", "offline"], "model")])
def test_what_is_too_much_or_missing_is_named(arguments, word):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and word in err.splitlines()[0]


@pytest.mark.parametrize("arguments", [["serve", DEMO, "--context-length", "0x10"], ["serve", DEMO, "--port=010"], ["serve", DEMO, "--kv-gib", "0x1p3"], ["bench", "serve", "--rate", "nan"],
                                       ["bench", "offline", DEMO, "--batch", "1", "0x4"]])
def test_numbers_are_decimal(arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and "is no decimal number; wanted one such as" in err and arguments[-1].split("=")[-1] in err, err


def test_numbers_of_the_environment_and_of_files_are_decimal(tmp_path):
    code, _, err = run("serve", DEMO, env={"MILLRACE_CONTEXT_LENGTH": "0x10"})
    assert code == 2 and "MILLRACE_CONTEXT_LENGTH" in err and "no decimal number" in err
    file = tmp_path / "millrace.yaml"
    file.write_text("context-length: 0x10\n")
    code, _, err = run("serve", DEMO, "--config", file)
    assert code == 2 and f"{file}:1:" in err and "no decimal number" in err


def test_what_a_stage_finds_wrong_is_one_line():
    code, _, err = run("serve", DEMO, "--port", "0", "--kv-gib", "60000")
    lines = [line for line in err.splitlines() if "loading weights" not in line]
    assert code == 2 and len(lines) == 1 and lines[0].startswith("millrace: error: stage 'scheduler': --kv-gib is 60000"), err


def test_bf16_activations_without_bf16_weights_are_refused():
    code, _, err = run("serve", DEMO, "--port", "0", "--activations", "bf16", "--quantize", "q8_0", "--log-level", "off")
    assert code == 2 and "--activations bf16 with --quantize q8_0; wanted one of them" in err.splitlines()[-1], err


def test_types_of_weights_are_understood_in_any_case(tmp_path):
    code, out, err = run("quantize", DEMO, tmp_path / "demo.gguf", "--type", "Q8_0")
    assert code == 0 and (tmp_path / "demo.gguf").stat().st_size > 0, err
    with Server("--quantize", "Q8_0", "--kv-dtype", "INT8") as server:
        options = server.get("/server_info")[2]["options"]
        assert (options["quantize"], options["kv-dtype"]) == ("q8_0", "int8")


# ---- sources -------------------------------------------------------------------------------------------------------

def options_of(*arguments, env=None):
    with Server(*arguments, env=env) as server:
        return server.get("/server_info")[2]["options"]


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_default(tmp_path):
    file = tmp_path / "millrace.yaml"
    file.write_text("max-running-requests: 3\npage-size: 8\nmax-skips: 7\nprefix-cache: false\n")
    env = {"MILLRACE_MAX_RUNNING_REQUESTS": "4", "MILLRACE_PAGE_SIZE": "32", "MILLRACE_MAX_BODY_MIB": "9"}
    found = options_of("--config", str(file), "--max-running-requests", "5", env=env)
    assert (found["max-running-requests"], found["page-size"], found["max-skips"], found["max-body-mib"]) == (5, 32, 7, 9)
    assert found["prefix-cache"] is False and found["request-timeout-s"] == 600


def test_the_file_may_be_named_by_the_environment_and_have_sections_of_commands(tmp_path):
    file = tmp_path / "millrace.yaml"
    file.write_text("chat:\n  temperature: 0\nserve:\n  max-skips: 5\n  no-web: true\nmax-skips: 6\n")
    found = options_of(env={"MILLRACE_CONFIG": str(file)})
    assert found["max-skips"] == 5 and found["web"] is False


def test_a_list_of_the_file_is_an_option_that_repeats(tmp_path):
    file = tmp_path / "millrace.yaml"
    file.write_text("served-model-name: [one, two]\n")
    with Server("--config", str(file)) as server:
        assert [model["id"] for model in server.get("/v1/models")[2]["data"]] == ["one", "two"]


def test_an_argument_displaces_what_it_excludes(tmp_path):
    file = tmp_path / "millrace.yaml"
    file.write_text("model: /of/the/file\nport: 1\n")
    with Server("--config", str(file), str(DEMO), model=None, env={"MILLRACE_MODEL": "/of/the/environment"}) as server:
        assert server.model == "demo"


@pytest.mark.parametrize("text,words", [
    ("thread: 2\n", [":1:", "'thread'", "'threads'"]), ("threads: 2\nkv_gib: 1\n", [":2:", "'kv_gib'", "'kv-gib'"]), ("chat:\n  temperatur: 1\n", [":2:", "'temperatur'", "'temperature'", "chat"]),
    ("threads: 999\n", [":1:", "'999'", "256"]), ("threads: [\n", [":"]), ("- threads\n", ["map"]), ("threads:\n", [":1:", "'threads'"]), ("threads: 1\nthreads: 2\n", [":2:", "twice"]),
    ("chta:\n  temperature: 1\n", ["'chta'", "'chat'"]), ("threads: {a: 1}\n", ["'threads'"]), ("config: other.yaml\n", ["'config'"]), ("threads: 1\n---\nthreads: 2\n", ["second document"])])
def test_a_file_with_a_fault_is_refused_by_line_and_name(tmp_path, text, words):
    file = tmp_path / "millrace.yaml"
    file.write_text(text)
    code, out, err = run("serve", DEMO, "--config", file)
    assert (code, out) == (2, "") and err.startswith("millrace: error: ") and len(err.splitlines()) == 1
    assert str(file) in err and all(word in err for word in words), err


def test_a_variable_with_a_fault_is_named():
    code, _, err = run("serve", DEMO, env={"MILLRACE_THREADS": "many"})
    assert code == 2 and "MILLRACE_THREADS" in err and "'many'" in err and len(err.splitlines()) == 1
    code, _, err = run("serve", DEMO, env={"MILLRACE_PREFIX_CACHE": "perhaps"})
    assert code == 2 and "MILLRACE_PREFIX_CACHE" in err
    code, _, err = run("serve", DEMO, "--config", "/nonexistent.yaml")
    assert code == 2 and "/nonexistent.yaml" in err


@pytest.mark.parametrize("arguments,words", [
    (["serve", DEMO, "--host", ""], ["host is ''"]), (["serve", DEMO, "--split", "9,9"], ["--split", "without --pp"]),
    (["bench", "serve", "--trace", "x"], ["--trace has no use", "--workload trace"]), (["bench", "serve", "--groups", "7"], ["--groups", "shared-prefix"]),
    (["bench", "serve", "--workload", "trace", "--trace", "x", "--prefix-tokens", "7"], ["--prefix-tokens"])])
def test_what_would_be_ignored_is_refused(arguments, words):
    code, _, err = run(*arguments)
    assert code == 2 and all(word in err for word in words), err


def test_a_model_that_cannot_be_looked_at_is_named_with_the_reason(tmp_path):
    loop = tmp_path / "config.json"
    loop.symlink_to(loop)
    for path, reason in ((tmp_path, "symbolic links"), (loop, "symbolic links"), (tmp_path / ("x" * 300), "too long")):
        for command in ("serve", "inspect"):
            code, _, err = run(command, path)
            assert code == 2 and reason in err and str(path)[:200] in err, err


def test_without_a_model_the_error_names_all_that_is_one():
    code, _, err = run("serve")
    assert code == 2 and all(word in err for word in ("--model is missing", "Hugging Face", "GGUF", "ORG/NAME")), err


def test_a_port_that_is_taken_may_be_free_later():
    with Server() as server:
        code, _, err = run("serve", DEMO, "--port", server.port)
        assert code == 1 and "already in use" in err


def test_variables_and_files_serve_other_commands_too(tmp_path):
    code, _, err = run("chat", env={"MILLRACE_URL": "ftp://x"})
    assert code == 2 and "ftp://x" in err
    file = tmp_path / "millrace.yaml"
    file.write_text("url: ftp://y\n")
    code, _, err = run("top", "--config", file)
    assert code == 2 and "ftp://y" in err
    code, _, err = run("bench", "serve", "--config", file)
    assert code == 2 and "ftp://y" in err


def test_an_option_that_needs_another_finds_it_in_any_source():
    code, _, err = run("serve", DEMO, "--media-allow-private-networks")
    assert code == 2 and "--media-allowed-domains" in err
    # The model takes text only, and the server says so of the option that came by the environment.
    code, _, err = run("serve", DEMO, "--media-allow-private-networks", env={"MILLRACE_MEDIA_ALLOWED_DOMAINS": "a.example"})
    assert code == 2 and "takes text only" in err


# ---- what is printed -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [["--help"], ["inspect", DEMO], ["serve", "--help"]])
def test_what_cannot_be_printed_is_a_failure(arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program(), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT_S, env=CLEAN)
    assert result.returncode == 1 and "standard output" in result.stderr, result.stderr


def ready(path):
    with contextlib.suppress(OSError):
        return local(str(path), "GET", "/ready")[0] == 200


def test_a_server_whose_output_is_lost_ends_well(tmp_path):
    socket = tmp_path / "server.sock"
    with open("/dev/full", "w") as full:
        server = subprocess.Popen([program(), "serve", str(DEMO), "--uds", str(socket), "--no-tcp"], stdout=full, stderr=subprocess.DEVNULL, env=CLEAN)
        try:
            wait_until(lambda: socket.exists() and ready(socket), "a server that has printed where it is")
            server.terminate()
            assert server.wait(WAIT_S) == 0
        finally:
            server.kill()


def test_closed_streams_are_no_place_for_files(tmp_path):
    """A file that gets the number of standard error would have the progress in it."""
    closed = ["sh", "-c", 'exec "$0" "$@" >&- 2>&- <&-', program()]
    assert subprocess.run([*closed, "split", str(DEMO), "--pp", "2", "--out", str(tmp_path / "shards")], timeout=WAIT_S, env=CLEAN).returncode == 0
    code, out, err = run("inspect", tmp_path / "shards" / "0")
    assert code == 0 and "layers" in out, err


# ---- the log -------------------------------------------------------------------------------------------------------

LINE = re.compile(r"POST /v1/chat/completions model=demo prompt=(\d+) cached=(\d+) output=(\d+) first=\d+ms speed=\S+ total=[\d.]+s finish=(\S+) id=(\S+)")


def test_each_request_is_one_line_of_the_log():
    with Server() as server:
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "A story."}], "max_tokens": 5, "temperature": 0, "stream": stream}
            status, headers, _ = server.post("/v1/chat/completions", body, headers={"x-request-id": f"mine-{stream}"})
            assert status == 200 and headers["x-request-id"] == f"mine-{stream}"
        assert server.post("/v1/chat/completions", {"messages": [], "temperature": 9}, headers={"x-request-id": "bad"})[0] == 400
        server.get("/v1/models")
        assert server.stop() == 0
        lines = [line for line in server.output().splitlines() if " id=" in line]
    assert len(lines) == 3, lines
    for line, stream in zip(lines, (False, True)):
        prompt, cached, output, finish, name = LINE.search(line).groups()
        assert int(prompt) > 0 and int(cached) >= 0 and (output, finish, name) == ("5", "length", f"mine-{stream}")
    assert "refused=invalid" in lines[2] and "id=bad" in lines[2]


def test_the_log_of_requests_may_be_off():
    with Server("--no-request-log") as server:
        server.chat("A story.", max_tokens=2)
        assert server.stop() == 0
        assert " id=" not in server.output()
