#!/usr/bin/env python3
"""The TCP relay's header layout and handshake proofs, from Python's struct and hmac.

Writes tests/golden/relay/tcp.txt: lines of NAME HEX, read by src/relay/tcp/tcp_frame_test.cc.
Run from the root of the repository: python3 tests/oracles/relay_tcp.py
"""
import hashlib
import hmac
import pathlib
import struct

MAGIC, VERSION = b"MRTP", 2
FIELDS = "<4sHBBIIQQQQQ"  # everything before the header's own checksum

lines = []
# type, flags, length, code, op, generation, ticket, offset, extra
HEADERS = {
    "request": (5, 1, 16, 0, 7, 0x1122334455667788, 9, 4 << 20, 4096),
    "data": (6, 1, 524288, 0, 2**64 - 1, 2**63, 3, 2**40 + 1, 0),
    "refuse": (7, 0, 0, 8, 1, 0, 2, 0, 1),
    "ping": (9, 0, 0, 0, 0, 0, 0, 0, 0),
}
for name, values in HEADERS.items():
    packed = struct.pack(FIELDS, MAGIC, VERSION, *values)
    assert len(packed) == 56
    lines.append(f"{name} {packed.hex()}")

secret = bytes(range(32)) + b"more"
reader_nonce, writer_nonce = bytes(range(100, 132)), bytes(range(200, 232))
reader, writer, address = 0x0102030405060708, 0xF1F2F3F4F5F6F7F8, b"[::1]:7000#0102030405060708"
for who in ("reader", "writer"):
    text = f"millrace relay {VERSION} {who}".encode() + b"\0" + reader_nonce + writer_nonce
    text += struct.pack("<QQ", reader, writer) + address
    lines.append(f"proof_{who} {hmac.new(secret, text, hashlib.sha256).hexdigest()}")

path = pathlib.Path("tests/golden/relay/tcp.txt")
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text("\n".join(lines) + "\n")
