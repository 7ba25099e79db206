"""Writes tests/golden/media/images.json: small picture files, each with the size and the CRC-32 of the pixels that Pillow
reads from it (exif_transpose, then convert("RGB")), or null where Pillow refuses it.

Run from the repository's root, in the root that holds Pillow 13:
    oracle python3 tests/oracles/media_images.py

"strict": Pillow reads the file, and src/media refuses it: PNG with a wrong checksum of its image data, too little of it, or
no palette. With a folder as argument, also writes photographs.json: the same of the picture files in that folder.
"""
import base64
import io
import json
import pathlib
import struct
import sys
import warnings
import zlib

import numpy as np
from PIL import Image, ImageOps

OUT = "tests/golden/media/images.json"
random = np.random.default_rng(11)
cases = []


def photo(width, height, channels=3):
    """Smooth colours with some noise, so that every coefficient of a JPEG is in use."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 90 * np.sin(x / (3 + c) + c) * np.cos(y / (5 - c / 2)) + random.integers(-30, 31, (height, width)) for c in range(channels)]
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def read(data, grey_indices=False):
    image = Image.open(io.BytesIO(data))
    if grey_indices:
        pixels = np.repeat(np.asarray(image)[..., None], 3, axis=2)
    else:
        pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    return dict(width=pixels.shape[1], height=pixels.shape[0], crc=zlib.crc32(pixels.tobytes()))


def add(name, data, strict=False, grey_indices=False):
    case = {"name": name, "data": base64.b64encode(data).decode(), "width": None, "height": None, "crc": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.update(read(data, grey_indices))
    except Exception as e:  # noqa: BLE001: Pillow raises whatever its parsers do
        case["error"] = f"{type(e).__name__}: {e}"[:90]
    if strict:
        case["strict"] = True
    cases.append(case)


def saved(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def exif(orientation, endian="<"):
    exif = Image.Exif()
    exif.endian = endian
    exif[0x0112] = orientation
    return exif.tobytes()


def jpegs():
    for w, h in ((1, 1), (8, 8), (17, 31), (50, 34)):
        for name in ("4:4:4", "4:2:2", "4:2:0"):
            add(f"jpeg {w}x{h} {name}", saved(Image.fromarray(photo(w, h)), "JPEG", quality=85, subsampling=name))
    image = Image.fromarray(photo(35, 27))
    for quality in (5, 50, 100):
        add(f"jpeg quality {quality}", saved(image, "JPEG", quality=quality))
    add("jpeg progressive", saved(image, "JPEG", progressive=True))
    add("jpeg progressive 444", saved(image, "JPEG", progressive=True, subsampling="4:4:4", quality=95))
    add("jpeg restart markers", saved(image, "JPEG", restart_marker_blocks=2))
    add("jpeg stored as rgb", saved(image, "JPEG", keep_rgb=True))
    add("jpeg grey", saved(image.convert("L"), "JPEG"))
    add("jpeg grey progressive", saved(image.convert("L"), "JPEG", progressive=True))
    cmyk = saved(Image.fromarray(photo(21, 19, 4), "CMYK"), "JPEG", quality=90)
    add("jpeg cmyk", cmyk)
    at = cmyk.index(b"Adobe")
    add("jpeg ycck", cmyk[: at + 11] + b"\x02" + cmyk[at + 12:])
    # Sampling factors that Pillow does not write: 2x1 becomes 1x2 (4:4:0) in a square picture of one colour plane layout.
    half = saved(Image.fromarray(photo(16, 16)), "JPEG", subsampling="4:2:2")
    at = half.index(b"\xff\xc0")
    add("jpeg 440", half[: at + 11] + b"\x12" + half[at + 12:])
    plain = saved(image, "JPEG", quality=80)
    for orientation in range(10):
        add(f"jpeg orientation {orientation}", saved(image, "JPEG", exif=exif(orientation)))
    add("jpeg orientation big endian", saved(image, "JPEG", exif=exif(6, ">")))
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
    add("jpeg orientation in xmp", saved(image, "JPEG", xmp=xmp))
    add("jpeg orientation in both", saved(image, "JPEG", xmp=xmp, exif=exif(3)))
    add("jpeg exif cut off", saved(image, "JPEG", exif=exif(5)[:20]))
    add("jpeg rubbish behind", plain + b"rubbish" * 9)
    for name, data in (("without end", plain[:-2]), ("half", plain[: len(plain) // 2]), ("header alone", plain[:200]), ("3 bytes", plain[:3])):
        add(f"jpeg truncated {name}", data)
    progressive = saved(image, "JPEG", progressive=True)
    add("jpeg progressive truncated", progressive[: len(progressive) * 2 // 3])
    noisy = bytearray(plain)
    for at in range(len(plain) // 2, len(plain) - 40, 37):
        noisy[at] ^= 0x10
    add("jpeg bits flipped", bytes(noisy))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(samples, depth):
    """Rows of samples [h, w * channels] as PNG's bytes, filter 0 and 2 in turn."""
    if depth == 16:
        rows = [r.astype(">u2").tobytes() for r in samples]
    elif depth == 8:
        rows = [r.astype(np.uint8).tobytes() for r in samples]
    else:
        rows = []
        for r in samples:
            bits = ((r[:, None] >> np.arange(depth - 1, -1, -1)) & 1).astype(np.uint8).reshape(-1)
            rows.append(np.packbits(bits).tobytes())
    out, before = b"", bytes(len(rows[0])) if rows else b""
    for i, row in enumerate(rows):
        out += b"\0" + row if i % 2 == 0 else b"\2" + bytes((a - b) & 255 for a, b in zip(row, before))
        before = row
    return out


