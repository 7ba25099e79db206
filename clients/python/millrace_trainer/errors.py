"""What can go wrong. A message states the value seen and the value wanted; `http_status` is what server.py answers."""


class TrainerError(Exception):
    http_status = 500


class InputError(TrainerError):
    """A value that the caller gave."""

    http_status = 400


class ConflictError(TrainerError):
    """Another sync runs, or an endpoint is registered with other values."""

    http_status = 409


class EndpointError(TrainerError):
    """An endpoint is unavailable, or refused a request: `refused`."""

    http_status = 502

    def __init__(self, message, refused=False):
        super().__init__(message)
        self.refused = refused


class BroadcastError(TrainerError):
    """A broadcast failed: a rank of the group is gone."""


class LimitError(TrainerError):
    """A wait reached its limit."""

    http_status = 504


class PartialSyncError(EndpointError):
    """Some endpoints serve the new weights and others the old ones: `switched` and `unswitched` name them."""

    def __init__(self, message, switched, unswitched):
        super().__init__(message)
        self.switched, self.unswitched = switched, unswitched
