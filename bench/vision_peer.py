#!/usr/bin/env python3
"""A picture to the first token, served: Millrace beside llama-server with its mmproj, on the same weights, in turns.

    bench/vision_peer.py PROGRAM HF_DIR MODEL.gguf MMPROJ.gguf [--peer "WORDS BEFORE llama-server"] [--sides 448 1024] [--rounds 5] [--threads 2]

HF_DIR is a directory of bench/vision.py; the files are what tests/oracles/vision_gguf.py makes of it. Both servers take turns; only one runs
at a time. Pictures are PNG of noise, each one new, so that no cache knows it; the first of each turn warms up. Prints a Markdown table."""
import argparse
import contextlib
import http.client
import json
import pathlib
import shlex
import statistics
import time

from engines import running
from vision import png, question

OURS, THEIRS = 28441, 28442
BODY = {"max_tokens": 2, "temperature": 0, "stream": True, "ignore_eos": True}


def first_token(port, content):
    """(seconds to the first event with a text, tokens of the prompt)"""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begin, first, rows = time.monotonic(), None, None
    body = {**BODY, "messages": [{"role": "user", "content": content}], "stream_options": {"include_usage": True}}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        rows = (event.get("usage") or {}).get("prompt_tokens", rows)
        choices = event.get("choices")
        if choices and (choices[0]["delta"].get("content") or choices[0]["finish_reason"]):
            first = first or time.monotonic() - begin
    with contextlib.closing(connection):
        return first, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("program", "folder", "model", "mmproj"):
        parser.add_argument(name, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--peer", default="")
    parser.add_argument("--sides", type=int, nargs="+", default=[448, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="2")
    args = parser.parse_args()
    commands = {
        "millrace": ([args.program, "serve", "--model", args.folder, "--threads", args.threads, "--port", str(OURS), "--log-level", "error"], OURS),
        "llama-server": ([*shlex.split(args.peer), "llama-server", "-m", args.model, "--mmproj", args.mmproj, "-t", args.threads, "-tb", args.threads,
                          "-fa", "on", "-c", "8192", "-np", "1", "--jinja", "--port", str(THEIRS), "--no-webui", "--image-max-tokens", "4096"], THEIRS)}
    found = {side: {name: [] for name in commands} for side in args.sides}
    rows = {}
    for turn in range(args.rounds):
        for name, (command, port) in commands.items():
            with running(command, port):
                first_token(port, question(png(64, 0)))
                for side in args.sides:
                    seconds, rows[name, side] = first_token(port, question(png(side, 1000 * side + turn)))
                    found[side][name].append(seconds)
    print("| picture | tokens of the prompt: ours, theirs | Millrace, ms | llama-server, ms | |\n|---|---|---|---|---|")
    for side, times in found.items():
        ours, theirs = (1000 * statistics.median(times[name]) for name in commands)
        print(f"| {side} x {side} | {rows['millrace', side]}, {rows['llama-server', side]} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} |")


if __name__ == "__main__":
    main()
