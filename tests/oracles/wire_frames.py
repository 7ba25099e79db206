#!/usr/bin/env python3
"""Writes tests/golden/wire/*.msgpack with python3-msgpack: the frames that src/wire/codec_test.cc and
src/wire/{pipeline,layer,transfer}_codec_test.cc must produce. They are the seeds of fuzz/wire_fuzz.cc too.

    wire_frames.py               writes them
    wire_frames.py --dump NAME   prints one byte by byte, as in docs/wire-protocol.md

Run from the repository's root with Debian's Python (package python3-msgpack)."""
import pathlib
import struct
import sys

import msgpack

TESTS = pathlib.Path(__file__).resolve().parent.parent
OUT = TESTS / "golden" / "wire"
CORPUS = TESTS.parent / "fuzz" / "corpus" / "wire"


def ids(*values):
    return struct.pack(f"<{len(values)}i", *values)


def frame(kind, body):
    return msgpack.packb({0: 25, 1: kind, 2: body}, use_bin_type=True)


def usage(prompt, completion, cached, transfer=None):
    return {1: prompt, 2: completion, 3: cached, 4: 0, 5: 0, 6: 0.0, 7: 0, 8: 0, 9: transfer}


SAMPLING = {
    1: 64, 2: 0.7, 3: 0.9, 4: 0.0, 5: 40, 6: 18446744073709551615, 7: ["\n\n", "é", "x" * 300], 8: ids(2, 3),
    9: False, 10: True, 11: False, 12: 0.5, 13: -2.0, 14: 1.25, 15: 3,
    16: [{1: 5, 2: -100.0}, {1: 151642, 2: 0.5}], 17: ["a+b"], 18: 2, 19: ids(4), 20: -1,
    21: {1: 1, 2: "[a-z]+", 3: "guided_regex"},
    22: {1: 1, 2: ["weather"], 3: 2, 4: True, 5: False, 6: True, 7: ["weather/city"]},
}
SPEECH = {1: "ethan", 2: 18446744073709551615, 3: 0.5, 4: 0.75, 5: 20, 6: 1.25, 7: 100, 8: True}
TOKENIZED = {1: 0x1122334455667788, 2: ids(0, 1, -1, 2147483647, 151643), 3: SAMPLING, 4: "tenant", 5: -3, 6: 1500, 7: 0,
             8: {1: "xfer-7f_A", 2: 1, 3: "tcp://[::1]:5001"},
             9: [{1: 0, 2: 1, 3: 2, 4: 1, 5: 4, 6: 2, 7: b"\x07" * 32, 8: b"\xff\xd8", 9: "messages[0].content[1]"},
                 {1: 1, 2: 4, 3: 1, 4: 9, 5: 1, 6: 1, 7: b"\x08" * 32, 8: b"fLaC", 9: "messages[0].content[2]"}], 10: SPEECH, 11: True}
LOGPROBS = [{1: 7, 2: -0.5, 3: ids(7, 8), 4: [-0.5, -1.25], 5: [], 6: 1}, {1: 8, 2: None, 3: b"", 4: [], 5: [-3.5], 6: 0}]
TOKEN_DELTAS = [
    {
        1: i,
        2: {1: ["stop"], 2: True, 3: False, 4: [], 5: False, 6: None} if i % 2 else None,
        3: ids(i, i + 1) if i % 3 == 0 else b"",
        4: {1: 0, 2: 7, 3: None, 4: 0, 5: ""} if i % 5 == 0 else None,
        5: usage(i, 2, 1, {1: 0.25, 2: 1 << 40, 3: "shm"} if i == 6 else None),
        6: LOGPROBS if i == 9 else [],
        7: LOGPROBS if i == 1 else [],
        8: 2,
        9: {1: SPEECH, 2: ids(0, 151643), 3: [{1: 0, 2: 1, 3: 1, 4: 0, 5: 0, 6: 0, 7: b"", 8: b"", 9: ""}]} if i == 5 else None,
        10: {1: b"\0\0\x80\x3f"} if i == 10 else None,
    }
    for i in range(40)
]

