#!/usr/bin/env python3
"""Measures what an update of the weights costs those who stream meanwhile: the gap between two tokens at the switch, tokens per second
while the folder is loaded, and what fails.

    bench/weights.py PROGRAM MODEL_DIR [--streams 8] [--updates 20] [--policy in_place|retract] [-- serve options]

Starts `PROGRAM serve` and keeps `--streams` streams going, while the model's own folder is loaded again and again. Prints one Markdown
table. "At the switch" are the five gaps around the first token of the new version, in each stream that the switch met; the others are of
all tokens of the same streams."""
import argparse
import http.client
import json
import socket
import statistics
import sys
import threading
import time

from served import start


class Stream(threading.Thread):
    """One client, a request after the other. While requests run it only notes what came when: parsing would hold up the other clients
    of this process."""

    def __init__(self, address, number, tokens):
        super().__init__(daemon=True)
        self.address, self.number, self.tokens = address, number, tokens
        self.stopped = threading.Event()
        self.answers = []  # of each request: [(seconds, bytes)]
        self.times, self.at_switch, self.near_switch, self.elsewhere, self.gaps, self.failures = [], [], [], [], [], 0

    def run(self):
        body = json.dumps({"text": f"Story {self.number}: once upon a time", "stream": True, "stream_output": True,
                           "sampling_params": {"temperature": 0, "max_new_tokens": self.tokens, "ignore_eos": True}}).encode()
        head = (f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        while not self.stopped.is_set():
            pieces = []
            with socket.create_connection(self.address, timeout=120) as connection:
                connection.sendall(head + body)
                while piece := connection.recv(1 << 16):
                    pieces.append((time.monotonic(), piece))
            self.answers.append(pieces)

    def parse(self):
        for pieces in self.answers:
            times, last, rest = [], None, b""
            for at, piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        last = json.loads(line[6:])
                        times += [at] * len(last.get("output_ids", ()))
            meta = last["meta_info"] if last and "meta_info" in last else {"completion_tokens": 0}
            if len(times) != self.tokens or meta["completion_tokens"] != self.tokens:
                self.failures += 1
                continue
            gaps = [b - a for a, b in zip(times, times[1:])]
            self.times += times
            self.gaps += gaps
            switches = [span["start"] for span in meta["weight_versions"][1:] if 2 < span["start"] < len(gaps)]
            self.at_switch += [gaps[start - 1] for start in switches]
            self.near_switch += [max(gaps[start - 3:start + 2]) for start in switches]
            self.elsewhere += [max(gaps[at:at + 5]) for at in range(0, len(gaps) - 4, 5)
                               if all(at + 5 <= start - 3 or at >= start + 2 for start in switches)]


def end_streams(streams):
    """After it each stream has what came, parsed."""
    for stream in streams:
        stream.stopped.set()
    for stream in streams:
        stream.join()
        stream.parse()


def post(address, path, body):
    connection = http.client.HTTPConnection(*address, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def rate(streams, begin, end):
    return sum(begin <= t < end for stream in streams for t in stream.times) / (end - begin)


def print_switch(streams):
    switch, near = ([gap for stream in streams for gap in getattr(stream, name)] for name in ("at_switch", "near_switch"))
    elsewhere = statistics.median(gap for stream in streams for gap in stream.elsewhere)
    print(f"| gap before the first token of the new version, {len(switch)} times: median, largest | "
          f"{1e3 * statistics.median(switch):.2f}, {1e3 * max(switch):.2f} ms |")
    print(f"| largest of five gaps, median: at the switch, elsewhere | {1e3 * statistics.median(near):.2f}, {1e3 * elsewhere:.2f} ms |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--policy", default="in_place", choices=["in_place", "retract"])
    parser.add_argument("--rest", type=float, default=1.0, help="seconds between two updates")
    args, more = parser.parse_known_args()
    process, host, port, _ = start(args.program, args.model, ["--admin-without-key", *[m for m in more if m != "--"]])
    address = (host, port)
    streams = [Stream(address, i, args.tokens) for i in range(args.streams)]
    failed, busy, quiet = 0, [], []
    try:
        for stream in streams:
            stream.start()
        time.sleep(args.rest)
        for i in range(args.updates):
            begin = time.monotonic()
            status, answer = post(address, "/update_weights_from_disk", {"model_path": args.model, "policy": args.policy})
            failed += status != 200 or not answer["success"]
            end = time.monotonic()
            time.sleep(args.rest)
            busy.append((begin, end))
            quiet.append((end, time.monotonic()))
            if sys.stderr.isatty():
                print(f"\r{i + 1} of {args.updates} updates", end="", file=sys.stderr)
        end_streams(streams)
    finally:
        process.terminate()
        process.wait()
    gaps = [gap for stream in streams for gap in stream.gaps]
    during = statistics.median(rate(streams, *span) for span in busy)
    between = statistics.median(rate(streams, *span) for span in quiet)
    print("| what | |\n|---|---|")
    print(f"| updates, failed | {args.updates}, {failed} |")
    print(f"| requests that failed | {sum(stream.failures for stream in streams)} |")
    print(f"| an update, median | {statistics.median(e - b for b, e in busy):.2f} s |")
    rare = sorted(gaps)[int(len(gaps) * 0.9999)]
    print(f"| gap between two tokens: median, 99.99 %, largest of {len(gaps)} | "
          f"{1e3 * statistics.median(gaps):.2f}, {1e3 * rare:.2f}, {1e3 * max(gaps):.2f} ms |")
    print_switch(streams)
    print(f"| tokens/s while loading, between | {during:.0f}, {between:.0f}: {during / between:.2f} |")


if __name__ == "__main__":
    main()
