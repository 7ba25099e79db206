"""Pictures and clients that mean harm: what is no picture is a 400 that names its part, pictures that differ share nothing, and clients that
leave, leave nothing behind."""
import concurrent.futures
import json
import os
import pathlib
import random
import socket
import struct
import zlib

import pytest

from harness import WAIT_S, Server, wait_until
from test_vision import CHAT, ask, counter, folder, refused, tokens_of, url, vision, whole  # folder and vision are fixtures
from vision_model import picture

CLIENTS, LEAVERS = 8, 240


def png(width, height, rgb):
    """`rgb`: the bytes of its pixels, which may be too few."""
    rows = b"".join(b"\0" + rgb[3 * width * y:3 * width * (y + 1)] for y in range(min(height, len(rgb) // (3 * width or 1))))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def gif(width, height, frames):
    """Frames of one pixel each."""
    frame = b"\x2c" + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\2\2\x44\1\0"
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\xf0\0\0\x10\x20\x30\xff\xff\xff" + frame * frames + b";"


def asking(data, question="What is it?", **more):
    content = [{"type": "image_url", "image_url": {"url": url(data)}}, {"type": "text", "text": question}]
    body = ask(**more)
    body["messages"][1]["content"] = content
    return body


NO_PICTURES = {
    "nothing": b"",
    "a page": b"<!DOCTYPE html><html><script>alert(1)</script></html>" + picture("photo.jpg"),
    "a document with a picture behind it": b"%PDF-1.7\n" + picture("gradient.png"),
    "vector graphics": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "half a photograph": picture("photo.jpg")[:len(picture("photo.jpg")) // 2],
    "half a png": picture("gradient.png")[:len(picture("gradient.png")) // 2],
    "half a webp": picture("tall.webp")[:len(picture("tall.webp")) // 2],
    "a bomb of 900 million pixels": png(30000, 30000, bytes(90000)),
    "a bomb of 4 billion pixels": png(65535, 65535, bytes(196605)),
    "a png without width": png(0, 1, b""),
    "a png without height": png(1, 0, b""),
    "a gif without a frame": gif(64, 64, 0),
    "a line": png(65500, 1, bytes(196500)),
    "a png of fewer rows than its header has": png(64, 64, bytes(3 * 64 * 8)),
}


@pytest.mark.parametrize("name", NO_PICTURES)
def test_no_picture_is_a_400_that_names_its_part(vision, name):
    message = refused(vision, asking(NO_PICTURES[name]))
    assert message.startswith("messages[1].content[0]") and len(message) > 40, message
    assert "/" not in message and "0x" not in message, "no folder and no address"
    assert whole(vision, ask("gradient.png", "What is it?"))["choices"][0]["finish_reason"] == "length"


def test_odd_pictures_are_pictures(vision):
    for name, data in {"a pixel": png(1, 1, b"\1\2\3"), "a column": png(1, 150, bytes(450)),
                       "a frame on a screen without pixels, as Pillow reads it": gif(0, 0, 1)}.items():
        assert whole(vision, asking(data))["choices"], name
    plain, polyglot = asking(picture("gradient.png")), asking(picture("gradient.png") + b"PK\3\4 an archive <html>")
    assert tokens_of(whole(vision, polyglot)) == tokens_of(whole(vision, plain)), "what stands behind a picture is not read"
    one, many = asking(gif(1, 1, 1)), asking(gif(1, 1, 100_000))
    assert tokens_of(whole(vision, many)) == tokens_of(whole(vision, one)), "of a hundred thousand frames the first one"


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_pictures_that_differ_in_anything_share_nothing(folder):
    """In one pixel; in the sides of the same pixels; in the salt of their request."""
    pixels = random.Random(1).randbytes(3 * 64 * 96)
    same, other = png(64, 96, pixels), png(64, 96, pixels[:-1] + bytes([pixels[-1] ^ 1]))
    with Server(model=folder) as vision:
        encodings = 0

        def ask_it(data, new, **more):
            nonlocal encodings
            answer = whole(vision, asking(data, **more))
            encodings += new
            wait_until(lambda: counter(vision, "media_encoded_total") == encodings, f"{encodings} runs of the tower")
            return answer

        first = ask_it(same, 1)
        rows = first["usage"]["prompt_tokens"]
        assert cached(ask_it(same, 0)) > rows // 2
        for data in (other, png(96, 64, pixels)):
            assert cached(ask_it(data, 1)) < rows // 2, "what stands before the picture alone"
        for salt in ("mine", "yours"):
            salted = ask_it(same, 1, cache_salt=salt)
            assert cached(salted) == 0, "neither pages nor features of another salt"
            assert salted["choices"] == first["choices"]
            assert cached(ask_it(same, 0, cache_salt=salt)) > rows // 2
        assert counter(vision, "media_joined_total") == 0


def decoders(server):
    """Processes that decode a file for this server."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"decode-media" in words and os.getsid(int(entry.name)) == server.process.pid:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def leaver(server, seed):
    """A picture that no cache knows; its client leaves in the body, while it is decoded, encoded or answered."""
    draw = random.Random(seed)
    data = json.dumps(asking(png(96, 96, draw.randbytes(3 * 96 * 96)), max_tokens=64, stream=True)).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nHost: {server.host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    with socket.create_connection((server.host, server.port), timeout=WAIT_S) as connection:
        if draw.random() < 0.1:
            connection.sendall(request[:draw.randrange(len(request))])
            return
        connection.sendall(request)
        connection.settimeout(draw.choice((0.001, 0.01, 0.03, 0.1)))
        try:
            for _ in range(draw.randrange(3)):
                connection.recv(4096)
        except OSError:
            pass


def test_clients_that_leave_leave_nothing(folder):
    with Server(model=folder) as vision:
        wanted = whole(vision, ask("photo.jpg", "And?"))["choices"]
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda seed: leaver(vision, seed), range(LEAVERS)))
        wait_until(lambda: not decoders(vision), "end of the decoders")
        wait_until(lambda: counter(vision, "media_waiting_requests") == 0, "end of the queue")
        wait_until(vision.all_pages_back, "rest")
        assert whole(vision, ask("photo.jpg", "And?"))["choices"] == wanted
        assert vision.stop() == 0, vision.output()
        assert vision.leftovers() == []
