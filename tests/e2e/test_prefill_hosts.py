"""Prompts computed on other hosts by a pipeline's file: the answers are those of one process, a host that is gone costs time alone, and
new weights come to all of them."""
import concurrent.futures
import contextlib
import datetime
import os
import shutil
import signal
import subprocess
import time

import pytest

from harness import ROOT, TRIES, WAIT_S, Server, freeze, program, wait_until
from test_disaggregation import answer, begins, body, bytes_came_through_relays, first_transferred
from test_layer_hosts import join, lead, wait_ready
from test_text_hosts import LEASE, control_port
from test_weights import other_weights

REQUESTS = 16


@pytest.fixture(scope="module")
def wanted():
    with Server() as server:
        return [answer(server, i) for i in range(REQUESTS)]


def pipeline(folder, generate="", prompts="host: b", control=None, key=None):
    """A file whose stages `scheduler` and `prompts` have these keys."""
    lines = ["name: prefill-decode", f'control: "tcp://{control or f"127.0.0.1:{control_port()}"}"', LEASE, "entry: scheduler"]
    if key:
        lines.append(f'key_file: "{key}"')
    more = f", {generate}" if generate else ""
    lines += [
        "stages:",
        "  - {name: scheduler, worker: generate, prefill_from: prompts, next: detokenize, stream_to: detokenize, "
        f"resources: {{max_requests: 65536}}{more}}}",
        f"  - {{name: prompts, worker: prefill, {prompts}}}",
        "  - {name: detokenize, worker: detokenize, terminal: true, can_accept_stream_before_payload: true, "
        "resources: {max_requests: 65536}}"]
    path = folder / "prefill.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def leave(joined):
    """As a person ends it with Ctrl-C."""
    joined.process.send_signal(signal.SIGINT)
    assert joined.end() == 0, joined.output()


def all_answers(server, first=0):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda i: answer(server, i), range(first, REQUESTS)))


def no_transfer_is_open(server):
    wait_until(lambda: server.metrics()["millrace:kv_transfers_open"] == 0, "no open transfer")


def test_two_hosts_with_a_key(network, key, tmp_path, wanted):
    near, far = network
    path = pipeline(tmp_path, control=f"{near.ipv4}:30310", key=key)
    with lead(path, where=near) as server:
        wait_ready(server)
        # Nobody computes prompts yet: the server serves, and says what is missing.
        assert answer(server, 0) == wanted[0]
        assert "prompts" in server.get("/ready")[2]["reason"]
        with join(path, "prompts", where=far) as prompts:
            begins(server)
            assert server.post("/flush_cache", {})[0] == 200
            assert all_answers(server) == wanted
            (info,) = first_transferred(lambda i: [server.post("/generate", body(i))[2]["meta_info"]], 900)
            assert info["transferred_tokens"] == (info["prompt_tokens"] - 1) // 16 * 16
            no_transfer_is_open(server)
            bytes_came_through_relays(server)
            leave(prompts)
        assert server.post("/flush_cache", {})[0] == 200
        assert all_answers(server) == wanted  # without it again
        assert server.stop() == 0, server.output()
        assert server.leftovers() == []


# Two that generate and three that compute, in five processes on as many "hosts".
def test_several_of_each_and_processes_that_die(tmp_path, wanted):
    path = pipeline(tmp_path, generate="replicas: 2", prompts="replicas: 3, host: b")
    with lead(path) as server, contextlib.ExitStack() as stack:
        joined = [stack.enter_context(join(path, f"prompts:{i}")) for i in range(3)]
        wait_ready(server)
        wait_until(lambda: server.get("/ready")[2]["reason"] == "", "all replicas")
        begins(server)
        assert server.post("/flush_cache", {})[0] == 200
        assert all_answers(server) == wanted
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert server.post("/flush_cache", {})[0] == 200
            running = [pool.submit(answer, server, i) for i in range(REQUESTS)]
            os.kill(joined[0].process.pid, signal.SIGKILL)
            freeze(joined[1].process.pid)
            assert [one.result() for one in running] == wanted
        wait_until(lambda: server.post("/flush_cache", {})[0] == 200, "a flush that waits for the frozen one no more")
        assert all_answers(server) == wanted  # by the third one
        no_transfer_is_open(server)
        os.kill(joined[1].process.pid, signal.SIGCONT)
        stack.enter_context(join(path, "prompts:0"))
        wait_until(lambda: server.get("/ready")[2]["reason"] == "", "all replicas again")
        no_transfer_is_open(server)


# The scheduler elsewhere, prompts in a child of the server.
def test_the_scheduler_may_be_the_one_that_joins(tmp_path, wanted):
    path = pipeline(tmp_path, generate="host: b", prompts="process: prompts")
    with lead(path) as server, join(path, "scheduler"):
        wait_ready(server)
        begins(server)
        assert server.post("/flush_cache", {})[0] == 200
        assert all_answers(server) == wanted


