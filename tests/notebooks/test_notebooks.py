"""Every lesson: built as committed, running solved, with words for every picture. `test_unsolved_notebooks` runs the
learner's copies.

A notebook runs once for the comparison of outputs. A cell that only measures, and that no other cell needs, has nothing
to compare: it runs with LESSONS_NIGHTLY=1, and whenever a notebook is rebuilt. nbval runs what the rebuild has compared
already, in another kernel: that is done for one lesson, and for all of them with LESSONS_NBVAL=all.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from lesson_notebooks import LESSONS, ROOT, code_cells, every_lesson, stored
from notebook_cells import cells_that_only_measure

from tools.authoring.assemble import is_measured
from tools.authoring.build import build, differences, orphans
from tools.authoring.execute import kernel_environment
from tools.authoring.review import findings

TOY = Path(__file__).parents[1] / "toy_course"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("notebooks"),
    pytest.mark.usefixtures("warm_kernels"),
]
NBVAL_LESSONS = [name for name in LESSONS if os.environ.get("LESSONS_NBVAL") == "all" or name.startswith("03")]


def run_nbval(notebook, folder, python_path=()):
    """Run `pytest --nbval-lax` on a copy in `folder` and return (exit status, {cell number: passed}, report)."""
    path = folder / "lesson.ipynb"
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ["--nbval-lax", "-v", "--color=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    environment = kernel_environment(folder, python_path)
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800)
    verdicts = re.findall(r"Cell (\d+) (PASSED|FAILED|XFAIL)", done.stdout)
    return (
        done.returncode,
        {int(number): verdict == "PASSED" for number, verdict in verdicts},
        done.stdout + done.stderr,
    )


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


@pytest.mark.parametrize("lesson", NBVAL_LESSONS)
def test_the_solved_notebook_passes_nbval(lesson, tmp_path):
    notebook = stored("solutions", lesson)
    status, passed, report = run_nbval(notebook, tmp_path)
    assert status == 0, report[-6000:]
    assert passed == dict.fromkeys(range(len(code_cells(notebook))), True)


def test_nbval_compares_the_stored_output_of_cells_that_are_not_measured(tmp_path):
    sys.path.insert(0, str(TOY))
    from toylib import checks

    notebook = build(TOY / "solutions" / "99_toy.py", checks, (TOY,)).solved
    assert run_nbval(notebook, tmp_path, (TOY,))[0] == 0
    cells = code_cells(notebook)
    cells[3].outputs[0].text = "first area 7.0\n"
    cells[6].outputs[0].data["text/html"] = "<svg aria-label='a line'></svg>"
    assert is_measured(cells[7])
    cells[7].outputs[0].data["text/plain"] = "0.0"
    status, passed, report = run_nbval(notebook, tmp_path, (TOY,))
    assert status == 1 and [number for number, well in passed.items() if not well] == [3, 6], report
    assert len(passed) == len(cells)


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
    pictures = [
        output
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "data" in output
        and (any(kind.startswith("image/") for kind in output.data) or "<svg" in output.data.get("text/html", ""))
    ]
    assert pictures, "a lesson has at least one picture"


@every_lesson
def test_the_learners_copy_holds_no_output_and_no_solution(lesson):
    notebook = stored("notebooks", lesson)
    assert not [cell.id for cell in code_cells(notebook) if cell.outputs or cell.execution_count]
    assert not [cell.id for cell in notebook.cells if "BEGIN SOLUTION" in cell.source or "END SOLUTION" in cell.source]
    stubs = [cell for cell in code_cells(notebook) if cell.id.startswith("ex-")]
    assert stubs and all("raise NotImplementedError()" in cell.source for cell in stubs)
    assert findings(notebook) == []
