"""`import lessons_lib` is cheap: it loads none of the heavy libraries."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "matplotlib", "numpy", "ipywidgets", "triton")


@pytest.mark.parametrize("module", ["lessons_lib", "course", "tools.install", "tools.doctor"])
def test_importing_loads_nothing_heavy(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
