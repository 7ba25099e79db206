"""What the way between two ranges costs, for bench/layers.py: the hop of one row, and prefill over a slow link. Servers and network namespaces are those of
tests/e2e."""
import contextlib
import functools
import json
import os
import pathlib
import random
import re
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time

from served import one_request
from timeline import lanes, pipeline, post

ROOT = pathlib.Path(__file__).resolve().parent.parent
HIDDEN = 1024  # of the model whose hop is measured
HOP_TOKENS = 200
DELAY_S = 0.0005  # of the slow link
LINK_BYTES = 64 << 20  # of the transfer that shows what the link carries


def hop_model(folder):
    """The demo model's shape with two layers of HIDDEN columns, with weights that mean nothing."""
    demo = ROOT / "models/demo"
    config = json.loads((demo / "config.json").read_text())
    wide = {config["hidden_size"]: HIDDEN}
    data = (demo / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    header.pop("__metadata__", None)
    generator, out, end = random.Random(1), {}, 0
    # bf16 of small values, of both signs.
    table = struct.pack("<65536H", *(generator.randrange(0x3C00, 0x3D00) | generator.randrange(2) << 15 for _ in range(65536)))
    for name, entry in header.items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if layer and int(layer[1]) > 1:
            continue
        # The heads keep their size, so queries and what attention gives have as many columns as before.
        attention = re.search(r"[qo]_proj", name)
        shape = [dim if attention and axis == ("o_proj" in name) else wide.get(dim, dim) for axis, dim in enumerate(entry["shape"])]
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        out[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for left in range(end, 0, -len(table)):
            file.write(table[:left])
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": HIDDEN, "num_hidden_layers": 2}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((demo / name).read_bytes())
    return folder


@contextlib.contextmanager
def over_hosts(program, model, layers, near=None, far=None, key=None):
    """A server whose second range is another host's: a process that joins by tcp, in network namespaces or on loopback."""
    os.environ["MILLRACE_PROGRAM"] = program
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    from harness import Joined, Server, wait_until
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "layers.yaml"
        control = f"{near.ipv4 if near else '127.0.0.1'}:30390"
        head = f'control: "tcp://{control}"\n' + (f'key_file: "{key}"\n' if key else "")
        path.write_text(head + pipeline(layers).replace("worker: layers", "worker: layers, host: b"))
        options = ["--no-prefix-cache", "--profile-dir", folder]
        with Server("--pipeline", str(path), *options, model=model, wait=False, where=near) as server, \
                Joined(path, "range-1", control, model=model, where=far, more=["--listen", far.ipv4] if far else []):
            assert server.url_found.wait(300) and server.host, server.output()
            wait_until(server.ready, "ready ranges")
            yield server


def hops_us(trace):
    """From the end of a range's layers to the begin of the next range's, for each part of one row."""
    found = lanes(trace)
    return [1000 * (b[0] - a[1]) for (_, first, _), (_, then, _) in zip(found, found[1:]) for a, b in zip(first, then) if a[2] == 1]


def measured_hops(server):
    one_request(*server, [5, 6, 7], 8)  # warms up
    post(*server, "/start_profile")
    one_request(*server, [5, 6, 7], HOP_TOKENS)
    path = post(*server, "/stop_profile")["replies"][0]["message"]
    return hops_us(json.loads(pathlib.Path(path).read_text()))


def print_hops(program, folder, start):
    model = str(hop_model(folder))
    print(f"\n| hop of one row of {HIDDEN} f32, us | p10 | p50 | p90 |\n|---|---|---|---|")
    path = folder / "layers.yaml"
    path.write_text(pipeline([1, 1]))
    process, *server, _ = start(program, model, ["--pipeline", str(path), "--threads", "1", "--admin-without-key", "--profile-dir", str(folder)])
    try:
        rows = [("ipc", measured_hops(server))]
    finally:
        process.terminate()
        process.wait()
    with over_hosts(program, model, [1, 1]) as server:
        rows.append(("tcp, loopback", measured_hops((server.host, server.port))))
    for name, hops in rows:
        tenths = statistics.quantiles(hops, n=10)
        print(f"| {name} | {tenths[0]:.0f} | {statistics.median(hops):.0f} | {tenths[8]:.0f} |", flush=True)


# ---- a slow link


@contextlib.contextmanager
def slow_taps(rate, near, far):
    """Two taps of this rate each and DELAY_S between them. The kernel's token bucket does the first; the packets pass this process for the
    second, as not every kernel has netem."""
    from two_hosts import taps
    with taps(near, far, delay_s=(DELAY_S, DELAY_S)) as wire:
        for host in (near, far):
            host.exec("tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms")
        yield wire


def link_rate(near, far):
    """Bytes a second that the wire carries from near to far."""
    with far.inside():
        listener = socket.create_server((far.ipv4, 0))
    seconds = []

    def take():
        connection, _ = listener.accept()
        with connection:
            begin = time.monotonic()
            left = LINK_BYTES
            while left > 0:
                left -= len(connection.recv(1 << 20))
            seconds.append(time.monotonic() - begin)
    thread = threading.Thread(target=take)
    thread.start()
    with near.inside():
        sender = socket.create_connection(listener.getsockname())
    with sender:
        sender.sendall(bytes(LINK_BYTES))
        thread.join()
    listener.close()
    return LINK_BYTES / seconds[0]


def prefill_over(arguments, wire, layers, prompt, measure):
    """(prompt tokens a second, bytes a second of the wire)."""
    from harness import new_key
    from two_hosts import two_hosts
    with two_hosts(wire) as (near, far, _), tempfile.TemporaryDirectory() as folder:
        carried = measure(near, far)
        with over_hosts(arguments.program, arguments.model, layers, near, far, new_key(pathlib.Path(folder) / "key")) as server:
            rates = []
            for _ in range(arguments.rounds + 1):
                with near.inside():
                    rates.append(arguments.prompt_tokens / one_request(server.host, server.port, prompt(), 1)[0])
            return statistics.median(rates[1:]), carried


def print_link(arguments, prompt):
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    os.environ["MILLRACE_PROGRAM"] = arguments.program
    from two_hosts import veth
    config = json.loads((pathlib.Path(arguments.model) / "config.json").read_text())
    layers = [config["num_hidden_layers"] // 2, config["num_hidden_layers"] - config["num_hidden_layers"] // 2]
    compute, _ = prefill_over(arguments, veth, layers, prompt, lambda near, far: 0)
    slow, carried = prefill_over(arguments, functools.partial(slow_taps, arguments.link_rate), layers, prompt, link_rate)
    link = carried / (4 * config["hidden_size"])
    print(f"\n| prefill of {arguments.prompt_tokens} over two hosts, tokens a second | |\n|---|---|")
    print(f"| nothing between them (compute) | {compute:.1f} |")
    print(f"| what the link of {arguments.link_rate} and {DELAY_S * 1000} ms carries: {carried / 1e6:.0f} MB/s of rows | {link:.1f} |")
    print(f"| over that link | {slow:.1f} |\n| of the smaller one | {slow / min(compute, link):.2f} |", flush=True)
