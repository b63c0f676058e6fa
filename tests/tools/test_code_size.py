"""Lines of code, counted."""

from pathlib import Path

import pytest

from lessons_lib.measuring.code_lines import closure, code_lines, imported_modules

ROOT = Path(__file__).parents[2]

SOURCE = '''"""A docstring.

Two more lines."""

import os  # with a comment
from lessons_lib.kv_cache.block_pool import (
    BlockPool,
)


def function(a,
             b):
    """What it does."""
    # a comment
    text = """two
lines"""

    return text
'''


def test_docstrings_comments_and_blank_lines_do_not_count():
    assert code_lines(SOURCE) == 1 + 3 + 2 + 2 + 1


def test_imports_name_their_modules():
    assert imported_modules(SOURCE) == {"lessons_lib.kv_cache.block_pool"}
    assert imported_modules("from lessons_lib.engine import core") == {"lessons_lib.engine.core"}
    assert imported_modules("def f():\n    import lessons_lib.engine.core") == set()


STEP_ON_A_CPU = """
    engine.request engine.core engine.model_runner engine.sampling scheduling.sequence scheduling.scheduler
    scheduling.preemption kv_cache.block_pool kv_cache.prefix_cache kv_cache.paged_kv_cache attention.hf_backend
    attention.paged_attention
"""


def test_the_engine_stays_small():
    assert sum(closure("lessons_lib.engine.llm_engine").values()) <= 2350
    found = closure("lessons_lib.engine.llm_engine", "lessons_lib.engine.gpu_model_runner")
    assert sum(found.values()) <= 2700
    assert sum(found[f"lessons_lib.{module}"] for module in STEP_ON_A_CPU.split()) <= 1050
    assert not [each for each in found if each.startswith("lessons_lib.compat.")]


FOLDERS = [
    "models", "attention", "kv_cache", "kernels", "batching", "scheduling", "floors", "engine", "hybrid", "compat",
    "serving",
]  # fmt: skip


def lines_below(*folders, without=()):
    files = {file for folder in folders for file in (ROOT / folder).rglob("*.py")}
    hidden = {ROOT / folder for folder in (*without, ".venv", "work", "build")}
    return sum(len(file.read_text().splitlines()) for file in files if not hidden & {*file.parents})


def test_the_course_stays_light():
    assert lines_below(*(f"lessons_lib/{folder}" for folder in FOLDERS)) <= 22_020
    everything = ("lessons_lib", "tests", "solutions", "tools", "examples")
    assert lines_below(*everything, without=("lessons_lib/checks", "tests/answers")) <= 89_930
    assert lines_below("lessons_lib/checks", "tests/answers") <= 25_400


def test_a_module_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no module 'lessons_lib.nothing'"):
        closure("lessons_lib.nothing")
