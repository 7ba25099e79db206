#!/usr/bin/env python3
"""Measures what a large request body costs the streams of other clients.

    bench/large_body.py PROGRAM MODEL_DIR [--mib 30] [--rounds 5] [-- serve options]

Starts `PROGRAM serve`. One client streams a chat completion without end; another posts a conversation of so many MiB, which is refused for
its length. Prints, for a body that is one text and one that is all escapes, the seconds from its last byte to the refusal and the longest
gap between two chunks of the stream meanwhile, in ms: medians and the worst of the rounds; and the longest gap without such a body."""
import argparse
import http.client
import json
import statistics
import sys
import threading
import time

from served import start

JSON = {"Content-Type": "application/json"}
KINDS = {"text": ("It was a dark and stormy night. ", False), "escapes": ("é", True)}


class Stream(threading.Thread):
    """Notes the times of its chunks."""

    def __init__(self, host, port):
        super().__init__(daemon=True)
        self.host, self.port, self.times, self.running = host, port, [], True

    def run(self):
        body = json.dumps({"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True})
        while self.running:
            connection = http.client.HTTPConnection(self.host, self.port)
            connection.request("POST", "/v1/chat/completions", body, JSON)
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    self.times.append(time.monotonic())

    def longest_gap(self, begin, end):
        times = [t for t in self.times if begin <= t <= end]
        return max(b - a for a, b in zip([begin, *times], [*times, end]))


def body_of(kind, mib):
    text, escaped = KINDS[kind]
    written = json.dumps(text, ensure_ascii=escaped)[1:-1]
    content = written * ((mib << 20) // len(written))
    return ('{"messages":[{"role":"user","content":"%s"}]}' % content).encode()


def refuse(host, port, body):
    """When the body was on its way, and when the refusal came."""
    connection = http.client.HTTPConnection(host, port)
    connection.request("POST", "/v1/chat/completions", body, JSON)
    sent = time.monotonic()
    response = connection.getresponse()
    end = time.monotonic()
    assert response.status == 400, response.read()
    connection.close()
    return sent, end


def main():
    own, more = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--mib", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(own)
    process, host, port, _ = start(options.program, options.model, more)
    try:
        stream = Stream(host, port)
        stream.start()
        time.sleep(2)
        begin = time.monotonic()
        time.sleep(3)
        print(f"no body: gap {stream.longest_gap(begin, time.monotonic()) * 1000:.0f} ms", flush=True)
        for kind in KINDS:
            body = body_of(kind, options.mib)
            seconds, gaps = [], []
            for _ in range(options.rounds):
                sent, end = refuse(host, port, body)
                time.sleep(0.2)
                seconds.append(end - sent)
                gaps.append(1000 * stream.longest_gap(sent, end + 0.2))
            print(f"{kind}: {statistics.median(seconds):.2f} s to the refusal (worst {max(seconds):.2f}); "
                  f"gap {statistics.median(gaps):.0f} ms (worst {max(gaps):.0f})", flush=True)
        stream.running = False
    finally:
        process.terminate()
        process.wait(60)  # a stream is running, and the server ends it after 30 s


if __name__ == "__main__":
    main()
