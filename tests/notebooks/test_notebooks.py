"""Every lesson: built as committed, running solved, with words for every picture. `test_unsolved_notebooks` runs the
learner's copies.

A notebook runs once for the comparison of outputs. By day, every second lesson runs, without the cells that only
measure; of the others, the exercises, the checks and the cells that show code of the library. With LESSONS_NIGHTLY=1,
and whenever a notebook is rebuilt, all cells of all lessons do. nbval runs what the rebuild has compared
already, in another kernel: that is done for one lesson, with LESSONS_NIGHTLY=1.
"""

import re
import shutil
import subprocess
import sys

import pytest
from how_many import by_day
from lesson_notebooks import LESSONS, ROOT, code_cells, every_lesson, stored
from notebook_cells import cells_that_only_measure, cells_that_read_answers

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


def left_out_by_day(lesson, notebook):
    if LESSONS.index(lesson) % 2:
        return cells_that_only_measure(notebook)
    return {cell.id for cell in code_cells(notebook)} - cells_that_read_answers(notebook, {"show_source"})


@every_lesson
def test_a_rebuild_gives_what_is_committed(lesson, record_property):
    committed = stored("solutions", lesson)
    left_out = by_day(left_out_by_day, lambda *lesson: set())(lesson, committed)
    rebuilt = build(ROOT / "solutions" / f"{lesson}.py", left_out=left_out)
    outputs = {cell.id: cell.outputs for cell in code_cells(committed)}
    for cell in rebuilt.solved.cells:
        if cell.id in left_out:
            cell.outputs = outputs[cell.id]
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