# ---- the messages of pipelines
COORDINATOR = {1: 0x1122334455667788, 2: "", 3: 0, 4: 0}
SCHEDULER = {1: 1, 2: "scheduler", 3: 0, 4: 3}
ORIGIN = {1: 0x1122334455667788, 2: "image_encoder", 3: 1, 4: 7}
NO_TENSORS = {1: msgpack.packb({"text": "zażółć", "n": 3}), 2: [], 3: [], 4: "", 5: b"", 6: b""}
TREE = msgpack.packb({"x": msgpack.ExtType(1, struct.pack(">I", 0)), "rest": [msgpack.ExtType(1, struct.pack(">I", 1)),
                                                                              msgpack.ExtType(1, struct.pack(">I", 2))]})
PAYLOAD = {
    1: TREE,
    2: [{1: "x", 2: "BF16", 3: [2, 3], 4: 0, 5: 0, 6: 12}, {1: "rest[0]", 2: "F32", 3: [], 4: 1, 5: 64, 6: 4},
        {1: "rest[1]", 2: "I64", 3: [0, 4], 4: 0, 5: 0, 6: 0}],
    3: [12, 68], 4: "shm", 5: b"\0\xffslot 3", 6: b"",
}
# Small tensors, whose bytes are in the message.
INLINE = {
    1: msgpack.packb([msgpack.ExtType(1, struct.pack(">I", 0)), msgpack.ExtType(1, struct.pack(">I", 1))]),
    2: [{1: "[0]", 2: "U8", 3: [3], 4: 0, 5: 0, 6: 3}, {1: "[1]", 2: "I32", 3: [1], 4: 1, 5: 0, 6: 4}],
    3: [3, 4], 4: "", 5: b"", 6: b"\1\2\3\0\0\0\xff",
}
FAILURE = {1: 5, 2: "no room for 2 images; wanted at most 1"}
RANGE_GONE = {1: 6, 2: "range 2 is gone"}
PEER = {1: "image_encoder", 2: 1, 3: 7, 4: "ipc:///run/millrace/image_encoder-1", 5: "gpu-host", 6: "3f6a", 7: 4242,
        8: [{1: "shm", 2: b"\0shm"}, {1: "tcp", 2: b"[::1]:4000"}], 9: True, 10: "", 11: True}
ROUTE = [{1: "decode", 2: 3, 3: 7}, {1: "code2wav", 2: 0, 3: 0}]
SELF = {1: "decode", 2: 0, 3: 1, 4: "tcp://[::1]:5001", 5: "", 6: "", 7: 1, 8: [], 9: False,
        10: "tcp://[::1]:5002", 11: False}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OPENING = {1: ["decode"], 2: 1500, 3: ROUTE, 4: TRACEPARENT}


def chunk(seq, body, content, opening=None, request=9):
    return {1: request, 2: seq, 3: opening, 4: {body: content}}


def text_delta(text):
    return {1: 9, 2: False, 3: text, 4: None, 5: usage(3, 2, 1), 6: ids(9), 7: [], 8: [], 9: 2, 10: [{1: 2, 2: "weather"}, {1: 4, 2: ""}], 11: None}


