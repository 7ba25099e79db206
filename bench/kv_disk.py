#!/usr/bin/env python3
"""What --kv-disk-dir saves after a restart: first tokens of a prompt that is computed, and of one that is read from disk, in one run.

    bench/kv_disk.py PROGRAM MODEL_DIR [--lengths 512 2048 8192] [--rounds 3] [-- serve options]

Prompts are random ids. A server gets each prompt twice, with another last token, so that it is saved; another one is started with the
same folder and gets it a third time. Files come from the page cache, as after any restart of the program. Prints Markdown."""
import argparse
import http.client
import random
import statistics
import tempfile
import time

from disaggregation import vocabulary_of
from served import one_request, start

PAGE = 16


def metric(host, port, name):
    connection = http.client.HTTPConnection(host, port)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"millrace:{name}"))


def round_of(options, more, prompts):
    """{length: (computed, restored)} in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--kv-disk-dir", f"{folder}/kv", *more]
        process, host, port, _ = start(options.program, options.model, arguments)
        computed, pages = {}, 0
        one_request(host, port, [5] * 20, 2)
        for length, prompt in prompts.items():
            computed[length] = one_request(host, port, [*prompt, 11], 1)[0]
            one_request(host, port, [*prompt, 12], 1)
            pages += length // PAGE
            while metric(host, port, "kv_disk_saved_pages_total") < pages:
                time.sleep(0.1)
        process.terminate(), process.wait()
        process, host, port, _ = start(options.program, options.model, arguments)
        one_request(host, port, [5] * 20, 2)
        found = {length: (computed[length], one_request(host, port, [*prompt, 13], 1)[0]) for length, prompt in prompts.items()}
        process.terminate(), process.wait()
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    options, more = parser.parse_known_args()
    more = [one for one in more if one != "--"]
    rng, vocabulary = random.Random(1), vocabulary_of(options.model)
    rounds = []
    for _ in range(options.rounds):
        prompts = {length: [rng.randrange(10, vocabulary) for _ in range(length)] for length in options.lengths}
        rounds.append(round_of(options, more, prompts))
    print("| prompt | computed | from disk | ratio |\n|---|---|---|---|")
    for length in options.lengths:
        computed, restored = (statistics.median(one[length][i] for one in rounds) for i in (0, 1))
        print(f"| {length} tokens | {1000 * computed:.0f} ms | {1000 * restored:.0f} ms | {computed / restored:.1f} |")


if __name__ == "__main__":
    main()
