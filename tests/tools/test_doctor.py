"""The doctor: a line for each thing that it looks at, a remedy for each problem, and a report on any broken install."""

import os
import re
import subprocess
import sys

import pytest
from browser import ROOT

from tools import doctor, try_imports

OK, NOTE, FAIL = doctor.OK, doctor.NOTE, doctor.FAIL


@pytest.mark.parametrize(
    "finding, level, words",
    [
        (doctor.check_python((3, 12, 1), "/usr/bin/python3", ()), OK, "3.12.1"),
        (doctor.check_python((3, 9, 1), "/usr/bin/python3", ()), FAIL, "3.10 to 3.13"),
        (doctor.check_python((3, 12, 1), "/opt/python", ("sqlite3",)), FAIL, "without sqlite3"),
        (doctor.check_install(()), OK, "installed"),
        (doctor.check_install(("torch",)), FAIL, "torch missing"),
        (doctor.check_install((), "ImportError: no"), FAIL, "damaged: importing packaging fails: ImportError: no"),
        (doctor.check_package("torch>=2.11", "2.13.0+cpu"), OK, "2.13.0+cpu"),
        (doctor.check_package("torch>=2.11", None), FAIL, "`make lab` installs it"),
        (doctor.check_package("torch>=2.11", "2.10.0"), FAIL, "2.10.0, but the course needs >=2.11"),
        (
            doctor.check_package("torch>=2.11", "2.13.0", "OSError: libtorch.so"),
            FAIL,
            "damaged: importing it fails: OSE",
        ),
        (doctor.check_package("torch>=2.11", "not a version"), FAIL, "damaged: it calls its version 'not a version'"),
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


def run_doctor(place):
    """The doctor on a machine where packages in `place` come first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "tools.doctor"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_doctor_reports_packages_that_are_damaged(tmp_path):
    damaged = {"torch": "", "transformers": "import os; os.abort()", "numpy": "import sys; sys.exit(3)"}
    for name, source in damaged.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
    done = run_doctor(tmp_path)
    assert "Traceback" not in done.stderr and done.returncode == 1
    for name, error in {"torch": "AttributeError", "transformers": "it ends Python", "numpy": "SystemExit: 3"}.items():
        assert re.search(
            f"^FAIL  {name} .*damaged: importing it fails: {error}.*\n.*remove the folder .venv", done.stdout, re.M
        )
    assert re.search("^ok    packaging", done.stdout, re.M), "the others are still looked at"
    assert not re.search("^.....  *(GPU|Triton)", done.stdout, re.M), "nothing is known of them without torch"


def test_the_doctor_reports_a_packaging_that_is_damaged(tmp_path):
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging" / "__init__.py").write_text("raise ValueError('cut short')")
    done = run_doctor(tmp_path)
    assert "Traceback" not in done.stderr and done.returncode == 1
    assert "damaged: importing packaging fails: ValueError: cut short" in done.stdout


def test_a_package_that_never_finishes_its_import_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    report = try_imports.try_imports(["endless"], seconds=0.5)
    assert report == {"endless": {"error": "it takes more than 0 seconds"}}


def test_what_a_package_prints_and_how_it_ends_do_not_confuse_the_report(tmp_path, monkeypatch):
    (tmp_path / "talks.py").write_text("print('imported: nothing of ours', end='')")
    (tmp_path / "dies.py").write_text("import os; os._exit(7)")
    (tmp_path / "refuses.py").write_text("raise ImportError('two\\nlines')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert try_imports.try_imports(["talks", "dies", "json", "refuses", "dies"]) == {
        "talks": {"error": ""},
        "dies": {"error": "it ends Python with status 7"},
        "json": {"error": ""},
        "refuses": {"error": "ImportError: two"},
    }


@pytest.mark.parametrize(
    "metadata, version",
    [
        (b"Name: torch\nVersion: 9.0\n", "9.0"),
        (b"Name: torch\n", None),
        (b"", None),
        (b"\xff\xfe\x00", None),
        (None, None),
    ],
)
def test_a_package_without_its_metadata_counts_as_not_installed(metadata, version, tmp_path, monkeypatch):
    folder = tmp_path / "torch-9.0.dist-info"
    folder.mkdir()
    if metadata is not None:
        (folder / "METADATA").write_bytes(metadata)
    monkeypatch.setattr(doctor.sys, "path", [str(tmp_path)])
    assert doctor.version_of("torch") == version


def test_what_an_install_left_in_the_course_folder_does_not_count(tmp_path, monkeypatch):
    folder = tmp_path / "lessons_lib.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Name: lessons_lib\nVersion: 9.0\n")
    monkeypatch.setattr(doctor.sys, "path", ["", str(tmp_path)])
    assert doctor.version_of("lessons_lib") == "9.0"
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert doctor.version_of("lessons_lib") is None


def test_each_look_is_part_of_the_report_and_the_later_ones_need_a_course(monkeypatch):
    first, later = doctor.Finding("course", "installed"), doctor.Finding("model", "fine")
    monkeypatch.setattr(doctor, "FIRST_LOOKS", (lambda: [first],))
    monkeypatch.setattr(doctor, "LOOKS", (lambda: [later], lambda: iter([later])))
    assert list(doctor.look()) == [first, later, later]
    first = doctor.check_install(("torch",))
    assert list(doctor.look()) == [first]


def test_nothing_fails_where_these_tests_run():
    """On the real install, whose requirements have extras (`uvicorn[standard]`) and modules of other names (pyzmq)."""
    ran = subprocess.run([sys.executable, "-m", "tools.doctor"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0 and FAIL not in ran.stdout, ran.stdout
    assert "The course can run here." in ran.stdout
    for name in ("uvicorn", "pyzmq", "torch", "transformers"):
        assert re.search(rf"^ok +{name} ", ran.stdout, re.MULTILINE), ran.stdout


@pytest.mark.parametrize(
    "package, module", [("pyzmq", "zmq"), ("uvicorn", "uvicorn"), ("PyYAML", "yaml"), ("ruamel-none", "ruamel_none")]
)
def test_packages_are_imported_by_the_names_of_their_modules(package, module):
    assert doctor.module_of(package) == module


def test_every_requirement_can_be_imported():
    asked = doctor.requirements()
    assert ("pyzmq", "zmq") in [(re.split("[<>=!~]", requirement)[0], module) for requirement, module in asked]
    assert all("[" not in requirement and ";" not in requirement for requirement, _ in asked)
