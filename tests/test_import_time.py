"""`import lessons_lib` is cheap: it loads none of the heavy libraries. The schedulers load no library at all."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "matplotlib", "numpy", "ipywidgets", "triton")


@pytest.mark.parametrize("module", ["lessons_lib", "course", "tools.install", "tools.doctor"])
def test_importing_loads_nothing_heavy(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["lessons_lib.scheduling", "lessons_lib.viz.engine_room.room"])
def test_the_schedulers_need_nothing_but_python(module):
    code = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name.partition(".")[0] for name in loaded.stdout.split()}
    assert found - sys.stdlib_module_names == {"lessons_lib"}


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "5"}])
def test_threads_leave_a_core_free_and_spin_briefly_unless_told_otherwise(given):
    wanted = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) - 1)), "GOMP_SPINCOUNT": "10000"} | given
    environment = {name: value for name, value in os.environ.items() if name not in wanted} | given
    code = "import os, lessons_lib, torch; print(os.environ['GOMP_SPINCOUNT'], torch.get_num_threads())"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [wanted["GOMP_SPINCOUNT"], wanted["OMP_NUM_THREADS"]]
