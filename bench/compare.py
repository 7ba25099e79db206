#!/usr/bin/env python3
"""Millrace beside llama.cpp on the same weights, in one run: the engines take turns; medians and how millrace stands to the faster peer.

    bench/compare.py PROGRAM --model "SHAPE FORMAT" OURS THEIRS.gguf [--model ...] [--peer "WORDS BEFORE llama-bench" | --peer none]
                     [--node-peer FOLDER] [--measures prefill-512 decode-1 ...] [--rounds 3] [--threads 2] [--json FILE]

OURS is what `millrace bench offline` and `millrace serve` take (a directory or a GGUF file), THEIRS the GGUF file for the peers; words
after OURS that begin with -- (for example "DIR --quantize q8_0") are passed on. FOLDER is where `npm install node-llama-cpp` ran. A ratio
above 1 is ours: so many times as many a second, or as short a time. What lies under bench/results is drawn by bench/draw.py. Everything
runs on this machine: keep it otherwise idle."""
import argparse
import datetime
import json
import os
import re
import shlex
import statistics
import sys

from engines import AGAINST_OFFLINE, LESS_IS_BETTER, OFFLINE, SERVED, USUAL, LlamaCpp, Millrace, MillraceOffline, NodeLlamaCpp
from gguf_bytes import read_a_token


def rows_of(engines, options, name, ours, theirs, measure):
    """Yields a row for each figure of a measure, the engines having taken turns."""
    found = {engine.name: [] for engine in engines}
    for _ in range(options.rounds):
        for engine in engines:
            found[engine.name].append(engine.run(ours if isinstance(engine, Millrace | MillraceOffline) else theirs, measure))
    for figure in found["millrace"][0]:
        values = {who: statistics.median(one[figure] for one in runs) for who, runs in found.items() if figure in runs[0]}
        mine, peers = values["millrace"], [value for who, value in values.items() if who != "millrace"]
        row = {"model": name, "measure": measure, "figure": figure, "values": {who: float(f"{value:.4g}") for who, value in values.items()}}
        if peers:
            row["ratio"] = round(min(peers) / mine if figure in LESS_IS_BETTER else mine / max(peers), 3)
        yield row


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    brand, flags = (re.search(rf"^{key}\s*: *(.*)", text, re.M)[1] for key in ("model name", "flags"))
    flags = flags.split()
    isa = next(name for flag, name in (("amx_int8", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sse2", "SSE2")) if flag in flags)
    return f"{brand}, {isa}, {os.cpu_count()} processors"


def kept(options, engines, rows):
    """What is told of a comparison beside its rows, without a machine's folders."""
    urgent = ["chrt", "-f", str(os.sched_getparam(0).sched_priority)] if os.sched_getscheduler(0) == os.SCHED_FIFO else []
    words = [re.sub(r"(^|[\s=])/\S*/", r"\1", word) for word in [*urgent, "bench/compare.py", *sys.argv[1:]]]
    speeds = [speed for engine in engines if isinstance(engine, Millrace) for speed in engine.read_bytes_per_s]
    models = {}
    for name, _, theirs in options.model:
        weights, kv = read_a_token(theirs)
        models[name] = {"weight_bytes_a_token": weights, "kv_bytes_a_position": kv}
    return {"when": datetime.date.today().isoformat(), "machine": processor(), "command": shlex.join(words), "threads": options.threads,
            "rounds": options.rounds, "versions": {engine.name: engine.version for engine in engines},
            "read_bytes_per_s": round(statistics.median(speeds)) if speeds else None, "models": models, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", nargs=3, action="append", required=True, metavar=("NAME", "OURS", "THEIRS"))
    parser.add_argument("--peer", default="", help="words before llama.cpp's programs; none: without them")
    parser.add_argument("--node-peer", help="where the npm package node-llama-cpp is installed")
    parser.add_argument("--measures", nargs="+", default=USUAL, choices=[*OFFLINE, *SERVED])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=30000)
    parser.add_argument("--kv-dtype", default="f16", help="of ours; the peers store f16")
    parser.add_argument("--json")
    options = parser.parse_args()
    engines = [Millrace(options)]
    if options.peer != "none":
        engines.append(LlamaCpp(options))
    if options.node_peer:
        engines.append(NodeLlamaCpp(options))
    print(f"| | {' | '.join(engine.name for engine in engines)} | to the faster |\n|---|{'---|' * len(engines)}---|")
    rows = []
    for name, ours, theirs in options.model:
        for measure in options.measures:
            turns = [engines[0], MillraceOffline(options)] if measure in AGAINST_OFFLINE else engines
            for row in rows_of(turns, options, name, ours, theirs, measure):
                rows.append(row)
                cells = [f"{row['values'][engine.name]:g}" if engine.name in row["values"] else "" for engine in engines]
                print(f"| {name} {measure}, {row['figure']} | {' | '.join(cells)} | {row.get('ratio', '')} |", flush=True)
                if options.json:  # after each row: what was measured is there even where a later one fails
                    with open(options.json, "w", encoding="utf-8") as file:
                        json.dump(kept(options, engines, rows), file, indent=1)
                        file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
