"""Runs code that may loop forever, raise anything, or print endlessly."""

import contextlib
import ctypes
import io
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.checks.endless import Looks, StuckCall

TOTAL = 4  # a test of several cases may take so many times as long as one of them
WAITING = 10  # and code that waits so many times as long; it computes for less than IDLE of this time
IDLE = 0.05


class TimeLimit(BaseException):
    """Raised inside code that ran too long. A BaseException, so that `except Exception` does not catch it."""


@dataclass
class Outcome:
    """How a guarded call ended.

    Attributes:
        error: what it raised, or None.
        printed: the first characters that it wrote to stdout and stderr.
        timed_out: whether it was stopped because it ran too long.
        is_slow: if so, whether its cases together took too long, and none of them alone.
        stuck_calls: if it was stopped, the calls that didn't return, the innermost last.
    """

    error: BaseException | None
    printed: str
    timed_out: bool
    is_slow: bool = False
    stuck_calls: list[StuckCall] = field(default_factory=list)


class Stopwatch:
    """The seconds that code has computed: in all, and in the case that it is at.

    The processor time of this process counts, not the clock: a right answer must not fail because other programs run.
    Where several threads compute, processor time passes faster than the clock; then the clock counts. We don't take the
    thread's own processor time, because macOS and Windows don't tell it for another thread, and because it leaves out
    the threads that the code starts.
    """

    def __init__(self) -> None:
        self.began = self.case_began = self._now()

    def restart(self) -> None:
        """A new case begins."""
        self.case_began = self._now()

    @property
    def of_case(self) -> float:
        return min(now - began for now, began in zip(self._now(), self.case_began))

    @property
    def in_all(self) -> float:
        return min(now - began for now, began in zip(self._now(), self.began))

    def has_waited(self, seconds: float) -> bool:
        """Whether so much time has passed, nearly all of it without computing. On a busy machine, code that computes
        gets little of the processor, but more than code that waits takes."""
        passed = self._now()[0] - self.began[0]
        return passed > seconds and self.in_all < IDLE * passed

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.monotonic(), time.process_time()


class _FirstCharacters(io.TextIOBase):
    """A text stream that keeps the first `limit` characters and drops the rest."""

    def __init__(self, limit: int):
        self.limit, self.kept = limit, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.kept += text[: self.limit - len(self.kept)]
        return len(text)


def run_guarded(
    function: Callable[[], object], seconds: float, keep: int = 600, stopwatch: Stopwatch | None = None
) -> Outcome:
    """Run `function()` in a separate thread, at most `seconds` for a case.

    The seconds are those of `Stopwatch`; a new case begins where its `restart` is called. The whole may take `TOTAL`
    times as long. A function that waits instead of computing is stopped after `WAITING` times as long.

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

    printed, stopwatch = _FirstCharacters(keep), stopwatch or Stopwatch()
    thread = threading.Thread(target=body, daemon=True)
    looks = Looks()
    # redirect_stdout alone is not enough: warnings that the attempt writes late must not reach a grader's stderr.
    stdout, stderr = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = printed
    try:
        with warnings.catch_warnings(), _displayed_to(printed), _one_thread():
            timed_out = not _finishes(thread, seconds, stopwatch, looks)
            is_slow = timed_out and stopwatch.of_case < seconds < stopwatch.in_all
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
    error = errors[0] if errors else None
    return Outcome(error, printed.kept, timed_out, is_slow, looks.stuck_calls() if timed_out else [])


def _finishes(thread: threading.Thread, seconds: float, stopwatch: Stopwatch, looks: Looks) -> bool:
    """Start a thread, and see whether it finishes in time. In the last half of its time, look where it is."""
    before = {each.ident for each in threading.enumerate()}
    if sys.platform == "emscripten":  # a browser's Python can't start threads; there, stop the kernel instead
        thread.run()
        return True
    thread.start()
    case = stopwatch.case_began
    while (left := min(seconds - stopwatch.of_case, TOTAL * seconds - stopwatch.in_all)) > 0:
        thread.join(max(min(left, seconds / 100), 0.01))
        if not thread.is_alive() or stopwatch.has_waited(WAITING * seconds):
            break
        if stopwatch.case_began is not case:
            case, looks.calls = stopwatch.case_began, None
        if stopwatch.of_case > seconds / 2:
            looks.look(_computing(before) or thread.ident or 0)
    if thread.is_alive():
        looks.look(_computing(before) or thread.ident or 0)
    return not thread.is_alive()


def _computing(before: set[int | None]) -> int | None:
    """The last thread started since that doesn't wait for another: code that is stuck may have threads of its own."""
    frames = sys._current_frames()
    idents = [each.ident for each in threading.enumerate() if each.ident in frames and each.ident not in before]
    busy = [each for each in idents if each and frames[each].f_code.co_filename != threading.__file__]
    return busy[-1] if busy else None


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch computes in one thread: with several on a busy machine, each waits for the others most of the time, and
    the waiting counts as computing."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _displayed_to(printed: io.TextIOBase) -> Iterator[None]:
    """In a notebook, `display` sends its output past stdout. Here it is printed as text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        yield
        return
    from IPython.core.displaypub import DisplayPublisher

    class Printer(DisplayPublisher):
        def publish(self, data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            print(data.get("text/plain", ""), file=printed)

    before, shell.display_pub = shell.display_pub, Printer()
    try:
        yield
    finally:
        shell.display_pub = before


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
