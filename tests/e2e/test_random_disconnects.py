"""Storms of clients that hang up at random moments leave nothing behind: no page, request, socket or thread."""
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import socket
import threading
import time

from harness import WAIT_S, wait_until

ROUNDS, CLIENTS, SECONDS = 20, 200, 20  # fewer rounds where they take longer, but
LEAST_ROUNDS = 3
PATHS = [
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}),
    ("/v1/completions", {"prompt": ["a dog", "a cat"], "n": 2, "max_tokens": 100, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "logprobs": True}),
    ("/generate", {"text": "The little girl", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}, "stream": True}),
]


def held(pid):
    """What a process holds: {descriptor or thread, by what it is: how many}."""
    found = collections.Counter()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found["descriptor " + re.sub(r"\d+", "N", os.readlink(entry))] += 1
    for entry in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found["thread " + (entry / "comm").read_text().strip()] += 1
    return found


def counts(found):
    return tuple(sum(n for what, n in found.items() if what.startswith(kind)) for kind in ("descriptor", "thread"))


def tcp_states(pid):
    """{state: how many} of the process's TCP sockets, for a report."""
    names = {"01": "established", "06": "time_wait", "08": "close_wait", "04": "fin_wait_1", "05": "fin_wait_2", "0A": "listen"}
    lines = pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    inodes = {line.split()[9]: line.split()[3] for line in lines}
    found = collections.Counter()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            state = inodes.get(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
            found[names.get(state, state)] += state is not None
    return dict(+found)


def client(server, seed):
    """One request whose client leaves at a random moment: before, inside or after its body, or while it is answered."""
    draw = random.Random(seed)
    path, body = draw.choice(PATHS)
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode()
    whole = head + data
    try:
        with socket.create_connection((server.host, server.port), timeout=WAIT_S) as connection:
            if draw.random() < 0.1:
                connection.sendall(whole[:draw.randrange(len(whole))])
                return
            connection.sendall(whole)
            connection.settimeout(draw.choice((0.001, 0.01, 0.05, 0.2)))
            for _ in range(draw.randrange(4)):
                if not connection.recv(4096):
                    return
            if draw.random() < 0.5:  # RST instead of FIN
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    except OSError:
        pass


def test_nothing_is_left(server):
    server.chat("Hello", max_tokens=4)
    pids = [server.process.pid, *server.children().values()]

    def idle():
        stage = server.stage("scheduler")
        return (stage["running"] == stage["waiting"] == 0
                and stage["pages_free"] + stage["pages_cached"] == stage["pages_total"])

    def storm(number):
        threads = [threading.Thread(target=client, args=(server, number * CLIENTS + i)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    # Stages connect to each other when they first have something to send, be it the abort of a request: a first storm has all that.
    storm(0)
    wait_until(idle, what="idle scheduler")
    wait_until(lambda: server.metrics()["millrace:http_connections_open"] == 1, what="end of all connections but the one that asks")
    before = {pid: held(pid) for pid in pids}
    deadline = time.monotonic() + SECONDS
    rounds = 0
    for number in range(1, 1 + ROUNDS):
        storm(number)
        rounds += 1
        if rounds >= LEAST_ROUNDS and time.monotonic() > deadline:
            break
    print(f"{rounds} rounds of {CLIENTS} clients")
    wait_until(idle, what="idle scheduler with all pages free or cached after the storm")

    def as_before():
        return all(after <= first for pid in pids for after, first in zip(counts(held(pid)), counts(before[pid])))

    try:
        wait_until(as_before, what="state with the descriptors and threads of before")
    except AssertionError as why:
        more = [f"{pid} (descriptors, threads): {counts(before[pid])} before, {counts(held(pid))} now, "
                f"more of {dict(held(pid) - before[pid])}, TCP {tcp_states(pid)}" for pid in pids]
        raise AssertionError("\n".join([str(why), *more])) from None
    page = server.get("/metrics")[2]
    left = [line for line in page.splitlines() if 'where="client_disconnected"' in line]
    assert left and float(left[0].rsplit(" ", 1)[1]) > rounds * CLIENTS / 10, "the clients did not hang up on anything"
    live = [line for line in page.splitlines() if line.startswith("millrace:live_requests")]
    assert live and live[0].endswith(" 0"), live
    assert server.chat("Hello", max_tokens=4)
