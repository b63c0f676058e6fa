"""The linter, the formatter and the type checker find nothing. What they look at, and how, is in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ["lessons_lib", "tools", "examples", "tests", "course.py"]


@pytest.mark.timeout(900)  # mypy without its cache, on a busy machine
@pytest.mark.parametrize(
    "command", [["ruff", "check", "."], ["ruff", "format", "--check", *CODE], ["mypy"]], ids=["lint", "format", "types"]
)
def test_nothing_is_found(command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
