"""Every lesson as a learner opens it runs from top to bottom. A file of its own, so that two processes share the
running of notebooks.
"""

import pytest
from lesson_notebooks import every_lesson, stored

from tools.authoring.execute import execute
from tools.authoring.review import findings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("unsolved notebooks")]


@every_lesson
def test_the_unsolved_notebook_runs_to_its_end(lesson, record_property):
    # `execute` refuses an exception and any text on stderr.
    run = execute(stored("notebooks", lesson), f"notebooks/{lesson}")
    record_property("measured", f"unsolved, {run.seconds:.1f} s")
    verdicts = [cell.outputs[0].data["text/plain"] for cell in run.notebook.cells if cell.id.startswith("check-")]
    assert verdicts and all(text.startswith("○") and "not written yet" in text for text in verdicts)
    assert findings(run.notebook) == []
