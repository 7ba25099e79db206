#!/usr/bin/env python3
"""Measures what weights cost that a trainer broadcasts to a server: to those who stream meanwhile, and in memory.

    bench/broadcasts.py PROGRAM MODEL_DIR [--streams 8] [--updates 50] [--replicas 1] [--policy in_place|retract] [-- serve options]

Starts `PROGRAM serve` and keeps `--streams` streams going, while tests/oracles/gloo_peer.py, which sends as PyTorch does, broadcasts the
model's own tensors again and again: prepare, the broadcasts, complete. Prints one Markdown table. Gaps are those of bench/weights.py.

Memory, without streams alone, for these touch KV pages for the first time: that of all schedulers together. The bound: what they had before
the first update, the weights once more, the largest tensor as it comes, and 32 MiB, for each."""
import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import struct
import sys
import threading
import time

from served import start
from weights import Stream, end_streams, post, print_switch, rate

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "oracles"))
from gloo_peer import Rank, Store  # noqa: E402

GROUP, SLACK_BYTES = "bench", 32 << 20
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def tensors_of(folder):
    """[(name, dtype, shape, bytes)] of all safetensors files."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found.append((name, entry["dtype"], entry["shape"], data[8 + length + begin : 8 + length + end]))
    return found


def in_buckets(tensors, limit):
    buckets, filled = [[]], 0
    for tensor in tensors:
        if buckets[-1] and filled + len(tensor[3]) > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += len(tensor[3])
    return buckets


class Trainer:
    def __init__(self, address, replicas, buckets):
        self.address, self.buckets = address, buckets
        self.store = Store(2)
        joining = threading.Thread(target=lambda: setattr(self, "rank", Rank(self.store, 0, replicas + 1, GROUP)))
        joining.start()
        self.asked("/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": self.store.port, "rank_offset": 1,
                                                  "world_size": replicas + 1, "group_name": GROUP, "backend": "gloo"})
        joining.join()
        self.described = [{"names": [t[0] for t in bucket], "dtypes": [DTYPES[t[1]] for t in bucket], "shapes": [t[2] for t in bucket]}
                          for bucket in buckets]
        self.bytes = [b"".join(t[3] for t in bucket) for bucket in buckets]

    def asked(self, path, body):
        status, answer = post(self.address, path, body)
        if status != 200:
            raise SystemExit(f"{path}: {answer}")
        return answer

    def update(self, policy):
        """When it was prepared, when the last byte was sent, when the new weights served."""
        self.asked("/prepare_weights_update", {"buckets": self.described, "num_buckets": len(self.buckets), "group_name": GROUP,
                                               "load_format": "flattened_bucket"})
        times = [time.monotonic()]
        for data in self.bytes:
            self.rank.broadcast(data)
        times.append(time.monotonic())
        self.asked("/complete_weights_update", {"group_name": GROUP, "policy": policy})
        return *times, time.monotonic()


class TrainerProcess:
    """A Trainer that shares no interpreter with the streams, whose clocks would stand still while it sends. At nice 19, since a trainer's
    own machine would take no time from the server."""

    def __init__(self, address, replicas, buckets):
        self.buckets = buckets
        self.pipe, far = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=self.run, args=(far, address, replicas, buckets), daemon=True)
        self.process.start()
        self.pipe.recv()

    def run(self, pipe, *args):
        os.nice(19)
        trainer = Trainer(*args)
        pipe.send("joined")
        while True:
            pipe.send(trainer.update(pipe.recv()))

    def update(self, policy):
        self.pipe.send(policy)
        return self.pipe.recv()


def schedulers_of(process):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == process.pid and len(arguments) > 2 and arguments[2].startswith(b"scheduler"):
            found.append(entry / "status")
    return found


def memory(statuses, key):
    return sum(int(line.split()[1]) << 10 for path in statuses for line in path.read_text().splitlines() if line.startswith(key + ":"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--policy", default="in_place", choices=["in_place", "retract"])
    parser.add_argument("--bucket-mib", type=int, default=64)
    parser.add_argument("--rest", type=float, default=1.0, help="seconds between two updates")
    args, more = parser.parse_known_args()
    tensors = tensors_of(args.model)
    size, largest = sum(len(t[3]) for t in tensors), max(len(t[3]) for t in tensors)
    load = os.getloadavg()[0]
    process, host, port, _ = start(args.program, args.model, ["--admin-without-key", "--dp", str(args.replicas), *[m for m in more if m != "--"]])
    spans, quiet, resident = [], [], []
    streams = [Stream((host, port), i, args.tokens) for i in range(args.streams)]
    try:
        trainer = TrainerProcess((host, port), args.replicas, in_buckets(tensors, args.bucket_mib << 20))
        for stream in streams:
            stream.start()
        time.sleep(2 * args.rest)
        statuses = schedulers_of(process)
        bound = memory(statuses, "VmRSS") + args.replicas * (size + largest + SLACK_BYTES)
        for i in range(args.updates):
            spans.append(trainer.update(args.policy))
            time.sleep(args.rest)
            quiet.append((spans[-1][2], time.monotonic()))
            resident.append(memory(statuses, "VmRSS"))
        peak = memory(statuses, "VmHWM")
        end_streams(streams)
    finally:
        process.terminate()
        process.wait()
    received = [done - begin for begin, _, done in spans]
    print(f"load before {load:.1f}, after {os.getloadavg()[0]:.1f}; {size / 1e6:.0f} MB in {len(trainer.buckets)} buckets")
    print("| what | |\n|---|---|")
    print(f"| updates; requests, failed or cut short | {len(spans)}; {sum(len(s.answers) for s in streams)}, {sum(s.failures for s in streams)} |")
    print(f"| from ready to served, median; of it after the last byte | {statistics.median(received):.2f} s, "
          f"{1e3 * statistics.median(done - sent for _, sent, done in spans):.0f} ms |")
    if streams:
        gaps = [gap for stream in streams for gap in stream.gaps]
        during = statistics.median(rate(streams, begin, done) for begin, _, done in spans)
        between = statistics.median(rate(streams, *span) for span in quiet)
        print(f"| gap between two tokens: median | {1e3 * statistics.median(gaps):.2f} ms |")
        print_switch(streams)
        print(f"| tokens/s while weights arrive, between | {during:.0f}, {between:.0f}: {during / between:.2f} |")
    else:
        print(f"| memory: peak over the bound | {peak / bound:.2f} |")
        print(f"| memory: after the last update less after the first | {(resident[-1] - resident[0]) / 2**20:.1f} MiB |")


if __name__ == "__main__":
    main()
