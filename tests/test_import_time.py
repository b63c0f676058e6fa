"""`import lessons_lib` is cheap, and the schedulers run in a browser: neither loads any of the heavy libraries."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "matplotlib", "numpy", "ipywidgets", "triton")


@pytest.mark.parametrize("module", ["lessons_lib", "lessons_lib.scheduling", "course", "tools.install", "tools.doctor"])
def test_importing_loads_nothing_heavy(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "5"}])
def test_threads_leave_a_core_free_and_spin_briefly_unless_told_otherwise(given):
    wanted = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) - 1)), "GOMP_SPINCOUNT": "10000"} | given
    environment = {name: value for name, value in os.environ.items() if name not in wanted} | given
    code = "import os, lessons_lib, torch; print(os.environ['GOMP_SPINCOUNT'], torch.get_num_threads())"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [wanted["GOMP_SPINCOUNT"], wanted["OMP_NUM_THREADS"]]