# The bodies: 0 token delta, 1 text delta, 2 value, 3 end, 4 result, 5 failure, 6 complete inputs, 7 sent count.
END = {1: ORIGIN, 2: "decode", 3: [chunk(300, 3, {})]}
TO_STAGE = [
    chunk(0, 2, {1: "", 2: INLINE}, OPENING), chunk(1, 2, {1: "", 2: PAYLOAD}), chunk(2, 3, {}), chunk(3, 4, {1: PAYLOAD}),
    chunk(0, 0, TOKEN_DELTAS[9], {1: [], 2: -5, 3: [], 4: ""}, 18446744073709551615), chunk(1, 1, text_delta("zażółć"), None, 10),
    chunk(0, 5, FAILURE, None, 11), chunk(0, 7, {1: 18446744073709551615}, None, 12),
]
TO_COORDINATOR = [
    chunk(4294967296, 2, {1: "audio", 2: PAYLOAD}), chunk(41, 1, text_delta("done")), chunk(42, 4, {1: NO_TENSORS}),
    chunk(0, 5, FAILURE, None, 10), chunk(0, 6, {1: ["thinker", "mm_aggregate"]}, None, 11),
    chunk(0, 7, {1: 300}, None, 12),
]

# ---- the messages of a layer split
CHAIN_FACTS = {1: 0xFEDCBA9876543210, 2: 28, 3: 2, 4: 16, 5: 1024, 6: 8, 7: 512, 8: "f32", 9: "avx512", 10: 7}
TWO_ROWS = struct.pack("<4f", 1.0, -0.5, 0.0, 3.25)
LAYER_ROWS = {1: 2, 2: 2, 3: 0, 4: 0, 5: 16, 6: 0x0123456789ABCDEF, 7: TWO_ROWS}
NO_ROWS = {1: 0, 2: 2, 3: 0, 4: 0, 5: 0, 6: 0, 7: b""}
# Two rows of positions, and features of 2 values that are added to row 1 behind layers 3 and 4.
LAYER_MEDIA = {1: bytes(range(24)), 2: ids(3, 1, 4, 1), 3: TWO_ROWS}
PICTURE = {1: 0, 2: 3, 3: 4, 4: 1, 5: 4, 6: 4, 7: bytes(range(32)), 8: b"GIF89a", 9: "messages[0].content[1]"}
LAYER_BATCH = [{1: 9, 2: 17, 3: 1, 4: ids(4, 0), 5: 0}, {1: 10, 2: 40, 3: 1, 4: ids(1), 5: 2}]

# ---- the messages of a transfer of KV pages
KV_FORMAT = {1: 0xFEDCBA9876543210, 2: 0x0123456789ABCDEF, 3: 2, 4: 4, 5: "bf16", 6: "amx"}
KV_READER = {1: "decode", 2: 1, 3: 7, 4: "", 5: "gpu-host", 6: "3f6a", 7: 4242, 8: [{1: "shm", 2: b"\x01\x02"}], 9: True, 10: "", 11: False}
TRANSFER = "xfer-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"

