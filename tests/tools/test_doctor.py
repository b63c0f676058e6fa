"""The doctor: a line for each thing that it looks at, a remedy for each problem, and a report on any broken install."""

import os
import re
import subprocess
import sys

import pytest
from browser import ROOT
from packaging.requirements import Requirement

from tools import doctor
from tools.doctor import AFRESH, FAIL, NOTE, OK, Finding

doctor_project = doctor.project()


@pytest.mark.parametrize(
    "finding, level, words",
    [
        (doctor.check_python((3, 12, 1), "/usr/bin/python3"), OK, "3.12.1 (/usr/bin/python3)"),
        (doctor.check_python((3, 9, 1)), FAIL, "`make lab PYTHON=python3.12`"),
        (doctor.check_gpu("", None, "CPU"), OK, "every lesson runs on the CPU"),
        (doctor.check_gpu("H200", "H200", "CUDA 13.0"), OK, "CUDA 13.0"),
        (doctor.check_gpu("H200", None, "CPU"), NOTE, "TORCH_INDEX=none"),
        (doctor.check_gpu("GTX 1080", None, "CUDA 13.0"), NOTE, "update the NVIDIA driver"),
        (doctor.check_triton("Darwin", None, None, None, "cc", False), NOTE, "does not exist for Darwin; all lessons"),
        (doctor.check_triton("Linux", "3.7.1", None, None, "cc", False), OK, "interpret kernels on the CPU"),
        (doctor.check_triton("Linux", "3.7.1", "H200", [9, 0], "cc", False), OK, "will compile kernels for H200"),
        (doctor.check_triton("Linux", "3.7.1", "H200", [9, 0], "cc", True), OK, "because TRITON_INTERPRET is set"),
        (doctor.check_triton("Linux", "3.7.1", "T4", [7, 5], "cc", False), NOTE, "compute capability 7.5"),
        (doctor.check_triton("Linux", "3.7.1", "H200", [9, 0], None, False), NOTE, "apt install gcc"),
        (doctor.check_triton("Linux", "3.7.1", "MI300X", None, "cc", False), OK, "will compile kernels for MI300X"),
        (doctor.check_disk(20.0), OK, "20.0 GB of disk free"),
        (doctor.check_disk(0.1), FAIL, "free some disk space"),
    ],
)
def test_finding(finding, level, words):
    assert finding.level == level
    assert words in str(finding)
    assert bool(finding.remedy) == (level != OK), "every problem has its remedy"


@pytest.mark.parametrize(
    "level, status, last", [(NOTE, 0, "can run here."), (FAIL, 1, "cannot run here yet; see FAIL")]
)
def test_only_a_failure_keeps_the_course_from_running(level, status, last, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "look", lambda: iter([Finding("a", "b"), Finding("c", "d", level, "e")]))
    monkeypatch.setattr(sys, "argv", ["doctor"])
    assert doctor.main() == status
    assert last in capsys.readouterr().out.splitlines()[-1]


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


def run_doctor(place):
    """The doctor on a machine where packages in `place` come first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "tools.doctor"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.nightly
def test_nothing_fails_where_these_tests_run(tmp_path):
    """On the real install, whose requirements have extras (`uvicorn[standard]`) and modules of other names (pyzmq)."""
    done = run_doctor(tmp_path)
    assert done.returncode == 0 and FAIL not in done.stdout, done.stdout
    for wanted in map(Requirement, doctor.project()["dependencies"]):
        assert re.search(rf"^ok +{wanted.name} +\d", done.stdout, re.MULTILINE), done.stdout


def test_packages_that_are_damaged_are_reported_and_the_others_too(tmp_path, monkeypatch):
    damaged = {
        "torch": ("torch", "", "AttributeError"),
        "transformers": ("transformers", "import os; os.abort()", "it ends Python with status -6"),
        "numpy": ("numpy", "import sys; sys.exit(3)", "it ends Python with status 3"),
        "pyzmq": ("zmq", "raise ImportError('cut short')", "ImportError: cut short"),
    }
    for module, source, _ in damaged.values():
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text(source)
    install_package(tmp_path, "needy", b"Name: needy\nVersion: 9.0\nRequires-Dist: gone>=1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "project", lambda: doctor_project | {"dependencies": [*damaged, "packaging"]})
    found = {each.name: each for each in doctor.look_at_packages()}
    for name, (_, _, error) in damaged.items():
        assert f"damaged: importing it fails: {error}" in found[name].found and found[name].level == FAIL
        assert "remove the folder .venv" in found[name].remedy
    assert found["packaging"].level == OK and not {"GPU", "Triton"} & set(found), "nothing is known without torch"
    assert found["requirements"] == Finding(
        "requirements", "needy 9.0 requires gone, which is not installed.", FAIL, AFRESH
    )


def test_the_doctor_reports_a_packaging_that_is_damaged(tmp_path):
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging" / "__init__.py").write_text("raise ValueError('cut short')")
    done = run_doctor(tmp_path)
    assert "Traceback" not in done.stderr and done.returncode == 1
    assert re.search(r"FAIL  course .*: ValueError: cut short\n.*remove the folder .venv", done.stdout)


def test_a_package_that_never_finishes_its_import_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "modules_of", lambda name: [name])
    monkeypatch.setattr(doctor, "SECONDS", 0.5)
    assert doctor.try_import("endless") == ("", "it takes more than 0.5 seconds")


def install_package(place, name, metadata):
    folder = place / f"{name}-9.0.dist-info"
    folder.mkdir()
    if metadata is not None:
        (folder / "METADATA").write_bytes(metadata)


@pytest.mark.parametrize(
    "metadata, version",
    [(b"Name: torch\nVersion: 9.0\n", "9.0"), (b"Name: torch\n", None), (b"", None), (b"\xff\xfe\x00", None),
     (None, None)],
)  # fmt: skip
def test_a_package_without_its_metadata_counts_as_not_installed(metadata, version, tmp_path, monkeypatch):
    install_package(tmp_path, "torch", metadata)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert doctor.version_of("torch") == version


@pytest.mark.parametrize(
    "wanted, problem",
    [
        ("here", ""),
        ("here[extra]>=9", ""),
        ("here>=10", "9.0, but >=10 is needed"),
        ("gone", "not installed"),
        ("odd>=1", "damaged: it calls its version 'not a version'"),
    ],
)
def test_what_is_wrong_with_an_installed_version(wanted, problem, tmp_path, monkeypatch):
    install_package(tmp_path, "here", b"Name: here\nVersion: 9.0\n")
    install_package(tmp_path, "odd", b"Name: odd\nVersion: not a version\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert doctor.problem_of(Requirement(wanted)) == problem


@pytest.mark.parametrize(
    "package, modules", [("pyzmq", ["zmq"]), ("uvicorn", ["uvicorn"]), ("PyYAML", ["yaml"]), ("no-such-package", [])]
)
def test_packages_are_imported_by_the_names_of_their_modules(package, modules):
    assert doctor.modules_of(package) == modules
