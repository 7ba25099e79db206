"""SyncService: what the trainer's server does, without HTTP: a list of endpoints, and syncs of what `weights` returns.

Thread safety: all functions from any thread; one sync at a time.
"""
import math
import threading
import time

from .endpoint import InferenceEndpoint
from .errors import ConflictError, InputError
from .weight_sync import DEFAULT_BUFFER_MB, MODES, Limits, WeightSync

MAX_ENDPOINTS = 64
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def read(body, name, kinds, absent):
    """A member of a request's body; one that is null counts as absent."""
    value = body.get(name)
    if value is None:
        if absent is REQUIRED:
            raise InputError(f"{name} is missing; wanted {wanted(kinds)}")
        return absent
    if isinstance(value, bool) != (kinds is bool) or not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{name} is {value!r}; wanted {wanted(kinds)}")
    return value


REQUIRED = object()
NUMBER = (int, float)
NAMES = {str: "a string", int: "an integer", bool: "true or false", NUMBER: "a number"}


def wanted(kinds):
    return NAMES[kinds]


def read_port(body, name, absent):
    """Trainers send ports as strings too."""
    value = body.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 6:
        return int(value)
    return read(body, name, int, absent)


class SyncService:
    """`weights`: a function that returns what WeightSync.sync() takes; it is called for each sync, on the sync's thread.
    `hosts`: endpoints may be there only; a request must not make this process connect elsewhere. `make_sync`: WeightSync, or a
    test's. `defaults`: of WeightSync's arguments."""

    def __init__(self, weights, *, hosts=(), endpoint_key=None, limits=None, make_sync=WeightSync, **defaults):
        self.weights, self.hosts, self.endpoint_key = weights, {*LOOPBACK, *hosts}, endpoint_key
        self.limits, self.make_sync, self.defaults = limits or Limits(), make_sync, defaults
        self._endpoints = {}  # by "host:port", in the sequence of their ranks
        self._lock = threading.Lock()  # guards what is above and below it; not held in a sync
        self._sync, self._sync_of = None, None  # the last one, which holds a group, and the arguments that made it
        self._running_since = None
        self._completed = self._failed = 0
        self._last_error = ""

    def add_endpoint(self, body):
        endpoint = InferenceEndpoint(read(body, "host", str, REQUIRED), read_port(body, "port", REQUIRED),
                                     read(body, "world_size", int, 1), self.endpoint_key)
        if endpoint.host not in self.hosts:
            raise InputError(f"host is {endpoint.host!r}; wanted one of {', '.join(sorted(self.hosts))}: --endpoint-hosts adds others")
        endpoint.update_status(self.limits.status_s)
        endpoint.unready(self.limits.status_s)
        with self._lock:
            known = self._endpoints.get(str(endpoint))
            if known is not None and known != endpoint:
                raise ConflictError(f"{endpoint} is registered with world_size {known.world_size}; wanted the same, not {endpoint.world_size}")
            if known is None and len(self._endpoints) >= MAX_ENDPOINTS:
                raise ConflictError(f"there are {MAX_ENDPOINTS} endpoints; wanted no more")
            self._endpoints[str(endpoint)] = endpoint
            count = len(self._endpoints)
        return {"success": True, "status": "ok", "message": "already registered" if known else "registered", "num_endpoints": count,
                "endpoint": {"host": endpoint.host, "port": endpoint.port, "world_size": endpoint.world_size, "healthy": True}}

    def sync(self, body):
        arguments = self._read_arguments(body)
        size = read(body, "buffer_size_mb", NUMBER, self.defaults.get("buffer_size_mb", DEFAULT_BUFFER_MB))
        version = body.get("weight_version")
        with self._lock:
            if self._running_since is not None:
                raise ConflictError(f"a sync is in progress for {time.monotonic() - self._running_since:.1f} s; wanted one at a time")
            endpoints = tuple(self._endpoints.values())
            if not endpoints:
                raise InputError("there are no endpoints; wanted POST /add_inference_endpoint first")
            self._running_since = time.monotonic()
        try:
            answer = self._run(endpoints, arguments, size, version)
        except Exception as error:
            self._end(str(error))
            raise
        except BaseException:
            self._end("interrupted")
            raise
        self._end("")
        return answer

    def health(self):
        with self._lock:
            return {"status": "ok", "num_endpoints": len(self._endpoints), "syncing": self._running_since is not None,
                    "syncs_completed": self._completed, "syncs_failed": self._failed, "last_error": self._last_error}

    def close(self):
        if self._sync is not None:
            self._sync.close()

    def _end(self, error):
        with self._lock:
            self._running_since, self._last_error = None, error
            self._failed += bool(error)
            self._completed += not error

    def _read_arguments(self, body):
        """Of WeightSync, those that a request may set."""
        found = dict(self.defaults)
        found.pop("buffer_size_mb", None)
        found["master_port"] = read_port(body, "master_port", found.get("master_port", 0))
        for name, kind in (("master_address", str), ("group_name", str), ("pause_mode", str), ("policy", str), ("flush_cache", bool)):
            value = read(body, name, kind, None)
            if value is not None and value != "":
                found[name] = value
        address, usual = found.get("master_address"), self.defaults.get("master_address")
        if address not in (None, usual, *self.hosts):
            raise InputError(f"master_address is {address!r}; wanted one of {', '.join(sorted({*self.hosts, usual or '127.0.0.1'}))}")
        if found.get("pause_mode") not in (None, *MODES):
            raise InputError(f"pause_mode is {found['pause_mode']!r}; wanted {', '.join(MODES)}")
        return found

    def _run(self, endpoints, arguments, size, version):
        begun = time.monotonic()
        if self._sync is None or self._sync_of != (endpoints, arguments):
            if self._sync is not None:
                self._sync.close()
            self._sync, self._sync_of = None, None  # where the next line refuses
            self._sync = self.make_sync(endpoints, limits=self.limits, **arguments)
            self._sync_of = (endpoints, arguments)
        result = self._sync.sync(self.weights(), weight_version=version, buffer_size_mb=size)
        return {"success": True, "status": "ok", "message": "the new weights serve", "transfer_time": round(time.monotonic() - begun, 6),
                "total_bytes": result.total_bytes, "num_parameters": result.num_tensors, "num_buckets": result.num_buckets,
                "timing_breakdown": {name: round(s, 6) for name, s in result.seconds.items()},
                "endpoints_synced": [{"host": e.host, "port": e.port, "success": True, "message": "",
                                      "weight_version": result.weight_versions.get(str(e))} for e in endpoints]}
