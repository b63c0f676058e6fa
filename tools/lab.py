"""JupyterLab on the learner's copy of the lessons, work/, which is made or completed first.

    python -m tools.lab [--port 9999] [--ip=0.0.0.0 ...]     what else is given goes to JupyterLab

With this course's defaults (tools/lab_settings): the learner's own settings override them, and what `make test` would
add, nbgrader's menus and a button of Notebook, is off.
"""

import json
import os
import subprocess
import sys

from tools.learner_work import ROOT, copy_missing

FIRST_PAGES = ("work/START.ipynb", "work/00_one_request.ipynb", "notebooks/00_one_request.ipynb")
SETTINGS = "tools/lab_settings"
WORKSPACES = "work/.lab/workspaces"  # the layout of windows; by default it would lie in the home folder
SIZES = [0.2, 0.8, 0]  # shares of the width: contents, lesson, right side


def has_screen(platform, environ):
    """Can a browser window open here?"""
    if platform == "darwin" or platform.startswith("win"):
        return not environ.get("SSH_CONNECTION")
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def lay_out(root):
    """On the first start, open the table of contents beside the lesson. Later the learner's own layout counts."""
    file = os.path.join(root, WORKSPACES, "default-37a8.jupyterlab-workspace")  # the name Lab gives its default
    if os.path.exists(file):
        return make_room(file)
    contents = "@jupyterlab/toc:plugin"
    left = {"collapsed": False, "visible": True, "current": contents,
            "widgets": ["filebrowser", "running-sessions", contents, "extensionmanager.main-view"]}  # fmt: skip
    layout = {"main": {"dock": None}, "down": {"size": 0, "collapsed": True, "widgets": []}, "left": left,
              "right": {"collapsed": True, "visible": True, "widgets": []},
              "relativeSizes": SIZES}  # fmt: skip
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "w", encoding="utf-8") as workspace:
        json.dump({"data": {"layout-restorer:data": layout}, "metadata": {"id": "default"}}, workspace)


def make_room(file):
    """In a narrow window the contents take most of the width, and JupyterLab keeps that share for wide windows."""
    try:
        with open(file, encoding="utf-8") as workspace:
            stored = json.load(workspace)
        layout = stored["data"]["layout-restorer:data"]
        if layout["relativeSizes"][0] <= 0.5:
            return
        layout["relativeSizes"] = SIZES
    except (ValueError, LookupError, TypeError):
        return  # JupyterLab makes a layout of its own
    with open(file, "w", encoding="utf-8") as workspace:
        json.dump(stored, workspace)


def trust(page):
    """Let JupyterLab run the scripts of a page as the course brings it, before its cells have run here."""
    import nbformat.sign  # course.py imports this module before anything is installed

    nbformat.sign.NotebookNotary().sign(nbformat.read(page, as_version=4))


def lab_command(python, root, screen, uid, arguments=()):
    """The command that starts JupyterLab on the first of FIRST_PAGES that is there."""
    there = [page for page in FIRST_PAGES if os.path.exists(os.path.join(root, page))]
    page = "/lab/tree/" + there[0] if there else "/lab"
    command = [python, "-m", "jupyterlab", "--ServerApp.root_dir=" + root,
               "--LabApp.default_url=" + page, "--log-level=WARN",
               "--LabApp.app_settings_dir=" + os.path.join(root, SETTINGS),
               "--LabApp.workspaces_dir=" + os.path.join(root, WORKSPACES)]  # fmt: skip
    if not screen:
        command.append("--no-browser")
    if uid == 0:
        command.append("--allow-root")
    if arguments[:2] == ["--port", ""]:
        arguments = arguments[2:]
    elif arguments[:1] == ["--port"]:
        command.append("--port-retries=0")  # no other port than the one that was asked for
    return [*command, *arguments]


def main(arguments):
    root = str(ROOT)
    lay_out(root)
    copied = copy_missing()
    if copied:
        print(f"Copied into work/, which is yours: {', '.join(copied)}.")
    if "START.ipynb" in copied:
        trust(os.path.join(root, "work", "START.ipynb"))
    # As lessons_lib/__init__.py does, which says why: here for notebooks that import torch before lessons_lib.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) - 1)))
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    print("JupyterLab is starting. To stop it press Control-C twice.")
    uid = os.getuid() if hasattr(os, "getuid") else None
    command = lab_command(sys.executable, root, has_screen(sys.platform, os.environ), uid, arguments)
    os.chdir(root)
    sys.stdout.flush()
    if os.name == "nt":  # where exec leaves the terminal
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
