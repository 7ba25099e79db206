"""The trainer's part of Millrace's live weights: sends tensors to running servers over a process group (docs/weights.md).

    from millrace_trainer import InferenceEndpoint, WeightSync
    sync = WeightSync([InferenceEndpoint("127.0.0.1", 30000)], buffer_size_mb=64)
    sync.sync(model, weight_version="step-20")

Standard library only; PyTorch is imported for the broadcast, and to read tensors that are PyTorch's.
"""
from .broadcast import Broadcaster, TorchBroadcaster
from .buckets import Bucket, fill_buckets
from .endpoint import InferenceEndpoint
from .errors import ConflictError, EndpointError, InputError, LimitError, PartialSyncError, TrainerError
from .tensors import WeightTensor, as_tensors, read_safetensors
from .weight_sync import Limits, SyncResult, WeightSync

__all__ = [
    "Broadcaster", "Bucket", "ConflictError", "EndpointError", "InferenceEndpoint", "InputError", "LimitError", "Limits",
    "PartialSyncError", "SyncResult", "TorchBroadcaster", "TrainerError", "WeightSync", "WeightTensor", "as_tensors",
    "fill_buckets", "read_safetensors",
]
