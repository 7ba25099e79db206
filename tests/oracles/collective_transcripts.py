"""Writes tests/golden/collective/torch*_world*.json: what rank 1 of a real PyTorch process group sends and receives while it
joins over a TCPStore and gloo and takes part in broadcasts by rank 0.

Run from the repository's root as root, once in a root with each version of PyTorch:
    oracle python3 tests/oracles/collective_transcripts.py
It starts the ranks as processes, captures the packets of the loopback interface, and puts the TCP streams of rank 1 together.
A file has the broadcasts (their bytes and crc32) and the streams: `peer` is "store" or a rank, `opened` is true where rank 1
opened the connection, `chunks` are ["in" or "out", hex] in the sequence in which they passed.
"""
import datetime
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import threading
import zlib

OUT = pathlib.Path("tests/golden/collective")
GROUP = "weights"
SIZES = (5, 400, 0, 3000, 17)
LOOPBACK = "127.0.0.1"


def run_rank(rank, world, port):
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    timeout = datetime.timedelta(seconds=60)
    store, rank, world = next(c10d.rendezvous(f"tcp://{LOOPBACK}:{port}", rank, world, timeout=timeout))
    store.set_timeout(timeout)
    # As the trainers' init_custom_process_group() does it.
    store = c10d.PrefixStore(GROUP, store)
    made = c10d._new_process_group_helper(world, rank, [], "gloo" if torch.__version__ < "2" else c10d.Backend("gloo"), store,
                                          group_name=GROUP, timeout=timeout)
    group = made[0] if isinstance(made, tuple) else made
    names = {i: i for i in range(world)}
    if hasattr(c10d, "_world"):
        c10d._world.pg_group_ranks[group] = names
    else:
        c10d._pg_group_ranks[group] = names
    generator = torch.Generator().manual_seed(7)
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in SIZES]
    if rank:
        tensors = [torch.empty_like(tensor) for tensor in tensors]
    print(json.dumps({"torch": torch.__version__, "sockets": own_sockets()}), flush=True)
    sys.stdin.readline()
    tensors[1] = tensors[1].view(torch.float32)
    # Rank 0 does not wait between them, so that it announces ahead of what the others ask for.
    works = [dist.broadcast(tensor, src=0, group=group, async_op=rank == 0) for tensor in tensors]
    for work in works:
        if work:
            work.wait()
    tensors[1] = tensors[1].view(torch.uint8)
    print(json.dumps([[tensor.numel(), zlib.crc32(tensor.numpy().tobytes())] for tensor in tensors]), flush=True)
    sys.stdin.readline()


def own_sockets():
    """[local port, remote port] of this process's connections."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            pass
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == "01":  # established
                found.append([int(fields[i].rsplit(":", 1)[1], 16) for i in (1, 2)])
    return found


class Capture:
    """The TCP packets of the loopback interface, in the sequence in which they passed."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind(("lo", 0))
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self.packets = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while True:
            packet, origin = self.socket.recvfrom(1 << 17)
            if origin[2] == socket.PACKET_OUTGOING:  # each one passes twice
                continue
            if packet[12:14] == b"\x08\x00" and packet[23] == socket.IPPROTO_TCP:
                ip = packet[14 : 14 + struct.unpack(">H", packet[16:18])[0]]
                tcp = ip[(ip[0] & 15) * 4 :]
                source, target, sequence = struct.unpack(">HHI", tcp[:8])
                self.packets.append((source, target, sequence, tcp[13], tcp[(tcp[12] >> 4) * 4 :]))

    def stream(self, local, remote):
        """(whether `local` opened it, [[direction, hex]])"""
        opened, next_sequence, chunks = None, {}, []
        for source, target, sequence, flags, payload in self.packets:
            if {source, target} != {local, remote}:
                continue
            if flags & 2:  # SYN
                if not flags & 16:
                    opened = source == local
                next_sequence[source] = (sequence + 1) % 2**32
            if not payload or sequence != next_sequence[source]:
                continue  # a retransmission
            next_sequence[source] = (sequence + len(payload)) % 2**32
            direction = "out" if source == local else "in"
            if chunks and chunks[-1][0] == direction:
                chunks[-1][1] += payload.hex()
            else:
                chunks.append([direction, payload.hex()])
        return opened, chunks


def record(world):
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    capture = Capture()
    environment = {**os.environ, "USE_LIBUV": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), str(world), str(port)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, env=environment) for rank in range(world)]
    facts = [json.loads(rank.stdout.readline()) for rank in ranks]
    for rank in ranks:
        rank.stdin.write("broadcast\n")
        rank.stdin.flush()
    results = [json.loads(rank.stdout.readline()) for rank in ranks]
    assert all(result == results[0] for result in results), results
    subprocess.run(["sleep", "0.5"], check=True)  # the last packets
    streams = []
    for local, remote in facts[1]["sockets"]:
        owners = [rank for rank in range(world) if rank != 1 and [remote, local] in facts[rank]["sockets"]]
        opened, chunks = capture.stream(local, remote)
        if remote == port and not chunks:
            continue  # PyTorch 1.13 has a second connection, for callbacks
        streams.append({"peer": "store" if remote == port else owners[0], "opened": opened, "chunks": chunks})
    for rank in ranks:
        rank.communicate("end\n")
    version = facts[1]["torch"].split("+")[0].split("a")[0]
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"torch{'.'.join(version.split('.')[:2])}_world{world}.json"
    lines = ",\n  ".join(json.dumps(stream) for stream in sorted(streams, key=lambda s: str(s["peer"])))
    path.write_text(f'{{"torch": "{version}", "world": {world}, "rank": 1, "group": "{GROUP}",\n'
                    f' "broadcasts": {json.dumps(results[0])},\n "streams": [\n  {lines}]}}\n')


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run_rank(*map(int, sys.argv[1:]))
    else:
        for world in (2, 4):
            record(world)
