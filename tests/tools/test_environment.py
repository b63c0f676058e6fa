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
from pathlib import Path

import pytest
import yaml
from browser import ROOT, free_port, stop, wait_for_url
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import course
from tools import doctor, install, lab, machine, missing_packages, run_command, setup_errors
from tools.setup_errors import NoBuild, NoNetwork, SetupError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]


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
    (pip,) = [entry.specifier for entry in conda if entry.name == "pip"]
    assert pip == SpecifierSet(">=%d.%d" % install.OLDEST_PIP)
    assert pip_lines == ["-c constraints.txt", "-e .[test]"]
    assert "test" in project["optional-dependencies"] and (ROOT / "constraints.txt").exists()


def test_course_and_doctor_accept_the_pythons_of_pyproject():
    supported = SpecifierSet(pyproject()["project"]["requires-python"])
    for minor in range(6, 20):
        try:
            course.check_python((3, minor))
            accepted = True
        except SetupError:
            accepted = False
        assert accepted == supported.contains(f"3.{minor}.1"), f"3.{minor}"
        assert accepted == (doctor.check_python((3, minor, 1), "python", ()).level == doctor.OK), f"3.{minor}"


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


def test_constraints_are_those_of_the_lock_file():
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert SpecifierSet(lock["requires-python"]) == SpecifierSet(pyproject()["project"]["requires-python"])
    locked = {(package["name"], package["version"]) for package in lock["package"] if "registry" in package["source"]}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pinned = {(pin.name, str(pin.specifier).removeprefix("==")) for pin in map(Requirement, lines)}
    of_cuda = {(name, version) for name, version in locked if name.startswith(("nvidia-", "cuda-"))}
    assert pinned <= locked - of_cuda
    missing = {name for name, _ in locked - of_cuda - pinned}
    assert not missing, f"{missing} are in uv.lock alone: see the first lines of constraints.txt"
    (course,) = [package for package in lock["package"] if "editable" in package["source"]]
    in_lock = {entry["name"] for entry in course["metadata"]["requires-dist"]}
    assert in_lock == {canonicalize_name(wanted.name) for wanted in direct_dependencies()}, "run `uv lock`"


def test_the_lock_file_names_no_mirror():
    hosts = set(re.findall(r'https?://([^/"]*)', (ROOT / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


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
            ["lab", "PORT=9999", "ARGS=--ip=0.0.0.0", "PYTHON=python3.12"],
            'python3.12 course.py lab --port "9999" --ip=0.0.0.0',
        ),
        (["test", "ARGS=-k 'a or b'"], "python3 course.py test -k 'a or b'"),
        (["serve", "MODEL=a b", "PORT=8001"], 'python3 course.py serve --model "a b" --port "8001"'),
        (["chat-model"], "python3 course.py chat-model"),
    ],
)
def test_make_hands_its_variables_on(arguments, command):
    # `make test` hands its own variables down through these
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS", "PORT", "PYTHON", "MODEL")
    }
    said = subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == command


@pytest.mark.parametrize("file", ["course.py", "tools/__init__.py", "tools/setup_errors.py"])
def test_what_runs_first_parses_on_old_pythons(file):
    source = (ROOT / file).read_bytes()
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

# What to pretend before course.py runs in a Python of its own, and the words it must answer with.
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
def course_folder(tmp_path):
    """A folder that looks like the course to course.py."""
    folder = tmp_path / "course"
    (folder / "tools").mkdir(parents=True)
    modules = ["__init__", "install", "lab", "machine", "missing_packages", "run_command", "setup_errors"]
    for name in ("pyproject.toml", "constraints.txt", "course.py", *(f"tools/{module}.py" for module in modules)):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize("failure", FAILURES)
