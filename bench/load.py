#!/usr/bin/env python3
"""How long `millrace serve` takes until it is ready, and the most memory that its processes held: with and without a packed cache.

    bench/load.py build/bench/millrace MODEL_DIR [--rounds 3] [--cold] [--placement single]

Variants take turns. A line: the seconds' median, least and most; the largest VmHWM of a process, the packed weights' bytes, and their
ratio. --cold drops the files of MODEL_DIR and of the cache from the page cache before each start.
"""
import argparse
import http.client
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time


def ready(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False


def children(pid):
    return [int(child) for task in os.listdir(f"/proc/{pid}/task")
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]


def peak_mib(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def start(arguments, *more):
    """Seconds, MiB."""
    begin = time.monotonic()
    command = [arguments.program, "serve", "--model", arguments.model, "--port", "0", "--kv-gib", "0.01", "--placement", arguments.placement]
    process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = next(int(found[1]) for line in process.stdout if (found := re.search(r"http://[\d.]+:(\d+)", line)))
        while not ready(port):
            time.sleep(0.01)
        return time.monotonic() - begin, max(peak_mib(pid) for pid in [process.pid, *children(process.pid)])
    finally:
        process.terminate()
        process.wait()


def drop(*folders):
    for path in (path for folder in folders for path in pathlib.Path(folder).iterdir() if path.is_file()):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--placement", default="processes")
    arguments = parser.parse_args()
    for quantize in ("none", "q8_0", "q4_0"):
        with tempfile.TemporaryDirectory() as cache:
            kept = ["--quantize", quantize, "--packed-cache-dir", cache]
            variants = {"packed": kept[:2], "from the cache": kept}
            start(arguments, *kept)
            [file] = pathlib.Path(cache).iterdir()
            seen = {name: [] for name in variants}
            for _ in range(arguments.rounds):
                for name, more in variants.items():
                    if arguments.cold:
                        drop(arguments.model, cache)
                    seen[name].append(start(arguments, *more))
            for name, values in seen.items():
                seconds, peak = [s for s, _ in values], max(mib for _, mib in values)
                weights = file.stat().st_size / 2**20
                print(f"{quantize:5} {name:15} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {peak:.0f} of "
                      f"{weights:.0f} MiB: {peak / weights:.2f}", flush=True)


if __name__ == "__main__":
    main()
