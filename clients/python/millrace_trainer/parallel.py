"""Calls on threads of their own, waited for with a limit. The threads are daemons: one that is stuck in a call of PyTorch
holds up neither the caller nor the end of the process."""
import threading
import time

from .errors import LimitError


class Task:
    """One call. `result` or `error` is set when `done` is."""

    def __init__(self, call):
        self.result, self.error, self.done = None, None, threading.Event()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call):
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001: it is the caller's
            self.error = error
        finally:
            self.done.set()


def call_all(calls, limit_s, what):
    """All calls at the same time; (result, error) of each, where one is None. A call that needs longer has a LimitError."""
    tasks = [Task(call) for call in calls]
    deadline = time.monotonic() + limit_s
    outcomes = []
    for task in tasks:
        if task.done.wait(max(0.0, deadline - time.monotonic())):
            outcomes.append((task.result, task.error))
        else:
            outcomes.append((None, LimitError(f"{what} took more than {limit_s:g} s")))
    return outcomes


def first_error(outcomes):
    return next((error for _, error in outcomes if error is not None), None)
