#!/usr/bin/env python3
"""Compares a model split over two ranges of one host (`serve --pp 2`) with the same model in one process.

    bench/layers.py PROGRAM MODEL_DIR [--rounds 5] [--prompt-tokens 2048] [--tokens 48] [--measures split hop link]

Both servers stand side by side and are asked in turn, so that a change of the machine's speed meets both. Prints a Markdown table:
medians, and the split's rate over the other's. Processors: the ranges have one thread each; the server without a split has as many
as the row says. `hop`: from the end of the first range's layers to the begin of the second one's, one row of 1,024 f32, by ipc and by tcp on
loopback, of a model made for it. `link`: prefill over two network namespaces, with and without a slow link between them (root, python3-pytest)."""
import argparse
import pathlib
import random
import statistics
import tempfile
import threading
import time

from layer_links import print_hops, print_link
from served import one_request, start

VOCABULARY = 2000


def prompt(generator, tokens):
    return [generator.randrange(10, VOCABULARY) for _ in range(tokens)]


def prefill_rate(server, generator, tokens):
    """Prompt tokens a second, from the request to its first token."""
    return tokens / one_request(*server, prompt(generator, tokens), 1)[0]


def decode_rate(server, generator, clients, tokens):
    """Tokens a second of `clients` sequences that began together, each from its first token on."""
    spans = []

    def client(ids):
        begin = time.monotonic()
        first, whole = one_request(*server, ids, tokens)
        spans.append((begin + first, begin + whole))
    threads = [threading.Thread(target=client, args=(prompt(generator, 32),)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients * (tokens - 1) / statistics.mean(last - first for first, last in spans)


def compare(arguments, name, one, split, measure):
    """One row: measures both in turn, `rounds` times after one that warms up."""
    started = [start(arguments.program, arguments.model, more) for more in (one, split)]
    rates = ([], [])
    try:
        generator = random.Random(1)
        for round_number in range(arguments.rounds + 1):
            for index in (0, 1) if round_number % 2 else (1, 0):
                process, host, port, _ = started[index]
                rate = measure((host, port), generator)
                if round_number:
                    rates[index].append(rate)
    finally:
        for process, *_ in started:
            process.terminate()
            process.wait()
    ratio = statistics.median(b / a for a, b in zip(*rates))
    medians = [statistics.median(series) for series in rates]
    print(f"| {name} | {medians[0]:.1f} | {medians[1]:.1f} | {ratio:.2f} |", flush=True)


def print_split(arguments):
    common = ["--no-prefix-cache", "--kv-gib", "1.5"]
    two, one = [*common, "--threads", "2"], [*common, "--threads", "1"]
    print("| tokens a second | one process | two ranges | ratio |\n|---|---|---|---|")
    compare(arguments, f"prefill of {arguments.prompt_tokens}, one process with 2 threads", two, [*two, "--pp", "2"],
            lambda server, generator: prefill_rate(server, generator, arguments.prompt_tokens))
    compare(arguments, "decode of one sequence, one process with 1 thread", one, [*two, "--pp", "2"],
            lambda server, generator: decode_rate(server, generator, 1, arguments.tokens))
    balanced = ["--quantize", "q8_0", "--max-running-requests", "32"]
    compare(arguments, "decode of 32, q8_0, balanced, one process with 2 threads", [*two, *balanced],
            [*two, *balanced, "--pp", "2", "--split", "balanced"],
            lambda server, generator: decode_rate(server, generator, 32, arguments.tokens))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--measures", nargs="+", choices=("split", "hop", "link"), default=["split"])
    parser.add_argument("--link-rate", default="1gbit", help="of `link`, as tc has it")
    arguments = parser.parse_args()
    if "split" in arguments.measures:
        print_split(arguments)
    if "hop" in arguments.measures:
        with tempfile.TemporaryDirectory() as folder:
            print_hops(arguments.program, pathlib.Path(folder), start)
    if "link" in arguments.measures:
        generator = random.Random(1)
        print_link(arguments, lambda: prompt(generator, arguments.prompt_tokens))


if __name__ == "__main__":
    main()
