"""Storms of clients that hang up at random moments leave nothing behind: no page, request, socket or thread."""
import json
import pathlib
import random
import socket
import threading
import time

from harness import WAIT_S, wait_until

ROUNDS, CLIENTS, SECONDS = 20, 200, 20
PATHS = [
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}),
    ("/v1/completions", {"prompt": ["a dog", "a cat"], "n": 2, "max_tokens": 100, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "logprobs": True}),
    ("/generate", {"text": "The little girl", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}, "stream": True}),
]


def counts(pid):
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())), len(list(pathlib.Path(f"/proc/{pid}/task").iterdir()))


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

    wait_until(idle, what="idle scheduler")
    before = [counts(pid) for pid in pids]
    deadline = time.monotonic() + SECONDS
    rounds = 0
    for storm in range(ROUNDS):
        threads = [threading.Thread(target=client, args=(server, storm * CLIENTS + i)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        rounds += 1
        if time.monotonic() > deadline:
            break
    print(f"{rounds} rounds of {CLIENTS} clients")
    assert rounds >= 3, "too slow a machine to say anything"
    wait_until(idle, what="idle scheduler with all pages free or cached after the storm")

    def as_before():
        now = [counts(pid) for pid in pids]
        return all(after <= first for pair in zip(now, before) for after, first in zip(*pair))

    wait_until(as_before, what=f"state with the descriptors and threads of before, {before},")
    page = server.get("/metrics")[2]
    left = [line for line in page.splitlines() if 'where="client_disconnected"' in line]
    assert left and float(left[0].rsplit(" ", 1)[1]) > rounds * CLIENTS / 10, "the clients did not hang up on anything"
    live = [line for line in page.splitlines() if line.startswith("millrace:live_requests")]
    assert live and live[0].endswith(" 0"), live
    assert server.chat("Hello", max_tokens=4)
