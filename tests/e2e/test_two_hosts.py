"""Pipelines over two hosts with a network stack each (two_hosts.py): the answers are those of one process, over IPv4, IPv6 and a wire
that loses packets. Where the wire is pulled out, what needs the other host fails in time and the rest goes on; when it is put in
again, the stages come back by themselves. Who has no key, or another, is told so."""
import contextlib
import json
import re
import threading
import time

import pytest

from harness import DEMO, ROOT, WAIT_S, Joined, Server, new_key, past_silence, wait_until
from harness import patient as patient_text
from test_pipeline import CASES, LONG, RUN, at_rest, books_are_zero, check, pace, run, served
from test_text_hosts import COMPLETIONS, LONG as LONG_TEXT, expect_scheduler_1_lost, in_background, texts
from two_hosts import bad_taps, taps, two_hosts

TEXT = (ROOT / "pipelines" / "text.yaml").read_text()
FANIN = (ROOT / "examples" / "pipelines" / "fanin.yaml").read_text()
FAR = ("image_encoder", "audio_encoder", "talker_ar", "code2wav")  # both directions carry tensors
MOMENT_S, TRIES = 0.8, 20  # what a cut may last that costs nothing: docs/pipelines.md
SOUND = ("talker_ar", "code2wav")  # which text does not need


@pytest.fixture
def hosts(network):
    yield network
    for host in network:
        host.plug(True)


LEASE_MS, SHORT_LEASE_MS = 20_000, 4000  # the short one where the subject is what becomes of those that are silent for longer


def text_file(folder, address, key, replicas=1, lease_ms=LEASE_MS):
    """Text serving whose scheduler is elsewhere."""
    path = folder / "text.yaml"
    path.write_text(patient_text(TEXT, lease_ms).replace("name: text\n", f'name: text\ncontrol: "tcp://{address}:30100"\nkey_file: "{key}"\n')
                    .replace("    process: scheduler\n", f"    host: far\n    replicas: {replicas}\n"))
    return path


def fanin_file(folder, address, key, far=FAR, pace_ms=0, lease_ms=LEASE_MS):
    """The example, some stages of which are elsewhere."""
    text = patient_text(FANIN, lease_ms).replace("name: fanin\n", f'name: fanin\ncontrol: "tcp://{address}:30200"\nkey_file: "{key}"\n')
    for stage in far:
        text = text.replace(f"    process: {stage}\n", f"    process: {stage}\n    host: far\n")
    path = folder / "fanin.yaml"
    path.write_text(pace(text, pace_ms))
    return path


def patient(path):
    """With a lease that outlasts lost packets, which TCP repeats ever later, on a machine that is busy too."""
    path.write_text(re.sub(r"lease_ms: \d+", "lease_ms: 60000", path.read_text()))
    return path


@contextlib.contextmanager
def lead(path, where, *arguments, model=None):
    with Server("--pipeline", str(path), *arguments, model=model, wait=False, where=where) as server:
        wait_until(lambda: "waiting for stages" in server.output() or server.process.poll() is not None, "start")
        yield server


def join(path, where, stages, address=None, more=(), model=None, control=None):
    control = control or next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("control:"))
    return Joined(path, stages, control, model=model, where=where, more=["--listen", address or where.ipv4, *more])


def wait_ready(server):
    assert server.url_found.wait(WAIT_S) and server.host, server.output()
    wait_until(server.ready, "ready stages")


def answers(server):
    """What a pipeline says to every case, whole and in pieces."""
    out = []
    for case in CASES:
        status, _, body = served(server, case["inputs"])
        assert status == 200, body
        events = [json.loads(event) for event in server.stream(RUN, {"inputs": case["inputs"]}) if event != "[DONE]"]
        pieces = [[event for event in events if event.get("stage") == stage] for stage in ("decode", "code2wav")]
        for event in events:
            event.pop("id")
        out.append((body["result"], events[-1], pieces))
    return out


