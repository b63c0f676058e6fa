"""A real JupyterLab in a real headless Chromium, for tests of what a learner sees and touches.

    with start_chromium() as browser, JupyterLab(folder, browser) as lab:
        notebook = lab.open_notebook("00_one_request.ipynb")
        notebook.run_all_cells()
        assert not notebook.errors()
        notebook.shown(Stepper).click("next")

Nothing sleeps for a fixed time: each step waits for the condition that the next one needs.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat

from tools.doctor import find_chromium

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
START_SECONDS = 90  # JupyterLab or a kernel on a busy machine
RUN_SECONDS = 600  # all cells of a lesson, on a machine busy with other tests


def why_no_browser() -> str | None:
    """A sentence when there is nothing to run browser tests with, else None."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed; `make test` installs it"
    if find_chromium() is None:
        return "no Chromium found; install it (Debian: apt install chromium) or set CHROMIUM to its path"
    return None


@contextlib.contextmanager
def start_chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def wait_for_url(url: str, process: subprocess.Popen, log: Path) -> None:
    """Wait until `url` answers; raise with the end of `log` when `process` ends first or time is up."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server stopped with status {process.returncode}:\n{_end_of(log)}")
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)  # between two looks; the condition decides
    raise TimeoutError(f"{url} did not answer within {START_SECONDS} s:\n{_end_of(log)}")


def stop(process: subprocess.Popen) -> None:
    """End a server started with start_new_session=True, and its kernels with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # the server shuts its kernels down
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


class JupyterLab:
    """JupyterLab of this Python, on a free port of 127.0.0.1 and on a copy of the notebooks in `folder`."""

    def __init__(self, folder: Path, browser, notebooks: Path = ROOT / "notebooks"):
        self.folder = Path(folder)
        self.browser = browser
        self.page = None
        shutil.copytree(notebooks, self.folder / "notebooks")

    def __enter__(self):
        settings = self.folder / "settings"
        # Lab draws only the cells in view; a test wants to see them all.
        _write_settings(settings / "@jupyterlab/notebook-extension/tracker.jupyterlab-settings", windowingMode="none")
        news = settings / "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
        _write_settings(news, fetchNews="false", checkForUpdates=False, doNotDisturbMode=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.folder / "server.log"
        environment = {
            **os.environ,
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.folder / "workspaces"),
            "LESSONS_PROGRESS": str(self.folder / "progress.json"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        with open(self.log, "wb") as log:
            options = ["--no-browser", "--allow-root", f"--port={self.port}", "--port-retries=0"]
            options += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={self.folder}", "--ServerApp.password="]
            options += ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
            command = [sys.executable, "-m", "jupyterlab", *options]
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait_for_url(f"{self.url}/api/status", self.process, self.log)
        except BaseException:
            stop(self.process)
            raise
        return self

    def __exit__(self, *_):
        if self.page is not None:
            self.page.close()
        stop(self.process)

    def write_notebook(self, name: str, cells: list[str]) -> str:
        """Put a notebook with these code cells beside the others. Returns its name."""
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=metadata
        )
        nbformat.write(notebook, self.folder / "notebooks" / name)
        return name

    def open_notebook(self, name: str) -> "Notebook":
        """Open notebooks/`name` in a tab of its own in the one page, and wait until it is shown and its kernel is idle.

        The page takes longer to load than a notebook in it.
        """
        if self.page is None:
            self.page = self.browser.new_page(viewport={"width": 1400, "height": 1000})
            self.page.goto(f"{self.url}/lab/tree/notebooks/{name}?reset")
        else:
            self.page.evaluate(
                "path => { window.jupyterapp.commands.execute('docmanager:open', {path}); }", f"notebooks/{name}"
            )
        shown = self.page.wait_for_function(
            """name => {
                 const panel = window.jupyterapp?.shell.currentWidget;
                 return panel?.context?.path?.endsWith(`/${name}`) && panel.sessionContext.isReady
                        && panel.sessionContext.session?.kernel?.status === 'idle' && panel.id;
               }""",
            arg=name,
            timeout=START_SECONDS * 1000,
        )
        return Notebook(self.page, shown.json_value())


class Notebook:
    """One notebook open in JupyterLab. What it is asked for is done with its tab in front.

    Attributes:
        page: the page, which may have other notebooks in other tabs.
        panel: its part of the page, as a locator.
    """

    def __init__(self, page, panel_id: str):
        self.page = page
        self.panel_id = panel_id
        self.panel = page.locator(f'[id="{panel_id}"]')

    def bring_to_front(self) -> None:
        self.page.evaluate("id => window.jupyterapp.shell.activateById(id)", self.panel_id)
        self.page.wait_for_function("id => window.jupyterapp.shell.currentWidget?.id === id", arg=self.panel_id)

    def change_theme(self, theme: str) -> None:
        """JupyterLab's, for the whole page."""
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        self.page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)

    def close(self) -> None:
        """Close the tab and end its kernel, without a question."""
        self.bring_to_front()
        self.page.evaluate(
            """async () => {
                 const panel = window.jupyterapp.shell.currentWidget;
                 await panel.sessionContext.shutdown();
                 panel.dispose();
               }"""
        )

    def run_all_cells(self) -> None:
        """Run all cells, and wait until the kernel is idle and no cell is left waiting."""
        self.bring_to_front()
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        self.page.wait_for_function(
            """() => {
                 const panel = window.jupyterapp.shell.currentWidget;
                 const code = panel.content.widgets.filter(c => c.model.type === 'code' && c.model.sharedModel.source.trim());
                 // an error stops the run: the cells after it never get a number
                 const failed = code.some(c => c.model.outputs.toJSON().some(o => o.output_type === 'error'));
                 return (failed || code.every(c => c.model.executionCount !== null))
                        && code.every(c => c.model.executionState !== 'running' || failed)
                        && panel.sessionContext.session.kernel.status === 'idle';
               }""",
            timeout=RUN_SECONDS * 1000,
        )

    def errors(self) -> list[str]:
        """What went wrong: error outputs and text on stderr, a line each, in the order of the cells."""
        self.bring_to_front()
        return self.page.evaluate(
            """() => window.jupyterapp.shell.currentWidget.content.widgets.flatMap((cell, i) =>
                 cell.model.type !== 'code' ? [] : cell.model.outputs.toJSON().flatMap(o =>
                   o.output_type === 'error' ? [`cell ${i}: ${o.ename}: ${o.evalue}`] :
                   o.output_type === 'stream' && o.name === 'stderr' ? [`cell ${i}: stderr: ${o.text}`] : []))"""
        )

    def shown(self, kind: type["Interactive"]):
        """The first interactive picture of one kind."""
        self.bring_to_front()
        found = self.panel.locator(f".{kind.NAME}").first
        found.wait_for(timeout=START_SECONDS * 1000)
        return kind(self.page, found)

    def save_and_end_kernel(self) -> str:
        """Returns the notebook's path on the server."""
        self.bring_to_front()
        return self.page.evaluate(
            """async () => {
                 const {context, sessionContext} = window.jupyterapp.shell.currentWidget;
                 await context.save();
                 await sessionContext.shutdown();
                 return context.path;
               }"""
        )


