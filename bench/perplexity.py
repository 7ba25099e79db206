#!/usr/bin/env python3
"""What quantization costs: perplexity of a text as a served model scores it, for each way of storing the weights.

    bench/perplexity.py PROGRAM MODEL [--text FILE] [--quantize none q8_0 q4_0] [--bf16-activations]

Each paragraph is one prompt; its tokens' logprobs come from /v1/completions with echo. Prints perplexity and its distance to the first
way of storing."""
import argparse
import http.client
import json
import math
import pathlib
import re
import subprocess

URL = re.compile(r" at http://([\d.]+):(\d+)")


def logprobs_of(host, port, text):
    connection = http.client.HTTPConnection(host, port, timeout=300)
    body = {"prompt": text, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.load(connection.getresponse())
    if "choices" not in answer:
        raise SystemExit(answer)
    found = answer["choices"][0]["logprobs"]["token_logprobs"]
    return [value for value in found[:-1] if value is not None]  # the last one is of the token that was generated


def perplexity(program, model, stored, paragraphs):
    command = [program, "serve", "--model", model, "--port", "0", "--log-level", "error", "--placement", "single", *stored]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        where = next(found for found in map(URL.search, server.stdout) if found)
        values = [value for text in paragraphs for value in logprobs_of(where[1], int(where[2]), text)]
    finally:
        server.terminate()
        server.wait(30)
    return math.exp(-sum(values) / len(values)), len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--text", default=str(pathlib.Path(__file__).with_name("heldout.txt")))
    parser.add_argument("--quantize", nargs="+", default=["none", "q8_0", "q4_0"])
    parser.add_argument("--bf16-activations", action="store_true", help="also with --activations bf16")
    options = parser.parse_args()
    with open(options.text, encoding="utf-8") as file:
        paragraphs = [text.strip() for text in file.read().split("\n\n") if text.strip()]
    first = None
    ways = {quantize: ["--quantize", quantize] for quantize in options.quantize}
    if options.bf16_activations:
        ways["bf16 x"] = ["--activations", "bf16"]
    for name, arguments in ways.items():
        value, tokens = perplexity(options.program, options.model, arguments, paragraphs)
        first = first or value
        print(f"{name:<6} perplexity {value:.4f} over {tokens} tokens, {100 * (value / first - 1):+.3f} %", flush=True)


if __name__ == "__main__":
    main()
