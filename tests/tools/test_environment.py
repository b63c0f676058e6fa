"""Setting up: what is asked for agrees everywhere, each failure says what to do, and a second call does nothing."""

import ast
import contextlib
import errno
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
import yaml
from browser import ROOT, free_port, stop, wait_for_url
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lessons_lib import bootstrap, doctor

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def direct_dependencies() -> list[Requirement]:
    project = pyproject()["project"]
    return [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["test"]]


def pins(python: str, system: str = "linux") -> dict[str, str]:
    """What constraints.txt pins for a Python and a system: name -> version."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker and not pin.marker.evaluate({"python_version": python, "sys_platform": system}):
            continue
        assert pin.name not in found, f"{pin.name} is pinned twice for Python {python}"
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        found[pin.name] = specifier.version
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
    (pip,) = [entry.specifier for entry in conda if entry.name == "pip"]
    assert pip == SpecifierSet(">=%d.%d" % bootstrap.OLDEST_PIP)
    assert pip_lines == ["-c constraints.txt", "-e .[test]"]
    assert "test" in project["optional-dependencies"] and (ROOT / "constraints.txt").exists()


def test_bootstrap_and_doctor_accept_the_pythons_of_pyproject():
    supported = SpecifierSet(pyproject()["project"]["requires-python"])
    for minor in range(6, 20):
        try:
            bootstrap.check_python((3, minor))
            accepted = True
        except bootstrap.SetupError:
            accepted = False
        assert accepted == supported.contains(f"3.{minor}.1"), f"3.{minor}"
        assert accepted == (doctor.check_python((3, minor, 1), "python", ()).level == doctor.OK), f"3.{minor}"


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_every_direct_dependency_is_pinned_within_its_range(python, system):
    pinned = pins(python, system)
    for wanted in direct_dependencies():
        if wanted.marker and not wanted.marker.evaluate({"sys_platform": system}):
            assert wanted.name not in pinned
            continue
        assert wanted.name in pinned, f"{wanted.name} has no pin for Python {python} on {system}"
        assert wanted.specifier.contains(pinned[wanted.name]), f"{wanted} is pinned to {pinned[wanted.name]}"


def test_each_make_target_is_listed_in_help_and_known_to_bootstrap():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M).group(1).split())
    assert targets == set(re.findall(r"^([a-z]+):", makefile, re.M))
    assert targets == set(re.findall(r'@echo "make (\w+) ', makefile))
    assert targets - {"help", "doctor"} == set(bootstrap.EXTRAS)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize(
    "arguments, command",
    [
        (
            ["lab", "PORT=9999", "ARGS=--ip=0.0.0.0", "PYTHON=python3.12"],
            'python3.12 lessons_lib/bootstrap.py lab --port "9999" --ip=0.0.0.0',
        ),
        (["test", "ARGS=-k 'a or b'"], "python3 lessons_lib/bootstrap.py test -k 'a or b'"),
    ],
)
def test_make_hands_its_variables_on(arguments, command):
    # `make test` hands its own variables down through these
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS", "PORT", "PYTHON")
    }
    said = subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == command


def test_bootstrap_parses_on_old_pythons():
    source = (ROOT / "lessons_lib" / "bootstrap.py").read_bytes()
    assert source.isascii()  # Python 2 reads no other letters without a declaration
    too_new = (
        ast.JoinedStr,
        ast.AnnAssign,
        ast.NamedExpr,
        ast.Nonlocal,
        ast.AsyncFunctionDef,
        ast.YieldFrom,
        ast.Match,
    )
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, too_new), f"line {node.lineno}: {type(node).__name__}"
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            assert not (arguments.kwonlyargs or arguments.posonlyargs or node.returns), node.name
            assert not any(argument.annotation for argument in arguments.args), node.name
        if isinstance(node, ast.Raise):
            assert node.cause is None, f"line {node.lineno}: raise ... from"


# --- each failure says what to do --------------------------------------------------------------------

# What to pretend before bootstrap.py runs in a Python of its own, and the words it must answer with.
FAILURES = {
    "old Python": (
        "import sys; sys.version_info = (3, 9, 1, 'final', 0)",
        ["Python 3.9 cannot run this course", "3.10, 3.11, 3.12 or 3.13", "make lab PYTHON="],
    ),
    "no ensurepip": (
        "import sys; sys.modules['ensurepip'] = None",
        ["no `ensurepip` module", "apt install python3-venv"],
    ),
    "no venv": ("import sys; sys.modules['venv'] = None", ["no `venv` module", "apt install python3-venv"]),
    "small disk": (
        "import shutil, types; shutil.disk_usage = lambda p: types.SimpleNamespace(free=1.5e9)",
        ["1.5 GB free", "4.0 GB needed", "Free some space", "Nothing was installed"],
    ),
    "read-only folder": (
        "import tempfile\ndef refuse(*a, **k): raise OSError(30, 'Read-only file system')\n"
        "tempfile.TemporaryFile = refuse",
        ["Cannot write in", "Read-only file system", "Copy the whole folder"],
    ),
}


@pytest.fixture
def course(tmp_path):
    """A folder that looks like the course to bootstrap.py."""
    folder = tmp_path / "course"
    (folder / "lessons_lib").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "lessons_lib/bootstrap.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize("failure", FAILURES)
def test_failure_before_anything_is_installed(failure, course, tmp_path):
    pretence, words = FAILURES[failure]
    (tmp_path / "sitecustomize.py").write_text(pretence)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_INDEX": "none"}
    done = subprocess.run(
        [sys.executable, "lessons_lib/bootstrap.py", "lab"],
        cwd=course,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not (course / ".venv").exists()


def test_a_wrong_port_is_refused_before_the_install(course):
    done = subprocess.run(
        [sys.executable, "lessons_lib/bootstrap.py", "lab", "--port", "eight"],
        cwd=course,
        env={**os.environ, "TORCH_INDEX": "none", "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "PORT=eight is not a port" in done.stderr
    assert not (course / ".venv").exists()


def test_an_old_python_names_a_newer_one_that_is_there(tmp_path, monkeypatch):
    for name, status in (("python3.13", 1), ("python3.12", 0)):  # the first is there but does not work
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bootstrap.usable_pythons() == ["python3.12"]
    with pytest.raises(bootstrap.SetupError, match="make lab PYTHON=python3.12"):
        bootstrap.check_python((3, 14), bootstrap.usable_pythons())


def test_a_full_disk_shows_before_the_space_is_counted(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bootstrap.tempfile, "TemporaryFile", refuse)
    with pytest.raises(bootstrap.SetupError, match="The disk is full"):
        bootstrap.check_writable(str(tmp_path))


@pytest.mark.parametrize(
    "said, kind, words",
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            bootstrap.SetupError,
            "The disk is full",
        ),
        (
            "WARNING: Retrying: NewConnectionError(': [Errno -3] Temporary failure in name resolution')\n"
            "ERROR: No matching distribution found for torch>=2.11\n",
            bootstrap.NoNetwork,
            "no network",
        ),
        ("ERROR: [Errno 13] Permission denied: '/course/.venv/lib'\n", bootstrap.SetupError, "not allowed to write"),
        ("ERROR: No matching distribution found for torch==2.13.0\n", bootstrap.SetupError, "no build for this Python"),
        ("error: something new\n", bootstrap.SetupError, "stands above"),
    ],
)
def test_what_pip_says_becomes_a_sentence(said, kind, words):
    error = bootstrap.explain_failure(said, "/course")
    assert type(error) is kind
    assert words in str(error)


# --- what gets installed -----------------------------------------------------------------------------

# Stands in for Python, venv and pip: writes down what it is asked and answers as the files beside it say.
FAKE_PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip --version") echo "pip $(cat "{log}.version") from here" ;;
    "-m pip install "*) [ ! -e "{log}.fails" ] || {{ cat "{log}.fails" >&2; exit 1; }} ;;
esac
"""


