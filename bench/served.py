#!/usr/bin/env python3
"""Measures a served model through its HTTP API: tokens per second, time to first token, time to readiness.

    bench/served.py PROGRAM MODEL_DIR [--clients 1 4 16] [--prompt-tokens 64] [--tokens 64] [--rounds 3] [--schema] [-- serve options]

Starts `PROGRAM serve`, lets each client send streamed completions of random token ids one after the other (closed loop), and prints a
Markdown table; the prompts differ, so nothing comes from the prefix cache. Medians over the rounds.

--schema: in turns without and with a JSON Schema that the answers do not come to the end of, and the ratio of each round's two, by the clock
and by the CPU time of the server's processes, which other programs disturb less. These answers come in one: what a model writes behind its end
is often no text, so a stream without a schema would have fewer events."""
import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time

URL = re.compile(r"serves (\S+) at http://([\d.]+):(\d+)")
REQUESTS_EACH = 4
# All kinds of states: names that begin alike, numbers, enumerations, free text and text of a pattern.
ITEM = {"type": "object", "additionalProperties": False, "required": ["id", "name", "kind", "price", "tags"], "properties": {
    "id": {"type": "integer", "minimum": 1, "maximum": 99999}, "name": {"type": "string", "maxLength": 40},
    "nickname": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}, "kind": {"enum": ["animal", "ant", "plant", "planet", "stone"]},
    "price": {"type": "number", "minimum": 0}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4}}}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 1000}


def start(program, model, more):
    begin = time.monotonic()
    process = subprocess.Popen([program, "serve", "--model", model, "--port", "0", "--log-level", "warning", *more],
                               stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = URL.search(line)
        if found:
            return process, found[2], int(found[3]), time.monotonic() - begin
    raise SystemExit("the server did not start")


def cpu_seconds(pid):
    """Of a process and its children."""
    with open(f"/proc/{pid}/stat") as file:
        times = file.read().rsplit(")", 1)[1].split()[11:13]
    children = [int(child) for task in os.listdir(f"/proc/{pid}/task") for child in open(f"/proc/{pid}/task/{task}/children").read().split()]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


def one_request(host, port, prompt, tokens, more=None):
    """(seconds to the first text, seconds in all); the first text of an answer in one is all of it. Without `more` every token is made."""
    connection = http.client.HTTPConnection(host, port)
    begin = time.monotonic()
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, **(more or {"ignore_eos": True})}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first = None
    for line in response:
        if first is None and line.strip():
            first = time.monotonic() - begin
    connection.close()
    return first, time.monotonic() - begin


def run_round(host, port, clients, prompt_tokens, tokens, vocabulary, generator, more=None):
    prompts = [[[generator.randrange(10, vocabulary) for _ in range(prompt_tokens)] for _ in range(REQUESTS_EACH)] for _ in range(clients)]
    firsts = []

    def client(index):
        for prompt in prompts[index]:
            firsts.append(one_request(host, port, prompt, tokens, more)[0])
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
    parser.add_argument("--schema", action="store_true")
    options = parser.parse_args(own)
    process, host, port, ready = start(options.program, options.model, more)
    try:
        with open(f"{options.model}/config.json") as file:
            vocabulary = json.load(file)["vocab_size"]
        with open(f"{options.model}/tokenizer.json") as file:  # the embedding may have more rows than there are tokens
            vocabulary = min(vocabulary, len(json.load(file)["model"]["vocab"]))
        print(f"ready after {ready:.2f} s")
        print("| clients | tokens/s | requests/s | first token p50, ms |" + (" with a schema | ratio | by CPU time |" if options.schema else ""))
        print("|---" * (7 if options.schema else 4) + "|")
        generator = random.Random(1)
        variants = [{"ignore_eos": True}]
        if options.schema:
            variants[0]["stream"] = False
            variants.append({"stream": False, "response_format": {"type": "json_schema", "json_schema": {"name": "items", "schema": SCHEMA}}})
        for clients in options.clients:
            def measure(more):
                before = cpu_seconds(process.pid)
                tokens, requests, first = run_round(host, port, clients, options.prompt_tokens, options.tokens, vocabulary, generator, more)
                return tokens, requests, first, clients * REQUESTS_EACH * options.tokens / (cpu_seconds(process.pid) - before)
            rounds = [[measure(more) for more in variants] for _ in range(options.rounds)]
            tokens, requests, first, _ = (statistics.median(column) for column in zip(*(plain for plain, *_ in rounds)))
            line = f"| {clients} | {tokens:.0f} | {requests:.2f} | {first:.0f} |"
            if options.schema:
                line += f" {statistics.median(guided[0] for _, guided in rounds):.0f} |"
                for figure in (0, 3):
                    ratios = sorted(guided[figure] / plain[figure] for plain, guided in rounds)
                    line += f" {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |"
            print(line, flush=True)
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
