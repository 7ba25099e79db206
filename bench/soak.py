#!/usr/bin/env python3
"""Keeps a server busy with all that clients do, and measures what of it stays: memory, files, threads.

    bench/soak.py PROGRAM MODEL_DIR [--minutes 20] [--warm-up 8] [--clients 8] [--pause 0] [-- serve options]

Each client does one thing after the other, at random: streams that are read to their end, streams that are left in the middle, several
choices with log-probabilities, batches of /generate, answers of a JSON schema, prompts that share a prefix, and requests that are refused.
Samples the server and its children every ten seconds. The first minutes fill the KV cache and what else is bounded: the growth is that
of a line through the samples after them, by least squares. Exits with 1 where an answer was none that was wanted."""
import argparse
import collections
import http.client
import json
import pathlib
import random
import sys
import threading
import time

from served import start

SAMPLE_S = 10
STORY = "Once upon a time there was a little dog named Spot who lived in a big house by the sea. " * 4
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}}, "required": ["name", "age"],
          "additionalProperties": False}


def chat(generator, **more):
    return {"messages": [{"role": "user", "content": f"Tell me about {generator.randrange(10**6)}."}], "max_tokens": generator.randrange(1, 60), **more}


# name: (path, body, the status that is wanted, whether the client goes in the middle)
ACTS = {
    "stream": lambda g: ("/v1/chat/completions", chat(g, stream=True), 200, False),
    "left in the middle": lambda g: ("/v1/chat/completions", chat(g, stream=True, max_tokens=400, ignore_eos=True), 200, True),
    "choices": lambda g: ("/v1/completions", {"prompt": f"{g.random()}", "n": 3, "logprobs": 4, "max_tokens": 12}, 200, False),
    "batch": lambda g: ("/generate", {"text": [f"{i} {g.random()}" for i in range(5)], "sampling_params": {"max_new_tokens": 9}}, 200, False),
    "schema": lambda g: ("/v1/chat/completions", chat(g, max_tokens=60, response_format={
        "type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}}), 200, False),
    "prefix": lambda g: ("/v1/completions", {"prompt": STORY + str(g.randrange(50)), "max_tokens": 8, "stream": True}, 200, False),
    "refused": lambda g: ("/v1/chat/completions", chat(g, temperature=-1), 400, False),
    "no such route": lambda g: ("/v1/nothing", {}, 404, False),
}


class Client(threading.Thread):
    def __init__(self, address, number, stop, pause):
        super().__init__()
        self.address, self.stop, self.pause, self.random = address, stop, pause, random.Random(number)
        self.done, self.wrong = collections.Counter(), []

    def run(self):
        while not self.stop.is_set():
            name = self.random.choice(list(ACTS))
            try:
                self.act(*ACTS[name](self.random))
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.wrong.append(f"{name}: {error!r}")
            self.done[name] += 1
            self.stop.wait(self.pause)

    def act(self, path, body, wanted, leave):
        connection = http.client.HTTPConnection(*self.address, timeout=300)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read(200) if leave else response.read()
            assert response.status == wanted, (response.status, answer[:300])
            if body.get("stream") and not leave:
                assert answer.endswith(b"data: [DONE]\n\n"), answer[-300:]
        finally:
            connection.close()


def tree(pid):
    """The process and all below it."""
    found, seen = [pid], 0
    while seen < len(found):
        for task in pathlib.Path(f"/proc/{found[seen]}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
        seen += 1
    return found


def sample(pid):
    """MiB of anonymous and of shared memory, open files, threads."""
    anonymous = shared = files = threads = 0
    for each in tree(pid):
        status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{each}/status").read_text().splitlines())
        anonymous += int(status["RssAnon"].split()[0]) / 1024
        shared += int(status["RssShmem"].split()[0]) / 1024
        threads += int(status["Threads"])
        files += len(list(pathlib.Path(f"/proc/{each}/fd").iterdir()))
    return anonymous, shared, files, threads


def slope(points):
    """Of the line through (x, y), by least squares."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def measure(pid, options):
    """[(minutes, sample)]"""
    begin, taken = time.monotonic(), []
    while (now := (time.monotonic() - begin) / 60) < options.minutes:
        taken.append((now, sample(pid)))
        if len(taken) % 6 == 1:
            print("minute {:5.1f}: {:.1f} MiB anonymous, {:.1f} shared, {} files, {} threads".format(now, *taken[-1][1]), file=sys.stderr, flush=True)
        time.sleep(SAMPLE_S)
    return taken


def main():
    own, more = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--warm-up", type=float, default=8)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0, help="seconds between a client's requests")
    options = parser.parse_args(own)
    process, host, port, _ = start(options.program, options.model, ["--no-request-log", *more])
    stop = threading.Event()
    clients = [Client((host, port), number, stop, options.pause) for number in range(options.clients)]
    for client in clients:
        client.start()
    try:
        taken = measure(process.pid, options)
    finally:
        stop.set()
        for client in clients:
            client.join()
        process.terminate()
        process.wait()
    done, wrong = sum((client.done for client in clients), collections.Counter()), [each for client in clients for each in client.wrong]
    after = [(minutes, values) for minutes, values in taken if minutes >= options.warm_up]
    print(f"| after {options.warm_up:g} of {options.minutes:g} minutes | first | last | an hour |\n|---|---|---|---|")
    for index, name in enumerate(("anonymous memory, MiB", "shared memory, MiB", "open files", "threads")):
        points = [(minutes / 60, values[index]) for minutes, values in after]
        print(f"| {name} | {points[0][1]:.1f} | {points[-1][1]:.1f} | {slope(points):+.2f} |")
    print(f"\n{sum(done.values())} requests ({', '.join(f'{name} {count}' for name, count in sorted(done.items()))}); {len(wrong)} wrong {wrong[:3]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
