"""An attempt that doesn't end is stopped, and the message names the loop in the learner's cell."""

import itertools
import linecache
import textwrap
import threading
import time

import pytest
import torch

from lessons_lib.checks.exercise import Exercise, call, current_case
from lessons_lib.checks.judge import describe, judge
from lessons_lib.checks.sandbox import Stopwatch
from lessons_lib.kernels import triton_setup

SECONDS = 0.2
numbers = itertools.count()


def cell(source, name="attempt", **names):
    """What a cell of a notebook defines."""
    source = textwrap.dedent(source)
    filename = f"/tmp/ipykernel_7/{next(numbers)}.py"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    names = dict(torch=torch, itertools=itertools, time=time, threading=threading, __name__="__main__") | names
    exec(compile(source, filename, "exec"), names)
    return names[name]


def message(attempt, test=lambda attempt: call(attempt, case="a case"), seconds=SECONDS):
    exercise = Exercise("77.1", "Toy", "toy_endless:attempt", test, (), time_limit=seconds)
    outcome, case = judge(exercise, attempt)
    return str(describe(exercise, outcome, case, attempt))


@pytest.fixture(autouse=True)
def toy_endless(tmp_path, monkeypatch):
    (tmp_path / "toy_endless.py").write_text("def attempt():\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))


HELPER = """
    def walk(n):
        while n:
            n += 1

    def attempt():
        return walk(1)
"""
THREAD = """
    def work():
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass

    def attempt():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
"""
LOOPS = {
    "thread": (THREAD, "loop at line 4 of your cell, in `work`: `while time"),
    "while": ("def attempt():\n    n = 1\n    while n:\n        n += 1\n", "loop at line 3 of your cell: `while n:`"),
    "helper": (HELPER, "loop at line 3 of your cell, in `walk`: `while n:`"),
    "calls": (
        "def attempt():\n    n = 9\n    while n > 0:\n        n = half(n) + 1\n\ndef half(n):\n    return sum(range(n)) // n\n",
        "loop at line 3 of your cell: `while n > 0:`",
    ),
    "inner for": (
        "def attempt():\n    left = True\n    while left:\n        for i in range(9999):\n            i * i\n",
        "loop at line 3 of your cell: `while left:`",
    ),
    "for": (
        "def attempt():\n    x = 1\n    for i in itertools.cycle([1]):\n        x += i\n",
        "loop at line 3 of your cell: `for i in itertools.cycle([1]):`",
    ),
    "list": (
        "def attempt():\n    n = 0\n    return [n for _ in itertools.count() if n]\n",
        "loop at line 3 of your cell: `return [n for _ in itertools.count() if n]`",
    ),
    "generator": (
        "def attempt():\n    return all(\n        i >= 0 for i in itertools.count()\n    )\n",
        "loop at line 3 of your cell: `i >= 0 for i in itertools.count()`",
    ),
    "torch": (
        "def attempt():\n    x = torch.ones(200, 200)\n    while x.sum() > 0:\n        x = torch.softmax(x @ x, dim=-1)\n",
        "loop at line 3 of your cell: `while x.sum() > 0:`",
    ),
    "method": ("class P:\n    def get(self):\n        while True:\n            self.n = 1\n\nattempt = lambda: P().get()\n", "loop at line 3 of your cell, in `get`: `while True:`"),
    "lambda": ("attempt = lambda: [0 for _ in iter(int, 1) if _]", "loop at line 1 of your cell: `attempt = lambda"),
    "waits": ("def attempt():\n    time.sleep(0.05)\n    time.sleep(0.8)\n", "It was at line 3 of your cell: `time.sleep(0.8)`"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_is_named(name):
    source, says = LOOPS[name]
    said = message(cell(source), seconds=0.05 if name == "waits" else SECONDS)
    assert "Is there an infinite loop?" in said and says in said and "Smallest case: a case" in said


def test_a_loop_in_an_interpreted_kernel_is_named():
    triton = pytest.importorskip("triton")
    triton_setup.prepare_triton()
    import triton.language as tl

    source = "@triton.jit\ndef kernel(out):\n    i = tl.load(out)\n    while i < 5:\n        i = i * 1\n"
    kernel = cell(source, "kernel", triton=triton, tl=tl)
    said = message(kernel, lambda attempt: attempt[(1,)](torch.zeros(1)), seconds=0.4)
    assert "loop at line 4 of your cell" in said and "`while i < 5:`" in said


def test_a_call_that_always_returns_is_not_blamed():
    def test(attempt):
        while True:
            attempt()

    said = message(cell("def attempt():\n    return 1\n"), test)
    assert "Each call of your code returned." in said and "line" not in said


def test_each_case_has_its_own_time():
    """Ten cases take longer together than one may: a slow machine doesn't make a right answer wrong."""

    def test(attempt):
        for index in range(10):
            current_case.text = f"case {index}"
            attempt()

    def taking(seconds):
        def attempt():
            began = time.process_time()
            while time.process_time() - began < seconds:
                pass

        return attempt

    assert "correct" in message(taking(0.03), test, seconds=0.2)
    assert "stopped after 0.4 seconds for all cases" in message(taking(0.08), test, seconds=0.1)


@pytest.mark.parametrize("computed, has_waited", [(0.1, True), (9.0, False)])
def test_code_that_gets_little_of_a_busy_machine_does_not_wait(monkeypatch, computed, has_waited):
    now = [(0.0, 0.0), (60.0, computed)]
    monkeypatch.setattr(Stopwatch, "_now", staticmethod(lambda: now[0] if len(now) == 1 else now.pop(0)))
    assert Stopwatch().has_waited(50) == has_waited


def test_an_answer_computes_in_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        message(lambda: seen.append(torch.get_num_threads()))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("source", ["print(i)", "sys.stderr.write(f'{i}\\n')", "display(i)"])
def test_ten_lines_of_output_are_shown(source):
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.instance()
    try:
        lines = f"import sys\nfrom IPython.display import display\n\ndef attempt():\n    for i in range(99):\n        {source}\n    1 / 0\n"
        said = message(cell(lines)).split("Your code printed:\n")[1]
    finally:
        InteractiveShell.clear_instance()
    assert len(said.splitlines()) == 11 and said.splitlines()[-1].strip() == "..."
