"""--kv-events: a router learns which blocks are cached, and no other machine does unless the option says so."""
import os
import signal
import struct
import time

import pytest

from harness import WAIT_S, Server, free_port, placement, wait_until

processes_only = pytest.mark.skipif(placement() != "processes", reason="it is about child processes")
COMPLETIONS = "/v1/completions"


def test_kv_events_tell_a_router_what_is_cached():
    zmq = pytest.importorskip("zmq")
    msgpack = pytest.importorskip("msgpack")
    endpoint, began = f"tcp://127.0.0.1:{free_port()}", time.time()
    with Server("--kv-events", endpoint, "--page-size", "16") as server, zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.setsockopt(zmq.SUBSCRIBE, b"")
        listener.setsockopt(zmq.RCVTIMEO, WAIT_S * 1000)
        listener.setsockopt(zmq.LINGER, 0)
        listener.connect(endpoint)
        ids = server.post("/tokenize", {"prompt": "A mouse and an elephant went to the sea together. " * 6})[2]["tokens"]
        for token in range(300, 300 + WAIT_S):  # until the subscription has arrived; each stores another block
            assert server.post(COMPLETIONS, {"prompt": [token] * 20, "max_tokens": 1, "temperature": 0})[0] == 200
            if listener.poll(1000):
                break
        assert server.post(COMPLETIONS, {"prompt": ids, "max_tokens": 2, "temperature": 0})[0] == 200
        stored, sequence = [], None
        while 16 * len(stored) < len(ids) // 16 * 16:
            topic, number, payload = listener.recv_multipart()
            assert topic == b"kv-events"
            assert sequence is None or struct.unpack(">Q", number)[0] == sequence + 1
            sequence = struct.unpack(">Q", number)[0]
            stamp, events, rank, version = msgpack.unpackb(payload)
            assert began - 60 < stamp < time.time() + 60 and rank == 0 and version >= 0
            for event in events:
                if event == ["AllBlocksCleared"] and not stored:
                    continue  # the beginning of the stream, where the subscription came before it
                assert event[0] == "BlockStored" and len(event) == 7
                if len(set(event[3])) > 1:  # not of the requests before
                    stored.append(event)
        parent, tokens = None, []
        for _, hashes, before, part, size, lora, medium in stored:
            assert before == parent and len(hashes) == 1 and size == 16 and len(part) == 16 and lora is None and medium == "pool"
            parent = hashes[0]
            tokens += part
        assert tokens[:len(ids) // 16 * 16] == ids[:len(ids) // 16 * 16]
        assert server.post("/flush_cache", {"timeout": 60})[0] == 200
        gone = set()
        while True:
            _, _, payload = listener.recv_multipart()
            events = msgpack.unpackb(payload)[1]
            for event in events:
                if event[0] == "BlockRemoved":
                    gone |= set(event[1])
            if any(event[0] == "AllBlocksCleared" for event in events) or gone >= {event[1][0] for event in stored}:
                break


@processes_only
def test_a_scheduler_that_restarts_is_a_gap_in_the_numbers():
    zmq = pytest.importorskip("zmq")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with Server("--kv-events", endpoint, "--page-size", "16") as server, zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.setsockopt(zmq.SUBSCRIBE, b"")
        listener.setsockopt(zmq.LINGER, 0)
        listener.connect(endpoint)

        numbers, tokens = [], iter(range(300, 300 + WAIT_S))

        def store_until(seen):  # the subscription arrives in its own time, and so does an event; each request stores another block
            while not seen():
                assert server.post(COMPLETIONS, {"prompt": [next(tokens)] * 20, "max_tokens": 1, "temperature": 0})[0] == 200
                listener.poll(1000)
                while listener.poll(0):
                    numbers.append(struct.unpack(">Q", listener.recv_multipart()[1])[0])

        def gaps():
            return [after - before for before, after in zip(numbers, numbers[1:])]

        store_until(lambda: numbers)
        pid = server.children()["scheduler"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.ready() and server.children().get("scheduler") not in (None, pid), "restart")
        store_until(lambda: max(gaps(), default=0) > 1000)
        assert min(gaps()) > 0, numbers


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5557", "tcp://127.0.0.1:0", "5557"])
def test_kv_events_stay_on_this_machine_unless_told_otherwise(endpoint):
    server = Server("--kv-events", endpoint, wait=False)
    assert server.process.wait(WAIT_S) == 2
    server.reader.join()
    assert f"--kv-events is '{endpoint}'" in server.output(), server.output()
    server.tmp.cleanup()
