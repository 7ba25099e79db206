"""Buckets: runs of neighbouring tensors, each sent with one broadcast."""
from dataclasses import dataclass, field

from .errors import InputError

MIB = 1 << 20
MAX_BUFFER_MB = 1 << 20
MAX_BUCKETS = 4096  # of one update, the server's limit
MAX_TENSORS = 65536


@dataclass
class Bucket:
    tensors: list = field(default_factory=list)
    nbytes: int = 0

    def add(self, tensor):
        self.tensors.append(tensor)
        self.nbytes += tensor.nbytes

    def describe(self):
        """As /prepare_weights_update takes it."""
        return {"names": [t.name for t in self.tensors], "dtypes": [t.dtype for t in self.tensors],
                "shapes": [list(t.shape) for t in self.tensors]}

    def write_into(self, buffer):
        """The bytes of its tensors one after another, into the first `nbytes` of the buffer; that part of it."""
        view = memoryview(buffer)[: self.nbytes]
        at = 0
        for tensor in self.tensors:
            tensor.write_into(view[at : at + tensor.nbytes])
            at += tensor.nbytes
        return view


def buffer_bytes(buffer_size_mb):
    if isinstance(buffer_size_mb, bool) or not isinstance(buffer_size_mb, (int, float)) or not 0 < buffer_size_mb <= MAX_BUFFER_MB:
        raise InputError(f"buffer_size_mb is {buffer_size_mb!r}; wanted a number of MiB above 0, at most {MAX_BUFFER_MB}")
    return max(1, int(buffer_size_mb * MIB))


def fill_buckets(tensors, buffer_size_mb):
    """Greedy, in the tensors' sequence: a bucket takes tensors as long as it stays within `buffer_size_mb`. A tensor that is
    larger is a bucket of its own."""
    limit = buffer_bytes(buffer_size_mb)
    buckets, names = [], set()
    for tensor in tensors:
        if tensor.name in names:
            raise InputError(f"the tensor {tensor.name} comes twice; wanted each once")
        names.add(tensor.name)
        if not buckets or (buckets[-1].tensors and buckets[-1].nbytes + tensor.nbytes > limit):
            buckets.append(Bucket())
        buckets[-1].add(tensor)
    if not buckets:
        raise InputError("there are no tensors; wanted at least one")
    if len(names) > MAX_TENSORS:
        raise InputError(f"there are {len(names)} tensors; wanted at most {MAX_TENSORS}")
    if len(buckets) > MAX_BUCKETS:
        raise InputError(f"buffer_size_mb {buffer_size_mb} makes {len(buckets)} buckets; wanted at most {MAX_BUCKETS}: raise it")
    return buckets
