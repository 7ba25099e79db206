"""Two hosts on one machine: two network namespaces, each with a network stack, addresses and a loopback of its own, and one wire
between them. The wire is a veth pair, or one that delays, reorders and loses packets. Only the network is told apart: files,
processes and the boot id are the machine's.

Nothing stays behind: the names carry this process's id, and whatever carries the id of a process that is gone is ended and deleted
before anything is made."""
import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import re
import select
import signal
import struct
import subprocess
import threading
import time

import pytest

from harness import alive

PREFIX = "millrace-e2e"
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MAX_FRAME_BYTES = 2048
_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


def ip(*arguments, check=True):
    """`ip ...`; its output."""
    found = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60)
    if check and found.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {found.stderr.strip()}")
    return found.stdout


def enter(descriptor):
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Host:
    """A namespace. `prefix` starts a command in it; inside() is where a thread makes its sockets."""

    def __init__(self, name, number):
        self.name, self.ipv4, self.ipv6 = name, f"10.77.0.{number}", f"fd77::{number}"
        self.prefix = ["ip", "netns", "exec", name]
        ip("netns", "add", name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments):
        return ip("-netns", self.name, *arguments)

    def exec(self, *command):
        """Runs a command in it, to its end."""
        subprocess.run([*self.prefix, *command], check=True, timeout=60)

    def join(self):
        """With its end of the wire, which is called `wire`."""
        self.ip("address", "add", f"{self.ipv4}/24", "dev", "wire")
        self.plug(True)

    def plug(self, there):
        """Puts the wire in, or pulls it out: the other end then has no carrier."""
        self.ip("link", "set", "wire", "up" if there else "down")
        if there:  # which the kernel took away with the link
            self.ip("address", "replace", f"{self.ipv6}/64", "dev", "wire", "nodad")

    @contextlib.contextmanager
    def inside(self):
        """This thread's sockets that are made meanwhile are this host's."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/run/netns/{self.name}") as theirs:
            enter(theirs.fileno())
            try:
                yield
            finally:
                enter(ours.fileno())


def delete(name):
    """A namespace, and what runs in it. Its end of a wire goes with it, and so does the other end."""
    for pid in ip("netns", "pids", name, check=False).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ip("netns", "delete", name, check=False)


def sweep():
    """What test runs that were killed have left."""
    for name in re.findall(rf"^({PREFIX}-\d+-\d+)\b", ip("netns", "list"), re.M):
        if not alive(int(name.split("-")[2])):
            delete(name)


@contextlib.contextmanager
def two_hosts(wire):
    """Yields (near, far, what `wire` yields). `wire`: a function that is given both and makes a link named `wire` in each, as a context.
    Skips with the reason where this process may not do that."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    names = [f"{PREFIX}-{os.getpid()}-{next(_numbers)}" for _ in range(2)]
    try:
        try:
            sweep()
            made = [Host(name, number) for number, name in enumerate(names, 1)]
        except OSError as why:
            pytest.skip(f"no network namespaces here: {why}")
        with wire(*made) as between:
            for host in made:
                host.join()
            yield *made, between
    finally:
        for name in names:
            delete(name)


@contextlib.contextmanager
def veth(near, far):
    """`ip link`'s own. Yields nothing."""
    try:
        ip("link", "add", "wire", "netns", near.name, "type", "veth", "peer", "name", "wire", "netns", far.name)
    except OSError as why:
        pytest.skip(f"no veth pairs here: {why}")
    yield


def tap(host):
    """A link named `wire` whose packets are read and written here."""
    try:
        with host.inside():
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", b"wire", IFF_TAP | IFF_NO_PI))
    except OSError as why:
        pytest.skip(f"no tap devices here: {why}")
    return descriptor


class Wire:
    """Carries packets between two taps, each after a time of its own, and loses some. (Not every kernel has netem.) With `loss` 1 it
    is cut, and neither side's link is down."""

    def __init__(self, ends, delay_s, loss):
        self.ends = {ends[0]: ends[1], ends[1]: ends[0]}
        self.delay_s, self.loss = delay_s, loss
        self.random = random.Random(1)
        self.lost = self.carried = 0
        self.over = False
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()

    def carry(self):
        underway = []  # (when, number, to, packet)
        while not self.over:
            wait_s = min(underway[0][0] - time.monotonic(), 0.05) if underway else 0.05
            for end in select.select(list(self.ends), [], [], max(wait_s, 0))[0]:
                try:
                    packet = os.read(end, MAX_FRAME_BYTES)
                except OSError:  # the link went down meanwhile
                    continue
                if self.random.random() < self.loss:
                    self.lost += 1
                    continue
                self.carried += 1
                heapq.heappush(underway, (time.monotonic() + self.random.uniform(*self.delay_s), self.carried, self.ends[end], packet))
            while underway and underway[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(underway)
                with contextlib.suppress(OSError):  # a full queue: one more is lost
                    os.write(to, packet)

    def end(self):
        self.over = True
        self.thread.join()


@contextlib.contextmanager
def taps(near, far, delay_s=(0, 0), loss=0):
    with contextlib.ExitStack() as stack:
        ends = [tap(host) for host in (near, far)]
        for end in ends:
            stack.callback(os.close, end)
        wire = Wire(ends, delay_s, loss)
        stack.callback(wire.end)
        yield wire


def bad_taps(near, far):
    return taps(near, far, delay_s=(0.005, 0.015), loss=0.03)
