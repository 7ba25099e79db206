"""WeightSync: new weights for all endpoints in one update, in two phases.

    check -> join -> [pause] -> prepare -> broadcast, bucket by bucket -> all staged -> complete -> [continue]

Endpoints share one group: the trainer is rank 0, each endpoint has the next `world_size` ranks. The group is kept for the next
sync. Any failure before `complete` aborts the update on all endpoints, whose old weights serve on; the next sync makes a new group.

Thread safety: sync() and close() from any thread; one sync at a time, a second one is a ConflictError.
"""
import contextlib
import mmap
import threading
import time
from dataclasses import dataclass, field

from .broadcast import TorchBroadcaster
from .buckets import buffer_bytes, fill_buckets
from .errors import BroadcastError, ConflictError, EndpointError, InputError, LimitError, PartialSyncError, TrainerError
from .parallel import Task, call_all, first_error
from .tensors import as_tensors

DEFAULT_BUFFER_MB = 1024
MODES = ("abort", "retract", "in_place")
RECEIVING, STAGED = ("receiving", "staged"), ("staged",)
CONTINUE_TRIES = 3
LOOK_S = 0.05  # between two looks at what is expected at once


@dataclass(frozen=True)
class Limits:
    """Seconds. Every wait of a sync has one."""

    status_s: float = 10    # /weights_update_status
    ready_s: float = 60     # until every replica is ready to join: one may be restarting
    join_s: float = 120     # until all ranks are in the group
    pause_s: float = 60     # /pause_generation, and each try of /continue_generation
    prepare_s: float = 60
    bucket_s: float = 120   # the broadcast of one bucket
    staged_s: float = 300   # from the last broadcast until every endpoint has staged the weights
    complete_s: float = 360
    abort_s: float = 30
    poll_s: float = 0.5     # between two looks at the endpoints while a bucket or the staging takes long


@dataclass
class SyncResult:
    num_tensors: int
    num_buckets: int
    total_bytes: int
    weight_versions: dict  # of each endpoint: "host:port" to the version that serves
    seconds: dict = field(default_factory=dict)  # of each phase


def check_mode(name, value, optional):
    if value not in MODES and not (optional and value is None):
        raise InputError(f"{name} is {value!r}; wanted {', '.join(MODES)}{' or None' if optional else ''}")