def png(width, height, depth, color, interlaced=False, samples=None, extra=b"", palette=None, behind=b"", head=b""):
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    if samples is None:
        samples = random.integers(0, 1 << depth, (height, width, channels))
    if interlaced:
        data = b""
        for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
            part = samples[y::dy, x::dx]
            if part.size:
                data += packed(part.reshape(part.shape[0], -1), depth)
    else:
        data = packed(samples.reshape(height, -1), depth)
    if color == 3 and palette is None:
        palette = random.integers(0, 256, 3 << depth, dtype=np.uint8).tobytes()
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))) + head
    if palette is not None:
        out += chunk(b"PLTE", palette)
    return out + extra + chunk(b"IDAT", zlib.compress(data)) + behind + chunk(b"IEND", b"")


def pngs():
    depths = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
    for color, choices in depths.items():
        for depth in choices:
            for w, h in ((1, 1), (13, 11)):
                for interlaced in (False, True):
                    add(f"png color {color} depth {depth} {w}x{h} interlaced {interlaced}", png(w, h, depth, color, interlaced))
    low = random.integers(0, 600, (5, 9, 1))
    low[0, :4, 0] = (0, 255, 256, 65535)
    add("png grey 16 around 255", png(9, 5, 16, 0, samples=low))
    for color, depth, value in ((0, 8, b"\0\7"), (0, 16, b"\1\7"), (0, 2, b"\0\1"), (2, 8, b"\0\1\0\2\0\3"), (3, 4, b"\0\x80\xff"), (3, 2, b"\xff\0")):
        add(f"png transparent colour {color} {depth}", png(9, 7, depth, color, extra=chunk(b"tRNS", value)))
    add("png index past the palette", png(9, 7, 4, 3, palette=bytes(range(100, 115))))
    add("png gamma and profile", png(9, 7, 8, 2, extra=chunk(b"gAMA", struct.pack(">I", 100000)) + chunk(b"sRGB", b"\0")))
    turned = exif(6)[6:]
    add("png orientation", png(9, 7, 8, 2, extra=chunk(b"eXIf", turned)))
    add("png orientation behind the data", png(9, 7, 8, 2, behind=chunk(b"eXIf", turned)))
    xmp = b"XML:com.adobe.xmp\0\0\0\0\0<rdf:Description><tiff:Orientation>5</tiff:Orientation>"
    add("png orientation in xmp", png(9, 7, 8, 2, extra=chunk(b"iTXt", xmp)))
    frames = [Image.fromarray(photo(14, 9)) for _ in range(3)]
    add("png animated", saved(frames[0], "PNG", save_all=True, append_images=frames[1:]))
    add("png animated, first not of the animation", saved(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True))
    complete = png(13, 11, 8, 2)
    for name, data in (("half", complete[: len(complete) // 2]), ("in the header", complete[:30]), ("signature", complete[:8])):
        add(f"png truncated {name}", data)
    add("png without end", complete[:-12])
    at = complete.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", complete[at - 8: at - 4])
    add("png data checksum", complete[: at + length] + b"\0\0\0\0" + complete[at + length + 4:], strict=True)
    add("png header checksum", complete[:29] + b"\0\0\0\0" + complete[33:])
    add("png no palette", png(9, 7, 4, 3, palette=b""), strict=True)
    add("png 0 wide", png(0, 7, 8, 2))
    short = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 13, 11, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(bytes(200))) + chunk(b"IEND", b"")
    add("png too little data", short, strict=True)


def webps():
    for w, h in ((1, 1), (17, 31)):
        color, alpha = Image.fromarray(photo(w, h)), Image.fromarray(photo(w, h, 4), "RGBA")
        for lossless in (False, True):
            add(f"webp {w}x{h} lossless {lossless}", saved(color, "WEBP", lossless=lossless, quality=80))
            add(f"webp {w}x{h} alpha lossless {lossless}", saved(alpha, "WEBP", lossless=lossless, quality=80, exact=True))
    color = Image.fromarray(photo(21, 13))
    for orientation in (3, 6):
        add(f"webp orientation {orientation}", saved(color, "WEBP", exif=exif(orientation)))
    add("webp orientation in xmp", saved(color, "WEBP", xmp=b'<rdf:Description tiff:Orientation="7"/>'))
    frames = [Image.fromarray(photo(14, 9, 4), "RGBA") for _ in range(3)]
    add("webp animated", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=50))
    data = saved(color, "WEBP", quality=90)
    # A frame smaller than its canvas, by hand.
    frame = saved(Image.fromarray(photo(8, 6)), "WEBP", lossless=True)[12:]
    anmf = struct.pack("<I", 2)[:3] + struct.pack("<I", 1)[:3] + struct.pack("<I", 7)[:3] + struct.pack("<I", 5)[:3] + b"\x64\0\0\0" + frame
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + struct.pack("<I", 19)[:3] + struct.pack("<I", 14)[:3]
    body += b"ANIM" + struct.pack("<I", 6) + b"\xff\xff\xff\xff\0\0" + b"ANMF" + struct.pack("<I", len(anmf)) + anmf
    add("webp frame smaller than the canvas", b"RIFF" + struct.pack("<I", len(body)) + body)
    for name, cut in (("half", len(data) // 2), ("header", 20), ("last byte", len(data) - 2)):
        add(f"webp truncated {name}", data[:cut])


def lzw(indices, bits):
    """GIF's data without compression: a clear code often enough that codes stay at bits + 1."""
    codes = [1 << bits]
    for i, index in enumerate(indices):
        codes.append(int(index))
        if i % ((1 << bits) - 2 or 1) == (1 << bits) - 3 or bits == 2 and i % 2:
            codes.append(1 << bits)
    codes.append((1 << bits) + 1)
    number = sum(code << (i * (bits + 1)) for i, code in enumerate(codes))
    data = number.to_bytes((len(codes) * (bits + 1) + 7) // 8, "little")
    return bytes([bits]) + b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255)) + b"\0"


def gif(screen, box, bits, palette=None, local=None, transparent=None, samples=None):
    x, y, w, h = box
    flag = lambda p: 0 if p is None else 0x80 | (len(p) // 3).bit_length() - 2
    out = b"GIF89a" + struct.pack("<HHBBB", *screen, flag(palette), 1, 0) + (palette or b"")
    if transparent is not None:
        out += b"!\xf9\x04\x01\0\0" + bytes([transparent]) + b"\0"
    out += b"!\xfe\5hello\0," + struct.pack("<HHHHB", x, y, w, h, flag(local)) + (local or b"")
    if samples is None:
        samples = random.integers(0, 1 << bits, w * h)
    return out + lzw(samples, bits) + b";"


def gifs():
    colors = random.integers(0, 256, 768, dtype=np.uint8).tobytes()
    for interlace in (0, 1):
        add(f"gif photo interlaced {interlace}", saved(Image.fromarray(photo(23, 18)), "GIF", interlace=interlace))
    noise = Image.fromarray(random.integers(0, 256, (90, 80), dtype=np.uint8))
    add("gif grey noise, full table", saved(noise, "GIF"))
    flat = Image.fromarray(np.kron(random.integers(0, 4, (30, 20), dtype=np.uint8), np.ones((6, 8), np.uint8)))
    add("gif long runs", saved(flat, "GIF"))
    add("gif 1x1", saved(Image.new("P", (1, 1), 3), "GIF"))
    frames = [Image.fromarray(photo(14, 9)) for _ in range(3)]
    add("gif animated", saved(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    add("gif smaller frame", gif((12, 9), (3, 2, 7, 5), 4, colors[:48]))
    add("gif smaller frame, transparent", gif((12, 9), (3, 2, 7, 5), 4, colors[:48], transparent=5))
    add("gif transparent index past the palette", gif((12, 9), (3, 2, 7, 5), 4, colors[:48], transparent=200))
    add("gif local palette", gif((9, 7), (0, 0, 9, 7), 3, colors[:48], local=colors[300:324]))
    add("gif no palette", gif((9, 7), (0, 0, 9, 7), 8))
    add("gif grey palette", gif((9, 7), (0, 0, 9, 7), 4, bytes(i // 3 for i in range(12))))
    # Pillow replaces a local palette of greys by the global one, a defect; the indices that it reads are the greys.
    add("gif grey local palette", gif((9, 7), (0, 0, 9, 7), 4, colors[:48], local=bytes(i // 3 for i in range(12))), grey_indices=True)
    add("gif indices past the palette", gif((9, 7), (0, 0, 9, 7), 4, colors[:12]))
    add("gif frame outside of the screen", gif((6, 5), (3, 2, 7, 5), 4, colors[:48]))
    data = gif((9, 7), (0, 0, 9, 7), 4, colors[:48])
    for name, cut in (("half", len(data) * 2 // 3), ("palette", 20), ("header", 8)):
        add(f"gif truncated {name}", data[:cut])
    add("gif without trailer", data[:-1])
    add("gif too few pixels", gif((9, 7), (0, 0, 9, 7), 4, colors[:48], samples=random.integers(0, 16, 40)))


jpegs()
pngs()
webps()
gifs()
add("empty", b"")
add("text", b"hello, world: this is no picture at all")
with open(OUT, "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
if len(sys.argv) > 1:
    photographs = {path.name: read(path.read_bytes()) for path in sorted(pathlib.Path(sys.argv[1]).iterdir())}
    with open(OUT.replace("images", "photographs"), "w") as file:
        json.dump(photographs, file, indent=1)
        file.write("\n")
refused = [case["name"] for case in cases if case["crc"] is None]
print(len(cases), "files,", len(refused), "refused by Pillow")
for case in cases:
    if case["crc"] is None:
        print(" ", case["name"], "|", case["error"])
