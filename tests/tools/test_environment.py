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

import conftest
import pytest
import yaml
from browser import ROOT, free_port, stop, wait_for_url
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import course
from tools import doctor, install, lab, machine, setup_errors
from tools.setup_errors import NoNetwork, SetupError

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
    assert targets == set(re.findall(r"^([a-z]+):", makefile, re.M))
    assert targets == set(re.findall(r'@echo "make (\w+) ', makefile))
    assert targets - {"help", "doctor"} == set(course.EXTRAS)


def test_files_that_conftest_names_exist():
    stems = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert {*conftest.LONGEST, *conftest.MANY_CASES} <= stems, "a file under another name would be part of `make quick`"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize(
    "arguments, command",
    [
        (
            ["lab", "PORT=9999", "ARGS=--ip=0.0.0.0", "PYTHON=python3.12"],
            'python3.12 course.py lab --port "9999" --ip=0.0.0.0',
        ),
        (["test", "ARGS=-k 'a or b'"], "python3 course.py test -k 'a or b'"),
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
    modules = ["__init__", "install", "lab", "machine", "run_command", "setup_errors"]
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
        ("ERROR: No matching distribution found for torch==2.13.0\n", SetupError, "no build for this Python"),
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
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip --version") echo "pip $(cat "{log}.version") from here" ;;
    "-m pip install "*)
        env > "{log}.environment"
        [ ! -e "{log}.fails" ] || {{ cat "{log}.fails" >&2; exit 1; }}
        mkdir -p "$(dirname "$0")/../lib/python{python}/site-packages/torch-2.13.0.dist-info" ;;
    "-m pip config list") cat "{log}.settings" ;;
    "-c "*lessons_lib*) [ ! -e "{log}.elsewhere" ] ;;
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

        def environment(self):
            """What pip, or uv, was given."""
            return dict(
                line.split("=", 1) for line in (tmp_path / "calls.environment").read_text().splitlines() if "=" in line
            )

        def pip_is_set_to(self, text):
            (tmp_path / "calls.settings").write_text(text)

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
    assert "pip install --no-compile" in installed and "version('torch')" in looked_for
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
def test_the_test_extra_holds_all_that_lab_needs(installer):
    installer.install("lab")
    installer.install("test")
    assert installer.calls() == ["venv", "install lab", "install test"]
    installer.install("lab")
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
    removed.rmdir()
    assert not installer.env.is_ready("lab")
    installer.install("lab")
    assert installer.calls() == ["install lab"], "what doctor says of a missing package is true"


@on_posix
def test_settings_that_would_send_packages_elsewhere_are_not_handed_on(installer, monkeypatch):
    misleading = [
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_USER",
        "PIP_NO_DEPS",
        "PIP_DRY_RUN",
        "UV_NO_DEPS",
        "PYTHONPATH",
    ]
    for name in [*misleading, "PIP_INDEX_URL"]:
        monkeypatch.setenv(name, "1")
    installer.install("lab")
    assert not set(misleading) & set(installer.environment())
    assert installer.environment()["PIP_INDEX_URL"] == "1", "a mirror stays"


@on_posix
def test_packages_that_went_elsewhere_are_missed(installer):
    installer.packages_go_elsewhere()
    with pytest.raises(SetupError, match="a setting sends them elsewhere"):
        installer.install("lab")
    assert not installer.env.is_ready("lab")


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
        f"uv pip install --python {python} -c {folder}/constraints.txt --index https://example.org/whl/cpu"
        f" --index-strategy unsafe-best-match -e {folder}[test]",
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


@pytest.mark.parametrize("port", ["0", "65536", "eight", "-1", "80 80", "²", "٣"])
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


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="ends the server through its process group")
def test_lab_serves_lesson_00(tmp_path):
    lesson = tmp_path / lab.FIRST_LESSON
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
            "does not exist for Darwin; all lessons work except",
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


def test_the_doctor_reports_a_torch_that_is_empty(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "tools.doctor"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr
    assert re.search(
        r"^FAIL  torch .*importing it fails: AttributeError.*\n.*remove the folder .venv", done.stdout, re.M
    )
    assert done.returncode == 1
