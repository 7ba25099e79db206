#!/usr/bin/env python3
"""Millrace beside llama.cpp on the same weights, in one run: the two take turns, and the medians and their ratio are printed.

    bench/compare.py PROGRAM --model NAME OURS THEIRS.gguf [--model ...] [--peer "WORDS BEFORE llama-bench"]
                     [--measures prefill-512 decode-1 ...] [--rounds 3] [--threads 2] [--json FILE]

OURS is what `millrace bench offline` and `millrace serve` take (a directory or a GGUF file), THEIRS the GGUF file for llama.cpp; words
after OURS that begin with -- (for example "DIR --quantize q8_0") are passed on. The peer runs with flash attention and its own
repacking, which are its best settings on processors of this kind. Everything runs on this machine: keep it otherwise idle."""
import argparse
import contextlib
import http.client
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

OFFLINE = {  # name: (ours, theirs)
    "prefill-512": ("--prompt 512 --batch 1 --decode 1", "-p 512 -n 0"),
    "prefill-2048": ("--prompt 2048 --batch 1 --decode 1", "-p 2048 -n 0"),
    "decode-1": ("--prompt 16 --batch 1 --decode 64", "-p 0 -n 64"),
    "decode-1-at-2048": ("--prompt 16 --batch 1 --depth 2048 --decode 32", "-p 0 -n 32 -d 2048"),
}
SERVED = {  # name: (clients, load, figure)
    "decode-16": (16, "--workload random --prompt-tokens 8 --tokens 128 --requests 16", "answer_tokens_per_s"),
    "serve-16": (16, "--workload random --prompt-tokens 64 --tokens 64 --requests 64", "requests_per_s"),
    "serve-shared": (16, "--workload shared-prefix --groups 4 --prefix-tokens 1024 --prompt-tokens 16 --tokens 16 --requests 64",
                     "requests_per_s"),
}
READY_SECONDS = 300


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


class Sides:
    def __init__(self, options):
        self.options = options

    def offline(self, measure, ours, theirs):
        mine, peer = OFFLINE[measure]
        threads = str(self.options.threads)
        if ours is not None:
            figures = json.loads(output_of([self.options.program, "bench", "offline", *shlex.split(ours), "--threads", threads,
                                            "--rounds", "1", "--kv-dtype", self.options.kv_dtype, *mine.split(), "--json", "-"]))
            return figures["prefill_tokens_per_s"] if "prefill" in measure else figures["decode"][0]["tokens_per_s"]
        figures = json.loads(output_of([*self.peer("llama-bench"), "-m", theirs, "-t", threads, "-r", "1", "-fa", "1", "-o", "json",
                                        *peer.split()]))
        return figures[-1]["avg_ts"]

    def served(self, measure, ours, theirs):
        clients, load, figure = SERVED[measure]
        port = 28431 if ours is not None else 28432
        threads = str(self.options.threads)
        if ours is not None:
            command = [self.options.program, "serve", "--model", *shlex.split(ours), "--threads", threads, "--port", str(port),
                       "--kv-dtype", self.options.kv_dtype, "--log-level", "error"]
        else:
            # A slot's share of the context holds a shared prefix and an answer.
            command = [*self.peer("llama-server"), "-m", theirs, "-t", threads, "-tb", threads, "-fa", "on", "-np", str(clients), "-c",
                       str(clients * 2048), "--port", str(port), "--no-webui"]
        with tempfile.TemporaryFile() as log:
            begin = time.monotonic()
            server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # with what --peer puts before it
            try:
                self.wait_ready(port, server)
                ready = time.monotonic() - begin
                figures = json.loads(output_of([self.options.program, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--clients",
                                                str(clients), "--warmup", str(clients), "--vocabulary", str(self.options.vocabulary),
                                                *load.split(), "--json", "-"]))
            finally:
                os.killpg(server.pid, signal.SIGINT)
                try:
                    server.wait(30)
                except subprocess.TimeoutExpired:
                    pass
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)
        return figures[figure], figures["ttft_ms"]["p50"], ready

    def wait_ready(self, port, server):
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if server.poll() is not None:
                raise SystemExit(f"the server on port {port} ended with {server.returncode}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit(f"the server on port {port} is not ready after {READY_SECONDS} s")

    def peer(self, program):
        return [*shlex.split(self.options.peer), program]


def rows_of(sides, options, name, ours, theirs, measure):
    """Yields (label, our median, their median), the two sides having taken turns."""
    mine, peer = [], []
    for _ in range(options.rounds):
        run = sides.offline if measure in OFFLINE else sides.served
        mine.append(run(measure, ours, None))
        peer.append(run(measure, None, theirs))
    if measure in OFFLINE:
        yield f"{name} {measure}, tokens/s", statistics.median(mine), statistics.median(peer)
        return
    figures = ("tokens/s out" if SERVED[measure][2] == "answer_tokens_per_s" else "requests/s", "first token p50, ms", "ready, s")
    for index, figure in enumerate(figures):
        yield f"{name} {measure}, {figure}", *(statistics.median(one[index] for one in side) for side in (mine, peer))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", nargs=3, action="append", required=True, metavar=("NAME", "OURS", "THEIRS"))
    parser.add_argument("--peer", default="", help="words before the peer's programs")
    parser.add_argument("--measures", nargs="+", default=[*OFFLINE, *SERVED], choices=[*OFFLINE, *SERVED])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=30000)
    parser.add_argument("--kv-dtype", default="f16", help="of ours; the peer stores f16")
    parser.add_argument("--json")
    options = parser.parse_args()
    sides, kept = Sides(options), []
    print("| | millrace | peer | ratio |\n|---|---|---|---|")
    for name, ours, theirs in options.model:
        for measure in options.measures:
            for label, mine, peer in rows_of(sides, options, name, ours, theirs, measure):
                kept.append({"what": label, "millrace": mine, "peer": peer, "ratio": mine / peer})
                print(f"| {label} | {mine:.2f} | {peer:.2f} | {mine / peer:.2f} |", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(kept, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
