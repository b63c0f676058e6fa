"""Lines of code, counted."""

import pytest

from lessons_lib.measuring.code_lines import closure, code_lines, imported_modules
from tools.code_size import ENTRIES, table

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


def test_the_engine_stays_small():
    assert sum(closure("lessons_lib.engine.llm_engine").values()) <= 2500
    found = closure(*ENTRIES["and its GPU runner"])
    assert sum(found.values()) <= 2900
    assert not [each for each in found if each.startswith("lessons_lib.compat.")]
    assert "lessons_lib.engine.gpu_model_runner" in table()


def test_a_module_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no module 'lessons_lib.nothing'"):
        closure("lessons_lib.nothing")