class Interactive:
    """A widget with a picture, as it stands in the page. NAME is the class of the whole; its parts are NAME-picture and
    so on. What is done to it returns the picture's markup before and after.
    """

    NAME = ""

    def __init__(self, page, box):
        self.page = page
        self.box = box

    def part(self, name: str, index: int = 0):
        return self.box.locator(f".{self.NAME}-{name}").nth(index)

    def says(self, part: str) -> str:
        return self.part(part).inner_text().strip()

    def words(self) -> str:
        """The picture's alternative text, as it is now."""
        return self.part("picture").locator("svg").get_attribute("aria-label")

    def click(self, part: str) -> tuple[str, str]:
        return self.changed_by(self.part(part).click)

    def press(self, key: str, part: str = "") -> tuple[str, str]:
        """Press `key`, e.g. "ArrowRight", with the focus on a button, or on the slider of the whole or of a part."""
        place = self.part(part) if part else self.box
        slider = place.locator("[role=slider], input[type=range]")
        return self.changed_by(lambda: (slider if slider.count() else place).first.press(key))

    def changed_by(self, act) -> tuple[str, str]:
        """Do `act`, and wait until the picture is another one."""
        picture = self.part("picture")
        before = picture.inner_html()
        act()
        self.wait_until(lambda: picture.inner_html() != before, "the picture did not change")
        return before, picture.inner_html()

    def wait_until(self, condition, otherwise: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, otherwise
            self.page.wait_for_timeout(20)  # between two looks; the condition decides


class Stepper(Interactive):
    """A `lessons_lib.viz.stepper.Stepper`."""

    NAME = "lessons-stepper"


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def _write_settings(path: Path, **settings) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
