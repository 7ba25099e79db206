"""Weights that a trainer broadcasts over NCCL: rank 0 is this test, over the double of libnccl and libcudart that the server loads too."""
import ctypes
import os
import pathlib
import time

import pytest

from harness import Server
from test_weights import generate
from test_weights_broadcast import GROUP, Trainer, in_buckets, texts, weights  # noqa: F401

SUCCESS, IN_PROGRESS, UINT8 = 0, 7, 1


def double(name="MILLRACE_FAKE_NCCL"):
    """The file of the servers, or by the other name that of this process, which has no sanitizer."""
    beside = pathlib.Path(os.environ.get("MILLRACE_PROGRAM", "none")).resolve().parent / "src" / "nccl" / "libfake_nccl.so"
    return pathlib.Path(os.environ.get(name, beside))


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_ubyte * 128)]


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int), ("unused", ctypes.c_int)]


@pytest.fixture
def libraries(tmp_path):
    """A folder where the loader finds the double under the names of the libraries."""
    if not double().exists():
        pytest.skip("the double of NCCL is not built")
    for name in ("libcudart.so.13", "libnccl.so.2"):
        (tmp_path / name).symlink_to(double())
    return tmp_path


class NcclTrainer(Trainer):
    """Rank 0, whose process group is PyTorch's NCCL; its communicator is made by connect()."""

    def _init(self, server, world):
        self.nccl = ctypes.CDLL(str(double("MILLRACE_FAKE_NCCL_OF_PYTHON")))
        return server.post("/init_weights_update_group", {
            "master_address": "127.0.0.1", "master_port": self.store.port, "rank_offset": 1, "world_size": world,
            "group_name": self.group, "backend": "nccl"})

    def _join(self, world):
        """The store alone."""

    def connect(self):
        unique = UniqueId()
        assert self.nccl.ncclGetUniqueId(ctypes.byref(unique)) == SUCCESS
        self.store.set(f"/{self.group}/{self.group}//cuda//0".encode(), bytes(unique))
        self.communicator, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 0, -(1 << 31))
        assert self.nccl.ncclCommInitRankConfig(ctypes.byref(self.communicator), 2, unique, 0, ctypes.byref(config)) == IN_PROGRESS
        self.nccl.cudaStreamCreateWithFlags(ctypes.byref(self.stream), 1)
        self._wait()

    def _wait(self):
        state = ctypes.c_int(IN_PROGRESS)
        while state.value == IN_PROGRESS:
            assert self.nccl.ncclCommGetAsyncError(self.communicator, ctypes.byref(state)) == SUCCESS
            time.sleep(0.001)
        assert state.value == SUCCESS

    def broadcast(self, buckets, flattened=True):
        for bucket in buckets:
            data = b"".join(part for _, _, part in bucket.values())
            memory, size = ctypes.c_void_p(), ctypes.c_size_t(len(data))
            assert self.nccl.cudaMalloc(ctypes.byref(memory), size) == SUCCESS
            ctypes.memmove(memory, data, len(data))
            assert self.nccl.ncclBroadcast(memory, memory, size, UINT8, 0, self.communicator, self.stream) in (SUCCESS, IN_PROGRESS)
            self._wait()


@pytest.mark.parametrize("eager", [True, False])
def test_weights_of_a_broadcast_serve(libraries, weights, texts, eager):
    with Server(env={"LD_LIBRARY_PATH": str(libraries)}) as server:
        trainer = NcclTrainer(server)
        if eager:
            trainer.connect()
        buckets = in_buckets(weights["b"], 3)
        status, _, body = trainer.prepare(buckets)
        assert (status, body["status"]) == (200, "ready"), body  # without a communicator too
        if not eager:
            trainer.connect()
        trainer.broadcast(buckets)
        status, _, body = trainer.complete(weight_version="b")
        assert (status, body["num_buckets_received"], body["weight_version"]) == (200, 3, "b"), body
        assert generate(server)["text"] == texts["b"]
        trainer.update([weights["c"]])
        assert generate(server)["text"] == texts["c"]
        # A group of gloo replaces it.
        Trainer(server).update([weights["a"]])
        assert generate(server)["text"] == texts["a"]


def test_what_is_missing_is_named(tmp_path, weights, texts):
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        (tmp_path / name).write_text("no library")
    with Server(env={"LD_LIBRARY_PATH": str(tmp_path)}) as server:
        status, _, body = server.post("/init_weights_update_group", {
            "master_address": "127.0.0.1", "master_port": 1, "world_size": 2, "group_name": GROUP, "backend": "nccl"})
        assert status == 400 and body["success"] is False, body
        assert "backend nccl: " in body["message"] and "libcudart.so" in body["message"], body
        Trainer(server).update([weights["b"]])
        assert generate(server)["text"] == texts["b"]