FRAMES = {
    "abort_request": frame(1, {1: 7}),
    "chunk_batch_tokens": frame(18, {1: SCHEDULER, 2: "detokenizer", 3: [chunk(4294967295, 0, delta, None, i) for i, delta in enumerate(TOKEN_DELTAS)]}),
    "admin_request": frame(5, {1: 3, 2: 5, 3: "/tmp/x", 4: 2500, 5: 7, 6: 2, 7: True, 8: 11}),
    "admin_reply": frame(6, {1: 3, 2: "scheduler", 3: 0, 4: "done", 5: {1: 12, 2: 4}}),
    "stage_status": frame(4, {1: "scheduler", 2: 3, 3: 1, 4: "", 5: 0.5, 6: 9, 7: 0, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0, 13: 1,
                              14: [{1: "num_retractions_total", 2: 4.0}], 15: 2, 16: 70000, 17: 0xFEDCBA9876543210, 18: 5, 19: 6}),
    "chunk_batch_text": frame(18, {1: SCHEDULER, 2: "", 3: [
        chunk(0, 1, {1: 1, 2: True, 3: "zażółć", 4: None, 5: usage(0, 0, 0), 6: ids(9), 7: [], 8: [], 9: 0, 10: [], 11: None}, None, 1)]}),
    "submit": frame(7, {1: 9, 2: COORDINATOR, 3: NO_TENSORS, 4: ["decode", "code2wav"], 5: 30000, 6: ROUTE, 7: None, 8: TRACEPARENT}),
    "submit_generate": frame(7, {1: 9, 2: COORDINATOR, 3: {1: b"\xc0", 2: [], 3: [], 4: "", 5: b"", 6: b""}, 4: ["decode"], 5: 0,
                                 6: [], 7: TOKENIZED, 8: ""}),
    "chunk_batch": frame(18, {1: ORIGIN, 2: "aggregate", 3: TO_STAGE}),
    "chunk_batch_end": frame(18, END),
    "chunk_batch_answer": frame(18, {1: ORIGIN, 2: "", 3: TO_COORDINATOR}),
    "ack_batch": frame(19, {1: ORIGIN, 2: "thinker", 3: [{1: 9, 2: 32, 3: False}, {1: 10, 2: 18446744073709551615, 3: True}]}),
    "ack_batch_client": frame(19, {1: COORDINATOR, 2: "decode", 3: [{1: 9, 2: 7, 3: False}]}),
    "abort_ack": frame(12, {1: 18446744073709551615, 2: ORIGIN}),
    "request_probe": frame(31, {1: COORDINATOR, 2: 70000, 3: [9, 18446744073709551615]}),
    "request_report": frame(32, {1: ORIGIN, 2: 70000, 3: [{1: 9, 2: 1, 3: ["preprocess", "thinker"], 4: ["decode"]},
                                                          {1: 10, 2: 2, 3: [], 4: []}]}),
    "shutdown": frame(13, {1: COORDINATOR, 2: 5000}),
    "register": frame(14, {1: PEER, 2: "tcp://127.0.0.1:5000", 3: 18446744073709551615}),
    "welcome": frame(15, {1: COORDINATOR, 2: "image_encoder", 3: 7, 4: None, 5: 1500}),
    "welcome_refused": frame(15, {1: COORDINATOR, 2: "image_encoder", 3: 7, 4: {1: 3, 2: "spec 1; wanted 2"}, 5: 0}),
    "peers": frame(16, {1: COORDINATOR, 2: 3, 3: [PEER, SELF]}),
    "layer_hello": frame(20, {1: 3, 2: 1, 3: 3, 4: 19, 5: CHAIN_FACTS, 6: RANGE_GONE, 7: 0x0123456789ABCDEF}),
    "layer_step": frame(21, {1: 3, 2: 2, 3: 0, 4: 1, 5: 70000, 6: 1, 7: 7, 8: LAYER_BATCH, 9: ids(1, 4, 2), 10: ids(0), 11: [1500],
                             12: None, 13: LAYER_ROWS, 14: 5, 15: None}),
    "layer_step_media": frame(21, {1: 3, 2: 0, 3: 0, 4: 1, 5: 70000, 6: 1, 7: 7, 8: LAYER_BATCH, 9: ids(), 10: ids(0), 11: [1500],
                                   12: None, 13: LAYER_ROWS, 14: 5, 15: LAYER_MEDIA}),
    "layer_result": frame(22, {1: 3, 2: 2, 3: 70000, 4: 1, 5: [1500, 900], 6: None, 7: LAYER_ROWS}),
    "layer_alive": frame(23, {1: 2}),
    "encode_media": frame(28, {1: 7, 2: "ipc:///run/x", 3: {1: 0xFEDCBA9876543210, 2: "avx512"}, 4: PICTURE, 5: TRACEPARENT}),
    "features_part": frame(29, {1: 7, 2: 2, 3: 1, 4: 2, 5: 0, 6: 0x0123456789ABCDEF, 7: TWO_ROWS}),
    "encode_end": frame(30, {1: 7, 2: "ipc:///run/x", 3: None}),
    "encode_end_failed": frame(30, {1: 7, 2: "", 3: RANGE_GONE}),
    "layer_result_failed": frame(22, {1: 3, 2: 2, 3: 70000, 4: 1, 5: [], 6: RANGE_GONE, 7: NO_ROWS}),
    "kv_want": frame(24, {1: TRANSFER, 2: "ipc:///run/millrace/decode-0", 3: KV_FORMAT, 4: "tenant", 5: ids(1, 2, 3, 4, 5, 6), 6: 1, 7: KV_READER, 8: TRACEPARENT}),
    "kv_part": frame(25, {1: TRANSFER, 2: 3, 3: 1, 4: 2, 5: True, 6: 0x0123456789ABCDEF, 7: b"\0\1\2\3\xff\xfe\xfd\xfc", 8: "", 9: b"", 10: 0, 11: 2}),
    "kv_part_relayed": frame(25, {1: TRANSFER, 2: 3, 3: 1, 4: 2, 5: True, 6: 0x0123456789ABCDEF, 7: b"", 8: "shm", 9: b"\xf0\x0f", 10: 3, 11: 1}),
    "kv_taken": frame(26, {1: TRANSFER, 2: 4, 3: True, 4: "tcp://[::1]:5001"}),
    "kv_end": frame(27, {1: TRANSFER, 2: None}),
    "kv_end_failed": frame(27, {1: TRANSFER, 2: {1: 5, 2: "4096 transfers are open; the limit is 4096"}}),
}
# Frames that are not written so, but must be read: fields in another order.
OTHER_FORMS = {"chunk_batch_end_reversed": frame(18, dict(reversed(END.items())))}