def test_failure_before_anything_is_installed(failure, course_folder, tmp_path):
    pretence, words = FAILURES[failure]
    (tmp_path / "sitecustomize.py").write_text(pretence)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_INDEX": "none"}
    done = subprocess.run(
        [sys.executable, "course.py", "lab"],
        cwd=course_folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not (course_folder / ".venv").exists()


def test_a_wrong_port_is_refused_before_the_install(course_folder):
    done = subprocess.run(
        [sys.executable, "course.py", "lab", "--port", "eight"],
        cwd=course_folder,
        env={**os.environ, "TORCH_INDEX": "none", "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "PORT=eight is not a port" in done.stderr
    assert not (course_folder / ".venv").exists()


def test_an_old_python_names_a_newer_one_that_is_there(tmp_path, monkeypatch):
    for name, status in (("python3.13", 1), ("python3.12", 0)):  # the first is there but does not work
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert course.usable_pythons() == ["python3.12"]
    with pytest.raises(SetupError, match="make lab PYTHON=python3.12"):
        course.check_python((3, 14), course.usable_pythons())


def test_a_full_disk_shows_before_the_space_is_counted(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    with pytest.raises(SetupError, match="The disk is full"):
        machine.check_writable(str(tmp_path))


@pytest.mark.parametrize(
    "said, kind, words",
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            SetupError,
            "The disk is full",
        ),
        (
            "WARNING: Retrying: NewConnectionError(': [Errno -3] Temporary failure in name resolution')\n"
            "ERROR: No matching distribution found for torch>=2.11\n",
            NoNetwork,
            "no network",
        ),
        ("ERROR: [Errno 13] Permission denied: '/course/.venv/lib'\n", SetupError, "not allowed to write"),
        ("ERROR: No matching distribution found for torch==2.13.0\n", NoBuild, "no build for this Python"),
        ("error: something new\n", SetupError, "the output above says why"),
    ],
)
def test_what_pip_says_becomes_a_sentence(said, kind, words):
    error = setup_errors.explain_failure(said, "/course")
    assert type(error) is kind
    assert words in str(error)


# --- what gets installed -----------------------------------------------------------------------------

# Stands in for Python, venv and pip: writes down what it is asked and answers as the files beside it say.
FAKE_PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
    "-m venv --without-pip "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
    "-m ensurepip "*) [ ! -e "{log}.full" ] || {{ cat "{log}.full" >&2; exit 1; }} ;;
    "-m pip --version") echo "pip $(cat "{log}.version") from here" ;;
    "-m pip install "*)
        env > "{log}.environment"
        [ ! -e "{log}.fails" ] || {{ cat "{log}.fails" >&2; exit 1; }}
        mkdir -p "$(dirname "$0")/../lib/python{python}/site-packages/torch-2.13.0.dist-info"
        echo "Name: torch" > "$(dirname "$0")/../lib/python{python}/site-packages/torch-2.13.0.dist-info/METADATA" ;;
    "-m pip -vv index versions "*) cat "{log}.index" ;;
    "-m pip config list") cat "{log}.settings" ;;
    "-I "*missing_packages.py*) if [ -e "{log}.elsewhere" ]; then echo torch; else echo complete; fi ;;
esac
"""

# Stands in for uv, the same way.
FAKE_UV = """#!/bin/sh
echo "uv $@" >> "{log}"
case "$1" in
    venv) for folder; do :; done; mkdir -p "$folder/bin" && cp "{python}" "$folder/bin/python" ;;
    pip) exec "$4" -m pip install by-uv ;;
