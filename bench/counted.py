#!/usr/bin/env python3
"""Counts the instructions of bench/counted.cc with callgrind and compares them with bench/counted.txt.

    bench/counted.py PROGRAM MODEL_DIR [--write]

A count may exceed the noted one by TOLERANCE; more is a failure, less is told so that the note can be renewed (--write). callgrind knows
AVX2 and no wider vectors, so that is what is counted."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

NOTED = pathlib.Path(__file__).with_suffix(".txt")
TOLERANCE = 0.02
CASES = [(what, quantize) for quantize in ("plain", "q8_0", "q4_0") for what in ("prefill", "decode")]


def count(program, model, what, quantize):
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--collect-atstart=no",
                   f"--toggle-collect=counted_{what}", program, model, what, *([] if quantize == "plain" else [quantize])]
        done = subprocess.run(command, env={**os.environ, "MILLRACE_ISA": "avx2"}, capture_output=True, text=True, check=False)
        found = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode != 0 or not found or int(found[1]) == 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        return int(found[1])


def main():
    program, model = sys.argv[1:3]
    counts = {f"{what} {quantize}": count(program, model, what, quantize) for what, quantize in CASES}
    if "--write" in sys.argv:
        NOTED.write_text("".join(f"{name} {value}\n" for name, value in counts.items()))
    noted = {name: int(value) for name, value in (line.rsplit(" ", 1) for line in NOTED.read_text().splitlines())}
    failed = 0
    for name, value in counts.items():
        ratio = value / noted[name]
        bad = ratio > 1 + TOLERANCE
        failed += bad
        note = "MORE than noted" if bad else "less than noted: --write renews the note" if ratio < 1 - TOLERANCE else "as noted"
        print(f"{name:<16}{value / 1e6:>12.1f} million instructions, {ratio:.3f} of bench/counted.txt: {note}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
