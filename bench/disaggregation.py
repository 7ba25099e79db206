#!/usr/bin/env python3
"""What a prefill/decode split costs and buys, beside the same server without it, in one run.

    bench/disaggregation.py PROGRAM MODEL_DIR [--threads 1] [--lengths 512 2048 8192] [--rounds 5] [--streams 8] [-- serve options]

First token: a prompt alone, unsplit on --threads, and with --prefill 1 --decode 1 on twice as many, so that prompts are computed by as many
threads in both. Gaps: --streams texts are generated while prompts of 2048 tokens come one after the other; both servers have twice --threads.
Prompts are random ids, so nothing comes from the prefix cache. The servers run one after the other, taking turns by round. Prints Markdown."""
import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time

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
    bench = Bench(parser.parse_args(own), more)
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