@pytest.fixture
def machine(course, tmp_path, monkeypatch):
    """A course folder on a machine whose Python is the fake. `machine.calls()` returns and forgets what was asked."""
    log = tmp_path / "calls"
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.format(log=log))
    python.chmod(0o755)
    (tmp_path / "calls.version").write_text("26.1")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(bootstrap, "free_gigabytes", lambda root: 100.0)

    class Machine:
        env = bootstrap.Environment(str(course))
        folder = course

        def install(self, extra):
            bootstrap.install(self.env, extra, torch_index="none", say=lambda text: None)

        def calls(self):
            lines = log.read_text().splitlines() if log.exists() else []
            log.write_text("")
            return [
                "venv"
                if "-m venv" in line
                else "pip upgrade"
                if "--upgrade" in line
                else "install " + ("test" if line.endswith("[test]") else "lab")
                for line in lines
                if "-m venv" in line or "pip install" in line
            ]

        def commands(self):
            return log.read_text().splitlines()

        def pip_fails(self, text):
            (tmp_path / "calls.fails").write_text(text)

        def pip_works(self):
            (tmp_path / "calls.fails").unlink()

        def old_pip(self, version):
            (tmp_path / "calls.version").write_text(version)

    return Machine()


on_posix = pytest.mark.skipif(os.name == "nt", reason="the fake Python is a shell script")