esac
"""


@pytest.fixture
def installer(course_folder, tmp_path, monkeypatch):
    """A course folder on a machine whose Python is the fake. `installer.calls()` returns and forgets what was asked."""
    log = tmp_path / "calls"
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.format(log=log, python="%d.%d" % sys.version_info[:2]))
    python.chmod(0o755)
    (tmp_path / "calls.version").write_text("26.1")
    (tmp_path / "calls.settings").touch()
    monkeypatch.setattr(sys, "executable", str(python))
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("mkdir", "cp", "cat", "env", "dirname"):  # a PATH with nothing else on it: no uv
        (tools / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tools))
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "free_gigabytes", lambda root: 100.0)

    class Machine:
        env = install.Environment(str(course_folder))
        folder = course_folder

        def install(self, extra):
            install.install(self.env, extra, torch_index="none", say=lambda text: None)

        def calls(self):
            lines = log.read_text().splitlines() if log.exists() else []
            log.write_text("")
            return [
                "venv"
                if "-m venv" in line
                else "pip upgrade"
                if "--upgrade" in line
                else "install " + (re.search(r"(\w*)\]?$", line)[1] or "lab")
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

        def environment(self):
            """What pip, or uv, was given."""
            return dict(
                line.split("=", 1) for line in (tmp_path / "calls.environment").read_text().splitlines() if "=" in line
            )

        def pip_is_set_to(self, text):
            (tmp_path / "calls.settings").write_text(text)

        def ensurepip_fails(self, text):
            (tmp_path / "calls.full").write_text(text)

        def index_says(self, text):
            (tmp_path / "calls.index").write_text(text)

        def packages_go_elsewhere(self):
            (tmp_path / "calls.elsewhere").touch()

        def gets_uv(self):
            (tools / "uv").write_text(FAKE_UV.format(log=log, python=python))
            (tools / "uv").chmod(0o755)

    return Machine()


on_posix = pytest.mark.skipif(os.name == "nt", reason="the fake Python is a shell script")


@on_posix
def test_what_pip_installs_is_compiled_once_on_all_cores(installer):
    installer.install("lab")
    installed, looked_for, compiled = installer.commands()[-3:]
    assert "pip install --no-compile" in installed and "missing_packages.py lab" in looked_for
    assert compiled.endswith(f"-m compileall -qq -j 0 {installer.env.folder}/lib")


@on_posix
def test_a_second_call_installs_nothing(installer):
    installer.install("lab")
    assert installer.calls() == ["venv", "install lab"]
    installer.install("lab")
    assert installer.calls() == []


@on_posix
def test_an_installed_course_starts_in_a_folder_that_cannot_be_written(installer, monkeypatch):
    installer.install("lab")

    def refuse(root):
        raise SetupError(root)

    monkeypatch.setattr(machine, "check_writable", refuse)
    installer.install("lab")


@on_posix
def test_what_another_call_installed_meanwhile_is_not_installed_again(installer, monkeypatch):
    @contextlib.contextmanager
    def waited_for_another_call(root, say):
        os.makedirs(os.path.dirname(installer.env.python))
        open(installer.env.python, "w").close()
        installer.env.write_stamp(installer.env.finished_stamp("test"))
        yield

    monkeypatch.setattr(install, "only_one_at_a_time", waited_for_another_call)
    installer.install("lab")
    assert installer.calls() == []


@on_posix
def test_each_extra_holds_all_that_those_before_it_need(installer):
    for extra in ("lab", "test", "site"):
        installer.install(extra)
    assert installer.calls() == ["venv", "install lab", "install test", "install site"]
    installer.install("lab")
    installer.install("test")
    assert installer.calls() == []


@on_posix
def test_changed_constraints_are_installed_and_keep_the_test_tools(installer):
    installer.install("test")
    installer.calls()
    with open(installer.folder / "constraints.txt", "a") as file:
        file.write("\n# changed\n")
    installer.install("lab")
    assert installer.calls() == ["install test"]


@on_posix
def test_a_failed_first_install_leaves_no_stamp_and_is_made_afresh(installer):
    installer.pip_fails("error: killed\n")
    with pytest.raises(SetupError):
        installer.install("lab")
    assert not os.path.exists(installer.env.stamp)
    assert installer.calls() == ["venv", "install lab"]
    installer.pip_works()
    installer.install("lab")
    assert installer.calls() == ["venv", "install lab"]
    assert installer.env.is_ready("lab")


@on_posix
def test_a_learner_without_network_keeps_what_was_installed(installer):
    installer.install("lab")
    installer.calls()
    installer.pip_fails("Failed to establish a new connection: [Errno -2] Name or service not known\n")
    with pytest.raises(NoNetwork):
        installer.install("test")
    installer.calls()
    installer.install("lab")
    assert installer.calls() == []


@on_posix
def test_a_failure_midway_makes_the_next_install_start_afresh(installer):
    installer.install("lab")
    installer.pip_fails("OSError: [Errno 28] No space left on device\n")
    with pytest.raises(SetupError, match="The disk is full"):
        installer.install("test")
    installer.pip_works()
    installer.calls()
    installer.install("test")
    assert installer.calls() == ["venv", "install test"]


@on_posix
def test_a_moved_course_gets_a_new_environment(installer, tmp_path):
    installer.install("lab")
    installer.calls()
    moved = tmp_path / "moved"
    installer.folder.rename(moved)
    installer.env = install.Environment(str(moved))
    installer.install("lab")
    assert installer.calls() == ["venv", "install lab"]


@on_posix
@pytest.mark.parametrize("version, upgraded", [("21.2.4", True), ("23.0.1", True), ("23.1", False), ("26.1", False)])
def test_an_old_pip_is_upgraded(installer, version, upgraded):
    installer.old_pip(version)
    installer.install("lab")
    assert ("pip upgrade" in installer.calls()) == upgraded


@on_posix
def test_a_damaged_stamp_counts_as_none(installer):
    installer.install("lab")
    installer.calls()
    for damage in ("", "{", "[]", json.dumps({"extra": "test"})):
        with open(installer.env.stamp, "w") as file:
            file.write(damage)
        assert not installer.env.is_ready("lab")
    installer.install("lab")
    assert installer.calls() == ["venv", "install lab"]


@on_posix
def test_a_package_that_was_removed_is_installed_again(installer):
    installer.install("lab")
    installer.calls()
    (removed,) = (installer.folder / ".venv").glob("lib/python*/site-packages/torch-*.dist-info")
    shutil.rmtree(removed)
    assert not installer.env.is_ready("lab")
    installer.install("lab")
    assert installer.calls() == ["install lab"], "what doctor says of a missing package is true"


MISLEADING = ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN", "PIP_REQUIRE_VIRTUALENV", "PIP_REQUIRE_HASHES",
              "PIP_VERSION", "PIP_PYTHON", "PIP_CONSTRAINT", "UV_NO_DEPS", "UV_PYTHON", "UV_TARGET", "UV_PROJECT",
              "UV_EXCLUDE_NEWER", "PYTHONPATH", "PYTHONHOME"]  # fmt: skip


@on_posix
def test_settings_that_would_send_packages_elsewhere_are_not_handed_on(installer, monkeypatch):
    for name in [*MISLEADING, "PIP_INDEX_URL", "UV_INDEX_MINE_PASSWORD", "PIP_NO_DEPS", "PIP_USER"]:
        monkeypatch.setenv(name, "1")
    installer.install("lab")
    given = installer.environment()
    assert not set(MISLEADING) & set(given)
    assert given["PIP_INDEX_URL"] == given["UV_INDEX_MINE_PASSWORD"] == "1", "a mirror stays"
    assert given["PIP_NO_DEPS"] == given["PIP_USER"] == "0", "which overrides pip.conf, too"


@on_posix
def test_pip_asks_for_a_password_only_where_one_can_be_typed(monkeypatch):
    monkeypatch.setattr(run_command.os, "isatty", lambda descriptor: False)
    assert run_command.install_environment({})["PIP_NO_INPUT"] == "1"
    monkeypatch.setattr(run_command.os, "isatty", lambda descriptor: True)
    assert "PIP_NO_INPUT" not in run_command.install_environment({})


@on_posix
@pytest.mark.parametrize("uv", [False, True])
def test_no_folder_name_is_part_of_what_gets_installed(installer, uv):
    if uv:
        installer.gets_uv()
    installer.install("test")
    (command,) = [line for line in installer.commands() if " install " in line and "-e " in line]
    assert command.endswith(" -e .[test]"), "x[1] would be read as a package x with an extra 1"


@on_posix
def test_packages_that_went_elsewhere_are_missed(installer):
    installer.packages_go_elsewhere()
    with pytest.raises(SetupError, match="torch is not in .*\nA setting sends packages"):
        installer.install("lab")
    assert not installer.env.is_ready("lab")


@on_posix
def test_a_setting_in_pip_conf_that_sends_packages_elsewhere_is_named(installer):
    installer.pip_is_set_to("global.index-url='https://me:secret@mirror/simple'\ninstall.prefix='/opt/mine'\n")
    with pytest.raises(SetupError, match="prefix='/opt/mine'\n.*pip config debug`") as raised:
        installer.install("lab")
    assert "secret" not in str(raised.value)
    assert installer.calls() == ["venv"], "before even pip itself is sent there"


def install_without(place, absent, damaged):
    """Write the metadata of lessons_lib, with two requirements and an extra, and of all but `absent` of those."""
    requires = ["torch>=2.11", 'elsewhere>=1; sys_platform == "other"', 'pytest>=8; extra == "test"', "packaging>=23"]
    for name, lines in {"lessons_lib": requires, "torch": [], "pytest": [], "packaging": []}.items():
        folder = place / f"{name}-9.0.dist-info"
        lines = [f"Name: {name}", "Version: 9.0", *(f"Requires-Dist: {line}" for line in lines)]
        if name != absent:
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text("\n".join(lines))
        elif damaged:
            folder.mkdir(parents=True)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize(
    "absent, extra, missing",
    [
        ("none", "test", None),
        ("torch", "lab", "torch"),
        ("lessons_lib", "lab", "lessons_lib"),
        ("pytest", "lab", None),
        ("pytest", "test", "pytest"),
        ("packaging", "lab", "packaging"),
    ],
)
def test_what_an_install_lacks_is_named(absent, extra, missing, damaged, tmp_path, monkeypatch):
    install_without(tmp_path, absent, damaged)
    # without what is installed here, and without this folder, in which an install leaves its metadata
    others = [p for p in sys.path if "site-packages" not in p and not any(Path(p or ".").glob("lessons_lib*info"))]
    monkeypatch.setattr(missing_packages.sys, "path", [str(tmp_path), *others])
    monkeypatch.setitem(sys.modules, "packaging", sys.modules["packaging"])  # which has been imported already
    assert missing_packages.missing_package(extra) == missing


@on_posix
def test_a_package_that_lost_its_metadata_makes_a_new_environment(installer):
    installer.install("lab")
    installer.calls()
    (metadata,) = (installer.folder / ".venv").glob("lib/python*/site-packages/torch-*.dist-info/METADATA")
    metadata.unlink()
    installer.install("lab")
    assert installer.calls() == ["venv", "install lab"], "pip alone would count it as installed"


@on_posix
def test_why_ensurepip_failed_is_said(installer, capfd):
    installer.ensurepip_fails("OSError: [Errno 28] No space left on device: '/tmp/x'\n")
    with pytest.raises(SetupError, match="The disk is full: .*\n.*TMPDIR="):
        installer.install("lab")
    assert "No space left on device: '/tmp/x'" in capfd.readouterr().err
    assert installer.calls() == ["venv"]


@on_posix
def test_a_small_folder_for_temporary_files_is_refused(installer, monkeypatch):
    small = setup_errors.temporary_folder()
    monkeypatch.setattr(machine, "free_gigabytes", lambda folder: 0.1 if folder == small else 100.0)
    with pytest.raises(SetupError, match=f"for temporary files: 0.1 GB free in {small}.*\n.*TMPDIR=/a/larger/disk"):
        installer.install("lab")
    assert installer.calls() == []
    installer.gets_uv()  # which does not use it
    installer.install("lab")


def test_a_full_disk_is_named_where_no_temporary_file_can_be_written(monkeypatch):
    def refuse():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(setup_errors.tempfile, "gettempdir", refuse)
    monkeypatch.setenv("TMPDIR", "/full")
    assert "(/full) has no space left" in setup_errors.disk_full_message("/course")


# What `pip -vv index versions torch` says of an index, by what the index does.
PAGE = "Fetched page http://mirror/simple/torch/ as text/html\n"
ANSWERS = {
    "503": ("Could not fetch URL http://mirror/: ... (Caused by ResponseError('too many 503 error responses'))",
            NoNetwork, "a problem of its own .HTTP status 503."),
    "500": ("Could not fetch URL http://mirror/: 502 Server Error: Bad Gateway for url: http://mirror/",
            NoNetwork, "HTTP status 502.*\n.*Wait some minutes"),
    "403": ("Could not fetch URL http://mirror/: 403 Client Error: Forbidden for url: http://mirror/",
            NoNetwork, "refuses access .HTTP status 403."),
    "401": ("Could not fetch URL http://mirror/: 401 Client Error: Unauthorized for url: http://mirror/",
            NoNetwork, "HTTP status 401.*\n.*credentials"),
    "404 of one index": ("404 Client Error: Not Found for url: http://a/\n403 Client Error: Forbidden for url: http://b/",
                         NoNetwork, "HTTP status 403"),
    "404": ("404 Client Error: Not Found for url: http://a/", NoNetwork, "does not know a package"),
    "407": ("407 Client Error: Proxy Authentication Required for url: http://mirror/",
            NoNetwork, "the proxy asks for a user name.*\n.*name:password@host"),
    "407, tunnel": ("ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407 Proxy Authenti",
                    NoNetwork, "the proxy asks for a user name"),
    "certificate": ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
                    NoNetwork, "certificate .* not trusted.*\n.*sign-in page.*PIP_CERT"),
    "sign-in page": (PAGE + "  Skipping link: not a file: http://mirror/login",
                     NoNetwork, "its page for torch lists no packages.*\n.*sign in"),
    "other systems": (PAGE + "  Skipping link: none of the wheel's tags (cp27-cp27m-win32) are compatible",
                      NoBuild, "no build for this Python"),
    "older Pythons": (PAGE + "  Link requires a different Python (3.13.0 not in: '<3.9'): http://mirror/torch-1.whl",
                      NoBuild, "no build for this Python"),
    "nothing": ("", NoBuild, "no build for this Python"),
}  # fmt: skip


@on_posix
@pytest.mark.parametrize("answer", ANSWERS)
def test_what_the_index_answered_is_said(answer, installer):
    said, kind, words = ANSWERS[answer]
    installer.pip_fails("ERROR: No matching distribution found for torch>=2.11\n")
    installer.index_says(said)
    with pytest.raises(kind, match=words):
        installer.install("lab")
    assert installer.commands()[-1].endswith("torch"), "the package without its version"


@on_posix
def test_an_index_that_is_down_leaves_what_was_installed(installer):
    installer.install("lab")
    installer.calls()
    installer.pip_fails("ERROR: No matching distribution found for nbgrader>=0.9\n")
    installer.index_says(ANSWERS["503"][0])
    with pytest.raises(NoNetwork):
        installer.install("test")
    assert installer.env.is_ready("lab")


@pytest.mark.parametrize(
    "said, words",
    [
        ("  cause: HTTP status server error (503 Service Unavailable) for url (http://mirror/torch/)", "status 503"),
        ("  cause: HTTP status client error (407 Proxy Authentication Required) for url (h", "the proxy asks for"),
        ("error: Failed to fetch: h\n  cause: error sending request for url (h)\n"
         "  cause: tunnel error: proxy authorization required", "the proxy asks for"),
        ("hint: An index (http://mirror) returned a 403 Forbidden error.", "status 403"),
        ("due to a lack of valid authentication credentials (401 Unauthorized)", "status 401"),
        ("error: No solution found when resolving dependencies\n  cause: Because there are no versions of torch and you "
         "require torch, we can conclude", "its page for torch lists no packages"),
        ("  cause: invalid peer certificate: UnknownIssuer", "certificate"),
    ],
)  # fmt: skip
def test_what_uv_says_of_an_index_is_explained(said, words):
    error = setup_errors.explain_failure(said, "/course")
    assert type(error) is NoNetwork and words in str(error)


@pytest.mark.parametrize(
    "said",
    ["/course/.venv/bin/python: No module named pip.__main__\n",
     'Traceback (most recent call last):\n  File "/x/pip/_internal/cli/main.py", line 1\nImportError: cannot import'],
)  # fmt: skip
def test_a_broken_pip_is_named(said):
    assert "pip in .venv is damaged" in str(setup_errors.explain_failure(said, "/course"))


@on_posix
@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_file_that_is_missing_is_named(name, installer):
    (installer.folder / name).unlink()
    with pytest.raises(SetupError, match=f"^{name} cannot be read .*\n.*git checkout {name}"):
        installer.install("lab")
    assert installer.calls() == []


def run_course(folder, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "course.py", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_course_without_its_other_files_says_so(course_folder):
    shutil.rmtree(course_folder / "tools")
    done = run_course(course_folder, "lab", PYTHONPATH="")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "needs the other files of the course" in done.stderr and "git checkout ." in done.stderr


@on_posix
def test_a_venv_whose_python_cannot_start_is_named(course_folder):
    python = course_folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_bytes(b"\x7fELF of another machine")
    python.chmod(0o755)
    done = run_course(course_folder, "doctor")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(r"python cannot be started \(.*\). Remove the folder .venv", done.stderr)


@on_posix
def test_an_error_of_the_system_that_no_check_foresaw_is_a_sentence(course_folder, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os\ndef refuse(path): raise OSError(5, 'I/O error', path)\n"
                                               "os.chdir = refuse")  # fmt: skip
    done = run_course(course_folder, "doctor", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "The setup stopped" in done.stderr and "I/O error" in done.stderr


@on_posix
def test_a_terminal_without_the_letters_of_the_folder_gets_them_escaped(course_folder, tmp_path):
    folder = course_folder.rename(tmp_path / "Kurs für Ω")
    (tmp_path / "sitecustomize.py").write_text("import tempfile\ndef refuse(*a, **k): raise OSError(30, 'read-only')\n"
                                               "tempfile.TemporaryFile = refuse")  # fmt: skip
    done = run_course(folder, "lab", PYTHONIOENCODING="ascii", PYTHONPATH=str(tmp_path), TORCH_INDEX="none")
    assert "Traceback" not in done.stderr and r"Kurs f\xfcr \u03a9" in done.stderr
    printed = "from tools.setup_errors import print_any_text; print_any_text(); print('\u03a9')"
    child = f"import os, sys; {printed}; sys.stdout.flush(); os.execv(sys.executable, [sys.executable, '-c', 'print(\"\u03a9\")'])"
    done = subprocess.run([sys.executable, "-c", child], cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"},
                          capture_output=True, check=True)  # fmt: skip
    assert done.stdout.split() == [rb"\u03a9"] * 2, "here and in the programs that are started from here"


@on_posix
def test_a_venv_of_another_user_is_named_and_kept(installer, monkeypatch):
    installer.install("lab")
    installer.calls()
    with open(installer.folder / "constraints.txt", "a") as file:
        file.write("\n# changed\n")
    access = os.access
    monkeypatch.setattr(machine.os, "access", lambda path, mode: path != installer.env.folder and access(path, mode))
    with pytest.raises(SetupError, match=r"belongs to another user.*\n.*sudo chown -R"):
        installer.install("lab")
    assert installer.calls() == [] and os.path.exists(installer.env.stamp)


@on_posix
@pytest.mark.parametrize(
    "kind, words", [("link", "is a link to"), ("dangling link", "is a link to"), ("file", "is a file")]
)
def test_a_venv_that_is_no_folder_is_named_and_kept(installer, tmp_path, kind, words):
    venv, elsewhere = installer.folder / ".venv", tmp_path / "elsewhere"
    if kind == "file":
        venv.write_text("my-environment")
    else:
        venv.symlink_to(elsewhere)
    if kind == "link":
        elsewhere.mkdir()
        (elsewhere / "work").touch()
    with pytest.raises(SetupError, match=words):
        installer.install("lab")
    assert installer.calls() == [] and (venv.is_symlink() or venv.read_text() == "my-environment")
    assert kind != "link" or (elsewhere / "work").exists()


@on_posix
def test_a_venv_that_cannot_be_removed_is_named(installer, monkeypatch):
    (installer.folder / ".venv").mkdir()

    def refuse(folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(install.shutil, "rmtree", refuse)
    with pytest.raises(SetupError, match="cannot be removed .Permission denied."):
        installer.install("lab")


@on_posix
def test_uv_installs_the_exact_versions_where_it_is(installer, monkeypatch):
    installer.gets_uv()
    monkeypatch.setattr(install.machine, "choose_torch_index", lambda *_: ("https://example.org/whl/cpu", None, False))
    monkeypatch.setattr(install.machine, "check_venv_module", lambda *_: pytest.fail("uv needs no venv module"))
    installer.install("test")
    folder, python = installer.env.root, installer.env.python
    asked = [line for line in installer.commands() if line.startswith("uv ")]
    assert asked == [
        "uv --version",
        f"uv venv --seed --python {sys.executable} {folder}/.venv",
        f"uv pip install --python {python} -c constraints.txt --index https://example.org/whl/cpu"
        " --index-strategy unsafe-best-match -e .[test]",
    ]
    installer.calls()
    installer.install("lab")
    assert installer.commands() == []


@on_posix
def test_uv_that_fails_is_explained(installer):
    installer.gets_uv()
    installer.pip_fails(
        "error: Failed to fetch: `https://pypi.org/simple/torch/`\n  Caused by: dns error: failed to lookup\n"
    )
    with pytest.raises(NoNetwork, match="UV_DEFAULT_INDEX"):
        installer.install("lab")


@on_posix
@pytest.mark.parametrize(
    "settings, variable, uses_uv",
    [
        ("", None, True),
        ("global.timeout='60'", None, True),
        ("global.index-url='https://mirror/simple'", None, False),
        (":env:.extra-index-url='https://mirror/simple'", None, False),
        (":env:.find-links='/opt/wheels'", None, False),
        ("global.index-url='https://mirror/simple'", "UV_DEFAULT_INDEX", True),
    ],
)
def test_a_mirror_that_pip_alone_knows_keeps_pip(installer, monkeypatch, settings, variable, uses_uv):
    installer.gets_uv()
    installer.pip_is_set_to(settings + "\n")
    if variable:
        monkeypatch.setenv(variable, "https://mirror/simple")
    assert (install.find_uv(os.environ) is not None) == uses_uv


def test_a_broken_uv_is_not_used(tmp_path):
    (tmp_path / "uv").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "uv").chmod(0o755)
    assert install.find_uv({"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize(
    "wanted, platform, gpu, answers, index, may_pull_cuda",
    [
        ("", "linux", False, True, machine.CPU_INDEX, False),
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
    chosen, sentence, cuda = machine.choose_torch_index(wanted, platform, lambda: gpu, lambda url: answers)
    assert (chosen, cuda) == (index, may_pull_cuda)
    assert (sentence is not None) == (wanted.startswith("http") or (platform == "linux" and not wanted))


def test_an_index_that_does_not_answer_is_not_waited_for(monkeypatch):
    answer = threading.Event()  # a name look-up that hangs; urlopen's own timeout does not cover it
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: answer.wait(30))
    asked = threading.Thread(target=lambda: found.append(machine.reachable("http://example.org/", seconds=0.05)))
    found = []
    asked.start()
    asked.join(10)
    assert found == [False]
    answer.set()


def test_an_index_that_answers_is_reachable(monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: io.BytesIO())
    assert machine.reachable("http://example.org/", seconds=10)


# --- starting JupyterLab -----------------------------------------------------------------------------


def test_a_taken_port_is_named_and_another_is_found_when_none_was_asked_for():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"Port {port} is in use"):
            lab.choose_port(str(port))
        assert lab.choose_port("", first=port) > port


@pytest.mark.parametrize("port", ["0", "65536", "eight", "-1", "80 80", "²", "٣", "9" * 5000])
def test_what_is_not_a_port_is_refused(port):
    with pytest.raises(SetupError, match="is not a port"):
        lab.choose_port(port)


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
    assert lab.has_screen(platform, environ) is screen


def test_lab_without_a_screen_and_as_root():
    assert {"--no-browser", "--allow-root"} <= set(lab.lab_command("python", "/course", 8888, False, 0))
    assert not {"--no-browser", "--allow-root"} & set(lab.lab_command("python", "/course", 8888, True, 1000))
    assert lab.lab_command("python", "/course", 8888, True, 0, ["--ip=0.0.0.0"])[-1] == "--ip=0.0.0.0"
    assert "--LabApp.workspaces_dir=/course/work/.lab/workspaces" in lab.lab_command("python", "/course", 8888, True, 0)


def test_the_start_page_is_trusted_before_it_has_run(tmp_path, monkeypatch):
    from nbformat import read, v4, write
    from nbformat.sign import NotebookNotary

    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(data))
    page = tmp_path / "START.ipynb"
    write(
        v4.new_notebook(cells=[v4.new_code_cell("1", outputs=[v4.new_output("display_data", {"text/html": "<p>"})])]),
        page,
    )
    notary = NotebookNotary(data_dir=str(data))
    assert not notary.check_signature(read(page, 4))
    lab.trust(sys.executable, str(page))
    assert NotebookNotary(data_dir=str(data)).check_signature(read(page, 4))


def test_a_layout_from_a_narrow_window_leaves_room_for_the_lesson(tmp_path):
    lab.lay_out(tmp_path)
    (file,) = (tmp_path / lab.WORKSPACES).iterdir()
    first = file.read_text()
    for share, share_then in ((0.3, 0.3), (0.78, lab.SIZES[0])):
        stored = json.loads(first)
        stored["data"]["layout-restorer:data"]["relativeSizes"] = [share, 1 - share, 0]
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
    command = lab.lab_command(sys.executable, str(tmp_path), port, False, os.getuid(), ["--IdentityProvider.token="])
    with open(log, "wb") as file:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_for_url(f"http://127.0.0.1:{port}/api/status", server, log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as page:
            assert page.status == 200
            assert page.url.endswith("/lab/tree/work/START.ipynb")
    finally:
        stop(server)
