"""Setting up: what is asked for agrees everywhere, each failure says what to do, and a second call does nothing."""

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import yaml
from browser import ROOT, free_port, stop, wait_for_url
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import course
from tools import doctor, install, lab
from tools.setup_errors import SetupError

PYTHONS = [f"3.{minor}" for minor in range(course.OLDEST, course.TOO_NEW)]
CUDA = ("nvidia-", "cuda-")
on_posix = pytest.mark.skipif(os.name == "nt", reason="the fake Python is a shell script")


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def direct_dependencies() -> list[Requirement]:
    project = pyproject()["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in project["dependencies"] + extras]


def pins(python: str, system: str = "linux") -> dict[str, str]:
    """What constraints.txt pins for a Python and a system: name -> version."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pin = Requirement(line)
        where = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": system}
        if pin.marker and not pin.marker.evaluate(where):
            continue
        assert pin.name not in found, f"{pin.name} is pinned twice for Python {python}"
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        found[canonicalize_name(pin.name)] = specifier.version
    return found


# --- what is asked for agrees ------------------------------------------------------------------------


def test_conda_environment_is_the_same_install_as_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip_lines,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    conda = [Requirement(entry) for entry in environment["dependencies"] if isinstance(entry, str)]
    project = pyproject()["project"]

    assert {entry.name for entry in conda} == {"python", "pip"}, "a package listed here can drift from pyproject.toml"
    (python,) = [entry.specifier for entry in conda if entry.name == "python"]
    assert python == SpecifierSet(project["requires-python"])
    assert pip_lines == ["-c constraints.txt", "-e .[test]"]
    assert "test" in project["optional-dependencies"] and (ROOT / "constraints.txt").exists()


def test_the_range_of_pythons_is_stated_once():
    """In pyproject.toml; whatever repeats it agrees. tests/tools/test_workflows.py has the matrix of the workflows."""
    supported = SpecifierSet(pyproject()["project"]["requires-python"])
    for minor in range(6, 20):
        accepted = supported.contains(f"3.{minor}.1")
        assert course.supports((3, minor)) == accepted, f"3.{minor}"
        assert (doctor.check_python((3, minor, 1)).level == doctor.OK) == accepted, f"3.{minor}"
    assert pyproject()["tool"]["mypy"]["python_version"] == PYTHONS[0]
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}," in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"--python-version {PYTHONS[0]} " in (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_every_direct_dependency_is_pinned_within_its_range(python, system):
    pinned = pins(python, system)
    for wanted in direct_dependencies():
        if wanted.marker and not wanted.marker.evaluate({"sys_platform": system}):
            assert canonicalize_name(wanted.name) not in pinned
            continue
        pin = pinned.get(canonicalize_name(wanted.name))
        assert pin, f"{wanted.name} has no pin for Python {python} on {system}"
        assert wanted.specifier.contains(pin), f"{wanted} is pinned to {pin}"


def test_whatever_those_need_is_pinned_too():
    """On this machine, which has the test tools. What only torch's CUDA builds need differs from build to build."""
    needed, pending = set(), [(wanted.name, wanted.extras) for wanted in direct_dependencies()]
    while pending:
        name, extras = pending.pop()
        with contextlib.suppress(PackageNotFoundError):  # of another system
            for wanted in map(Requirement, requires(name) or []):
                is_needed = not wanted.marker or any(
                    wanted.marker.evaluate({"extra": extra}) for extra in {"", *extras}
                )
                if is_needed and (key := canonicalize_name(wanted.name)) not in needed:
                    needed.add(key)
                    pending.append((wanted.name, wanted.extras))
    unpinned = {name for name in needed - set(pins("%d.%d" % sys.version_info[:2])) if not name.startswith(CUDA)}
    assert unpinned <= {"setuptools", "pip", "wheel", "lessons-lib"}, "see the first lines of constraints.txt"


def test_each_make_target_is_listed_in_help_and_known_to_course():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M).group(1).split())
    assert targets == set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert targets == set(re.findall(r'@echo "make ([\w-]+) ', makefile))
    assert targets - {"help", *course.INSTALL_NOTHING} == set(course.EXTRAS)