@on_posix
def test_what_pip_installs_is_compiled_once_on_all_cores(machine):
    machine.install("lab")
    installed, compiled = machine.commands()[-2:]
    assert "pip install --no-compile" in installed
    assert compiled.endswith(f"-m compileall -qq -j 0 {machine.env.folder}/lib")


@on_posix
def test_a_second_call_installs_nothing(machine):
    machine.install("lab")
    assert machine.calls() == ["venv", "install lab"]
    machine.install("lab")
    assert machine.calls() == []


@on_posix
def test_an_installed_course_starts_in_a_folder_that_cannot_be_written(machine, monkeypatch):
    machine.install("lab")

    def refuse(root):
        raise bootstrap.SetupError(root)

    monkeypatch.setattr(bootstrap, "check_writable", refuse)
    machine.install("lab")


@on_posix
def test_what_another_call_installed_meanwhile_is_not_installed_again(machine, monkeypatch):
    @contextlib.contextmanager
    def waited_for_another_call(root, say):
        os.makedirs(os.path.dirname(machine.env.python))
        open(machine.env.python, "w").close()
        machine.env.write_stamp(machine.env.what_is_installed("test"))
        yield

    monkeypatch.setattr(bootstrap, "_only_one_at_a_time", waited_for_another_call)
    machine.install("lab")
    assert machine.calls() == []


@on_posix
def test_the_test_extra_holds_all_that_lab_needs(machine):
    machine.install("lab")
    machine.install("test")
    assert machine.calls() == ["venv", "install lab", "install test"]
    machine.install("lab")
    assert machine.calls() == []


@on_posix
def test_changed_constraints_are_installed_and_keep_the_test_tools(machine):
    machine.install("test")
    machine.calls()
    with open(machine.folder / "constraints.txt", "a") as file:
        file.write("\n# changed\n")
    machine.install("lab")
    assert machine.calls() == ["install test"]


@on_posix
def test_a_failed_first_install_leaves_no_stamp_and_is_made_afresh(machine):
    machine.pip_fails("error: killed\n")
    with pytest.raises(bootstrap.SetupError):
        machine.install("lab")
    assert not os.path.exists(machine.env.stamp)
    assert machine.calls() == ["venv", "install lab"]
    machine.pip_works()
    machine.install("lab")
    assert machine.calls() == ["venv", "install lab"]
    assert machine.env.is_ready("lab")


@on_posix
def test_a_learner_without_network_keeps_what_was_installed(machine):
    machine.install("lab")
    machine.calls()
    machine.pip_fails("Failed to establish a new connection: [Errno -2] Name or service not known\n")
    with pytest.raises(bootstrap.NoNetwork):
        machine.install("test")
    machine.calls()
    machine.install("lab")
    assert machine.calls() == []


@on_posix
def test_a_failure_midway_makes_the_next_install_start_afresh(machine):
    machine.install("lab")
    machine.pip_fails("OSError: [Errno 28] No space left on device\n")
    with pytest.raises(bootstrap.SetupError, match="The disk is full"):
        machine.install("test")
    machine.pip_works()
    machine.calls()
    machine.install("test")
    assert machine.calls() == ["venv", "install test"]


@on_posix
def test_a_moved_course_gets_a_new_environment(machine, tmp_path):
    machine.install("lab")
    machine.calls()
    moved = tmp_path / "moved"
    machine.folder.rename(moved)
    machine.env = bootstrap.Environment(str(moved))
    machine.install("lab")
    assert machine.calls() == ["venv", "install lab"]


@on_posix
@pytest.mark.parametrize("version, upgraded", [("21.2.4", True), ("23.0.1", True), ("23.1", False), ("26.1", False)])
def test_an_old_pip_is_upgraded(machine, version, upgraded):
    machine.old_pip(version)
    machine.install("lab")
    assert ("pip upgrade" in machine.calls()) == upgraded


@on_posix
def test_a_damaged_stamp_counts_as_none(machine):
    machine.install("lab")
    machine.calls()
    for damage in ("", "{", "[]", json.dumps({"extra": "test"})):
        with open(machine.env.stamp, "w") as file:
            file.write(damage)
        assert not machine.env.is_ready("lab")
    machine.install("lab")
    assert machine.calls() == ["venv", "install lab"]


