"""Writes tests/golden/formats/: files made by the safetensors package itself with their expected values, and the verdict
of its reader on many hand-made files.

Run from the repository's root: OMP_NUM_THREADS=1 oracle python3 tests/oracles/formats_safetensors.py

all_dtypes.safetensors   one tensor of every element type, one empty, one scalar; values.json holds their values
sharded/                 model-0000K-of-00003.safetensors and the index of a three-shard folder
cases.json               [{"name", "hex", "accepted"}]: whole files as hex and whether the reference reader takes them
"""
import json
import pathlib
import struct

import safetensors
import torch
from safetensors.torch import save_file

OUT = pathlib.Path("tests/golden/formats")
FLOATS = [0.0, -1.5, 3.25, 65504.0, -0.0078125, 2.0**-14]


def all_dtypes():
    tensors = {
        "f32": torch.tensor(FLOATS, dtype=torch.float32).reshape(2, 3),
        "f16": torch.tensor(FLOATS, dtype=torch.float16).reshape(3, 2),
        "bf16": torch.tensor(FLOATS[:5], dtype=torch.bfloat16),
        "f64": torch.tensor([1e300, -2.5], dtype=torch.float64),
        "i64": torch.tensor([-(2**63), 2**63 - 1, 5], dtype=torch.int64),
        "i32": torch.tensor([[-(2**31), 2**31 - 1]], dtype=torch.int32),
        "i16": torch.tensor([-32768, 32767], dtype=torch.int16),
        "i8": torch.tensor([-128, 127, 3], dtype=torch.int8),
        "u8": torch.tensor([0, 255, 7], dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(42.5),
        "empty": torch.zeros(0, 4),
        "name with \"quotes\", ünïcode and \n newline": torch.tensor([9.0]),
    }
    save_file(tensors, OUT / "all_dtypes.safetensors", metadata={"format": "pt", "note": "made by the package"})
    values = {k: {"shape": list(v.shape), "values": v.double().flatten().tolist() if v.is_floating_point() else
                  [int(x) for x in v.flatten()]} for k, v in tensors.items()}
    (OUT / "values.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def sharded():
    folder = OUT / "sharded"
    folder.mkdir(exist_ok=True)
    weight_map, total = {}, 0
    for shard in range(3):
        name = f"model-{shard + 1:05}-of-00003.safetensors"
        tensors = {f"layer.{shard}.{part}": torch.arange(4, dtype=torch.float32) + 10 * shard + i
                   for i, part in enumerate(("weight", "bias"))}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map.update({k: name for k in tensors})
        total += sum(v.numel() * 4 for v in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def pack(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def cases():
    eight = b"\0" * 8
    good = {"a": entry()}
    yield "valid", pack(good, eight)
    yield "valid, padded with spaces", pack(json.dumps(good).encode() + b"   ", eight)
    yield "valid, header of odd length", pack(json.dumps(good).encode() + b" " * (1 + len(json.dumps(good)) % 2), eight)
    yield "valid, no tensor", pack({})
    yield "valid, metadata alone", pack({"__metadata__": {"k": "v"}})
    yield "valid, scalar", pack({"a": entry(shape=(), offsets=(0, 4))}, eight[:4])
    yield "valid, empty tensor", pack({"a": entry(shape=(0, 3), offsets=(0, 0)), "b": entry()}, eight)
    yield "valid, eight dimensions", pack({"a": entry(shape=[1] * 7 + [2])}, eight)
    yield "nine dimensions", pack({"a": entry(shape=[1] * 8 + [2])}, eight)
    yield "valid, fields in another order", pack(
        b'{"a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}', eight)
    yield "valid, tensors out of order", pack({"b": entry(offsets=(8, 16)), "a": entry()}, eight * 2)
    for n in range(8):
        yield f"only {n} bytes", b"\2\0\0\0\0\0\0\0"[:n]
    yield "header length 0", pack(b"", eight, 0)
    yield "header length 1", pack(b"{", b"", 1)
    yield "header longer than the file", pack(good, eight, 10000)
    yield "header ends beyond by one", pack(good, b"", len(json.dumps(good)) + 1)
    yield "header length over the limit", pack(good, eight, 100_000_001)
    yield "header length 2^63", pack(good, eight, 2**63)
    yield "header length 2^64-1", pack(good, eight, 2**64 - 1)
    yield "header not JSON", pack(b"{hello}", eight)
    yield "header an array", pack(b"[1, 2]")
    yield "header starts with a space", pack(b" " + json.dumps(good).encode(), eight)
    yield "header cut", pack(json.dumps(good).encode()[:-1], eight)
    yield "header with bytes after it", pack(json.dumps(good).encode() + b"x", eight)
    yield "header with NUL after it", pack(json.dumps(good).encode() + b"\0", eight)
    yield "header not UTF-8", pack(b'{"\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight)
    yield "deep nesting", pack(b'{"a":' * 200 + b"1" + b"}" * 200, eight)
    yield "deep arrays", pack(b'{"a":{"dtype":"F32","shape":' + b"[" * 200 + b"]" * 200 + b"}}", eight)
    yield "unknown dtype", pack({"a": entry(dtype="F33")}, eight)
    yield "dtype in lower case", pack({"a": entry(dtype="f32")}, eight)
    yield "dtype a number", pack({"a": entry(dtype=32)}, eight)
    yield "dtype of the format that has no use here", pack({"a": entry(dtype="F8_E4M3", shape=(8,))}, eight)
    yield "begin after end", pack({"a": entry(offsets=(8, 0))}, eight)
    yield "end beyond the file", pack({"a": entry(shape=(4,), offsets=(0, 16))}, eight)
    yield "end 2^64-1", pack({"a": entry(offsets=(0, 2**64 - 1))}, eight)
    yield "end over 2^64", pack({"a": entry(offsets=(0, 2**64))}, eight)
    yield "overlap", pack({"a": entry(), "b": entry(offsets=(4, 12))}, eight + eight[:4])
    yield "same bytes twice", pack({"a": entry(), "b": entry()}, eight)
    yield "hole", pack({"a": entry(), "b": entry(offsets=(12, 20))}, eight * 2 + eight[:4])
    yield "hole at the front", pack({"a": entry(offsets=(4, 12))}, eight + eight[:4])
    yield "bytes left over", pack(good, eight + b"x")
    yield "bytes missing", pack(good, eight[:7])
    yield "shape too small", pack({"a": entry(shape=(1,))}, eight)
    yield "shape too large", pack({"a": entry(shape=(3,))}, eight)
    yield "shape overflows to the right size", pack({"a": entry(shape=(2**62 + 2,))}, eight)
    yield "shape product overflows", pack({"a": entry(shape=(2**40, 2**40))}, eight)
    yield "shape overflows before a zero", pack({"a": entry(shape=(2**40, 2**40, 0), offsets=(0, 0))})
    yield "dimension 2^64", pack({"a": entry(shape=(2**64,))}, eight)
    yield "negative dimension", pack({"a": entry(shape=(-2,))}, eight)
    yield "negative offset", pack({"a": entry(offsets=(-8, 0))}, eight)
    yield "dimension 2.0", pack({"a": entry(shape=(2.0,))}, eight)
    yield "shape null", pack({"a": {"dtype": "F32", "shape": None, "data_offsets": [0, 8]}}, eight)
    yield "three offsets", pack({"a": entry(offsets=(0, 8, 8))}, eight)
    yield "one offset", pack({"a": entry(offsets=(0,))}, eight)
    yield "no dtype", pack({"a": {"shape": [2], "data_offsets": [0, 8]}}, eight)
    yield "no shape", pack({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, eight)
    yield "no offsets", pack({"a": {"dtype": "F32", "shape": [2]}}, eight)
    yield "tensor is null", pack({"a": None}, eight)
    yield "tensor is a string", pack({"a": "F32"}, eight)
    yield "field twice", pack(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight)
    yield "name twice", pack(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                             b'"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', eight * 2)
    yield "metadata holds a number", pack({"__metadata__": {"k": 1}, **good}, eight)
    yield "metadata holds an object", pack({"__metadata__": {"k": {}}, **good}, eight)
    yield "metadata is a string", pack({"__metadata__": "x", **good}, eight)
    yield "metadata is a list", pack({"__metadata__": ["x"], **good}, eight)


def accepted(raw):
    path = OUT / "case.tmp"
    path.write_bytes(raw)
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            opened.keys()
        return True
    except Exception:
        return False
    finally:
        path.unlink()


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    all_dtypes()
    sharded()
    table = [{"name": name, "hex": raw.hex(), "accepted": accepted(raw)} for name, raw in cases()]
    (OUT / "cases.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in table) + "\n]\n")
    for row in table:
        print("accepted" if row["accepted"] else "refused ", row["name"])