@pytest.fixture(scope="module")
def wanted_texts():
    with Server("--placement", "single") as server:
        return texts(server)


@pytest.fixture(scope="module")
def wanted_answers():
    with Server("--pipeline", str(ROOT / "examples" / "pipelines" / "fanin.yaml"), "--placement", "single", model=None) as server:
        return answers(server)


def check_text(hosts, path, address, wanted, rounds=1, must_end=True):
    near, far = hosts
    with lead(path, near, model=DEMO) as server, join(path, far, "scheduler", address, model=DEMO) as joined:
        wait_ready(server)
        for _ in range(rounds):
            assert texts(server) == wanted
        assert server.stop() == 0, server.output()
        assert not must_end or joined.end() == 0, joined.output()
        assert server.leftovers() == []


def check_fanin(hosts, path, address, wanted, must_end=True):
    near, far = hosts
    with lead(path, near) as server, join(path, far, ",".join(FAR), address) as joined:
        wait_ready(server)
        assert answers(server) == wanted
        wait_until(lambda: books_are_zero(server), "rest")
        assert server.stop() == 0, server.output()
        assert not must_end or joined.end() == 0, joined.output()
        assert server.leftovers() == []


def test_the_texts_are_those_of_one_process(hosts, key, tmp_path, wanted_texts):
    check_text(hosts, text_file(tmp_path, hosts[0].ipv4, key), None, wanted_texts)


def test_the_answers_are_those_of_one_process(hosts, key, tmp_path, wanted_answers):
    check_fanin(hosts, fanin_file(tmp_path, hosts[0].ipv4, key), None, wanted_answers)


def test_over_ipv6_nothing_is_different(hosts, key, tmp_path, wanted_texts, wanted_answers):
    near, far = hosts
    check_text(hosts, text_file(tmp_path, f"[{near.ipv6}]", key), f"[{far.ipv6}]", wanted_texts)
    check_fanin(hosts, fanin_file(tmp_path, f"[{near.ipv6}]", key), f"[{far.ipv6}]", wanted_answers)


def test_a_wire_that_delays_and_loses_packets_changes_no_bit(key, tmp_path, wanted_texts, wanted_answers):
    with two_hosts(bad_taps) as (*hosts, wire):
        # A server that ends does not wait for its last word to arrive (kLingerMs): a stage that has not got it waits for the next server.
        check_text(hosts, patient(text_file(tmp_path, hosts[0].ipv4, key)), None, wanted_texts, must_end=False)
        check_fanin(hosts, patient(fanin_file(tmp_path, hosts[0].ipv4, key)), None, wanted_answers, must_end=False)
        assert wire.lost > 0


# ---- the wire is pulled out


def test_a_wire_that_is_out_for_a_moment_costs_nothing(hosts, key, tmp_path):
    near, far = hosts
    path = text_file(tmp_path, near.ipv4, key)
    with lead(path, near, model=DEMO) as server, join(path, far, "scheduler", model=DEMO) as joined:
        wait_ready(server)
        wanted = past_silence(lambda: server.post(COMPLETIONS, LONG_TEXT))[2]["choices"][0]["text"]
        for _ in range(TRIES):
            events = server.stream(COMPLETIONS, LONG_TEXT)
            pieces, joined_again = [next(events) for _ in range(20)], joined.output().count("joins again")
            began = time.monotonic()
            far.plug(False)
            time.sleep(0.3)  # the subject: a moment
            far.plug(True)
            if time.monotonic() - began < MOMENT_S:
                break
            events.close()  # a busy machine made more of it, which may cost the stage
            wait_until(lambda: server.ready() and server.post(COMPLETIONS, LONG_TEXT)[0] == 200, "return")
        else:
            pytest.skip(f"no cut of less than {MOMENT_S} s in {TRIES} tries on this machine")
        pieces = [json.loads(piece) for piece in [*pieces, *events] if piece != "[DONE]"]
        assert all("choices" in piece for piece in pieces), pieces[-1]
        assert "".join(piece["choices"][0]["text"] for piece in pieces if piece["choices"]) == wanted
        assert joined.output().count("joins again") == joined_again, joined.output()


