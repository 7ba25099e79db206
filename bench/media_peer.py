#!/usr/bin/env python3
"""A picture from its file to the rows of a vision tower: Millrace beside Pillow and numpy, on one core, in turns.

    bench/media_peer.py MEDIA_BENCH PHOTO [--peer "WORDS BEFORE python3"] [--rounds 5] [--core 0]

MEDIA_BENCH is the program of bench/media_bench.cc. PHOTO is a picture of any size: JPEG files of 12 megapixels (4000 x 3000, quality 90) are
made of it, and brought to the pixels that each limit allows. The peer computes what transformers' Qwen2VLImageProcessorPil does, in float32
alone, which is faster than it does: Image.open, convert, resize, and numpy for scaling, normalizing and patches. Prints a Markdown table."""
import argparse
import json
import math
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

WIDTH, HEIGHT, FACTOR, LEAST = 4000, 3000, 32, 65536
LIMITS = [16777216, 1048576]
STEPS = ("decode", "resize", "patches", "all")


def target(width, height, most):
    w, h = round(width / FACTOR) * FACTOR, round(height / FACTOR) * FACTOR
    if w * h > most:
        beta = math.sqrt(width * height / most)
        w, h = math.floor(width / beta / FACTOR) * FACTOR, math.floor(height / beta / FACTOR) * FACTOR
    return w, h


def peer_once(path, most):
    import numpy as np
    from PIL import Image
    begin = time.perf_counter()
    image = Image.open(path).convert("RGB")
    image.load()
    decoded = time.perf_counter()
    w, h = target(*image.size, most)
    image = image.resize((w, h), Image.Resampling.BICUBIC)
    resized = time.perf_counter()
    values = np.asarray(image).astype(np.float32) * np.float32(1 / 255)
    values = (values - np.float32(0.5)) / np.float32(0.5)
    values = np.broadcast_to(values.transpose(2, 0, 1), (2, 3, h, w)).reshape(1, 2, 3, h // 32, 2, 16, w // 32, 2, 16)
    rows = np.ascontiguousarray(values.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)).reshape(-1, 1536)
    end = time.perf_counter()
    assert rows.shape[0] == w * h // 256
    return [1000 * each for each in (decoded - begin, resized - decoded, end - resized, end - begin)]


def peer(path, most, rounds):
    columns = zip(*[peer_once(path, most) for _ in range(rounds)])
    print(json.dumps(dict(zip(STEPS, (statistics.median(column) for column in columns)))))


def make(photo, path):
    from PIL import Image
    Image.open(photo).convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(path, quality=90)


def output(words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main():
    if sys.argv[1] == "--make":
        return make(*sys.argv[2:])
    if sys.argv[1] == "--one":
        return peer(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("photo")
    parser.add_argument("--peer", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", default="0")
    args = parser.parse_args()
    core = ["taskset", "-c", args.core]
    theirs = [*shlex.split(args.peer), *core, "python3", __file__]
    print("| 12 megapixels, to at most | step | Millrace, ms | Pillow and numpy, ms | |\n|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile(suffix=".jpg", dir=".") as file:
        output([*theirs, "--make", args.photo, file.name])
        for most in LIMITS:
            found = {"ours": [], "theirs": []}
            for _ in range(args.rounds):
                found["ours"].append(json.loads(output([*core, args.program, file.name, "--max-pixels", str(most), "--rounds", "3"])))
                found["theirs"].append(json.loads(output([*theirs, "--one", file.name, str(most), "3"])))
            for step in STEPS:
                ours, other = (statistics.median(each[step] for each in found[who]) for who in ("ours", "theirs"))
                print(f"| {most} pixels | {step} | {ours:.0f} | {other:.0f} | {other / ours:.2f} |")
    return None


if __name__ == "__main__":
    main()
