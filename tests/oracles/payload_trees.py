#!/usr/bin/env python3
"""Writes tests/golden/payload/*.msgpack with python3-msgpack: what lift() and pack() of src/payload must produce.

Each file is one msgpack array: [tree, tensors, sizes of the parts, tensors after pack(), the packed block], where a
tensor is [path, dtype, shape, part, offset, size]. The first three are also the seeds of fuzz/payload_fuzz.cc.

Run from the repository's root with Debian's Python (package python3-msgpack)."""
import pathlib
import struct

import msgpack

TESTS = pathlib.Path(__file__).resolve().parent.parent
OUT = TESTS / "golden" / "payload"
CORPUS = TESTS.parent / "fuzz" / "corpus" / "payload"
ALIGNMENT = 64


class Tensor:
    def __init__(self, dtype, shape, block):
        self.dtype, self.shape, self.block = dtype, shape, block


def block(size, first):
    """Bytes that count up; the object's identity is the block's."""
    return bytearray((first + i) % 256 for i in range(size))


def bits(number):
    return struct.unpack(">d", struct.pack(">Q", number))[0]


def nested(depth):
    value = 7
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


SHARED = block(24, 100)
CASES = {
    "null": None,
    "scalars": {
        "none": None, "true": True, "false": False,
        "integers": [0, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, 9223372036854775807,
                     -1, -32, -33, -128, -129, -32768, -32769, -2147483648, -2147483649, -9223372036854775808],
        "numbers": [0.0, -0.0, 1.5, float("inf"), float("-inf"), bits(1), bits(0x7FF8000000000123), bits(0xFFF8000000000000)],
    },
    "text": {
        "": "", "żółć": "\U0001f600", "nul\0key": "a\0b",
        "strings": ["x" * 31, "x" * 32, "é" * 127, "x" * 255, "x" * 256],
        "bytes": [b"", b"\0\xff\0", b"\x80" * 255, b"\0" * 256],
    },
    "containers": {"empty": [[], {}], "15": [0] * 15, "16": [0] * 16, "map": {f"key{i}": i for i in range(16)}},
    "deepest": nested(32),
    "root_tensor": Tensor("F32", [2, 3], block(24, 0)),
    "tensors": {
        "a": Tensor("BF16", [3], block(6, 1)),
        "encoder": {"states": [Tensor("F32", [2, 3], SHARED), "between", Tensor("I64", [3], SHARED)]},
        "scalar": Tensor("F64", [], block(8, 50)),
        "empty": Tensor("F16", [4, 0, 2], bytearray()),
        "u8": Tensor("U8", [1, 1, 1, 1, 1, 1, 1, 65], block(65, 7)),
        "flags": [[Tensor("BOOL", [2], block(2, 0)), Tensor("I8", [1], block(1, 9))],
                  Tensor("I16", [2], block(4, 20)), Tensor("I32", [1], block(4, 30))],
    },
}


def lift(value, path, infos, parts):
    if isinstance(value, dict):
        return {key: lift(child, f"{path}.{key}" if path else key, infos, parts) for key, child in value.items()}
    if isinstance(value, list):
        return [lift(child, f"{path}[{i}]", infos, parts) for i, child in enumerate(value)]
    if not isinstance(value, Tensor):
        return value
    part = 0
    if value.block:
        known = [i for i, other in enumerate(parts) if other is value.block]
        part = known[0] if known else len(parts)
        if not known:
            parts.append(value.block)
    infos.append([path, value.dtype, value.shape, part, 0, len(value.block)])
    return msgpack.ExtType(1, struct.pack(">I", len(infos) - 1))


def pack(infos, parts):
    if len(parts) <= 1:
        return infos, bytes(parts[0]) if parts else b""
    packed, starts = bytearray(), []
    for part in parts:
        packed += bytes(-len(packed) % ALIGNMENT)
        starts.append(len(packed))
        packed += part
    moved = [[path, dtype, shape, 0, starts[part] if size else 0, size] for path, dtype, shape, part, _, size in infos]
    return moved, bytes(packed)


def main():
    for folder in (OUT, CORPUS):
        folder.mkdir(parents=True, exist_ok=True)
    for name, value in CASES.items():
        infos, parts = [], []
        tree = msgpack.packb(lift(value, "", infos, parts), use_bin_type=True)
        moved, packed = pack(infos, parts)
        data = msgpack.packb([tree, infos, [len(part) for part in parts], moved, packed], use_bin_type=True)
        for folder in (OUT, CORPUS):
            (folder / f"{name}.msgpack").write_bytes(data)
        print(name, len(data))


if __name__ == "__main__":
    main()