DRAIN_S = 10  # kLeaveDrainMs: what has not ended by then is cut off


def stop(joined):
    """As a service manager ends it. Whether it ended within its limit."""
    began = time.monotonic()
    joined.process.send_signal(signal.SIGTERM)
    assert joined.end() == 0, joined.output()
    return time.monotonic() - began < DRAIN_S


def test_a_prefill_host_that_is_stopped_ends_what_it_has_begun(tmp_path, wanted):
    path = pipeline(tmp_path, prompts="replicas: 2, host: b")
    with lead(path) as server, join(path, "prompts:0") as first, join(path, "prompts:1"):
        wait_ready(server)
        wait_until(lambda: server.get("/ready")[2]["reason"] == "", "both replicas")
        begins(server)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in range(TRIES):  # heartbeats may miss them all
                assert server.post("/flush_cache", {"timeout": 60})[0] == 200
                running = [pool.submit(answer, server, i) for i in range(REQUESTS)]
                wait_until(lambda: server.metrics()["millrace:kv_transfers_open"] > 0 or all(one.done() for one in running), "transfers")
                if not all(one.done() for one in running):
                    break
            began = datetime.datetime.now().isoformat(timespec="milliseconds")  # as a line of the log begins: local time
            in_time = stop(first)
            assert [one.result() for one in running] == wanted
        # Of those before, one may be late: its request was computed elsewhere, and the pages are flushed.
        not_sent = [line for line in first.output().splitlines() if "not sent" in line and line >= began]
        assert not in_time or not not_sent, first.output()
        assert server.post("/flush_cache", {})[0] == 200
        assert all_answers(server) == wanted  # by the other one
        no_transfer_is_open(server)


def test_a_scheduler_that_is_stopped_ends_its_requests(tmp_path):
    path = pipeline(tmp_path, generate="host: b", prompts="process: prompts")
    with lead(path) as server, join(path, "scheduler") as scheduler, concurrent.futures.ThreadPoolExecutor(4) as pool:
        wait_ready(server)
        begins(server)
        long = {"max_new_tokens": 200, "ignore_eos": True}
        for _ in range(TRIES):
            running = [pool.submit(server.post, "/generate", body(i, **long)) for i in range(4)]
            wait_until(lambda: server.metrics()["millrace:num_running_reqs"] == 4 or any(one.done() for one in running), "requests that run")
            if not any(one.done() for one in running):
                break
            concurrent.futures.wait(running)  # one was through before all were seen to run
        in_time = stop(scheduler)
        for one in running:
            status, _, found = one.result()
            if status == 200:
                assert found["meta_info"]["completion_tokens"] == 200, found
                continue
            # Running ones go on while there is time; one whose prompt came from the other stage meanwhile is refused, as is one that came later
            # than the metric showed four, which may be those of the attempt before.
            why = found["error"]["message"]
            assert status == 503 and any(one in why for one in ("the stage is shutting down", "draining") + ("it was stopped",) * (not in_time)), found
        no_transfer_is_open(server)
        assert server.post("/generate", body(9))[0] == 503


def test_new_weights_come_to_all_and_pages_go_on(tmp_path):
    other = other_weights(tmp_path / "b")
    with Server(model=other) as server:
        wanted = [answer(server, i) for i in range(REQUESTS)]
    path = pipeline(tmp_path)
    with lead(path, "--weights-root", str(tmp_path)) as server, join(path, "prompts", more=["--weights-root", str(tmp_path)]) as prompts:
        wait_ready(server)
        begins(server)
        status, _, found = server.post("/update_weights_from_disk", {"model_path": str(other)})
        assert status == 200, found
        begins(server, 20_000)  # with the new weights on both sides
        assert all_answers(server) == wanted
        # One that comes back has the old ones: it is brought to the new ones before it is asked.
        leave(prompts)
        with join(path, "prompts", more=["--weights-root", str(tmp_path)]):
            begins(server, 30_000)
            assert server.post("/flush_cache", {})[0] == 200
            assert all_answers(server) == wanted
    shutil.rmtree(other)


def test_the_example_is_a_pipeline():
    done = subprocess.run([program(), "pipeline", "check", str(ROOT / "examples/pipelines/prefill-decode.yaml")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "prefill" in done.stdout, done


def test_what_cannot_be_is_refused_at_the_start(tmp_path):
    path = pipeline(tmp_path)
    with lead(path, "--no-prefix-cache") as server:
        assert server.process.wait(WAIT_S) == 2
        assert "wanted a prefix cache" in server.output()
    with lead(path, "--prefill", "2") as server:
        assert server.process.wait(WAIT_S) == 2
        assert "--prefill is 2 and the pipeline is over several hosts" in server.output()
