#!/usr/bin/env python3
"""Writes tests/golden/wire/*.msgpack with python3-msgpack: the frames that src/wire/codec_test.cc must produce.

Run from the repository's root with Debian's Python (package python3-msgpack)."""
import pathlib
import struct

import msgpack

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "wire"


def ids(*values):
    return struct.pack(f"<{len(values)}i", *values)


def frame(kind, body):
    return msgpack.packb({0: 3, 1: kind, 2: body}, use_bin_type=True)


def usage(prompt, completion, cached):
    return {1: prompt, 2: completion, 3: cached, 4: 0, 5: 0, 6: 0.0}


SAMPLING = {
    1: 64, 2: 0.7, 3: 0.9, 4: 0.0, 5: 40, 6: 18446744073709551615, 7: ["\n\n", "é", "x" * 300], 8: ids(2, 3),
    9: False, 10: True, 11: False, 12: 0.5, 13: -2.0, 14: 1.25, 15: 3,
    16: [{1: 5, 2: -100.0}, {1: 151642, 2: 0.5}], 17: ["a+b"], 18: 2, 19: ids(4), 20: -1,
}
LOGPROBS = [{1: 7, 2: -0.5, 3: ids(7, 8), 4: [-0.5, -1.25], 5: []}, {1: 8, 2: None, 3: b"", 4: [], 5: [-3.5]}]
TOKEN_DELTAS = [
    {
        1: i,
        2: {1: ["stop"], 2: True, 3: False, 4: []} if i % 2 else None,
        3: ids(i, i + 1) if i % 3 == 0 else b"",
        4: {1: 0, 2: 7, 3: None, 4: 0, 5: ""} if i % 5 == 0 else None,
        5: usage(i, 2, 1),
        6: LOGPROBS if i == 9 else [],
        7: LOGPROBS if i == 1 else [],
        8: 2,
    }
    for i in range(40)
]

FRAMES = {
    "tokenized_request": frame(0, {1: 0x1122334455667788, 2: ids(0, 1, -1, 2147483647, 151643), 3: SAMPLING, 4: "tenant", 5: -3, 6: 1500, 7: 0}),
    "abort_request": frame(1, {1: 7}),
    "token_batch": frame(2, {1: TOKEN_DELTAS, 2: 4294967295}),
    "admin_request": frame(5, {1: 3, 2: 1, 3: "/tmp/x", 4: 2500}),
    "admin_reply": frame(6, {1: 3, 2: "scheduler", 3: 0, 4: "done"}),
    "stage_status": frame(4, {1: "scheduler", 2: 3, 3: 1, 4: "", 5: 0.5, 6: 9, 7: 0, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0, 13: 1,
                              14: [{1: "num_retractions_total", 2: 4.0}], 15: 2}),
    "text_batch": frame(3, {1: [{1: 1, 2: True, 3: "zażółć", 4: None, 5: usage(0, 0, 0), 6: ids(9), 7: [], 8: [], 9: 0}]}),
}

if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for name, data in FRAMES.items():
        (OUT / f"{name}.msgpack").write_bytes(data)
        print(name, len(data))
