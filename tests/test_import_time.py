"""`import lessons_lib` is cheap: it loads none of the heavy libraries."""

import os
import subprocess
import sys

import pytest

NOT_IN_A_BROWSER = ("torch", "transformers", "triton")
IN_A_BROWSER = (
    *("kv_cache", "kv_cache.block_pool", "kv_cache.block_serving", "scheduling", "scheduling.scheduler"),
    *("scheduling.simulator", "scheduling.policies", "models", "recording", "checks", "checks.lesson_03.scoreboard"),
    *("checks.lesson_09.scoreboard", "viz.pool", "viz.charts", "viz.timelines", "viz.tables", "viz.stepper"),
)
HEAVY = ("torch", "transformers", "matplotlib", "numpy", "ipywidgets", "triton")


@pytest.mark.parametrize("module", ["lessons_lib", "course", "tools.install", "tools.doctor"])
def test_importing_loads_nothing_heavy(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_what_lessons_03_and_09_run_in_a_browser_needs_no_torch():
    """There, no wheel of torch, transformers and Triton exists. Their exercises but 03.4 and 03.5 are about counting."""
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({NOT_IN_A_BROWSER!r}))\n"
        f"for name in {IN_A_BROWSER!r}: importlib.import_module('lessons_lib.' + name)\n"
        "from lessons_lib.checks.judge import get_exercise\n"
        "from lessons_lib.kv_cache import BlockPool\n"
        "from lessons_lib.scheduling.scheduler import share_budget\n"
        "get_exercise('03.1').test(BlockPool)\n"
        "get_exercise('09.1').test(share_budget)\n"
        "print('passed')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "passed", done.stderr


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "5"}])
def test_threads_leave_a_core_free_and_spin_briefly_unless_told_otherwise(given):
    wanted = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) - 1)), "GOMP_SPINCOUNT": "10000"} | given
    environment = {name: value for name, value in os.environ.items() if name not in wanted} | given
    code = "import os, lessons_lib, torch; print(os.environ['GOMP_SPINCOUNT'], torch.get_num_threads())"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [wanted["GOMP_SPINCOUNT"], wanted["OMP_NUM_THREADS"]]
