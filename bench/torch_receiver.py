#!/usr/bin/env python3
"""Measures how fast a server takes the weights that PyTorch broadcasts, over how fast a PyTorch process takes the same broadcasts.

    bench/torch_receiver.py PORT MODEL_DIR [--rounds 5] [--bucket-mib 64] [--nice 19]

Run by a python3 that has PyTorch, on the host of a server that runs `serve --model MODEL_DIR --admin-without-key --port PORT`, one replica.
This process is rank 0 of two groups, with the server and with another process of this file. Rounds take turns. The server's time is from the
first broadcast to the answer of /complete_weights_update: received, packed, summed, switched to. PyTorch's is to its answer that it has the
last byte: received into tensors, nothing more. The server receives at nice 19: on a machine that others use, --nice 19 has PyTorch do so too."""
import argparse
import datetime
import http.client
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

os.environ.setdefault("USE_LIBUV", "0")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed import distributed_c10d as c10d  # noqa: E402

NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def make_group(name, port, rank):
    timeout = datetime.timedelta(seconds=300)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout, wait_for_workers=False, use_libuv=os.environ["USE_LIBUV"] != "0")
    group, _ = c10d._new_process_group_helper(2, rank, [], c10d.Backend("gloo"), c10d.PrefixStore(name, store), group_name=name, timeout=timeout)
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group, store


def receive(port, sizes, rounds, nice):
    os.nice(nice)  # its threads begin after this
    group, _store = make_group("torch", port, 1)
    for _ in range(rounds):
        tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]  # as a trainer's receiver makes them, for each update
        for tensor in tensors:
            dist.broadcast(tensor, src=0, group=group)
        dist.broadcast(torch.zeros(1, dtype=torch.uint8), src=1, group=group)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"{path}: {answer}")
    return answer


def buckets_of(folder, limit):
    """[(description, bytes as a tensor)] of model.safetensors."""
    data = open(f"{folder}/model.safetensors", "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    out = []
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if not out or len(out[-1][1]) + end - begin > limit:
            out.append(({"names": [], "dtypes": [], "shapes": []}, bytearray()))
        for key, value in (("names", name), ("dtypes", NAMES[entry["dtype"]]), ("shapes", entry["shape"])):
            out[-1][0][key].append(value)
        out[-1][1].extend(data[8 + length + begin : 8 + length + end])
    return [(described, torch.frombuffer(part, dtype=torch.uint8)) for described, part in out]


def main():
    if sys.argv[1] == "--receive":
        return receive(int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket-mib", type=int, default=64)
    parser.add_argument("--nice", type=int, default=0, help="of the PyTorch receiver")
    args = parser.parse_args()
    buckets = buckets_of(args.model, args.bucket_mib << 20)
    size = sum(len(tensor) for _, tensor in buckets)
    port, other = free_port(), free_port()
    joining = threading.Thread(target=post, args=(args.port, "/init_weights_update_group", {
        "master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2, "group_name": "server", "backend": "gloo"}))
    joining.start()
    server, _server_store = make_group("server", port, 0)
    joining.join()
    child = subprocess.Popen([sys.executable, __file__, "--receive", str(other), json.dumps([len(t) for _, t in buckets]), str(args.rounds),
                              str(args.nice)])
    peer, _peer_store = make_group("torch", other, 0)
    end = torch.zeros(1, dtype=torch.uint8)
    served, received = [], []
    for number in range(args.rounds):
        post(args.port, "/prepare_weights_update", {"buckets": [d for d, _ in buckets], "num_buckets": len(buckets), "group_name": "server",
                                                    "load_format": "flattened_bucket"})
        begin = time.monotonic()
        for _, tensor in buckets:
            dist.broadcast(tensor, src=0, group=server)
        post(args.port, "/complete_weights_update", {"group_name": "server"})
        served.append(time.monotonic() - begin)
        begin = time.monotonic()
        for _, tensor in buckets:
            dist.broadcast(tensor, src=0, group=peer)
        dist.broadcast(end, src=1, group=peer)
        received.append(time.monotonic() - begin)
    child.wait()
    ratios = [b / a for a, b in zip(served, received)]
    print(f"PyTorch {torch.__version__}, {size / 1e6:.0f} MB in {len(buckets)} buckets, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"server {statistics.median(served):.2f} s, PyTorch {statistics.median(received):.2f} s; rate over PyTorch's: "
          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
