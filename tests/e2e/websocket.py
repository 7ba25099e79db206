"""A WebSocket client of the standard library, by RFC 6455: text, control frames, and what a client should not send."""
import base64
import hashlib
import json
import os
import socket
import struct

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
WAIT_S = 180
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refused(Exception):
    """The answer to the handshake, where it is not 101."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status, self.body = status, body


class WebSocket:
    """`receive`: bytes that the kernel keeps for a client that does not read; None: as many as it likes."""

    def __init__(self, server, path, headers=None, receive=None):
        connection = server.connection()
        if receive:
            connection.sock = socket.socket()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            connection.sock.settimeout(WAIT_S)
            connection.sock.connect((server.host, server.port))
        key = base64.b64encode(os.urandom(16)).decode()
        connection.request("GET", path, headers={"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                                                 "Sec-WebSocket-Key": key, **(headers or {})})
        # http.client takes a 101 for an interim answer and waits for another one.
        self.socket, self.pending = connection.sock, b""
        head = self._until(b"\r\n\r\n").decode()
        status = int(head.split(" ", 2)[1])
        self.headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        if status != 101:
            body = self._bytes(int(self.headers.get("content-length", 0)))
            self.socket.close()
            raise Refused(status, body.decode())
        accepted = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode().lower()
        assert self.headers["sec-websocket-accept"] == accepted
        self.closed = None

    def _until(self, mark):
        while mark not in self.pending:
            self._receive()
        found, _, self.pending = self.pending.partition(mark)
        return found

    def _receive(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self.pending += data

    def _bytes(self, count):
        while len(self.pending) < count:
            self._receive()
        found, self.pending = self.pending[:count], self.pending[count:]
        return found

    def frame(self, opcode, payload, final=True, masked=True):
        head = bytes([(0x80 if final else 0) | opcode])
        flag = 0x80 if masked else 0
        if len(payload) < 126:
            head += bytes([flag | len(payload)])
        elif len(payload) < 1 << 16:
            head += bytes([flag | 126]) + struct.pack(">H", len(payload))
        else:
            head += bytes([flag | 127]) + struct.pack(">Q", len(payload))
        if not masked:
            return head + payload
        mask = os.urandom(4)
        whole = int.from_bytes(payload, "big") ^ int.from_bytes((mask * (len(payload) // 4 + 1))[:len(payload)], "big")
        return head + mask + whole.to_bytes(len(payload), "big")

    def send(self, event):
        text = event if isinstance(event, str) else json.dumps(event)
        self.socket.sendall(self.frame(TEXT, text.encode()))

    def read(self):
        """The next event; None: the server has closed, with self.closed = (code, reason)."""
        text = b""
        while True:
            first, second = self._bytes(2)
            size = second & 0x7F
            assert not second & 0x80, "a server masks nothing"
            if size >= 126:
                size = struct.unpack(">H", self._bytes(2))[0] if size == 126 else struct.unpack(">Q", self._bytes(8))[0]
            payload = self._bytes(size)
            opcode = first & 0x0F
            if opcode in (TEXT, 0):
                text += payload
                if first & 0x80:
                    return json.loads(text)
            elif opcode == PING:
                self.socket.sendall(self.frame(PONG, payload))
            elif opcode == CLOSE:
                self.closed = (struct.unpack(">H", payload[:2])[0], payload[2:].decode())
                self.socket.close()
                return None

    def expect(self, kind):
        event = self.read()
        assert event and event["type"] == kind, (kind, event, self.closed)
        return event

    def until(self, kind):
        """The events up to the first one of this type."""
        found = [self.read()]
        while found[-1]["type"] != kind:
            found.append(self.read())
            assert found[-1], (kind, self.closed)
        return found

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
