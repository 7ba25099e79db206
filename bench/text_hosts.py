#!/usr/bin/env python3
"""What serving over two hosts costs: text with its scheduler on another host, in a network namespace of its own, beside the same stages on
one host. The two take turns; medians, and the ratio.

    bench/text_hosts.py PROGRAM [MODEL_DIR] [--clients 16] [--requests 64] [--prompt-tokens 64] [--tokens 128] [--rounds 3]

Takes root, for the namespaces, which are those of tests/e2e. One thread computes on either side."""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = {"tokens/s": lambda s: s["answer_tokens_per_s"], "first token p50, ms": lambda s: s["ttft_ms"]["p50"],
           "gap p50, ms": lambda s: s["inter_token_ms"]["p50"], "gap p99, ms": lambda s: s["inter_token_ms"]["p99"]}


def measure(options, server, near, seed):
    command = [*near.prefix, options.program, "bench", "serve", "--url", f"http://{server.host}:{server.port}", "--clients", options.clients,
               "--requests", options.requests, "--prompt-tokens", options.prompt_tokens, "--tokens", options.tokens, "--warmup", options.clients,
               "--seed", seed, "--json", "-"]
    out = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True, text=True).stdout
    return {name: figure(json.loads(out)) for name, figure in FIGURES.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("model", nargs="?", default=ROOT / "models/demo")
    for name, value in (("clients", 16), ("requests", 64), ("prompt-tokens", 64), ("tokens", 128), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    options.program = options.program.resolve()
    os.environ.update(MILLRACE_PROGRAM=str(options.program), MILLRACE_PLACEMENT="processes")
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    from harness import Server, new_key
    from test_two_hosts import join, lead, text_file, wait_ready
    from two_hosts import two_hosts, veth

    found = {"one host": [], "two hosts": []}
    with tempfile.TemporaryDirectory() as folder, two_hosts(veth) as (near, far, _):
        path = text_file(pathlib.Path(folder), near.ipv4, new_key(pathlib.Path(folder) / "key"))
        for seed in range(options.rounds):
            with Server("--pipeline", str(ROOT / "pipelines/text.yaml"), model=options.model, where=near) as server:
                found["one host"].append(measure(options, server, near, seed))
            with contextlib.ExitStack() as stack:
                server = stack.enter_context(lead(path, near, model=options.model))
                stack.enter_context(join(path, far, "scheduler", model=options.model))
                wait_ready(server)
                found["two hosts"].append(measure(options, server, near, seed))
    print("| | one host | two hosts | ratio |\n|---|---|---|---|")
    for name in FIGURES:
        one, two = (statistics.median(each[name] for each in rounds) for rounds in found.values())
        print(f"| {name} | {one:.4g} | {two:.4g} | {two / one:.2f} |")


if __name__ == "__main__":
    main()
