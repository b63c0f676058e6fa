"""Runs code that may loop forever, raise anything, or print endlessly."""

import ctypes
import io
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass


class TimeLimit(BaseException):
    """Raised inside code that ran too long. A BaseException, so that `except Exception` does not catch it."""


@dataclass
class Outcome:
    """How a guarded call ended.

    Attributes:
        error: what it raised, or None.
        printed: the first characters that it wrote to stdout and stderr.
        timed_out: whether it was stopped because it ran too long.
    """

    error: BaseException | None
    printed: str
    timed_out: bool


class _FirstCharacters(io.TextIOBase):
    """A text stream that keeps the first `limit` characters and drops the rest."""

    def __init__(self, limit: int):
        self.limit, self.kept = limit, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.kept += text[: self.limit - len(self.kept)]
        return len(text)


def run_guarded(function: Callable[[], object], seconds: float, keep: int = 600) -> Outcome:
    """Run `function()` in a separate thread for at most `seconds`.

    The seconds are those that it has the processor: a right answer must not fail because other programs run. A function
    that waits instead of computing is stopped after ten times as long.

    We use a thread and not a process, because the learner's objects live in this process and may not be picklable. We
    don't use a signal, because Windows has no SIGALRM. Python can raise an exception in another thread, which stops any
    loop written in Python. Code that catches even that keeps running in its daemon thread; we give up on it after two
    more seconds.
    """
    errors: list[BaseException] = []

    def body() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - a learner's code may raise anything, even SystemExit
            errors.append(error)

    printed = _FirstCharacters(keep)
    thread = threading.Thread(target=body, daemon=True)
    # redirect_stdout alone is not enough: warnings that the attempt writes late must not reach a grader's stderr.
    stdout, stderr = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = printed
    try:
        with warnings.catch_warnings():
            timed_out = not _finishes(thread, seconds)
            attempts = 0
            while thread.is_alive() and attempts < 40:
                _raise_in(thread, TimeLimit)
                thread.join(0.05)
                attempts += 1
    except KeyboardInterrupt:
        _raise_in(thread, TimeLimit)
        raise
    finally:
        sys.stdout, sys.stderr = stdout, stderr
    return Outcome(errors[0] if errors else None, printed.kept, timed_out)


def _finishes(thread: threading.Thread, seconds: float) -> bool:
    """Start a thread, and see whether it finishes in time."""
    started, computed = time.monotonic(), time.process_time()
    thread.start()
    # Where several threads compute, processor time passes faster than the clock: the slower of the two counts.
    while (left := seconds - min(time.monotonic() - started, time.process_time() - computed)) > 0:
        thread.join(max(left, 0.01))
        if not thread.is_alive() or time.monotonic() - started > 10 * seconds:
            break
    return not thread.is_alive()


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
