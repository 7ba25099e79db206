#!/usr/bin/env python3
"""Ranks of a PyTorch process group without PyTorch: the TCPStore and gloo over TCP, as bytes on sockets.

Two dialects: 1 is that of PyTorch 1.13, 2 that of 2.2 and newer. Tests use it as a trainer: a Store, and a Rank 0 that
broadcasts. Other ranks receive, and send on along the binomial tree as gloo does. tests/golden/collective has what real
versions of PyTorch sent.

As a program it is one rank with commands on its standard input; every command is answered by a line:
  gloo_peer.py --rank 0 --world 2 --dialect 2 --group g     prints "port N" (rank 0 holds the store), then "joined"
  gloo_peer.py --rank 2 --world 4 --dialect 2 --group g --port N
    broadcast SEED BYTES           takes part in a broadcast by rank 0 of bytes made from SEED; answers their crc32
    cut SEED BYTES SENT            rank 0: closes its connections after SENT bytes
    other SEED BYTES ANNOUNCED     rank 0: announces another length and sends so much
"""
import argparse
import random
import socket
import struct
import sys
import threading
import zlib

MAGIC = 0x3C85F7CE
VALIDATE, PING = 0, 13
SET, GET, ADD, WAIT = 0, 2, 3, 5  # of dialect 1; dialect 2 has them one higher
DATA, SEND_READY, RECEIVE_READY = 1, 2, 3
BROADCAST = 6
ADDRESS = struct.Struct("=HH4s120xq")  # sockaddr_storage of IPv4 (port in network order), and a sequence number
TIMEOUT_S = 60


def read(connection, size):
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionError(f"closed with {len(view)} of {size} bytes to come")
        view = view[count:]
    return bytes(data)


def read_int(connection, kind):
    return struct.unpack("<" + kind, read(connection, struct.calcsize(kind)))[0]


def sized(data):
    return struct.pack("<Q", len(data)) + data