def test_files_that_conftest_names_exist():
    # Read, not imported: folders of tests have modules of the same name.
    assignments = [
        node for node in ast.parse((ROOT / "tests/conftest.py").read_text()).body if isinstance(node, ast.Assign)
    ]
    named = [ast.literal_eval(node.value) for node in assignments if node.targets[0].id in ("LONGEST", "MANY_CASES")]
    assert len(named) == 2
    stems = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert {*named[0], *named[1]} <= stems, "a file under another name would be part of `make quick`"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize(
    "arguments, command",
    [
        (
            ["lab", "PORT=9", "ARGS=--ip=0.0.0.0", "PYTHON=python3.12"],
            'python3.12 course.py lab --port "9" --ip=0.0.0.0',
        ),
        (["test", "ARGS=-k 'a or b'"], "python3 course.py test -k 'a or b'"),
        (["serve", "MODEL=a b", "PORT=8001"], 'python3 course.py serve --model "a b" --port "8001"'),
        (["chat-model"], "python3 course.py chat-model"),
    ],
)
def test_make_hands_its_variables_on(arguments, command):
    # `make test` hands its own variables down through these
    own = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS", "PORT", "PYTHON", "MODEL")
    outside = {name: value for name, value in os.environ.items() if name not in own}
    said = subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == command


@pytest.mark.parametrize("file", ["course.py", "tools/__init__.py", "tools/setup_errors.py"])
def test_what_runs_first_parses_on_old_pythons(file):
    source = (ROOT / file).read_text(encoding="ascii")
    ast.parse(source, feature_version=(3, 4))
    assert not [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr | ast.AnnAssign)]


# --- each failure says what to do --------------------------------------------------------------------


