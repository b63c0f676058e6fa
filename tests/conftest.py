"""What every test gets: no network, no settings of the user, no progress file of a learner, few threads."""

import contextlib
import datetime
import os
import sys
import tempfile
from pathlib import Path

# Before torch, transformers or Jupyter are imported, and inherited by every kernel and server a test starts.
_HOME = tempfile.TemporaryDirectory(prefix="lessons-tests-")
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    IPYTHONDIR=os.path.join(_HOME.name, "ipython"),
    JUPYTER_CONFIG_DIR=os.path.join(_HOME.name, "jupyter-config"),
    JUPYTER_DATA_DIR=os.path.join(_HOME.name, "jupyter-data"),
    JUPYTER_RUNTIME_DIR=os.path.join(_HOME.name, "jupyter-runtime"),
    LESSONS_PROGRESS=os.path.join(_HOME.name, "progress.json"),
)
for _name in ("NBGRADER_EXECUTION", "LESSONS_STRICT"):
    os.environ.pop(_name, None)
# One day for all processes of a run, which may go on past midnight.
os.environ.setdefault("LESSONS_CONFORMANCE_DAY", str(datetime.date.today().toordinal()))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Kernels of several workers share the cores: torch's threads, spinning for each other, makes that many times slower.
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // max(_workers, 2))))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "LESSONS_ROUNDING" in os.environ:
    _folder = str(Path(__file__).parent / "support" / "other_rounding")
    sys.path.append(_folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_folder, os.environ.get("PYTHONPATH")]))

import hypothesis
import pytest

# The same random cases in every run, so that a red run is one's own; nightly runs draw others.
hypothesis.settings.register_profile("course", deadline=None, derandomize=not os.environ.get("LESSONS_NIGHTLY"))
hypothesis.settings.load_profile("course")


@pytest.fixture(autouse=True)
def _own_progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LESSONS_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture(scope="session")
def warm_kernels():
    """By day and on Linux, `execute` takes kernels that have imported PyTorch."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if sys.platform == "linux" and os.environ.get("LESSONS_NIGHTLY") != "1":
            from warm_kernels import warm_kernels

            from tools.authoring.execute import kernel_environment

            stack.enter_context(warm_kernels(kernel_environment(Path(folder))))
        yield


# While it is open, its event loop runs in this thread, where no other test may have one.
@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium (playwright Browser)."""
    from browser import start_chromium, why_no_browser  # needs what notebooks need, which tests of kernels do without

    if reason := why_no_browser():
        pytest.skip(reason)
    with start_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    """A JupyterLab on a copy of notebooks/. `lab.open_notebook(name)` opens one in a tab of its own."""
    from browser import JupyterLab

    with JupyterLab(tmp_path_factory.mktemp("lab"), chromium) as server:
        yield server


# The longest files, the longest first. Files are named without their folder.
LONGEST = ["test_notebooks", "test_answers", "test_browser", "test_style", "test_nbgrader", "test_unsolved_notebooks"]
# What `make quick` leaves out as well as notebooks and browser: kernels of notebooks, and many cases of what other files
# test with a few.
MANY_CASES = [
    "test_authoring", "test_generation", "test_kernels", "test_kernel_variants", "test_bench_engines",
    "test_bundled_model", "test_triton_mode", "test_conformance", "test_interrupts", "test_guided",
    "test_models_with_terms", "test_kernel_terms", "test_sampling_requests",
]  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before pytest selects by `-m`
def pytest_collection_modifyitems(items):
    """The longest files first: one that is begun last keeps one worker busy while the others have nothing left to do.

    pytest-xdist takes them in this order with `--no-loadscope-reorder`.
    """
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    is_night = os.environ.get("LESSONS_NIGHTLY") == "1"
    for item in items:
        if item.path.stem in MANY_CASES:
            item.add_marker("slow")
        if not is_night and item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="set LESSONS_NIGHTLY=1: it starts many processes"))


def pytest_terminal_summary(terminalreporter):
    """Print what tests measured: `record_property("measured", "stepper answered in 20 ms")`."""
    lines = [
        f"{report.nodeid}: {value}"
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "measured"
    ]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)