@pytest.mark.parametrize(
    "wanted, platform, gpu, answers, index, may_pull_cuda",
    [
        ("", "linux", False, True, bootstrap.CPU_INDEX, False),
        ("", "linux", False, False, None, True),
        ("", "linux", True, True, None, True),
        ("", "darwin", False, True, None, False),
        ("", "win32", False, True, None, False),
        ("none", "linux", False, True, None, True),
        ("https://example.org/whl/cu130", "linux", False, True, "https://example.org/whl/cu130", True),
        ("https://example.org/whl/cpu", "linux", True, True, "https://example.org/whl/cpu", False),
    ],
)
def test_which_torch(wanted, platform, gpu, answers, index, may_pull_cuda):
    chosen, sentence, cuda = bootstrap.choose_torch_index(wanted, platform, lambda: gpu, lambda url: answers)
    assert (chosen, cuda) == (index, may_pull_cuda)
    assert (sentence is not None) == (wanted.startswith("http") or (platform == "linux" and not wanted))


def test_an_index_that_does_not_answer_is_not_waited_for(monkeypatch):
    answer = threading.Event()  # a name look-up that hangs; urlopen's own timeout does not cover it
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: answer.wait(30))
    asked = threading.Thread(target=lambda: found.append(bootstrap.reachable("http://example.org/", seconds=0.05)))
    found = []
    asked.start()
    asked.join(10)
    assert found == [False]
    answer.set()


def test_an_index_that_answers_is_reachable(monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: io.BytesIO())
    assert bootstrap.reachable("http://example.org/", seconds=10)


# --- starting JupyterLab -----------------------------------------------------------------------------


def test_a_taken_port_is_named_and_another_is_found_when_none_was_asked_for():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(bootstrap.SetupError, match=f"Port {port} is in use"):
            bootstrap.choose_port(str(port))
        assert bootstrap.choose_port("", first=port) > port


@pytest.mark.parametrize("port", ["0", "65536", "eight", "-1", "80 80"])
def test_what_is_not_a_port_is_refused(port):
    with pytest.raises(bootstrap.SetupError, match="is not a port"):
        bootstrap.choose_port(port)


@pytest.mark.parametrize(
    "platform, environ, screen",
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "w"}, True),
        ("darwin", {}, True),
        ("win32", {}, True),
        ("darwin", {"SSH_CONNECTION": "a b"}, False),
    ],
)
def test_where_a_browser_window_can_open(platform, environ, screen):
    assert bootstrap.has_screen(platform, environ) is screen


def test_lab_without_a_screen_and_as_root():
    assert {"--no-browser", "--allow-root"} <= set(bootstrap.lab_command("python", "/course", 8888, False, 0))
    assert not {"--no-browser", "--allow-root"} & set(bootstrap.lab_command("python", "/course", 8888, True, 1000))
    assert bootstrap.lab_command("python", "/course", 8888, True, 0, ["--ip=0.0.0.0"])[-1] == "--ip=0.0.0.0"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="ends the server through its process group")