def fake(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


@pytest.fixture
def course_folder(tmp_path):
    """A folder that looks like the course to course.py."""
    folder = tmp_path / "course"
    (folder / "tools").mkdir(parents=True)
    modules = ["__init__", "install", "lab", "learner_work", "merge_notebooks", "setup_errors"]
    for name in ("pyproject.toml", "constraints.txt", "course.py", *(f"tools/{module}.py" for module in modules)):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run_course(folder, *arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": "", **variables}
    command = [sys.executable, "course.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done


@on_posix
def test_an_old_python_becomes_one_that_is_there_or_that_uv_fetches(course_folder, tmp_path):
    (tmp_path / "pretend").mkdir()
    (tmp_path / "pretend/sitecustomize.py").write_text("import sys; sys.version_info = (3, 9, 1, 'final', 0)")
    tools = tmp_path / "bin"
    tools.mkdir()

    def said():
        done = run_course(course_folder, "lab", PYTHONPATH=str(tmp_path / "pretend"), PATH=f"{tools}:/usr/sbin:/sbin")
        return done.stdout + done.stderr

    assert "Python 3.9 cannot run this course; it needs Python 3.11 to 3.14" in said()
    new = fake(tmp_path / "fetched/python3", 'echo "becomes $*"\n')
    uv = f"""[ "$*" = --version ] && exit 0
echo "$*" >> {tmp_path}/asked
case "$2" in install) /usr/bin/touch {tmp_path}/there ;; find) [ -e {tmp_path}/there ] && echo {new} ;; esac
"""
    fake(tools / "uv", uv)
    assert f"becomes {course_folder}/course.py lab" in said()
    find = "python find --system >=3.11,<3.15"
    assert (tmp_path / "asked").read_text().splitlines() == [find, "python install 3.12", find]
    fake(tools / "python3.13", "exit 1\n")  # is there, but does not work, or is none
    fake(tools / "python3.12", 'echo "12 becomes $*"\n')
    assert f"12 becomes {course_folder}/course.py lab" in said()


@pytest.mark.parametrize(
    "arguments, gone, words",
    [
        (["nbgrader"], "", "make nbgrader FOLDER=course"),
        (["verify"], "", "make verify ARGS=certificate.html"),
        (["lab"], "tools", "needs the other files of the course"),
        (["lab"], "pyproject.toml", "needs the other files of the course"),
    ],
)
def test_what_cannot_work_is_refused_before_the_install(course_folder, arguments, gone, words):
    if gone:
        (course_folder / gone).rename(course_folder / "elsewhere")
    done = run_course(course_folder, *arguments)
    assert done.returncode and words in done.stdout + done.stderr
    assert not (course_folder / ".venv").exists()


@on_posix
def test_a_venv_whose_python_cannot_start_is_named(course_folder):
    fake(course_folder / ".venv/bin/python", "").write_bytes(b"\x7fELF of another machine")
    install.Environment(str(course_folder)).write_stamp([])
    done = run_course(course_folder, "serve")
    assert re.search(r"python cannot be started \(.*\). Remove the folder .venv", done.stderr)


@on_posix
@pytest.mark.parametrize("script, ours", [('[ "$1" = -c ] || echo "by .venv"\n', True), ("exit 1\n", False)])
def test_the_doctor_runs_in_an_environment_that_works(course_folder, script, ours):
    """And by the Python that started course.py, where .venv is damaged, or of a Python that was supported once."""
    fake(course_folder / ".venv/bin/python", script)
    (course_folder / "tools/doctor.py").write_text("print('by another')")
    assert run_course(course_folder, "doctor").stdout == ("by .venv\n" if ours else "by another\n")


# --- what gets installed -----------------------------------------------------------------------------

# Stands in for Python, venv and pip: writes down what it is asked, and answers as the files beside it say.
FAKE_PYTHON = """echo "$@" >> "{log}"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *--dry-run*) [ ! -e "{log}.dead" ] ;;
    "-m pip config list") cat "{log}.settings" ;;
    "-m pip install "*) env > "{log}.environment"; [ ! -e "{log}.fails" ] || {{ cat "{log}.fails" >&2; exit 1; }} ;;
    "-I -c "*) [ ! -e "{log}.elsewhere" ] ;;
esac
"""
FAKE_UV = """echo "uv $@" >> "{log}"
case "$1" in
    venv) for folder; do :; done; mkdir -p "$folder/bin" && cp "{python}" "$folder/bin/python" ;;
    pip) shift 4; exec "{python}" -m pip install by-uv "$@" ;;
esac
"""


class Machine:
    """A course folder on a machine whose Python is the fake, with a PATH that has no uv on it at first."""

    def __init__(self, folder, tmp_path):
        self.folder, self.log, self.tools = folder, tmp_path / "calls", tmp_path / "bin"
        self.env = install.Environment(str(folder))
        self.python = fake(tmp_path / "python", FAKE_PYTHON.format(log=self.log))
        self.set("settings")
        self.tools.mkdir()
        for name in ("mkdir", "cp", "cat", "env"):
            (self.tools / name).symlink_to(shutil.which(name))

    def set(self, name, text=""):
        self.file(name).write_text(text)

    def file(self, name):
        return self.log.with_name(f"calls.{name}")

    def gets_uv(self):
        fake(self.tools / "uv", FAKE_UV.format(log=self.log, python=self.python))

    def commands(self):
        """What was asked since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.write_text("")
        return lines

    def install(self, extra=""):
        """The installs that were asked for: "venv", or what pip was to install."""
        self.commands()
        install.install(self.env, extra, torch_index="none", say=lambda text: None)
        return ["venv" if "-m venv" in line else line.split()[-1]
                for line in self.commands() if "-m venv" in line or "pip install" in line]  # fmt: skip

    def refuses(self, words, extra=""):
        """The install stops with these words."""
        with pytest.raises(SetupError, match=words):
            self.install(extra)


@pytest.fixture
def machine(course_folder, tmp_path, monkeypatch):
    found = Machine(course_folder, tmp_path)
    monkeypatch.setattr(sys, "executable", str(found.python))
    monkeypatch.setenv("PATH", str(found.tools))
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    return found


@on_posix
def test_a_second_call_installs_nothing_and_each_extra_is_added(machine):
    assert machine.install() == ["venv", "."]
    assert machine.install() == [] and machine.install("site") == [".[site]"]
    assert machine.install("test") == [".[site,test]"]
    assert [machine.install(extra) for extra in ("", "test", "site")] == [[], [], []]
    with open(machine.folder / "constraints.txt", "a") as file:
        file.write("\n# changed\n")
    assert machine.install() == [".[site,test]"]


@on_posix
def test_an_interrupted_install_a_damaged_stamp_and_a_moved_course_are_made_afresh(machine, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(install, "run", interrupt)
        machine.install()
    assert not machine.env.is_ready("")
    for damage in ("", "{", "[]", json.dumps({"extras": ["test"]})):
        assert machine.install() == ["venv", "."] and machine.env.is_ready("")
        Path(machine.env.stamp).write_text(damage)
    machine.install()
    machine.env = install.Environment(str(machine.folder.rename(tmp_path / "moved")))
    assert machine.install() == ["venv", "."]


@on_posix
@pytest.mark.parametrize("uv", [False, True])
def test_a_dead_index_is_said_and_leaves_what_was_installed(machine, uv):
    """pip says "No matching distribution" of a dead index, too."""
    if uv:
        machine.gets_uv()
    for extra in ("", "test"):
        machine.set("dead")
        machine.set("fails", "ERROR: No matching distribution found for torch>=2.11\n")
        machine.refuses("no network, or the package index does not answer", extra)
        assert machine.env.is_ready("") == bool(extra)
        machine.file("dead").unlink()
        if not extra:
            machine.file("fails").unlink()
            machine.install()
    machine.refuses("the output above says why", "test")
    assert not machine.env.is_ready("")


@on_posix
@pytest.mark.parametrize(
    "what, said, words",
    [
        ("fails", "OSError: [Errno 28] No space left on device\n", "The disk is full"),
        ("fails", "ERROR: [Errno 13] Permission denied: '/course/.venv/lib'\n", "cannot be written"),
        ("fails", "error: something new\n", "the output above says why"),
        ("elsewhere", "", "packages are not in .*\nLook for no-deps, target"),
    ],
)
def test_what_fails_becomes_a_sentence_and_the_next_install_starts_afresh(machine, capfd, what, said, words):
    machine.set(what, said)
    machine.refuses(words)
    assert said in capfd.readouterr().err and not machine.env.is_ready("")
    machine.file(what).unlink()
    assert machine.install() == ["venv", "."]


@on_posix
def test_a_small_disk_is_refused_before_anything_is_installed(machine, monkeypatch):
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 15 * 10**8))
    machine.refuses("1.5 GB are free .* 4 are needed")
    assert not os.path.exists(machine.env.folder)


@on_posix
def test_a_folder_of_another_user_is_named_and_kept(machine, monkeypatch):
    access = os.access
    for folder in (machine.env.root, machine.env.folder):
        monkeypatch.setattr(install.os, "access", lambda path, mode, no=folder: path != no and access(path, mode))
        os.makedirs(machine.env.folder, exist_ok=True)
        machine.refuses(re.escape(folder) + r" cannot be written.*\n.*sudo chown -R")
    assert machine.commands() == []


@on_posix
@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "folder", "another environment"])
def test_a_venv_that_the_course_did_not_make_is_kept(machine, tmp_path, kind):
    venv, elsewhere = machine.folder / ".venv", tmp_path / "elsewhere"
    if kind == "file":
        venv.write_text("mine")
    elif "link" in kind:
        venv.symlink_to(elsewhere)
    else:
        venv.mkdir()
        (venv / ("mine.txt" if kind == "folder" else "pyvenv.cfg")).touch()
    if kind == "link":
        elsewhere.mkdir()
    before = sorted(map(str, machine.folder.rglob("*")))
    machine.refuses("it did not make.*\nRename or remove it")
    assert sorted(map(str, machine.folder.rglob("*"))) == before


@on_posix
def test_an_environment_that_cannot_be_removed_stays_ours(machine, monkeypatch):
    machine.set("fails", "error\n")
    machine.refuses("the output above says why")

    def refuse(folder):
        os.remove(machine.env.stamp)
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(install.shutil, "rmtree", refuse)
        machine.refuses("cannot be written")
    assert os.path.exists(machine.env.stamp)


@on_posix
def test_settings_that_would_send_packages_elsewhere_are_not_handed_on(machine, monkeypatch):
    for name in [*install.MISLEADING, "PIP_INDEX_URL", "PIP_USER"]:
        monkeypatch.setenv(name, "1")
    machine.install()
    lines = machine.file("environment").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    assert not set(install.MISLEADING) & set(given)
    assert (given["PIP_INDEX_URL"], given["PIP_USER"]) == ("1", "0"), "a mirror stays"


@on_posix
def test_uv_installs_the_exact_versions_where_it_is(machine, monkeypatch):
    machine.gets_uv()
    monkeypatch.setattr(install, "choose_torch_index", lambda *_: ("https://example.org/whl/cpu", ""))
    install.install(machine.env, "test", say=lambda text: None)
    assert [line for line in machine.commands() if line.startswith("uv ")] == [
        "uv --version",
        f"uv venv -q --allow-existing --python {sys.executable} {machine.env.root}/.venv",
        f"uv pip install --python {machine.env.python} -c constraints.txt pip --index https://example.org/whl/cpu"
        " --index-strategy unsafe-best-match -e .[test]",
    ]
    machine.set("settings", "global.index-url='https://mirror/simple'\n")
    assert install.find_uv(os.environ) is None, "uv does not know a mirror that only pip is set to"
    assert install.find_uv({**os.environ, "UV_DEFAULT_INDEX": "https://mirror/simple"})


@pytest.mark.parametrize(
    "wanted, platform, gpu, answers, index",
    [
        ("", "linux", False, True, install.CPU_INDEX),
        ("", "linux", False, False, ""),
        ("", "linux", True, True, ""),
        ("", "darwin", False, True, ""),
        ("", "win32", False, True, ""),
        ("none", "linux", False, True, ""),
        ("https://example.org/whl/cu130", "linux", False, True, "https://example.org/whl/cu130"),
    ],
)
def test_which_torch(wanted, platform, gpu, answers, index, monkeypatch):
    monkeypatch.setattr(install, "succeeds", lambda command: gpu)
    monkeypatch.setattr(install.os.path, "exists", lambda path: False)
    monkeypatch.setattr(install, "answers", lambda url: answers)
    assert install.choose_torch_index(wanted, platform)[0] == index


@on_posix
def test_what_another_call_installed_meanwhile_is_not_installed_again(machine, monkeypatch):
    @contextlib.contextmanager
    def waited_for_another_call(root, say):
        os.makedirs(os.path.dirname(machine.env.python))
        open(machine.env.python, "w").close()
        machine.env.write_stamp(["test"])
        yield

    monkeypatch.setattr(install, "only_one_at_a_time", waited_for_another_call)
    assert machine.install() == []


# --- starting JupyterLab -----------------------------------------------------------------------------


def test_lab_without_a_screen_and_as_root():
    assert lab.has_screen("win32", {}) and lab.has_screen("linux", {"DISPLAY": ":0"})
    assert not lab.has_screen("linux", {}) and not lab.has_screen("darwin", {"SSH_CONNECTION": "a b"})
    plain = lab.lab_command("python", "/course", True, 1000, ["--port", "", "--ip=0.0.0.0"])
    assert {"--no-browser", "--allow-root"} <= set(lab.lab_command("python", "/course", False, 0))
    assert "--port" not in plain and "--port-retries=0" not in plain
    with_a_port = lab.lab_command("python", "/course", True, 1000, ["--port", "9999"])
    assert with_a_port[-3:] == ["--port-retries=0", "--port", "9999"]
    assert not {"--no-browser", "--allow-root"} & set(plain) and plain[-1] == "--ip=0.0.0.0"
    assert "--LabApp.workspaces_dir=/course/work/.lab/workspaces" in plain


def test_the_start_page_is_trusted_before_it_has_run(tmp_path, monkeypatch):
    from nbformat import read, v4, write
    from nbformat.sign import NotebookNotary

    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    page = tmp_path / "START.ipynb"
    output = v4.new_output("display_data", {"text/html": "<p>"})
    write(v4.new_notebook(cells=[v4.new_code_cell("1", outputs=[output])]), page)
    assert not NotebookNotary(data_dir=str(tmp_path)).check_signature(read(page, 4))
    lab.trust(page)
    assert NotebookNotary(data_dir=str(tmp_path)).check_signature(read(page, 4))


def test_the_test_tools_add_nothing_to_a_learners_jupyterlab():
    from jupyterlab_server.config import get_page_config

    page = get_page_config([], app_settings_dir=str(ROOT / lab.SETTINGS))
    brought = {"@jupyter/nbgrader", "@jupyter-notebook/lab-extension"}  # `notebook` comes with nbgrader
    assert brought <= set(page["disabledExtensions"])
    assert not [line for line in pyproject()["project"]["optional-dependencies"]["site"] if "nbgrader" in line]


def test_a_layout_from_a_narrow_window_leaves_room_for_the_lesson(tmp_path):
    lab.lay_out(tmp_path)
    (file,) = (tmp_path / lab.WORKSPACES).iterdir()
    stored = json.loads(file.read_text())
    layout = stored["data"]["layout-restorer:data"]
    for share, share_then in ((0.3, 0.3), (0.78, lab.SIZES[0])):
        layout["relativeSizes"] = [share, 1 - share, 0]
        file.write_text(json.dumps(stored))
        lab.lay_out(tmp_path)
        assert json.loads(file.read_text())["data"]["layout-restorer:data"]["relativeSizes"][0] == share_then
    file.write_text("[]")
    lab.lay_out(tmp_path)
    assert file.read_text() == "[]"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="ends the server through its process group")
def test_lab_serves_the_learners_copy(tmp_path):
    lesson = tmp_path / lab.FIRST_PAGES[0]
    lesson.parent.mkdir()
    lesson.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    port, log = free_port(), tmp_path / "log"
    command = lab.lab_command(
        sys.executable, str(tmp_path), False, os.getuid(), ["--port", str(port), "--IdentityProvider.token="]
    )
    with open(log, "wb") as file:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_for_url(f"http://127.0.0.1:{port}/api/status", server, log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as page:
            assert page.status == 200
            assert page.url.endswith("/lab/tree/work/START.ipynb")
    finally:
        stop(server)
