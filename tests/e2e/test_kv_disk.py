"""--kv-disk-dir: a restart finds the prompts that were used again, with the same bits; and what the folder may do to a server: nothing."""
import concurrent.futures
import os
import signal

import pytest

from harness import DEMO, WAIT_S, Server, wait_until
from test_weights import other_weights, updated

SYSTEM = "Once upon a time there was a little girl who liked to play with her dog in the garden. " * 8
QUESTIONS = ["She said", "One day", "The dog ran"]


def ask(server, question, **more):
    status, _, found = server.post("/generate", {"text": SYSTEM + question, "return_logprob": True,
                                                 "sampling_params": {"max_new_tokens": 12, "temperature": 0}, **more})
    assert status == 200, found
    info = found["meta_info"]
    return (found["text"], info["output_token_logprobs"]), info["cached_tokens"], info["prompt_tokens"]


def serve(folder, *more, **how):
    return Server("--kv-disk-dir", str(folder), *more, **how)


def saved(server, pages=1):
    wait_until(lambda: server.metrics()["millrace:kv_disk_saved_pages_total"] >= pages, "saved pages")


@pytest.fixture(scope="module")
def plain():
    with Server() as server:
        return [ask(server, question)[0] for question in QUESTIONS]


@pytest.fixture
def folder(tmp_path, plain):
    """Of a server in which two requests began with SYSTEM."""
    path = tmp_path / "kv"
    with serve(path) as server:
        assert [ask(server, question)[0] for question in QUESTIONS[:2]] == plain[:2]
        saved(server)
    assert path.stat().st_mode & 0o777 == 0o700
    return path


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_restart_finds_what_was_used_again(folder, plain):
    with serve(folder) as server:
        found, cached, prompt = ask(server, QUESTIONS[2])
        assert found == plain[2] and cached > 0.8 * prompt
        wait_until(lambda: server.metrics()["millrace:kv_disk_restored_tokens_total"] == cached, "the count of it")
        assert ask(server, QUESTIONS[0])[0] == plain[0]
    with Server() as server:  # without the folder
        assert ask(server, QUESTIONS[2])[1] == 0


def test_requests_that_come_together_wait_for_the_same_pages(folder, plain):
    with serve(folder) as server, concurrent.futures.ThreadPoolExecutor(9) as pool:
        found = list(pool.map(lambda i: ask(server, QUESTIONS[i % 3]), range(9)))
        assert [one[0] for one in found] == plain * 3 and all(one[1] > 0 for one in found)


@pytest.mark.parametrize("more", [["--kv-dtype", "f16"], ["--page-size", "32"], ["--quantize", "q8_0"], ["--activations", "bf16"]], ids=lambda more: more[0])
def test_pages_of_another_kind_are_not_found(folder, more):
    with Server(*more) as server:
        wanted = ask(server, QUESTIONS[2])[0]
    with serve(folder, *more) as server:
        found, cached, _ = ask(server, QUESTIONS[2])
        assert found == wanted and cached == 0


def test_a_salt_has_pages_of_its_own(folder, plain):
    with serve(folder) as server:
        assert ask(server, QUESTIONS[2], cache_salt="mine")[1] == 0
        assert ask(server, QUESTIONS[2])[1] > 0


def test_damaged_files_are_computed_and_removed(folder, plain):
    for path in files(folder):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    with serve(folder) as server:
        found, cached, _ = ask(server, QUESTIONS[2])
        assert found == plain[2] and cached == 0
        wait_until(lambda: "is damaged, and was removed" in server.output(), "word of it")


def test_a_server_that_is_killed_leaves_a_folder_that_serves(folder, plain):
    with serve(folder) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(server.post, "/generate", {"text": f"{i} {SYSTEM}", "sampling_params": {"max_new_tokens": 1}}) for i in (1, 2) * 20]
        running[0].result()
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        concurrent.futures.wait(running)
    with serve(folder) as server:
        found, cached, _ = ask(server, QUESTIONS[2])
        assert found == plain[2] and cached > 0


def test_the_limit_holds(tmp_path):
    path = tmp_path / "kv"
    with serve(path, "--kv-disk-gib", "0.002") as server:
        for i in range(12):
            for question in QUESTIONS[:2]:
                ask(server, question, text=f"{i} {SYSTEM}{question}")
        saved(server, 100)
        wait_until(lambda: server.metrics()["millrace:kv_disk_bytes"] <= 0.002 * 2**30, "a folder below its limit")
    assert 0 < sum(file.stat().st_size for file in files(path)) <= 0.002 * 2**30


def test_a_folder_that_cannot_be_written_costs_no_answer(folder, plain):
    with serve(folder) as server:
        for path in files(folder):
            path.unlink()
        for path in folder.iterdir():
            path.rmdir()
        folder.rmdir()
        folder.write_text("no folder any more")
        assert [ask(server, question)[0] for question in QUESTIONS * 2] == plain * 2
        wait_until(lambda: server.metrics()["millrace:kv_disk_failed_pages_total"] > 0, "failures")


@pytest.mark.parametrize("more, says", [(["--no-prefix-cache"], "wanted a prefix cache"), (["--pp", "2"], "a range of layers keeps no KV")])
def test_what_does_not_go_together_is_refused(tmp_path, more, says):
    with serve(tmp_path / "kv", *more, wait=False) as server:
        assert server.process.wait(WAIT_S) == 2 and says in server.output()


def test_a_folder_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "kv"
    path.mkdir(mode=0o755)
    with serve(path, wait=False) as server:
        wait_until(lambda: "wanted 0700" in server.output(), "the reason")


def test_new_weights_find_nothing_of_the_old_ones_and_come_back_to_them(folder, plain, tmp_path):
    other = other_weights(tmp_path / "b")
    with Server(model=other) as server:
        wanted = [ask(server, question)[0] for question in QUESTIONS]
    assert wanted != plain
    with serve(folder, "--weights-root", str(tmp_path)) as server:
        assert ask(server, QUESTIONS[2])[1] > 0
        updated(server, other)
        before = len(files(folder))
        found = [ask(server, question) for question in QUESTIONS]
        assert [one[0] for one in found] == wanted and found[0][1] == 0
        wait_until(lambda: len(files(folder)) > before, "saved pages of the new weights")
        updated(server, DEMO)
        assert server.post("/flush_cache", {})[0] == 200
        found = ask(server, QUESTIONS[2])
        assert found[0] == plain[2] and found[1] > 0
    with serve(folder, model=other) as server:
        assert ask(server, QUESTIONS[2])[0] == wanted[2]


def test_two_schedulers_share_a_folder(folder, plain):
    with serve(folder, "--dp", "2") as server:
        wait_until(lambda: all(server.stage(name)["state"] == "ready" for name in ("scheduler-0", "scheduler-1")), "both schedulers")
        for rank in (0, 1):
            found, cached, _ = ask(server, QUESTIONS[2], routed_dp_rank=rank)
            assert found == plain[2] and cached > 0
