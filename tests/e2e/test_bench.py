"""millrace bench as a person uses it: against a server, with its files, and without a server."""
import json
import re
import subprocess
import xml.dom.minidom

import pytest
from harness import DEMO, WAIT_S, Server, program


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


def url_of(server):
    return f"http://{server.host}:{server.port}"


def bench(*arguments, wanted=0):
    done = subprocess.run([program(), "bench", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == wanted, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("load", [["--clients", 4], ["--rate", 50], ["--endpoint", "chat"],
                                  ["--workload", "shared-prefix", "--groups", 2, "--prefix-tokens", 64]])
def test_every_request_is_answered_and_counted(server, tmp_path, load):
    figures, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    done = bench("serve", "--url", url_of(server), "--requests", 12, "--prompt-tokens", 8, "--tokens", 6, "--json", figures, "--plot", plot, *load)
    assert "12 requests in" in done.stdout and ", 0 failed" in done.stdout
    found = json.loads(figures.read_text())
    assert (found["requests"], found["failed"]) == (12, 0)
    assert [each["answer_tokens"] for each in found["each"]] == [6] * 12
    assert all(0 <= each["begin_us"] <= each["first_us"] <= each["end_us"] for each in found["each"])
    if "chat" not in load:
        assert [each["prompt_tokens"] for each in found["each"]] == [72 if "shared-prefix" in load else 8] * 12
    assert found["ttft_ms"]["p50"] <= found["end_to_end_ms"]["p50"]
    assert xml.dom.minidom.parse(str(plot)).documentElement.tagName == "svg"
    drawn = plot.read_text()
    assert re.search(rf">{server.model} at {url_of(server)}, \d{{4}}-\d\d-\d\d \d\d:\d\d UTC<", drawn) and "--requests 12" in drawn and "--prompt-tokens 8 --tokens 6" in drawn
    assert all(len(re.findall(rf">{name} [\d.e+-]+<", drawn)) == 3 for name in ("p50", "p90", "p99"))


def test_a_picture_is_what_its_name_says(tmp_path):
    """Before any request: there is no server."""
    plot = tmp_path / "plot.png"
    done = subprocess.run([program(), "bench", "serve", "--url", "http://127.0.0.1:1", "--plot", str(plot)], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2 and "plot.png'; wanted a name that ends with .svg" in done.stderr and not plot.exists(), done.stderr


def test_a_trace_is_replayed(server, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": 40 * i, "input_length": 20 + i, "output_length": 3, "hash_ids": [1]}) + "\n"
                             for i in range(5)))
    done = bench("serve", "--url", url_of(server), "--workload", "trace", "--trace", trace, "--json", "-")
    found = json.loads(done.stdout)
    assert [each["prompt_tokens"] for each in found["each"]] == [20, 21, 22, 23, 24]
    assert [each["begin_us"] for each in found["each"]] == [0, 40000, 80000, 120000, 160000]


def test_refused_requests_fail_the_run(server):
    done = bench("serve", "--url", url_of(server), "--requests", 3, "--prompt-tokens", 100000, wanted=1)
    assert "3 failed" in done.stdout and "HTTP 400" in done.stdout


def test_mistakes_are_told_in_one_line(tmp_path):
    nobody = bench("serve", "--url", "http://127.0.0.1:9", "--requests", 1, wanted=1)
    assert "cannot connect" in nobody.stderr and "--url" in nobody.stderr and nobody.stderr.count("\n") == 1
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"timestamp": 1}\n')
    bad = bench("serve", "--workload", "trace", "--trace", trace, wanted=2)
    assert "bad.jsonl:1: input_length is 0" in bad.stderr
    assert "wanted" in bench("offline", tmp_path / "no", wanted=2).stderr


def test_offline_times_steps_and_operations():
    done = bench("offline", DEMO, "--prompt", 32, "--decode", 4, "--batch", "1,3", "--rounds", 1, "--depth", 40, "--json", "-")
    found = json.loads(done.stdout)
    assert found["prefill_tokens_per_s"] > 0
    assert [each["batch"] for each in found["decode"]] == [1, 3]
    assert all(each["tokens_per_s"] > 0 for each in found["decode"])
    assert "linear" in done.stderr and "attention" in done.stderr
