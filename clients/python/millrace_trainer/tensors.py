"""WeightTensor: the name, dtype, shape and bytes of one tensor, wherever it lies. Bytes are copied out when its bucket is sent,
so that a sync holds one bucket beside the model."""
import json
import mmap
import pathlib
import struct

from .errors import InputError

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
FILE_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
MAX_HEADER_BYTES = 100 << 20  # of a safetensors file


class WeightTensor:
    """`write`: copies its bytes into a writable memoryview of `nbytes`."""

    def __init__(self, name, dtype, shape, write):
        self.name, self.dtype, self.shape, self.write_into = name, dtype, tuple(int(extent) for extent in shape), write
        if dtype not in ITEM_BYTES:
            raise InputError(f"the tensor {name} has dtype {dtype}; wanted {', '.join(ITEM_BYTES)}")
        self.nbytes = ITEM_BYTES[dtype]
        for extent in self.shape:
            self.nbytes *= extent
        if self.nbytes <= 0:
            raise InputError(f"the tensor {name} has shape {list(self.shape)}; wanted at least one element")

    @classmethod
    def of_bytes(cls, name, dtype, shape, data):
        tensor = cls(name, dtype, shape, lambda view: view.__setitem__(slice(None), data))
        if len(data) != tensor.nbytes:
            raise InputError(f"the tensor {name} has {len(data)} bytes; wanted {tensor.nbytes} for {dtype} {list(tensor.shape)}")
        return tensor


def of_torch(name, tensor, dtype=None):
    """A PyTorch tensor on any device; `dtype` ("bfloat16", ...): sent as that."""
    import torch

    kind = getattr(torch, dtype) if dtype else tensor.dtype

    def write(view):
        # gloo has no bfloat16: what is sent are bytes.
        flat = tensor.detach().to(device="cpu", dtype=kind).contiguous().reshape(-1).view(torch.uint8)
        torch.frombuffer(view, dtype=torch.uint8).copy_(flat)

    return WeightTensor(name, str(kind).rsplit(".", 1)[-1], tensor.shape, write)


def as_tensors(weights, dtype=None):
    """A list of WeightTensor. `weights`: a torch.nn.Module, whose parameters are sent in their sequence; a dict such as a
    state_dict; or an iterable of WeightTensor or of (name, PyTorch tensor)."""
    if dtype is not None and dtype not in ITEM_BYTES:
        raise InputError(f"dtype is {dtype!r}; wanted {', '.join(ITEM_BYTES)}")
    if hasattr(weights, "named_parameters"):
        weights = weights.named_parameters()
    elif hasattr(weights, "items"):
        weights = weights.items()
    found = []
    for item in weights:
        if isinstance(item, WeightTensor):
            if dtype and item.dtype != dtype:
                raise InputError(f"the tensor {item.name} has dtype {item.dtype} and dtype {dtype} is to be sent; only PyTorch tensors are converted")
            found.append(item)
        elif isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and hasattr(item[1], "shape"):
            found.append(of_torch(*item, dtype))
        else:
            raise InputError(f"the weights hold a {type(item).__name__}; wanted WeightTensor or (name, tensor)")
    return found


def read_safetensors(folder):
    """The tensors of all *.safetensors files of a model folder. The files are mapped, not read."""
    files = sorted(pathlib.Path(folder).glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no *.safetensors; wanted a model folder")
    return [tensor for file in files for tensor in _read_file(file)]


def _read_file(path):
    with open(path, "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if path.stat().st_size else memoryview(b"")
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > min(MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
        header = json.loads(bytes(data[8 : 8 + length]))
        header.pop("__metadata__", None)
        found = []
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype = FILE_DTYPES.get(entry["dtype"], entry["dtype"])
            if not 0 <= begin <= end <= len(data) - 8 - length:
                raise ValueError(f"{name} lies at {begin} to {end} of {len(data) - 8 - length} bytes")
            found.append(WeightTensor.of_bytes(name, dtype, entry["shape"], data[8 + length + begin : 8 + length + end]))
        return found
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise InputError(f"{path}: {error}; wanted a safetensors file") from None