class WeightSync:
    """`pause_mode`: generation is paused for the sync in this mode (docs/weights.md); None: it goes on. `policy`: what becomes of
    requests that run at the switch. `dtype`: PyTorch tensors are sent as this one, None: as they are. `broadcaster`: makes rank 0
    of a group. `master_address`: this host, as the endpoints reach it."""

    def __init__(self, endpoints, *, buffer_size_mb=DEFAULT_BUFFER_MB, master_address="127.0.0.1", master_port=0,
                 group_name="weight_sync_group", pause_mode=None, policy="in_place", flush_cache=False, dtype=None,
                 limits=None, broadcaster=TorchBroadcaster):
        self.endpoints = list(endpoints)
        if not self.endpoints:
            raise InputError("there are no endpoints; wanted at least one")
        if len(set(map(str, self.endpoints))) < len(self.endpoints):
            raise InputError(f"an endpoint comes twice in {', '.join(map(str, self.endpoints))}; wanted each once")
        buffer_bytes(buffer_size_mb)
        check_mode("pause_mode", pause_mode, optional=True)
        check_mode("policy", policy, optional=False)
        if isinstance(master_port, bool) or not isinstance(master_port, int) or not 0 <= master_port <= 65535:
            raise InputError(f"master_port is {master_port!r}; wanted an integer from 0 to 65535, 0 for a free one")
        if not isinstance(master_address, str) or not master_address:
            raise InputError(f"master_address is {master_address!r}; wanted this host's address")
        if not isinstance(group_name, str) or not 0 < len(group_name.encode()) <= 200:
            raise InputError(f"group_name is {group_name!r}; wanted 1 to 200 bytes")
        self.buffer_size_mb, self.master_address, self.master_port = buffer_size_mb, master_address, master_port
        self.group_name, self.pause_mode, self.policy, self.flush_cache = group_name, pause_mode, policy, bool(flush_cache)
        self.dtype, self.limits, self.make_broadcaster = dtype, limits or Limits(), broadcaster
        self.world_size = 1 + sum(endpoint.world_size for endpoint in self.endpoints)
        self._lock = threading.Lock()
        self._group = self._name = None  # the broadcaster that has joined, and the name of its group
        self._begun = []  # endpoints that may have an update of this trainer under way
        self._kept = False  # the group is one of an earlier sync

    def sync(self, weights, *, weight_version=None, buffer_size_mb=None):
        """Sends them and returns when every endpoint serves them. `weights`: see as_tensors()."""
        if not self._lock.acquire(blocking=False):
            raise ConflictError("a sync is in progress; wanted one at a time")
        try:
            if weight_version is not None and (isinstance(weight_version, bool) or not isinstance(weight_version, (int, str))):
                raise InputError(f"weight_version is {weight_version!r}; wanted a string or an integer")
            size = self.buffer_size_mb if buffer_size_mb is None else buffer_size_mb
            buckets = fill_buckets(as_tensors(weights, self.dtype), size)
            self._seconds = {}
            with self._phase("check"):
                self._check_endpoints()
            self._join()
            with self._paused():
                try:
                    self._transfer(buckets)
                except BaseException as error:
                    self._abort(error)
                    raise
                versions = self._complete(buckets, weight_version)
            return SyncResult(sum(len(b.tensors) for b in buckets), len(buckets), sum(b.nbytes for b in buckets), versions, self._seconds)
        finally:
            self._lock.release()

    def close(self):
        """Leaves the group, on the endpoints too. The next sync joins again. A sync that runs has abort_s to end; else it goes on."""
        limit_s = self.limits.abort_s
        if not self._lock.acquire(timeout=limit_s):
            return
        try:
            if self._group is not None:
                body = {"group_name": self._name}
                self._call(lambda e: e.post("/destroy_weights_update_group", body, limit_s), limit_s, "destroying the group")
                self._drop_group()
        finally:
            self._lock.release()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- the phases -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _phase(self, name):
        begun = time.monotonic()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - begun

    def _call(self, call, limit_s, what):
        """(result, error) of every endpoint."""
        return call_all([lambda e=e: call(e) for e in self.endpoints], limit_s + 1, what)

    def _check_endpoints(self):
        """Finds what would else be found when a join reaches its limit."""

        def check(endpoint):
            state = endpoint.update_status(self.limits.status_s)["state"]
            if state != "idle":
                raise ConflictError(f"{endpoint} is {state}; wanted idle: another update is under way (/abort_weights_update ends it)")

        self._raise(self._call(check, self.limits.status_s, "checking the endpoints"))

    def _join(self):
        self._kept = self._group is not None
        if not self._kept:
            with self._phase("join"):
                self._make_group()

    def _make_group(self):
        self._raise(self._call(lambda e: e.wait_ready(self.limits.ready_s), 2 * self.limits.ready_s, "waiting for the replicas"))
        group = self.make_broadcaster()
        self._name = group.free_name(self.group_name)
        try:
            limits = self.limits
            try:
                port = group.listen(self.master_address, self.master_port, self.world_size, self._name, max(limits.join_s, limits.bucket_s))
            except Exception as error:
                raise TrainerError(f"no store at {self.master_address}:{self.master_port}: {error}; wanted this host's address and a free port, or 0") from error
            requests = self._post_inits(port)
            own = Task(group.join)
            self._wait_joined([*requests, own])
        except BaseException:
            group.close()
            self._name = None
            raise
        self._group = group

    def _post_inits(self, port):
        requests, written, rank = [], [], 1
        for endpoint in self.endpoints:
            body = {"master_address": self.master_address, "master_port": port, "rank_offset": rank, "world_size": self.world_size,
                    "group_name": self._name, "backend": "gloo"}
            rank += endpoint.world_size
            sent = threading.Event()
            written.append(sent)
            requests.append(Task(lambda e=endpoint, b=body, s=sent: e.post("/init_weights_update_group", b, self.limits.join_s, s)))
        # PyTorch 1.13 keeps Python's lock while rank 0 waits for the others: the requests go first.
        for sent in written:
            sent.wait(self.limits.status_s)
        return requests

    def _wait_joined(self, tasks):
        deadline = time.monotonic() + self.limits.join_s
        waiting = list(tasks)
        while waiting:
            waiting[0].done.wait(LOOK_S)
            for task in [t for t in waiting if t.done.is_set()]:
                waiting.remove(task)
                if task.error is not None:  # the others would wait for a rank that does not come
                    raise task.error
            if waiting and time.monotonic() > deadline:
                raise LimitError(f"the group of {self.world_size} ranks was not complete within join_s {self.limits.join_s:g} s")

    @contextlib.contextmanager
    def _paused(self):
        if self.pause_mode is None:
            yield
            return
        paused = False
        try:
            with self._phase("pause"):
                body = {"mode": self.pause_mode}
                self._raise(self._call(lambda e: e.post("/pause_generation", body, self.limits.pause_s), self.limits.pause_s, "pausing"))
            paused = True
            yield
        finally:  # where the update failed too: the old weights are complete
            self._continue(paused)

    def _continue(self, paused):
        error = None
        for _ in range(CONTINUE_TRIES):
            error = first_error(self._call(lambda e: e.post("/continue_generation", {}, self.limits.pause_s), self.limits.pause_s, "continuing"))
            if error is None:
                return
        if paused:
            raise EndpointError(f"generation is paused: /continue_generation failed {CONTINUE_TRIES} times: {error}")

    def _transfer(self, buckets):
        try:
            self._begun = list(self.endpoints)
            self._prepare(buckets)
            self._send_all(buckets)
        except BroadcastError as error:
            if not self._kept:
                raise
            self._abort(error)  # a replica was lost and started again since the last sync, which went on without it: a new group, once
            self._join()
            self._transfer(buckets)

    def _prepare(self, buckets):
        body = {"buckets": [bucket.describe() for bucket in buckets], "num_buckets": len(buckets), "load_format": "flattened_bucket"}
        limit_s = self.limits.prepare_s
        while True:
            body["group_name"] = self._name
            with self._phase("prepare"):
                outcomes = self._call(lambda e: e.post("/prepare_weights_update", body, limit_s), limit_s, "preparing")
            # One that refused may be another trainer's, whose update goes on. One that did not answer may have begun.
            self._begun = [e for e, (_, error) in zip(self.endpoints, outcomes) if not getattr(error, "refused", False)]
            error = first_error(outcomes)
            if error is None:
                return
            if not self._kept:
                raise error
            self._abort(error)  # an endpoint that was started again is in no group: a new one, once
            self._join()

    def _send_all(self, buckets):
        with self._phase("broadcast"):
            buffer = mmap.mmap(-1, max(bucket.nbytes for bucket in buckets))  # pages come as they are written; a bytearray is zeroed first
            for number, bucket in enumerate(buckets, 1):
                view = bucket.write_into(buffer)
                self._send(view, f"bucket {number} of {len(buckets)} ({bucket.nbytes} bytes)")
        with self._phase("staged"):
            self._wait_staged()

    def _send(self, view, what):
        """PyTorch does not see that a receiver closed its connection: the endpoints are asked meanwhile."""
        group = self._group
        task = Task(lambda: group.broadcast(view))
        deadline = time.monotonic() + self.limits.bucket_s
        while not task.done.wait(self.limits.poll_s):
            if time.monotonic() > deadline:
                raise LimitError(f"the broadcast of {what} took more than bucket_s {self.limits.bucket_s:g} s")
            self._look(RECEIVING, what)
        if task.error is not None:
            raise BroadcastError("; ".join([f"the broadcast of {what} failed: {type(task.error).__name__}: {task.error}", *self._reasons()]))

    def _reasons(self):
        """Of the endpoints that have given up."""
        outcomes = self._call(lambda e: e.update_status(self.limits.status_s), self.limits.status_s, "asking for the state")
        return [f"{endpoint} is {status['state']}: {status.get('last_error')}" for endpoint, (status, error) in zip(self.endpoints, outcomes)
                if error is None and status["state"] not in RECEIVING]

    def _look(self, wanted, what):
        """The states of all endpoints, "" of one that did not answer in time. EndpointError where one has given up."""
        states = []
        for endpoint, (status, error) in zip(self.endpoints, self._call(
                lambda e: e.update_status(self.limits.status_s), self.limits.status_s, "asking for the state")):
            if isinstance(error, LimitError):
                states.append("")
                continue
            if error is not None:
                raise error
            if status["state"] not in wanted:
                raise EndpointError(f"{endpoint} is {status['state']} at {what}; wanted {' or '.join(wanted)}: {status.get('last_error')}")
            states.append(status["state"])
        return states

    def _wait_staged(self):
        """No endpoint is asked to switch before all can."""
        deadline = time.monotonic() + self.limits.staged_s
        pause, seconds = threading.Event(), LOOK_S
        while any(state not in STAGED for state in self._look(RECEIVING, "staging")):
            if time.monotonic() > deadline:
                raise LimitError(f"the endpoints did not stage the weights within staged_s {self.limits.staged_s:g} s")
            pause.wait(seconds)
            seconds = min(1.25 * seconds, max(LOOK_S, self.limits.poll_s))

    def _complete(self, buckets, weight_version):
        body = {"group_name": self._name, "flush_cache": self.flush_cache, "policy": self.policy}
        if weight_version is not None:
            body["weight_version"] = weight_version
        with self._phase("complete"):
            outcomes = self._call(lambda e: e.post("/complete_weights_update", body, self.limits.complete_s), self.limits.complete_s, "completing")
        versions, faults = {}, []
        for endpoint, (answer, error) in zip(self.endpoints, outcomes):
            received = None if answer is None else answer.get("num_buckets_received")
            if error is not None:
                faults.append((endpoint, str(error)))
            elif received != len(buckets):
                faults.append((endpoint, f"{endpoint} received {received} buckets; wanted {len(buckets)}"))
            else:
                versions[str(endpoint)] = answer.get("weight_version")
        if faults:
            message = "; ".join(text for _, text in faults)
            error = EndpointError(message) if not versions else PartialSyncError(
                f"{message}. {', '.join(versions)} serve the new weights: sync again", list(versions), [str(e) for e, _ in faults])
            self._abort(error)
            raise error
        return versions

    # ---- failures -------------------------------------------------------------------------------------------------

    def _abort(self, cause):
        """Ends the update where it has begun. An endpoint with nothing to abort refuses, which is as good. What an endpoint received in
        part ends its group, so that the next sync makes another one."""
        begun, self._begun = self._begun, []
        body, limit_s = {"group_name": self._name}, self.limits.abort_s
        outcomes = call_all([lambda e=e: e.abort_update(body, limit_s) for e in begun], 2 * limit_s + 1, "aborting")
        self._drop_group()
        unavailable = [str(error) for _, error in outcomes if error is not None]
        if unavailable and hasattr(cause, "add_note"):
            cause.add_note("the abort failed too, the endpoint's own limits end the update: " + "; ".join(unavailable))

    def _drop_group(self):
        group, self._group, self._name = self._group, None, None
        if group is not None:
            with contextlib.suppress(Exception):  # the failure that ends it is reported already
                group.close()

    @staticmethod
    def _raise(outcomes):
        error = first_error(outcomes)
        if error is not None:
            raise error