def lost_links(server):
    return sum(float(line.split()[-1]) for line in server.get("/metrics")[2].splitlines() if 'control_links_total{event="lost"' in line)


def test_a_cut_that_the_lease_outlasts_and_the_connection_does_not_ends_what_lost_a_chunk(hosts, key, tmp_path):
    """What was under way is lost, acknowledgements too. The sender's window is full, so that no chunk of its own would show the gap."""
    near, far = hosts
    path = text_file(tmp_path, near.ipv4, key, lease_ms=120_000)
    with lead(path, near, model=DEMO) as server, join(path, far, "scheduler", model=DEMO) as joined:
        wait_ready(server)
        wanted = past_silence(lambda: server.post(COMPLETIONS, LONG_TEXT))[2]["choices"][0]["text"]
        for _ in range(3):
            lost, events = lost_links(server), server.stream(COMPLETIONS, LONG_TEXT)
            pieces = [next(events) for _ in range(20)]
            far.plug(False)
            # In both directions: the coordinator's and the detokenizer's. Each end gives them up by itself.
            wait_until(lambda: lost_links(server) >= lost + 4, "connections that are given up")
            far.plug(True)
            pieces = [json.loads(piece) for piece in [*pieces, *events] if piece != "[DONE]"]
            failure = pieces[-1].get("error")
            if failure:
                assert "one is lost" in failure["message"], failure
                assert wanted.startswith("".join(piece["choices"][0]["text"] for piece in pieces[:-1] if piece["choices"]))
            else:
                assert "".join(piece["choices"][0]["text"] for piece in pieces if piece["choices"]) == wanted
            wait_until(lambda: server.post(COMPLETIONS, LONG_TEXT)[0] == 200, "return")
            assert past_silence(lambda: server.post(COMPLETIONS, LONG_TEXT))[2]["choices"][0]["text"] == wanted
        assert "joins again" not in joined.output()


@pytest.mark.parametrize("end", [0, 1], ids=["near", "far"])
def test_a_scheduler_that_is_cut_off_costs_its_own_requests_and_comes_back(hosts, key, tmp_path, wanted_texts, end):
    near, far = hosts
    path = text_file(tmp_path, near.ipv4, key, replicas=2, lease_ms=SHORT_LEASE_MS)
    with lead(path, near, "--dp-policy", "round_robin", model=DEMO) as server, join(path, near, "scheduler:0", model=DEMO) as here, \
            join(path, far, "scheduler:1", model=DEMO) as there:
        wait_ready(server)
        wait_until(lambda: server.stage("scheduler-0")["state"] == server.stage("scheduler-1")["state"] == "ready", "both")
        cut_off, others = [in_background(server, 1, choices=16) for _ in range(12)], [in_background(server, 0) for _ in range(2)]
        wait_until(lambda: server.stage("scheduler-1")["running"] >= 2, "running requests")
        hosts[end].plug(False)
        expect_scheduler_1_lost(server, cut_off, "far")
        assert server.post(COMPLETIONS, {"prompt": "x"}, headers={"X-Data-Parallel-Rank": "1"})[0] == 503
        assert texts(server) == wanted_texts
        for found, thread in others:
            thread.join(WAIT_S)
            assert found["status"] == 200, found
        hosts[end].plug(True)
        wait_until(lambda: server.stage("scheduler-1")["state"] == "ready", "return")
        assert texts(server) == wanted_texts
        wait_until(lambda: "joins again" in there.output(), "word of it")
        assert "joins again" not in here.output()
        assert there.process.poll() is None and here.process.poll() is None


class LongRequest:
    """A stream in a thread of its own. `events` grows."""

    def __init__(self, server, **inputs):
        self.events, self.leaves = [], False
        self.thread = threading.Thread(target=self.read, args=(server.stream(RUN, {"inputs": {**LONG, **inputs}}),))
        self.thread.start()

    def read(self, events):
        for event in events:
            self.events.append(event)
            if self.leaves:
                break
        events.close()


