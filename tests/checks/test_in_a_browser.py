"""The exercises of lesson 03 that need no torch are judged in a browser's Python, too."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYODIDE = Path(os.environ.get("PYODIDE", ROOT / "node_modules" / "pyodide"))  # `npm install pyodide`


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node") or not PYODIDE.exists(), reason="needs node, and `npm install pyodide`")
def test_right_and_wrong_answers_are_told_apart_in_pyodide():
    support = ROOT / "tests" / "support"
    command = ["node", support / "in_pyodide.mjs", PYODIDE, ROOT, support / "exercises_in_pyodide.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {id: [kind for kind, _ in panels] for id, panels in found.items()} == {
        id: ["right", "wrong"] for id in ("03.1", "03.2", "03.3", "03.6")
    }
    assert "the free queue should be [4, 2, 1, 0]; yours is [4, 0, 1, 2]" in found["03.1"][1][1]
