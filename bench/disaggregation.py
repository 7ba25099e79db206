#!/usr/bin/env python3
"""What a prefill/decode split costs and buys, beside the same server without it, in one run.

    bench/disaggregation.py PROGRAM MODEL_DIR [--threads 1] [--lengths 512 2048 8192] [--rounds 5] [--streams 8] [-- serve options]
    bench/disaggregation.py PROGRAM MODEL_DIR --push-pull [--megabytes 100] [--programs OLD ...]     (as root)

First token: a prompt alone, unsplit on --threads, and with --prefill 1 --decode 1 on twice as many, so that prompts are computed by as many
threads in both. Gaps: --streams texts are generated while prompts of 2048 tokens come one after the other; both servers have twice --threads.
Prompts are random ids, so nothing comes from the prefix cache. The servers run one after the other, taking turns by round. Prints Markdown.

--push-pull: two servers of a proxy, as on two hosts: over one TCP port, whose bytes a second are limited (a network namespace's loopback with tc; the
second server sees another boot id). Push: both get the request at the same time. Pull: the second one when the first has answered. With
--programs each of them takes its turn."""
import argparse
import concurrent.futures
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from served import one_request, start

GAP_PROMPT = 2048  # tokens
GAP_SECONDS = 20
SPLIT = ["--prefill", "1", "--decode", "1"]


def vocabulary_of(model):
    with open(f"{model}/config.json") as file:
        return min(json.load(file)["vocab_size"], 2000)  # tokenizers may have fewer than the model


class Bench:
    def __init__(self, options, more):
        self.options, self.more = options, more
        self.random, self.vocabulary = random.Random(1), vocabulary_of(options.model)

    def prompt(self, length):
        return [self.random.randrange(10, self.vocabulary) for _ in range(length)]

    def serve(self, threads, split):
        arguments = ["--threads", str(threads * (2 if split else 1)), *(SPLIT if split else []), *self.more]
        process, host, port, _ = start(self.options.program, self.options.model, arguments)
        deadline = time.monotonic() + 60
        while split and self.reason(host, port):  # the prefill replica loads beside the scheduler
            assert time.monotonic() < deadline, "no prefill replica"
            time.sleep(0.1)
        return process, host, port

    @staticmethod
    def reason(host, port):
        connection = http.client.HTTPConnection(host, port)
        connection.request("GET", "/ready")
        return json.loads(connection.getresponse().read())["reason"]

    def first_tokens(self, split):
        """{length: seconds to the first token}, and the seconds of a decode step."""
        process, host, port = self.serve(self.options.threads, split)
        try:
            one_request(host, port, self.prompt(600), 2)
            found = {}
            for length in self.options.lengths:
                found[length] = one_request(host, port, self.prompt(length), 1)[0]
            begin, end = one_request(host, port, self.prompt(64), 33)
            return found, (end - begin) / 32
        finally:
            process.terminate()
            process.wait()

    def gaps(self, split):
        """Seconds between tokens of all streams, and how many prompts were computed meanwhile."""
        process, host, port = self.serve(self.options.threads if split else 2 * self.options.threads, split)
        gaps, prompts, over, failures = [], [], threading.Event(), []

        def stream():
            try:
                body = {"prompt": self.prompt(64), "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": True}
                connection = http.client.HTTPConnection(host, port)
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                last = None
                for line in connection.getresponse():
                    if over.is_set():
                        break
                    if not line.startswith(b"data: {"):
                        continue
                    now = time.monotonic()
                    if last is not None and prompts:
                        gaps.append(now - last)
                    last = now
                connection.close()
            except OSError as failure:
                failures.append(failure)

        streams = [threading.Thread(target=stream) for _ in range(self.options.streams)]
        try:
            for thread in streams:
                thread.start()
            time.sleep(2)
            until = time.monotonic() + GAP_SECONDS
            while time.monotonic() < until:
                prompts.append(one_request(host, port, self.prompt(GAP_PROMPT), 1)[0])
            over.set()
            for thread in streams:
                thread.join()
            assert not failures, failures
            return gaps, prompts
        finally:
            over.set()
            process.terminate()
            process.wait()


# ---- push over pull