class Store:
    """The server's end of a TCPStore."""

    def __init__(self, dialect=2, host="127.0.0.1", port=0):
        self.dialect, self.values, self.changed = dialect, {}, threading.Condition()
        self.listener = socket.create_server((host, port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                if self.dialect == 2 and (read_int(connection, "B"), read_int(connection, "I")) != (VALIDATE, MAGIC):
                    return
                while True:
                    self._answer(connection, read_int(connection, "B"))
            except (ConnectionError, OverflowError, MemoryError):
                return

    def _text(self, connection):
        size = read_int(connection, "Q")
        if size > 1 << 20:
            raise OverflowError(size)
        return read(connection, size)

    def _answer(self, connection, op):
        if self.dialect == 2 and op == PING:
            connection.sendall(read(connection, 4))
            return
        op -= self.dialect - 1
        if op == WAIT:
            keys = [self._text(connection) for _ in range(read_int(connection, "Q"))]
            with self.changed:
                self.changed.wait_for(lambda: all(key in self.values for key in keys))
            connection.sendall(b"\0")
            return
        key = self._text(connection)
        if op == SET:
            self.set(key, self._text(connection))
        elif op == GET:
            connection.sendall(sized(self.values[key]))
        elif op == ADD:
            connection.sendall(struct.pack("<q", self.add(key, read_int(connection, "q"))))
        else:
            raise ConnectionError(f"operation {op}")

    # ---- for the process that holds it ----------------------------------------------------------------------------

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, TIMEOUT_S):
                raise TimeoutError(f"no {key} in the store")
            return self.values[key]

    def add(self, key, amount):
        with self.changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            self.changed.notify_all()
            return total


class StoreClient:
    """The same three calls over a connection."""

    def __init__(self, dialect, host, port):
        self.dialect = dialect
        self.connection = socket.create_connection((host, port), TIMEOUT_S)
        if dialect == 2:
            ping = struct.pack("<I", random.getrandbits(32))
            self.connection.sendall(struct.pack("<BIB", VALIDATE, MAGIC, PING) + ping)
            assert read(self.connection, 4) == ping

    def _send(self, op, data):
        self.connection.sendall(bytes([op + self.dialect - 1]) + data)

    def set(self, key, value):
        self._send(SET, sized(key) + sized(value))

    def get(self, key):
        self._send(WAIT, struct.pack("<Q", 1) + sized(key))
        assert read(self.connection, 1) == b"\0"
        self._send(GET, sized(key))
        return read(self.connection, read_int(self.connection, "Q"))

    def add(self, key, amount):
        self._send(ADD, sized(key) + struct.pack("<q", amount))
        return read_int(self.connection, "q")


def address_bytes(listener):
    host, port = listener.getsockname()
    return ADDRESS.pack(socket.AF_INET, socket.htons(port), socket.inet_aton(host), -1)


def read_address(data):
    family, port, host, _ = ADDRESS.unpack(data)
    assert family == socket.AF_INET
    return socket.inet_ntoa(host), socket.ntohs(port)


def greater(a, b):
    """Whether the listener `a` connects to `b`: the host's bytes first, then the port as it lies in memory."""
    def key(address):
        return socket.inet_aton(address[0]), socket.htons(address[1])
    return key(a) > key(b)


class Rank:
    """One rank of a gloo group: `store` is a Store or a StoreClient."""

    def __init__(self, store, rank, world, group, host="127.0.0.1"):
        self.store, self.rank, self.world = store, rank, world
        self.tag = 0
        self.ready = {}  # (rank, slot) of those who asked for bytes
        self.sockets = {}
        store.add(b"init/", 1)
        middle = "/cpu//" if store.dialect == 2 else ""
        self.prefix = f"/{group}/{group}/{middle}0/"
        (self._connect_2 if store.dialect == 2 else self._connect_1)(host)
        for connection in self.sockets.values():
            connection.settimeout(TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self):
        for connection in self.sockets.values():
            connection.close()

    def _key(self, name):
        return f"{self.prefix}{name}".encode()

    def _connect_2(self, host):
        listener = socket.create_server((host, 0), backlog=self.world)
        ids = [random.getrandbits(62) for _ in range(self.world)]
        record = sized(b"peer") + sized(address_bytes(listener)) + struct.pack(f"<{self.world}q", *ids)
        self.store.set(self._key(self.rank), record)
        expected = {}
        for peer in self.peers():
            record = self.store.get(self._key(peer))
            at = 8 + struct.unpack_from("<Q", record)[0]
            (size,) = struct.unpack_from("<Q", record, at)
            address = read_address(record[at + 8 : at + 8 + size])
            peer_ids = struct.unpack_from(f"<{self.world}q", record, at + 8 + size)
            if greater(listener.getsockname(), address):
                self.sockets[peer] = socket.create_connection(address, TIMEOUT_S)
                self.sockets[peer].sendall(struct.pack("<q", peer_ids[self.rank]))
            else:
                expected[ids[peer]] = peer
        listener.settimeout(TIMEOUT_S)
        while expected:
            connection = listener.accept()[0]
            self.sockets[expected.pop(read_int(connection, "q"))] = connection

    def _connect_1(self, host):
        listeners = {peer: socket.create_server((host, 0)) for peer in self.peers()}
        self.store.set(self._key(f"rank_{self.rank}"), b"peer")
        for peer in range(self.rank):
            self.store.get(self._key(f"rank_{peer}"))
        self.store.set(self._key(self.rank), b"".join(address_bytes(listeners[peer]) for peer in self.peers()))
        for peer in self.peers():
            addresses = self.store.get(self._key(peer))
            size = len(addresses) // (self.world - 1)
            at = size * (self.rank if self.rank < peer else self.rank - 1)
            address = read_address(addresses[at : at + size])
            listener = listeners[peer]
            if greater(listener.getsockname(), address):
                self.sockets[peer] = socket.create_connection(address, TIMEOUT_S)
            else:
                listener.settimeout(TIMEOUT_S)
                self.sockets[peer] = listener.accept()[0]

    def peers(self):
        return [peer for peer in range(self.world) if peer != self.rank]

    # ---- broadcasts -----------------------------------------------------------------------------------------------

    def _next_slot(self):
        self.tag += 1
        return BROADCAST << 56 | (self.tag - 1) << 24

    def _send(self, peer, op, slot, length):
        total = 48 + (length if op == DATA else 0)
        self.sockets[peer].sendall(struct.pack("<6Q", total, op, slot, 0, length, 0))

    def _message(self, peer):
        total, op, slot, _, length, _ = struct.unpack("<6Q", read(self.sockets[peer], 48))
        assert total == 48 + (length if op == DATA else 0), (total, op, length)
        return op, slot, length

    def await_receiver(self, peer, slot):
        while self.ready.pop((peer, slot), None) is None:
            op, asked, length = self._message(peer)
            if op == RECEIVE_READY:
                self.ready[peer, asked] = length

    def send(self, peer, slot, data, announced=None):
        length = len(data) if announced is None else announced
        self._send(peer, SEND_READY, slot, length)
        self.await_receiver(peer, slot)
        self._send(peer, DATA, slot, length)
        self.sockets[peer].sendall(data)

    def receive(self, peer, slot, length):
        self._send(peer, RECEIVE_READY, slot, length)
        while True:
            op, sent, size = self._message(peer)
            if op == RECEIVE_READY:
                self.ready[peer, sent] = size
            elif op == DATA:
                assert (sent, size) == (slot, length)
                return read(self.sockets[peer], length)

    def broadcast(self, data, root=0, length=None):
        """The root gives `data`, the others its length; all get the bytes."""
        slot = self._next_slot()
        own = (self.rank - root) % self.world
        step = 1
        while step < self.world:
            other = own ^ step
            if own < 2 * step and other < self.world:
                peer = (other + root) % self.world
                if own & step:
                    data = self.receive(peer, slot, length)
                else:
                    self.send(peer, slot, data)
            step *= 2
        return data


def made_from(seed, size):
    return random.Random(seed).randbytes(size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (("rank", int, 0), ("world", int, 2), ("dialect", int, 2), ("group", str, "weights"), ("port", int, 0), ("store-only", int, 0)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    options = parser.parse_args()
    if options.rank == 0:
        store = Store(options.dialect, port=options.port)
        print("port", store.port, flush=True)
        if options.store_only:
            sys.stdin.read()
            return
    else:
        store = StoreClient(options.dialect, "127.0.0.1", options.port)
    rank = Rank(store, options.rank, options.world, options.group)
    print("joined", flush=True)
    for line in sys.stdin:
        command, seed, size, *more = line.split()
        data = made_from(int(seed), int(size))
        if command == "broadcast":
            got = rank.broadcast(data if options.rank == 0 else None, length=len(data))
            assert got == data
        elif command == "cut":
            slot = rank._next_slot()
            rank._send(1, SEND_READY, slot, len(data))
            rank.await_receiver(1, slot)
            rank._send(1, DATA, slot, len(data))
            rank.sockets[1].sendall(data[: int(more[0])])
            rank.close()
        elif command == "other":
            rank.send(1, rank._next_slot(), made_from(int(seed), int(more[0])))
        print("crc", zlib.crc32(data), flush=True)


if __name__ == "__main__":
    main()
