#!/usr/bin/env python3
"""Measures what an update of the weights costs those who stream meanwhile: the gap between two tokens at the switch, tokens per second
while the folder is loaded, and what fails.

    bench/weights.py PROGRAM MODEL_DIR [--streams 8] [--updates 20] [--policy in_place|retract] [-- serve options]

Starts `PROGRAM serve` and keeps `--streams` streams going, while the model's own folder is loaded again and again. Prints one Markdown
table. The gap at the switch is that between the last token of the old version and the first of the new one, in each stream that the
switch met; the median gap is of all tokens of the same streams."""
import argparse
import http.client
import json
import statistics
import sys
import threading
import time

from served import start


class Stream(threading.Thread):
    """One client, a request after the other: when each token came, and in which request the weights changed."""

    def __init__(self, address, number, tokens):
        super().__init__(daemon=True)
        self.address, self.number, self.tokens = address, number, tokens
        self.stopped = threading.Event()
        self.times, self.at_switch, self.gaps, self.failures = [], [], [], 0

    def run(self):
        while not self.stopped.is_set():
            try:
                self.one()
            except (OSError, ValueError, KeyError, http.client.HTTPException):
                self.failures += 1

    def one(self):
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        body = {"text": f"Story {self.number}: once upon a time", "stream": True, "stream_output": True,
                "sampling_params": {"temperature": 0, "max_new_tokens": self.tokens, "ignore_eos": True}}
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        times, last = [], None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            last = json.loads(line[6:])
            times += [time.monotonic()] * len(last["output_ids"])
        connection.close()
        meta = last["meta_info"]
        if len(times) != self.tokens or meta["completion_tokens"] != self.tokens:
            self.failures += 1
            return
        self.times += times
        gaps = [b - a for a, b in zip(times, times[1:])]
        self.gaps += gaps
        for span in meta["weight_versions"][1:]:
            if 0 < span["start"] < len(times):
                self.at_switch.append(gaps[span["start"] - 1])


def post(address, path, body):
    connection = http.client.HTTPConnection(*address, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def rate(streams, begin, end):
    return sum(begin <= t < end for stream in streams for t in stream.times) / (end - begin)


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
        for stream in streams:
            stream.stopped.set()
        for stream in streams:
            stream.join()
    finally:
        process.terminate()
        process.wait()
    gaps = [gap for stream in streams for gap in stream.gaps]
    switch = [gap for stream in streams for gap in stream.at_switch]
    during = statistics.median(rate(streams, *span) for span in busy)
    between = statistics.median(rate(streams, *span) for span in quiet)
    print("| what | |\n|---|---|")
    print(f"| updates, failed | {args.updates}, {failed} |")
    print(f"| requests that failed | {sum(stream.failures for stream in streams)} |")
    print(f"| an update, median | {statistics.median(e - b for b, e in busy):.2f} s |")
    print(f"| median gap between two tokens | {1e3 * statistics.median(gaps):.2f} ms |")
    print(f"| gap at the switch: median, largest of {len(switch)} | {1e3 * statistics.median(switch):.2f}, {1e3 * max(switch):.2f} ms |")
    print(f"| tokens/s while loading, between | {during:.0f}, {between:.0f}: {during / between:.2f} |")


if __name__ == "__main__":
    main()