def test_lab_serves_lesson_00(tmp_path):
    lesson = tmp_path / bootstrap.FIRST_LESSON
    lesson.parent.mkdir()
    lesson.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    port, log = free_port(), tmp_path / "log"
    command = bootstrap.lab_command(
        sys.executable, str(tmp_path), port, False, os.getuid(), ["--IdentityProvider.token="]
    )
    with open(log, "wb") as file:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_for_url(f"http://127.0.0.1:{port}/api/status", server, log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as page:
            assert page.status == 200
            assert page.url.endswith("/lab/tree/notebooks/00_one_request.ipynb")
    finally:
        stop(server)


# --- the doctor --------------------------------------------------------------------------------------


OK, NOTE, FAIL = doctor.OK, doctor.NOTE, doctor.FAIL


@pytest.mark.parametrize(
    "finding, level, words",
    [
        (doctor.check_python((3, 12, 1), "/usr/bin/python3", ()), OK, "3.12.1"),
        (doctor.check_python((3, 9, 1), "/usr/bin/python3", ()), FAIL, "3.10 to 3.13"),
        (doctor.check_python((3, 12, 1), "/opt/python", ("sqlite3",)), FAIL, "without sqlite3"),
        (doctor.check_install(()), OK, "installed"),
        (doctor.check_install(("torch",)), FAIL, "torch missing"),
        (doctor.check_package("torch>=2.11", "2.13.0+cpu"), OK, "2.13.0+cpu"),
        (doctor.check_package("torch>=2.11", None), FAIL, "`make lab` installs it"),
        (doctor.check_package("torch>=2.11", "2.10.0"), FAIL, "2.10.0, but the course needs >=2.11"),
        (doctor.check_package("torch>=2.11", "2.13.0", "OSError: libtorch.so"), FAIL, "libtorch.so"),
        (doctor.check_gpu(None, None, "CPU"), OK, "every lesson runs on the CPU"),
        (doctor.check_gpu("H200", "H200", "CUDA 13.0"), OK, "CUDA 13.0"),
        (doctor.check_gpu("H200", None, "CPU"), NOTE, "TORCH_INDEX=none"),
        (doctor.check_gpu("GTX 1080", None, "CUDA 13.0"), NOTE, "update the NVIDIA driver"),
        (
            doctor.check_triton("Darwin", None, None, None, "cc", False),
            NOTE,
            "does not exist for Darwin; all lessons work but",
        ),
        (
            doctor.check_triton("Windows", None, None, None, None, False),
            NOTE,
            "does not exist for Windows; all lessons",
        ),
        (doctor.check_triton("Linux", None, None, None, "cc", False), NOTE, "not installed"),
        (doctor.check_triton("Linux", "3.7.1", None, None, "cc", False), OK, "interpret kernels on the CPU"),
        (doctor.check_triton("Linux", "3.7.1", "H200", (9, 0), "cc", False), OK, "will compile kernels for H200"),
        (doctor.check_triton("Linux", "3.7.1", "H200", (9, 0), "cc", True), OK, "because TRITON_INTERPRET is set"),
        (doctor.check_triton("Linux", "3.7.1", "T4", (7, 5), "cc", False), NOTE, "compute capability 7.5"),
        (doctor.check_triton("Linux", "3.7.1", "H200", (9, 0), None, False), NOTE, "apt install gcc"),
        (doctor.check_triton("Linux", "3.7.1", "MI300X", None, "cc", False), OK, "will compile kernels for MI300X"),
        (doctor.check_machine(2, 8.0, 20.0), OK, "2 cores, 8.0 GB memory"),
        (doctor.check_machine(1, 1.9, 20.0), NOTE, "close other programs"),
        (doctor.check_machine(2, None, 0.1), FAIL, "free some disk space"),
        (doctor.check_teacher_tools("0.9.6"), OK, "0.9.6"),
        (doctor.check_teacher_tools(None), NOTE, "only teachers and tests need it"),
        (doctor.check_browser("/usr/bin/chromium"), OK, "/usr/bin/chromium"),
        (doctor.check_browser(None), NOTE, "apt install chromium"),
    ],
)
def test_finding(finding, level, words):
    assert finding.level == level
    assert words in str(finding)
    assert bool(finding.remedy) == (level != OK), "every problem has its remedy"


def test_only_a_failure_keeps_the_course_from_running():
    fine, small, fatal = (
        doctor.Finding("a", "b"),
        doctor.Finding("a", "b", NOTE, "c"),
        doctor.Finding("a", "b", FAIL, "c"),
    )
    assert doctor.can_run([fine, small])
    assert not doctor.can_run([fine, fatal])


@pytest.mark.parametrize(
    "findings, status, last",
    [
        ([doctor.Finding("a", "b", NOTE, "c")], 0, "The course can run here."),
        ([doctor.Finding("a", "b", FAIL, "c")], 1, "The course cannot run here yet; see FAIL above."),
    ],
)
def test_exit_status(findings, status, last, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "look", lambda: findings)
    assert doctor.main() == status
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_chromium_is_found_by_variable_path_and_name(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.Path, "home", lambda: tmp_path)
    assert doctor.find_chromium({"PATH": str(tmp_path)}) is None
    fetched = tmp_path / ".cache/ms-playwright/chromium-1200/chrome-linux64/chrome"
    fetched.parent.mkdir(parents=True)
    fetched.touch()
    assert doctor.find_chromium({"PATH": str(tmp_path)}) == str(fetched)
    for name in ("chromium", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert doctor.find_chromium({"PATH": str(tmp_path)}) == str(tmp_path / "chromium")
    assert doctor.find_chromium({"PATH": str(tmp_path), "CHROMIUM": str(tmp_path / "mine")}) == str(tmp_path / "mine")
