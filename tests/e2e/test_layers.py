"""Layer splits: the table of `inspect --pp` against a computation from the header of the safetensors file."""
import itertools
import json
import re
import struct
import subprocess

import pytest

from harness import DEMO, WAIT_S, program

CONFIG = json.loads((DEMO / "config.json").read_text())
LAYERS = CONFIG["num_hidden_layers"]
KV_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


def inspect(*arguments):
    result = subprocess.run([program(), "inspect", str(DEMO), *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S)
    return result.returncode, result.stdout, result.stderr


def weights():
    """Bytes of each layer; of the embedding, final norm and head; and of these, what a decode step reads."""
    data = (DEMO / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    header.pop("__metadata__", None)
    layers, first = [0] * LAYERS, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if layer:
            layers[int(layer[1])] += end - begin
        else:
            first += end - begin
    assert CONFIG["tie_word_embeddings"] and "lm_head.weight" not in header
    return layers, first


def kv_of_layer(dtype):
    return 2 * CONFIG["num_key_value_heads"] * CONFIG["head_dim"] * KV_BYTES[dtype]


def table(*arguments):
    """Of each range: (first layer, end), weight bytes, bytes read, KV of a token, KV of all tokens; and the sums."""
    code, out, err = inspect(*arguments)
    assert (code, err) == (0, "")
    lines = out.split("\nsplit ")[1].splitlines()
    rows = [re.sub(r" \([^)]*B\)", "", line) for line in lines[2:]]
    ranges = [tuple(map(int, re.findall(r"\d+", row))) for row in rows[:-1]]
    assert [row[0] for row in ranges] == list(range(len(ranges))) and rows[-1].split()[0] == "all"
    return [((begin, end), *numbers) for _, begin, end, *numbers in ranges], tuple(map(int, rows[-1].split()[1:])), lines[1]


def expected(counts, dtype, tokens):
    layers, first = weights()
    kv, begin, ranges = kv_of_layer(dtype), 0, []
    for i, count in enumerate(counts):
        held = sum(layers[begin:begin + count]) + (first if i == 0 else 0)
        ranges.append(((begin, begin + count), held, held, kv * count, kv * count * tokens))
        begin += count
    return ranges


def cuts(ranges):
    """All counts of layers, of which the first alone may be 0."""
    return (c for c in itertools.product(range(LAYERS + 1), repeat=ranges) if sum(c) == LAYERS and all(c[1:]))


@pytest.mark.parametrize("arguments,counts", [
    (["--pp", 1], [6]), (["--pp", 2], [3, 3]), (["--pp", 4], [2, 2, 1, 1]), (["--pp", 6, "--split", "even"], [1] * 6),
    (["--pp", 3, "--split", "1,2,3"], [1, 2, 3]), (["--split", "0,6"], [0, 6])])
def test_the_table_has_the_bytes_of_the_file(arguments, counts):
    tokens = CONFIG["max_position_embeddings"]
    ranges, total, head = table(*arguments)
    assert ranges == expected(counts, "f32", tokens) and f"KV of {tokens} tokens" in head
    assert total == (LAYERS, *(sum(row[i] for row in ranges) for i in range(1, 5)))


@pytest.mark.parametrize("dtype", KV_BYTES)
@pytest.mark.parametrize("tokens", [1, 4096, 262144])
def test_kv_bytes_are_those_of_the_type_and_the_tokens(dtype, tokens):
    ranges, _, head = table("--pp", 2, "--kv-dtype", dtype, "--kv-tokens", tokens)
    assert ranges == expected([3, 3], dtype, tokens) and f"KV of {tokens} tokens" in head


@pytest.mark.parametrize("ranges", [2, 3, 4, 5])
def test_balanced_and_memory_have_the_least_maximum_of_all_cuts(ranges):
    read = lambda counts: max(row[2] for row in expected(counts, "f32", 1))
    found, _, _ = table("--pp", ranges, "--split", "balanced")
    assert max(row[2] for row in found) == min(map(read, cuts(ranges)))
    for tokens in (1, 3000):
        held = lambda counts: max(row[1] + row[4] for row in expected(counts, "f32", tokens))
        found, _, _ = table("--pp", ranges, "--split", "memory", "--kv-tokens", tokens)
        assert max(row[1] + row[4] for row in found) == min(map(held, cuts(ranges)))


@pytest.mark.parametrize("arguments,words", [
    (["--pp", 0], ["--pp is 0", "1 or more"]), (["--pp", 7], ["--pp 7", "1 to 6"]), (["--pp", "x"], ["--pp", "x"]),
    (["--pp", 2, "--split", "halves"], ["'halves'", "even, balanced, memory"]), (["--pp", 2, "--split", "3,4"], ["7 layers", "wanted 6"]),
    (["--pp", 3, "--split", "3,3"], ["2 counts", "wanted 3"]), (["--split", "3,0,3"], ["range 1", "0 layers"]), (["--split", "even"], ["--split is even", "--pp"]),
    (["--kv-tokens", 5], ["--kv-tokens", "--pp"]), (["--kv-dtype", "f16"], ["--kv-dtype", "--pp"]), (["--pp", 2, "--kv-dtype", "f8"], ["f8"]),
    (["--pp", 2, "--kv-tokens", 0], ["0 tokens", "wanted 1 to"])])
def test_bad_values_are_one_line_with_what_was_seen_and_wanted(arguments, words):
    code, out, err = inspect(*arguments)
    assert (code, out) == (2, "") and len(err.splitlines()) <= 2
    assert all(word in err for word in words), err
