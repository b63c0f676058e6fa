"""Whether kernels are compiled or interpreted: decided once, before any is defined; the user can override it.

What is decided when a process starts is tried in processes of their own, all at once; they see no GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lessons_lib.kernels import triton_setup as triton_mode

LIBRARY = Path(__file__).resolve().parents[2]

SHOW = """
print(type(tl.max).__name__, type(add_kernel).__name__, triton_mode.is_interpreted(), triton_mode.kernel_device())
print(triton_mode.how_kernels_run())
"""
ADDITION = f"""
x, out = torch.randn(16), torch.zeros(16)
add_kernel[(2,)](x, x, out, 10, BLOCK=8)
assert torch.equal(out[:10], 2 * x[:10]) and not out[10:].any(), "not the sum"
{SHOW}"""
IMPORTS = (
    "import torch; from lessons_lib.kernels import triton_setup as triton_mode; from lessons_lib.kernels.basics import "
    "add_kernel"
)
HEAVY = "print([name for name in ('transformers', 'matplotlib', 'ipywidgets', 'IPython') if name in sys.modules])"

# name -> TRITON_INTERPRET, code
PROCESSES = {
    "undecided": (None, f"import sys, triton.language as tl\n{IMPORTS}\n{ADDITION}{HEAVY}"),
    "interpreted, by the user, after Triton": (
        None,
        f"import os, triton.language as tl; os.environ['TRITON_INTERPRET'] = '1'; {IMPORTS}\n{ADDITION}",
    ),
    "compiled, by the user": ("0", f"import triton.language as tl; {IMPORTS}\n{SHOW}"),
}


@pytest.fixture(scope="module")
def printed():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(LIBRARY)}
    environment.pop("TRITON_INTERPRET", None)
    started = {}
    for name, (interpret, code) in PROCESSES.items():
        own = environment | ({"TRITON_INTERPRET": interpret} if interpret else {})
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started[name] = subprocess.Popen([sys.executable, "-c", code], env=own, **pipes)
    lines = {}
    for name, process in started.items():
        out, err = process.communicate(timeout=200)
        lines[name] = out.splitlines() if process.returncode == 0 else [err[-2000:]]
    return lines


@pytest.mark.parametrize("name", ["undecided", "interpreted, by the user, after Triton"])
def test_without_a_gpu_kernels_are_interpreted_whatever_imported_triton_first(printed, name):
    types, sentence = printed[name][:2]
    assert types == "InterpretedFunction InterpretedFunction True cpu"
    assert "interpreted on the CPU" in sentence and "nothing about speed" in sentence


def test_a_user_who_wants_compiled_kernels_gets_them_or_a_reason(printed):
    types, sentence = printed["compiled, by the user"]
    assert types == "JITFunction JITFunction False cpu"
    assert "interpreted on" not in sentence and "no GPU, and TRITON_INTERPRET=0" in sentence


def test_importing_costs_little_more_than_triton(printed):
    assert printed["undecided"][2:] == ["[]"]


@pytest.mark.parametrize("value, expected", [("1", True), ("0", False), ("", False), (None, False)])
def test_what_counts_as_interpreted(monkeypatch, value, expected):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    assert triton_mode.is_interpreted() == expected


def test_with_a_gpu_nothing_is_decided_and_without_one_the_user_is_not_overruled(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton_mode, "interpret_library", lambda: pytest.fail("the library was touched"))
    monkeypatch.setattr(triton_mode.torch.cuda, "is_available", lambda: True)
    triton_mode.prepare_triton()
    assert "TRITON_INTERPRET" not in os.environ and triton_mode.kernel_device() == "cuda"
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(triton_mode.torch.cuda, "is_available", lambda: False)
    triton_mode.prepare_triton()
    assert os.environ["TRITON_INTERPRET"] == "0"
