#!/usr/bin/env python3
"""Writes tests/golden/kv/hashes.json: what src/kv/block_hash_test.cc must compute.

SHA-256 chains come from hashlib. SipHash-1-3 comes from CPython itself, whose hash of bytes it is since 3.11; with
PYTHONHASHSEED=0 its key is zero. Run from anywhere with Debian's Python 3.11."""
import hashlib
import json
import os
import pathlib
import struct
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
assert sys.hash_info.algorithm == "siphash13" and sys.hash_info.cutoff == 0

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "kv" / "hashes.json"


def le(tokens):
    return struct.pack(f"<{len(tokens)}i", *tokens)


def chain(extra_key, tokens, page):
    """The signed first 8 bytes of each whole page's digest."""
    digest = hashlib.sha256(extra_key.encode()).digest() if extra_key else b""
    hashes = []
    for at in range(0, len(tokens) - page + 1, page):
        digest = hashlib.sha256(digest + le(tokens[at:at + page])).digest()
        hashes.append(struct.unpack(">q", digest[:8])[0])
    return hashes


CHAINS = [("", list(range(1, 9)), 4), ("", [1, 2, 3, 4] * 2, 4), ("", [1, 2, 3, 4, 5, 6, 7], 1),
          ("4:salt1:a", [1, 2, 3, 4, 5, 6], 2), ("", [0, 151642, 2147483647, -7] * 8, 16), ("é", [5] * 6, 3)]
BLOCKS = [[1], [0], [1, 2], [1, 2, 3], list(range(16)), [151642] * 17, [-1, -2, 2147483647], list(range(64))]
golden = {
    "chains": [{"extra_key": k, "tokens": t, "page": p, "hashes": chain(k, t, p)} for k, t, p in CHAINS],
    # hash() is never -1: none of these is.
    "siphash": [{"tokens": t, "hash": hash(le(t))} for t in BLOCKS],
}
assert all(row["hash"] != -2 for row in golden["siphash"])
OUT.parent.mkdir(exist_ok=True)
OUT.write_text(json.dumps(golden, indent=0, ensure_ascii=False) + "\n")
