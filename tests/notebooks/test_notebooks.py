"""Every lesson: built as committed, running solved, with words for every picture. `test_unsolved_notebooks` runs the
learner's copies.

A notebook runs once for the comparison of outputs. A cell that only measures, and that no other cell needs, has nothing
to compare: it runs with LESSONS_NIGHTLY=1, and whenever a notebook is rebuilt. nbval runs what the rebuild has compared
already, in another kernel: that is done for one lesson, with LESSONS_NIGHTLY=1.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
from lesson_notebooks import LESSONS, ROOT, code_cells, every_lesson, stored
from notebook_cells import cells_that_only_measure

from tools.authoring.assemble import is_measured
from tools.authoring.build import build, differences, orphans
from tools.authoring.execute import kernel_environment
from tools.authoring.review import findings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("notebooks"),
    pytest.mark.usefixtures("warm_kernels"),
]


def test_there_are_lessons():
    assert LESSONS, "solutions/ has no lesson: every test below would be empty"


def test_no_notebook_is_left_over():
    assert orphans(ROOT) == []


@every_lesson
def test_a_rebuild_gives_what_is_committed(lesson, record_property):
    is_nightly = os.environ.get("LESSONS_NIGHTLY") == "1"
    left_out = set() if is_nightly else cells_that_only_measure(stored("solutions", lesson))
    rebuilt = build(ROOT / "solutions" / f"{lesson}.py", left_out=left_out)
    found = differences(rebuilt, ROOT)
    record_property("measured", f"solved, {rebuilt.seconds:.1f} s")
    assert not found, "\n\n".join([*found, "Run `make notebooks` and look at what changed."])


@pytest.mark.nightly
def test_the_solved_notebook_passes_nbval(tmp_path):
    lesson = "03_block_allocator"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(ROOT / "solutions" / f"{lesson}.ipynb", tmp_path)
    options = ["--nbval-lax", "-v", "--color=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options]
    environment = kernel_environment(tmp_path)
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    verdicts = re.findall(r"Cell \d+ (\w+)", done.stdout)
    assert verdicts == ["PASSED"] * len(code_cells(stored("solutions", lesson)))


@every_lesson
def test_every_code_cell_is_compared_or_measured(lesson):
    for cell in code_cells(stored("solutions", lesson)):
        assert ("nbval-check-output" in cell.metadata.tags) != is_measured(cell), cell.source
        assert ("nbval-ignore-output" in cell.metadata.tags) == is_measured(cell), cell.source
    compared = [cell for cell in code_cells(stored("solutions", lesson)) if not is_measured(cell) and cell.outputs]
    assert len(compared) >= 3, "hardly any output of this lesson is compared"


@every_lesson
def test_every_picture_has_words_and_no_output_needs_a_kernel(lesson):
    notebook = stored("solutions", lesson)
    assert findings(notebook) == []
    shown = [output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs]
    assert any("image/" in "".join(data) or "<svg" in data.get("text/html", "") for data in shown), "no picture"


@every_lesson
def test_the_learners_copy_holds_no_output_and_no_solution(lesson):
    notebook = stored("notebooks", lesson)
    assert not [cell.id for cell in code_cells(notebook) if cell.outputs or cell.execution_count]
    assert not [cell.id for cell in notebook.cells if "BEGIN SOLUTION" in cell.source or "END SOLUTION" in cell.source]
    stubs = [cell for cell in code_cells(notebook) if cell.id.startswith("ex-")]
    assert stubs and all("raise NotImplementedError()" in cell.source for cell in stubs)
    assert findings(notebook) == []
