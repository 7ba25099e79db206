#!/usr/bin/env python3
"""Measures a served model through its HTTP API: tokens per second, time to first token, time to readiness.

    bench/served.py PROGRAM MODEL_DIR [--clients 1 4 16] [--prompt-tokens 64] [--tokens 64] [--rounds 3] [-- serve options]

Starts `PROGRAM serve`, lets each client send streamed completions of random token ids one after the other (closed loop), and prints a
Markdown table; the prompts differ, so nothing comes from the prefix cache. Medians over the rounds."""
import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time

URL = re.compile(r"serves (\S+) at http://([\d.]+):(\d+)")
REQUESTS_EACH = 4


def start(program, model, more):
    begin = time.monotonic()
    process = subprocess.Popen([program, "serve", "--model", model, "--port", "0", "--log-level", "warning", *more],
                               stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = URL.search(line)
        if found:
            return process, found[2], int(found[3]), time.monotonic() - begin
    raise SystemExit("the server did not start")


def one_request(host, port, prompt, tokens):
    """(seconds to the first text, seconds in all)"""
    connection = http.client.HTTPConnection(host, port)
    begin = time.monotonic()
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first = None
    for line in response:
        if first is None and line.startswith(b"data: "):
            first = time.monotonic() - begin
    connection.close()
    return first, time.monotonic() - begin


def run_round(host, port, clients, prompt_tokens, tokens, vocabulary, generator):
    prompts = [[[generator.randrange(10, vocabulary) for _ in range(prompt_tokens)] for _ in range(REQUESTS_EACH)] for _ in range(clients)]
    firsts = []

    def client(index):
        for prompt in prompts[index]:
            firsts.append(one_request(host, port, prompt, tokens)[0])
    threads = [threading.Thread(target=client, args=(index,)) for index in range(clients)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    requests = clients * REQUESTS_EACH
    return requests * tokens / seconds, requests / seconds, statistics.median(firsts) * 1000


def main():
    own, more = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(own)
    process, host, port, ready = start(options.program, options.model, more)
    try:
        with open(f"{options.model}/config.json") as file:
            vocabulary = json.load(file)["vocab_size"]
        with open(f"{options.model}/tokenizer.json") as file:  # the embedding may have more rows than there are tokens
            vocabulary = min(vocabulary, len(json.load(file)["model"]["vocab"]))
        print(f"ready after {ready:.2f} s")
        print("| clients | tokens/s | requests/s | first token p50, ms |\n|---|---|---|---|")
        generator = random.Random(1)
        for clients in options.clients:
            rounds = [run_round(host, port, clients, options.prompt_tokens, options.tokens, vocabulary, generator) for _ in range(options.rounds)]
            tokens, requests, first = (statistics.median(column) for column in zip(*rounds))
            print(f"| {clients} | {tokens:.0f} | {requests:.2f} | {first:.0f} |", flush=True)
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
