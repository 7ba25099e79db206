"""Golden data for the KV dtypes: rows of float32 and what a KV page holds of them as f16, bf16 and int8.

    python3 tests/oracles/kernels_kv_rows.py tests/golden/kernels/kv_rows.txt      (needs PyTorch)

PyTorch's own conversions give f16 and bf16 (round to nearest, ties to even). int8 is scale = max|x| / 127 and
round(x / scale), all in float32; scale 0 where it would be below 2^-126, NaN where the row is not finite.
Each row is four lines: the float32 bits, the f16 words, the bf16 words, the scale's bits and the int8 values; all in hexadecimal
but the values.
"""

import sys

import torch

WIDTH = 16
INF, NAN = float("inf"), float("nan")
TINY = 2.0**-126  # the least normal float32
MOST = 3.4028234663852886e38


def cycle(values):
    return [values[i % len(values)] for i in range(WIDTH)]


def rows():
    torch.manual_seed(7)
    for scale in [1.0, 1e-3, 1e3, 1e-6, 3e4, 1e-30, 1e30]:
        for _ in range(2):
            yield (torch.randn(WIDTH) * scale).tolist()
    yield [1 + (2 * k + 1) * 2.0**-11 for k in range(WIDTH)]  # the middle between two f16
    yield [-1 - (2 * k + 1) * 2.0**-8 for k in range(WIDTH)]  # the middle between two bf16
    yield [1 + (2 * k + 1) * 2.0**-11 + (k % 3 - 1) * 2.0**-23 for k in range(WIDTH)]  # just beside it
    yield [1 + (2 * k + 1) * 2.0**-8 + (k % 3 - 1) * 2.0**-23 for k in range(WIDTH)]
    yield [127.0] + [k + 0.5 for k in range(-7, 8)]  # int8: scale 1, ties
    yield [-254.0] + [2 * k + 1 for k in range(100, 115)]  # int8: scale 2, ties
    yield [127.0 * 3] + [3 * (k + 0.5) * (1 + (k % 3 - 1) * 2.0**-22) for k in range(15)]
    yield [k * 2.0**-24 for k in range(WIDTH)]  # f16 subnormals
    yield [(k + 0.5) * 2.0**-24 for k in range(WIDTH)]  # and the middles between them
    yield [-(1023 + k / 8) * 2.0**-24 for k in range(WIDTH)]  # around the least normal f16
    yield cycle([65504.0, 65519.99609375, 65520.0, -65520.0, -65504.0, 65536.0, 1e30, -1e30])
    yield cycle([MOST, -MOST, 3.3961775292304e38, 3.38953138925e38, 3.4e38])  # bf16 overflow
    yield cycle([0.0, -0.0])
    yield [0.0] * 15 + [1.0]
    yield [-0.0] * 15 + [-5.5]
    yield [k * 2.0**-149 for k in range(WIDTH)]  # f32 subnormals: int8 scale 0
    yield [k * 2.0**-133 for k in range(WIDTH)]  # bf16 subnormals
    yield [(2 * k + 1) * 2.0**-134 for k in range(WIDTH)]
    yield [127 * TINY, -TINY, 63.5 * TINY] + [0.0] * 13  # the least scale
    yield [127 * TINY * (1 - 2.0**-23), -TINY] + [0.0] * 14  # below it
    yield [MOST] + [MOST / k for k in range(1, WIDTH)]
    for bad in [NAN, INF, -INF]:
        yield [1.0] * 5 + [bad] + [-2.0] * 10
    yield cycle([INF, -INF, NAN, 0.0])


def int8(x):
    maximum = x.abs().max()
    if not torch.isfinite(x).all():
        return torch.tensor(NAN), torch.zeros(WIDTH, dtype=torch.int8)
    scale = maximum / torch.tensor(127.0)
    if scale < TINY:
        return torch.tensor(0.0), torch.zeros(WIDTH, dtype=torch.int8)
    return scale, torch.round(x / scale).to(torch.int8)


def words(x, kind, mask, digits):
    return " ".join(f"{v & mask:0{digits}x}" for v in x.view(kind).tolist())


def main():
    lines = []
    for row in rows():
        x = torch.tensor(row, dtype=torch.float32)
        scale, values = int8(x)
        lines.append(words(x, torch.int32, 0xFFFFFFFF, 8))
        lines.append(words(x.to(torch.float16), torch.int16, 0xFFFF, 4))
        lines.append(words(x.to(torch.bfloat16), torch.int16, 0xFFFF, 4))
        lines.append(words(scale.reshape(1), torch.int32, 0xFFFFFFFF, 8) + " " + " ".join(map(str, values.tolist())))
    with open(sys.argv[1], "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
