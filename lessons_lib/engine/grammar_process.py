"""Lesson 12: a process that compiles a stranger's grammar before this one does.

llguidance is native code. A deep grammar overflows its stack, which ends the process; another one keeps it busy for
minutes. So a separate process compiles each grammar first, with less stack and within limits of time and memory. If it
survives, compiling the grammar here is safe. That process runs this file alone: importing torch would take seconds.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

COMPILE_SECONDS = 0.5  # of CPU time, so a busy machine refuses nothing that an idle one takes
MASK_SECONDS = 0.02  # of CPU time, to find which tokens can be next: all requests of a step wait for it; usual is 1 ms
PATIENCE = 60.0  # seconds until an answer, also of a machine that is busy or out of memory
STACK_BYTES = 2**21  # of the thread that compiles; usual threads have 4 times as much
MEMORY_BYTES = 2**29  # more than the process has once it knows the vocabulary
# llguidance ends a request whose grammar exceeds them, at the latest in the step in which it does.
LIMITS = {"max_lexer_states": 50_000, "step_lexer_fuel": 100_000, "step_max_items": 2_000, "verbose_errors": False}


class GrammarProcess:
    """Compiles grammars for one vocabulary. The process starts with the first grammar, and again after one that has
    ended it. It ends with this one.

    Attributes:
        vocabulary: what LLTokenizer takes: the tokenizer as JSON, the size, the end tokens.
        process: a subprocess.Popen; None if none runs.
    """

    def __init__(self, vocabulary: list[Any]):
        self.vocabulary = vocabulary
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._finalizer: Any = None

    def error_of(self, grammar: str) -> str | None:
        """Compile a grammar there.

        Returns:
            why it can't be used; None if it can. Any thread may call this; one waits for the other.
        """
        with self._lock:
            try:
                process = self.process or self._start()
                answer = _exchange(process, grammar)
            except BaseException:
                self._end()  # an interrupt, or it doesn't start: an answer that comes later belongs to nothing
                raise
            if answer is None:
                return self._how_it_ended()
            return json.loads(answer) or None

    def _start(self) -> "subprocess.Popen[bytes]":
        self.process = process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to all processes of a session's foreground group
        )
        self._finalizer = weakref.finalize(self, _kill, process)
        path = [part or os.getcwd() for part in sys.path]
        if _exchange(process, [path, self.vocabulary, LIMITS, COMPILE_SECONDS]) is None:
            raise RuntimeError(f"the process that compiles grammars doesn't start (exit status {process.wait()}).")
        return process

    def _how_it_ended(self) -> str:
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.1)  # it has closed its end, so it is about to end
        status = self.process.poll()
        self._end()
        if status is None or status == -signal.SIGPROF:
            return f"compiling it takes more than {COMPILE_SECONDS:g} s; make it smaller."
        return "compiling it needs more stack or memory than it gets; make it less deep, or smaller."

    def _end(self) -> None:
        self.process = None
        if self._finalizer is not None:
            self._finalizer()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert pipe is not None
            pipe.close()


def _exchange(process: "subprocess.Popen[bytes]", question: Any) -> bytes | None:
    """Ask, and wait for the answer; None if the process has died, or doesn't answer."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        return None
    if not select.select([process.stdout], [], [], PATIENCE)[0]:
        return None
    line = process.stdout.readline()  # an answer is written at once
    return line if line.endswith(b"\n") else None


# The other process.


def main() -> None:
    """Run the process: read a question a line, write an answer a line."""
    path, (tokenizer, size, end_tokens), limits, seconds = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = path
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    vocabulary = LLTokenizer(tokenizer, n_vocab=size, eos_token=end_tokens)
    parser_limits = LLParserLimits(**limits)
    _bound_memory()
    threading.stack_size(STACK_BYTES)
    answer("")

    def compile_one(grammar: str) -> None:
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
            copy = matcher.deep_copy()
            start = time.thread_time()
            copy.compute_bitmask()
            if (seconds := time.thread_time() - start) > MASK_SECONDS:
                return answer(f"finding the next tokens takes {1000 * seconds:.0f} ms each time; make it smaller.")
        answer(matcher.get_error().strip())

    for line in sys.stdin.buffer:
        # If it takes longer, SIGPROF ends this process.
        with_timer = hasattr(signal, "setitimer")
        if with_timer:
            signal.setitimer(signal.ITIMER_PROF, seconds)
        thread = threading.Thread(target=compile_one, args=(json.loads(line),))
        thread.start()
        thread.join()
        if with_timer:
            signal.setitimer(signal.ITIMER_PROF, 0)


def answer(error: str) -> None:
    """Say what is wrong with a grammar; "" for nothing."""
    sys.stdout.buffer.write(json.dumps(error).encode() + b"\n")
    sys.stdout.buffer.flush()


def _bound_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # not every system can
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(10)  # requests that wait for a token go first


if __name__ == "__main__":
    main()