# ---- --dump: what each byte of a frame is
CHUNK_NAMES = {1: "id", 2: "seq", 3: "opening", 4: "body", ("in", 4): {3: "end"}}
ORIGIN_NAMES = {1: "session", 2: "stage", 3: "replica", 4: "incarnation"}
NAMES = {18: {1: "from", 2: "to", 3: "chunks", ("in", 1): ORIGIN_NAMES, ("in", 3): CHUNK_NAMES}}


def head(value, packed):
    """The bytes of a container's head: what is there before its first entry."""
    parts = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
    return packed[: len(packed) - sum(len(msgpack.packb(part)) for part in parts)]


def dump(value, label, names, rows, depth=0):
    packed = msgpack.packb(value, use_bin_type=True)
    indent = "  " * depth
    if isinstance(value, dict):
        rows.append((head(value, packed), f"{indent}{label}map of {len(value)}"))
        for key, child in value.items():
            name = names.get(key, "")
            inner = names.get(("in", key), {})
            key_bytes = msgpack.packb(key)
            before = len(rows)
            dump(child, f"{key} {name}: ", inner, rows, depth + 1)
            first, text = rows[before]
            rows[before] = (key_bytes + first, text)
    elif isinstance(value, list):
        rows.append((head(value, packed), f"{indent}{label}array of {len(value)}"))
        for child in value:
            dump(child, "", names, rows, depth + 1)
    else:
        shown = {None: "nil"}.get(value, repr(value).replace("'", '"'))
        rows.append((packed, f"{indent}{label}{shown}"))


def print_dump(name):
    data = FRAMES[name]
    message = msgpack.unpackb(data, strict_map_key=False)
    fields = NAMES.get(message[1], {})
    rows = []
    dump(message, "", {0: "version", 1: "type", 2: "body", ("in", 2): fields}, rows)
    assert b"".join(part for part, _ in rows) == data
    for part, text in rows:
        print(f"{part.hex(' '):<50} {text}".rstrip())

if __name__ == "__main__":
    if sys.argv[1:2] == ["--dump"]:
        print_dump(sys.argv[2])
        sys.exit()
    for folder in (OUT, CORPUS):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in {**FRAMES, **OTHER_FORMS}.items():
            (folder / f"{name}.msgpack").write_bytes(data)
    for name, data in FRAMES.items():
        print(name, len(data))
