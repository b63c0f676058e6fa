"""The saved pictures of all lessons, opened in JupyterLab without running a cell: axe finds nothing serious."""

import nbformat
import pytest
from accessibility import axe_faults, axe_source
from browser import ROOT, JupyterLab
from nbformat.sign import NotebookNotary

LESSONS = sorted(path.name for path in (ROOT / "solutions").glob("*.ipynb"))
SHADES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(axe_source() is None, reason="axe-core is missing; `npm install --no-save axe-core`"),
]


@pytest.fixture(scope="module")
def solved(chromium, tmp_path_factory):
    """A JupyterLab on the solved lessons, which it trusts as if it had run them: only then do their scripts run."""
    for name in LESSONS:
        NotebookNotary().sign(nbformat.read(ROOT / "solutions" / name, as_version=4))
    with JupyterLab(tmp_path_factory.mktemp("lab"), chromium, notebooks=ROOT / "solutions") as server:
        yield server


@pytest.mark.parametrize("shade", SHADES)
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lessons_outputs_have_no_serious_fault(solved, lesson, shade):
    opened = solved.open_notebook(lesson)
    opened.change_theme(SHADES[shade])
    opened.panel.locator(".jp-OutputArea-output svg, .jp-OutputArea-output table").first.wait_for(state="attached")
    faults = axe_faults(solved.page, axe_source(), within=f'[id="{opened.panel_id}"] .jp-OutputArea-output')
    opened.close()
    assert faults == []