@contextlib.contextmanager
def pulled(hosts):
    """The far end of the wire: the kernels on both sides know."""
    yield *hosts, hosts[1].plug, 0


@contextlib.contextmanager
def silent(_):
    """Somewhere in the middle, and for so long that the kernels would wait for more seconds before they try an old connection again."""
    with two_hosts(taps) as (near, far, wire):
        yield near, far, lambda there: setattr(wire, "loss", 0 if there else 1), 7


@pytest.mark.parametrize("cut", [pulled, silent])
def test_stages_that_are_cut_off_cost_the_requests_that_need_them(hosts, key, tmp_path, cut):
    with cut(hosts) as (near, far, connect, cut_s):
        check_cut_off(near, far, connect, cut_s, fanin_file(tmp_path, near.ipv4, key, SOUND, pace_ms=2, lease_ms=SHORT_LEASE_MS))


def check_cut_off(near, far, connect, cut_s, path):
    with lead(path, near) as server, join(path, far, ",".join(SOUND)) as joined:
        wait_ready(server)
        spoken = [LongRequest(server, modalities=["text", "audio"]) for _ in range(3)]
        written = LongRequest(server, modalities=["text"])
        wait_until(lambda: all(len(one.events) > 20 for one in (*spoken, written)), "running requests")
        began = time.monotonic()
        connect(False)
        for one in spoken:
            one.thread.join(WAIT_S)
            assert "error" in json.loads(one.events[-1]), one.events[-1]
            assert any(stage in one.events[-1] for stage in SOUND), one.events[-1]
        wait_until(lambda: all(server.stage(stage)["state"] != "ready" for stage in SOUND), "loss")
        assert server.get("/ready")[0] == 503
        assert run(server, CASES[2]["inputs"])[0] == 503  # a new one that needs them
        check(server, CASES[0])  # and one that does not
        count = len(written.events)
        wait_until(lambda: len(written.events) > count + 20, f"more of the stream: {written.events[-1]}")
        time.sleep(max(0, began + cut_s - time.monotonic()))  # the subject: how long it is cut
        connect(True)
        wait_until(server.ready, "return")
        for case in CASES:
            check(server, case)
        assert joined.process.poll() is None
        written.leaves = True
        written.thread.join(WAIT_S)
        wait_until(lambda: at_rest(server) and books_are_zero(server), "rest")


# ---- who may not


def without_key(path):
    plain = path.with_name(f"plain-{path.name}")
    plain.write_text("".join(line for line in path.read_text().splitlines(True) if "key_file" not in line))
    return plain


def test_without_a_key_or_with_another_nobody_joins_and_both_are_told(hosts, key, tmp_path):
    near, far = hosts
    other = ["--key-file", str(new_key(tmp_path / "other"))]
    text, fanin = text_file(tmp_path, near.ipv4, key), fanin_file(tmp_path, near.ipv4, key, SOUND)
    with contextlib.ExitStack() as stack:
        kinds = []
        for path, stages, model in ((text, "scheduler", DEMO), (fanin, ",".join(SOUND), None)):
            server = stack.enter_context(lead(path, near, model=model))
            wrong = stack.enter_context(join(path, far, stages, model=model, more=other))
            kinds.append((path, stages, model, server, wrong))
        with lead(without_key(fanin), near) as refused:
            assert refused.end() == 2 and "wanted a shared key" in refused.output(), refused.output()
        for path, stages, model, server, wrong in kinds:
            with join(without_key(path), far, stages, model=model) as none:
                assert none.end() == 2 and "wanted a shared key" in none.output(), none.output()
            wait_until(lambda: "its key is not ours" in wrong.output(), "word of the key")
            wait_until(lambda: "refused" in server.output(), "the server's word")
            assert wrong.process.poll() is None
            stack.enter_context(join(path, far, stages, model=model))
        for _, _, _, server, _ in kinds:
            wait_ready(server)
