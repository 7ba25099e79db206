"""Broadcaster: rank 0 of the process group whose other ranks are the endpoints' replicas.

One object is one group: listen(), join(), broadcast() as often as wanted, close(). WeightSync calls them one after another, each
on a thread of its own; after a failure it calls close() while the failed call may still run, and makes another object.
"""
import contextlib
import datetime
import os
import threading

from .errors import TrainerError

INTERFACE = "GLOO_SOCKET_IFNAME"


class Broadcaster:
    def free_name(self, name):
        """`name`, or where this process still holds a group of that name, one like it."""
        return name

    def listen(self, address, port, world_size, group_name, limit_s):
        """Opens the group's store; its port, which is `port` unless that is 0."""
        raise NotImplementedError

    def join(self):
        """Returns when every rank has joined."""
        raise NotImplementedError

    def broadcast(self, buffer):
        """Sends the bytes of a writable buffer to every rank."""
        raise NotImplementedError

    def close(self):
        """Leaves the group. Must not wait for a call that is stuck."""
        raise NotImplementedError


def import_torch():
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise TrainerError(f"PyTorch is missing ({error}); wanted the package torch, 1.13 or newer, for the broadcast") from None
    if not dist.is_available() or not dist.is_gloo_available():
        raise TrainerError(f"PyTorch {torch.__version__} has no torch.distributed with gloo; wanted a build that has both")
    return torch, dist


@contextlib.contextmanager
def interface_for(address):
    """gloo takes its address from an interface's name. A store on the loopback address needs ranks there. The caller's own groups
    come before or after and keep what they have."""
    if INTERFACE in os.environ or not (address == "localhost" or address.startswith("127.")):
        yield
        return
    os.environ[INTERFACE] = "lo"
    try:
        yield
    finally:
        os.environ.pop(INTERFACE, None)


class TorchBroadcaster(Broadcaster):
    """gloo of PyTorch, beside whatever default group the trainer has. Made as SGLang's trainers make theirs."""

    def __init__(self):
        self.torch, self.dist = import_torch()
        self.group = self.store = None
        self.lock = threading.Lock()
        self.busy = self.closed = False

    def free_name(self, name):
        c10d = self.dist.distributed_c10d
        held = set((c10d._world.pg_names if hasattr(c10d, "_world") else c10d._pg_names).values())
        return next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(held) + 3))) if n not in held)

    def listen(self, address, port, world_size, group_name, limit_s):
        self.address, self.world_size, self.name = address, world_size, group_name
        self.limit = datetime.timedelta(seconds=limit_s)
        # The store waits for nobody: an endpoint that never comes is found by the requests, not here.
        arguments = (address, port, world_size, True, self.limit)
        try:  # builds without libuv have no other store
            self.store = self.dist.TCPStore(*arguments, wait_for_workers=False, use_libuv=False)
        except TypeError:  # PyTorch 1.13
            self.store = self.dist.TCPStore(*arguments, wait_for_workers=False)
        return self.store.port

    def join(self):
        c10d = self.dist.distributed_c10d
        with self._call(), interface_for(self.address):
            made = c10d._new_process_group_helper(
                self.world_size, 0, [], c10d.Backend("gloo"), c10d.PrefixStore(self.name, self.store), group_name=self.name,
                timeout=self.limit)
            self.group = made[0] if isinstance(made, tuple) else made
            ranks = c10d._world.pg_group_ranks if hasattr(c10d, "_world") else c10d._pg_group_ranks  # 1.13 has the latter
            ranks[self.group] = {rank: rank for rank in range(self.world_size)}

    def broadcast(self, buffer):
        with self._call():
            self.dist.broadcast(self.torch.frombuffer(buffer, dtype=self.torch.uint8), src=0, group=self.group)

    def close(self):
        with self.lock:
            self.closed = True
            busy = self.busy
        if not busy:
            self._destroy()

    @contextlib.contextmanager
    def _call(self):
        with self.lock:
            if self.closed:  # without its group, PyTorch would take the default one
                raise TrainerError("the group was left; wanted one that is joined")
            self.busy = True
        try:
            yield
        finally:
            with self.lock:
                self.busy = False
                closed = self.closed
            if closed:  # PyTorch waits for a group's call when the group is destroyed, and close() waits for nothing
                self._destroy()

    def _destroy(self):
        group, self.group, self.store = self.group, None, None
        if group is not None:
            with contextlib.suppress(Exception):  # nothing is lost: its sockets close with the object
                self.dist.destroy_process_group(group)