INSIDE = "MILLRACE_BENCH_NAMESPACE"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def enter_namespace(megabytes):
    """This script again, with a loopback of its own that carries so many bytes a second."""
    if INSIDE in os.environ:
        return
    link = f"ip link set lo up && tc qdisc add dev lo root tbf rate {megabytes * 8}mbit burst 256kb latency 200ms"
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "-n", "sh", "-c", f'{link} && exec "$@"', "sh", sys.executable, *sys.argv])


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class ProxiedPair:
    """A server that computes prompts, and one that generates, which takes itself for another host."""

    def __init__(self, program, model, threads, more):
        self.transfer_port = free_port()
        boot = tempfile.NamedTemporaryFile("w")
        boot.write(f"{uuid.uuid4()}\n")
        boot.flush()
        other = ["unshare", "-m", "sh", "-c", f'mount --bind {boot.name} {BOOT_ID} && exec "$@"', "sh"]
        self.prefill = self.start([], program, model, self.transfer_port, threads, more)
        self.decode = self.start(other, program, model, free_port(), threads, more)
        boot.close()

    @staticmethod
    def start(before, program, model, transfer_port, threads, more):
        process = subprocess.Popen([*before, program, "serve", "--model", model, "--port", "0", "--log-level", "warning", "--threads", str(threads),
                                    "--kv-transfer-listen", f"127.0.0.1:{transfer_port}", *more], stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                return process, int(found[1])
        raise SystemExit("the server did not start")

    def post(self, server, prompt, params, stream):
        connection = http.client.HTTPConnection("127.0.0.1", server[1])
        body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0, "stream": stream, "kv_transfer_params": params}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        answer = response.read()
        connection.close()
        return answer

    def first_token(self, prompt, push):
        """Seconds until the second server's first token, and those until the first server's answer."""
        transfer = f"xfer-{uuid.uuid4()}"
        ask = {"transfer_id": transfer, "do_remote_decode": True, "do_remote_prefill": False}
        take = {"transfer_id": transfer, "do_remote_decode": False, "do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": self.transfer_port}
        begin = time.monotonic()

        def compute():
            self.post(self.prefill, prompt, ask, False)
            return time.monotonic() - begin
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            computed = pool.submit(compute)
            if not push:
                computed.result()
            self.post(self.decode, prompt, take, True)
            return time.monotonic() - begin, computed.result()

    def transferred(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.decode[1])
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        found = re.findall(r'^millrace:kv_transfers_total\{end="decode",.*reason="([a-z_]+)".* (\d+)', text, re.M)
        return {reason: int(count) for reason, count in found}

    def stop(self):
        for process, _ in (self.prefill, self.decode):
            process.terminate()
            process.wait()


def push_over_pull(bench):
    options = bench.options
    programs = options.programs or [options.program]
    found = {(program, push): [] for program in programs for push in (False, True)}
    behind = {(program, push): [] for program in programs for push in (False, True)}  # the first server's answer
    computed = []
    for number in range(options.rounds):
        for program in programs if number % 2 == 0 else programs[::-1]:
            pair = ProxiedPair(program, options.model, options.threads, bench.more)
            pair.first_token(bench.prompt(600), True)
            for push in (True, False) if number % 2 == 0 else (False, True):
                seconds, alone = pair.first_token(bench.prompt(GAP_PROMPT), push)
                found[program, push].append(seconds)
                behind[program, push].append(seconds - alone)
                computed.append(alone)
            time.sleep(1.5)  # the metrics are as old as the last heartbeat
            ended = pair.transferred()
            pair.stop()
            assert set(ended) == {"ok"}, ended
            print(f"round {number}, {program}: push {found[program, True][-1]:.2f} s, pull {found[program, False][-1]:.2f} s; behind the first server's "
                  f"answer {behind[program, True][-1]:.2f} s, {behind[program, False][-1]:.2f} s", file=sys.stderr, flush=True)
    print(f"The first server's answer: {statistics.median(computed) * 1000:.0f} ms for {GAP_PROMPT} tokens; {options.megabytes} MB/s\n")
    print("| first token | push | pull | push over pull | behind the first server's answer: push | pull |\n|---|---|---|---|---|---|")
    for program in programs:
        push, pull = (statistics.median(found[program, kind]) for kind in (True, False))
        ratio = statistics.median(a / b for a, b in zip(found[program, True], found[program, False]))
        tails = [statistics.median(behind[program, kind]) * 1000 for kind in (True, False)]
        print(f"| {program} | {push * 1000:.0f} ms | {pull * 1000:.0f} ms | {ratio:.2f} | {tails[0]:.0f} ms | {tails[1]:.0f} ms |")


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def main():
    own, more = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--no-gaps", action="store_true")
    parser.add_argument("--push-pull", action="store_true")
    parser.add_argument("--megabytes", type=int, default=100, help="a second, with --push-pull")
    parser.add_argument("--programs", nargs="+", help="with --push-pull: compares these")
    bench = Bench(parser.parse_args(own), more)
    if bench.options.push_pull:
        enter_namespace(bench.options.megabytes)
        return push_over_pull(bench)
    rounds = {False: [], True: []}
    for number in range(bench.options.rounds):
        for split in (False, True) if number % 2 == 0 else (True, False):
            rounds[split].append(bench.first_tokens(split))
    step = statistics.median(one[1] for one in rounds[False]) * 1000
    print(f"A decode step, unsplit: {step:.1f} ms\n\n| prompt | first token, unsplit | split | split - unsplit - a step | of unsplit |\n|---|---|---|---|---|")
    for length in bench.options.lengths:
        alone, split = (statistics.median(one[0][length] for one in rounds[kind]) * 1000 for kind in (False, True))
        print(f"| {length} | {alone:.0f} ms | {split:.0f} ms | {split - alone - step:.1f} ms | {(split - alone - step) / alone * 100:.1f} % |")
    if bench.options.no_gaps:
        return
    print(f"\n| {bench.options.streams} streams beside prompts of {GAP_PROMPT} | gap p50 | p99 | largest | tokens/s | first token of the prompts | prompts |\n|---|---|---|---|---|---|---|")
    for split in (False, True):
        gaps, prompts = bench.gaps(split)
        print(f"| {'split' if split else 'colocated'} | {quantile(gaps, 0.5) * 1000:.1f} ms | {quantile(gaps, 0.99) * 1000:.1f} ms | {max(gaps) * 1000:.0f} ms "
              f"| {len(gaps) / sum(prompts):.0f} | {statistics.median(prompts) * 1000:.0f} ms | {len(prompts)} |", flush=True)


if __name__ == "__main__":
    main()
