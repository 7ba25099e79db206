"""InferenceEndpoint: one Millrace server, and the requests that a sync makes of it. Thread safety: values; calls share nothing."""
import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Optional

from .errors import EndpointError, InputError, LimitError

MAX_ANSWER_BYTES = 4 << 20
MAX_WORLD_SIZE = 1024  # ranks of a group, the server's limit
READ_BYTES = 64 << 10
READY_POLL_S = 0.1


@dataclass(frozen=True)
class InferenceEndpoint:
    """`world_size`: its ranks in the group, one for each replica (`--dp`). `api_key`: the server's admin key."""

    host: str
    port: int
    world_size: int = 1
    api_key: Optional[str] = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        if not isinstance(self.host, str) or not self.host:
            raise InputError(f"host is {self.host!r}; wanted the name or address of a server")
        for name, low, high in (("port", 1, 65535), ("world_size", 1, MAX_WORLD_SIZE - 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InputError(f"{name} is {value!r}; wanted an integer from {low} to {high}")

    def __str__(self):
        return f"{self.host}:{self.port}"

    def get(self, path, limit_s):
        return self._request("GET", path, None, limit_s)

    def post(self, path, body, limit_s, sent=None):
        """The answer's object. `sent`: an event that is set when the request is written, or has failed."""
        return self._request("POST", path, body, limit_s, sent)

    def _request(self, method, path, body, limit_s, sent=None):
        deadline = time.monotonic() + limit_s
        connection = http.client.HTTPConnection(self.host, self.port, timeout=limit_s)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            if sent:
                sent.set()
            response = connection.getresponse()
            return self._parse(path, response.status, self._read(response, connection, path, deadline, limit_s))
        except TimeoutError:
            raise LimitError(f"{self}{path}: no answer within {limit_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(f"{self}{path}: {type(error).__name__}: {error}; wanted a Millrace server at this address") from None
        finally:
            if sent:
                sent.set()
            connection.close()

    def _read(self, response, connection, path, deadline, limit_s):
        parts, size = [], 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise LimitError(f"{self}{path}: no complete answer within {limit_s:g} s")
            if connection.sock:  # None where the answer ends the connection and is all here
                connection.sock.settimeout(left)
            part = response.read1(READ_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise EndpointError(f"{self}{path}: an answer of more than {MAX_ANSWER_BYTES} bytes; wanted a Millrace server")

    def _parse(self, path, status, data):
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EndpointError(f"{self}{path}: status {status} with {data[:80]!r}; wanted a JSON object")
        if status == 200 and answer.get("success", True) is True:
            return answer
        error = answer.get("error")
        message = answer.get("message") or (error.get("message") if isinstance(error, dict) else None) or data[:200].decode(errors="replace")
        raise EndpointError(f"{self}{path}: status {status}: {message}", refused=400 <= status < 500)

    # ---- what a sync asks -----------------------------------------------------------------------------------------

    def update_status(self, limit_s):
        """The object of /weights_update_status; its `state` is a string."""
        status = self.get("/weights_update_status", limit_s)
        if not isinstance(status.get("state"), str):
            raise EndpointError(f"{self}/weights_update_status: no state in the answer; wanted a Millrace server")
        return status

    def abort_update(self, body, limit_s):
        """Returns when nothing is staged any more: an update that has failed by itself is idle a moment later."""
        deadline = time.monotonic() + limit_s
        try:
            self.post("/abort_weights_update", body, limit_s)
        except EndpointError as error:
            if not error.refused:
                raise
        while self.update_status(limit_s)["state"] != "idle" and time.monotonic() < deadline:
            time.sleep(READY_POLL_S)

    def unready(self, limit_s):
        """"" or which replica is not ready. InputError where the group would have more ranks than replicas, or fewer: that would be
        found only when the join reaches its limit."""
        states = self.get("/server_info", limit_s).get("internal_states")
        if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
            return ""
        if states and len(states) != self.world_size:
            raise InputError(f"{self} has {len(states)} replicas and world_size is {self.world_size}; wanted world_size {len(states)}")
        return next((f"{self}: {s.get('stage')} is {s['state']}; wanted ready" for s in states if s.get("state", "ready") != "ready"), "")

    def wait_ready(self, limit_s):
        """A join waits for every replica, and one that is restarting would not come."""
        deadline = time.monotonic() + limit_s
        while True:
            reason = self.unready(limit_s)
            if not reason:
                return
            if time.monotonic() > deadline:
                raise LimitError(f"{reason} within {limit_s:g} s")
            time.sleep(READY_POLL_S)
