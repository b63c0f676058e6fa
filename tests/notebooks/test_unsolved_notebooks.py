"""Every lesson as a learner opens it runs from top to bottom. A file of its own, so that two processes share the
running of notebooks.

What reads no answer, or a checked one, does the same in the solved notebook, which `test_notebooks` runs: here such a
cell is left out, unless others need it, and every second lesson runs. With LESSONS_NIGHTLY=1, all of all lessons do.
"""

import os

import pytest
from how_many import by_day
from lesson_notebooks import LESSONS, stored
from notebook_cells import cells_that_read_answers

from tools.authoring.execute import execute
from tools.authoring.review import findings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("unsolved notebooks"),
    pytest.mark.usefixtures("warm_kernels"),
]


@pytest.mark.parametrize("lesson", LESSONS[by_day(1, 0) :: by_day(2, 1)])
def test_the_unsolved_notebook_runs_to_its_end(lesson, record_property):
    notebook = stored("notebooks", lesson)
    if os.environ.get("LESSONS_NIGHTLY") != "1":
        kept = cells_that_read_answers(notebook, {"hint", "solution", "progress", "my_engine", "footer"})
        notebook.cells = [cell for cell in notebook.cells if cell.cell_type != "code" or cell.id in kept]
    # `execute` refuses an exception and any text on stderr.
    run = execute(notebook, f"notebooks/{lesson}")
    record_property("measured", f"unsolved, {run.seconds:.1f} s")
    verdicts = [cell.outputs[0].data["text/plain"] for cell in run.notebook.cells if cell.id.startswith("check-")]
    assert verdicts and all(text.startswith("○") and "not written yet" in text for text in verdicts)
    assert findings(run.notebook) == []
