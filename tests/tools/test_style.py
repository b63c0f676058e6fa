"""The linter, the formatter and the type checker, as configured in pyproject.toml, and the docstrings' first words."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ["lessons_lib", "tools", "examples", "tests", "course.py"]
# Folders whose docstrings are clean; add what follows.
PLAIN = ["models", "batching", "attention", "kernels", "kv_cache", "scheduling", "compat", "engine", "serving"]
PLAIN += ["measuring", "recording"]
OPENINGS = {"What", "Which", "Whether", "How"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.timeout(900)  # mypy without its cache, on a busy machine
@pytest.mark.parametrize(
    "command", [["ruff", "check", "."], ["ruff", "format", "--check", *CODE], ["mypy"]], ids=["lint", "format", "types"]
)
def test_nothing_is_found(command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", PLAIN)
def test_docstrings_open_with_a_verb_or_a_noun(folder):
    files = sorted(Path(ROOT, "lessons_lib", folder).rglob("*.py"))
    assert files, f"lessons_lib/{folder} has no Python files"
    openings = []
    for file in files:
        for node in filter(lambda node: isinstance(node, DOCUMENTED), ast.walk(ast.parse(file.read_text("utf-8")))):
            text = ast.get_docstring(node) or ""
            if text.partition(" ")[0] in OPENINGS:
                openings.append(f"{file.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert not openings, "\n".join(openings)
