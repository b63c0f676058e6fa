"""`make doctor`: what was found on this machine, one line each, and what to do about each problem.

    python -m tools.doctor                 exit status 0 if the course can run here, 1 if it cannot
    python -m tools.doctor --model NAME    instead, whether the engine can serve a model: a folder, or a name on the hub

Each check is a plain function from what was found to a `Finding`, so that a test can simulate any machine.
The functions in `LOOKS` look at the real one; to add a check, add a function there. Nothing here installs or changes
anything, and nothing at the top imports more than the standard library: it must be able to report on a broken install.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.setup_errors import print_any_text
from tools.try_imports import error_of_import, try_imports

OK, NOTE, FAIL = "ok", "note", "FAIL"
ROOT = Path(__file__).resolve().parent.parent
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Finding:
    """One line of the report. "note": something works less well; "FAIL": the course cannot run."""

    name: str
    found: str
    level: str = OK
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<5} {self.name:<13} {self.found}"
        return line + (f"\n      {'':<13} -> {self.remedy}" if self.remedy else "")


# ---------------------------------------------------------------------------------------------------
# Checks: what was found -> Finding
# ---------------------------------------------------------------------------------------------------


def check_python(version: tuple[int, int, int], executable: str, missing_modules: tuple[str, ...]) -> Finding:
    """missing_modules: parts of the standard library that a self-built Python may lack."""
    found = f"{'.'.join(map(str, version))} ({executable})"
    if not (3, 10) <= version[:2] < (3, 14):
        return Finding("Python", found, FAIL, "the course needs 3.10 to 3.13: `make lab PYTHON=python3.12`")
    if missing_modules:
        return Finding(
            "Python",
            f"{found}, built without {', '.join(missing_modules)}",
            FAIL,
            "use the Python of your system or of python.org: `make lab PYTHON=/usr/bin/python3`",
        )
    return Finding("Python", found)


def check_package(requirement: str, installed: str | None, import_error: str = "") -> Finding:
    """requirement: as in pyproject.toml, e.g. "torch>=2.11"; installed: its version, None when absent."""
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion, Version

    wanted = Requirement(requirement)
    afresh = "remove the folder .venv, then `make lab`"
    if installed is None:
        return Finding(wanted.name, "not installed", FAIL, "`make lab` installs it")
    try:
        suits = wanted.specifier.contains(Version(installed), prereleases=True)
    except InvalidVersion:
        return Finding(wanted.name, f"damaged: it calls its version {installed!r}", FAIL, afresh)
    if not suits:
        return Finding(wanted.name, f"{installed}, but the course needs {wanted.specifier}", FAIL, afresh)
    if import_error:
        return Finding(wanted.name, f"{installed}, damaged: importing it fails: {import_error}", FAIL, afresh)
    return Finding(wanted.name, installed)


def check_gpu(driver_says: str | None, torch_sees: str | None, torch_build: str) -> Finding:
    """driver_says: name from nvidia-smi; torch_sees: device name; torch_build: "CPU", "CUDA 13.0", "ROCm 7.1"."""
    if torch_sees:
        return Finding("GPU", f"{torch_sees} (torch for {torch_build})")
    if driver_says and torch_build == "CPU":
        return Finding(
            "GPU",
            f"{driver_says}, but this torch is built for the CPU alone",
            NOTE,
            "remove the folder .venv, then `make lab TORCH_INDEX=none`",
        )
    if driver_says:
        return Finding(
            "GPU",
            f"{driver_says}, but torch for {torch_build} cannot use it",
            NOTE,
            "update the NVIDIA driver, or take a torch for its CUDA: `make lab TORCH_INDEX=...`, see "
            "https://pytorch.org/get-started/locally/",
        )
    return Finding("GPU", "none; every lesson runs on the CPU")


def check_triton(
    system: str,
    installed: str | None,
    gpu: str | None,
    capability: tuple[int, int] | None,
    compiler: str | None,
    interpret: bool,
) -> Finding:
    """Will kernels be compiled for a GPU or interpreted on the CPU, and why?

    capability: of the NVIDIA GPU (None for others); compiler: path of a C compiler; interpret: TRITON_INTERPRET=1.
    """
    if system != "Linux":
        return Finding(
            "Triton",
            f"does not exist for {system}; all lessons work except the kernel lessons (07, 08)",
            NOTE,
            "for those use Linux, WSL or a container",
        )
    if installed is None:
        return Finding(
            "Triton",
            "not installed; all lessons work except the kernel lessons (07, 08)",
            NOTE,
            "`make lab` installs it",
        )
    if interpret:
        return Finding(
            "Triton",
            f"{installed}, will interpret kernels, because TRITON_INTERPRET is set"
            + (" (although there is a GPU)" if gpu else ""),
        )
    if gpu is None:
        return Finding("Triton", f"{installed}, will interpret kernels on the CPU, because torch sees no GPU")
    if capability is not None and capability < (8, 0):
        return Finding(
            "Triton",
            f"{installed}, but {gpu} (compute capability {capability[0]}.{capability[1]}) is older "
            "than the 8.0 that Triton supports",
            NOTE,
            "set TRITON_INTERPRET=1 to interpret kernels instead",
        )
    if compiler is None:
        return Finding(
            "Triton",
            f"{installed}, would compile for {gpu}, but there is no C compiler",
            NOTE,
            "Debian, Ubuntu: `apt install gcc`; or set TRITON_INTERPRET=1 to interpret kernels",
        )
    return Finding("Triton", f"{installed}, will compile kernels for {gpu}")


def check_machine(cores: int, memory_gb: float | None, disk_gb: float) -> Finding:
    """memory_gb: total, None when unknown; disk_gb: free on the disk of the course."""
    memory = "memory unknown" if memory_gb is None else f"{memory_gb:.1f} GB memory"
    found = f"{cores} core{'s' if cores != 1 else ''}, {memory}, {disk_gb:.1f} GB disk free"
    if disk_gb < 0.2:
        return Finding("machine", found, FAIL, "free some disk space: notebooks cannot be saved")
    if memory_gb is not None and memory_gb < 2.5:
        return Finding("machine", found, NOTE, "4 GB of memory is comfortable; close other programs")
    return Finding("machine", found)


def check_teacher_tools(nbgrader: str | None) -> Finding:
    if nbgrader is None:
        return Finding("nbgrader", "not installed; only teachers and tests need it", NOTE, "`make test` installs it")
    return Finding("nbgrader", nbgrader)


def check_browser(chromium: str | None) -> Finding:
    if chromium is None:
        return Finding(
            "Chromium",
            "not found; only the browser tests need it, they will be skipped",
            NOTE,
            "Debian: `apt install chromium`; elsewhere: `.venv/bin/python -m playwright install chromium`, or "
            "set CHROMIUM to its path",
        )
    return Finding("Chromium", chromium)


def check_install(missing: tuple[str, ...], import_error: str = "") -> Finding:
    """import_error: of packaging, which the checks of the packages need."""
    if missing:
        return Finding("course", f"not installed ({', '.join(missing)} missing)", FAIL, "`make lab` installs it")
    if import_error:
        return Finding(
            "course",
            f"damaged: importing packaging fails: {import_error}",
            FAIL,
            "remove the folder .venv, then `make lab`",
        )
    return Finding("course", "installed")


def can_run(findings: list[Finding]) -> bool:
    return all(finding.level != FAIL for finding in findings)


# ---------------------------------------------------------------------------------------------------
# Looking at this machine
# ---------------------------------------------------------------------------------------------------


def version_of(package: str) -> str | None:
    """The version that is installed; None when the package is absent or has lost its metadata."""
    # Not the root: what an editable install leaves there stays when .venv is gone.
    places = [place for place in sys.path if place and Path(place).resolve() != ROOT]
    try:
        found = next(iter(importlib.metadata.distributions(name=package, path=places)), None)
        return found.metadata["Version"] if found else None
    except Exception:  # noqa: BLE001 - how a damaged one fails depends on the Python
        return None


def find_chromium(environ=os.environ) -> str | None:
    """Path of a Chromium for the browser tests: $CHROMIUM, one on the PATH, or the one playwright fetched."""
    for name in (environ.get("CHROMIUM"), *CHROMIUMS):
        path = shutil.which(name, path=environ.get("PATH")) if name else None
        if path:
            return path
    folder = environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folders = (
        [Path(folder)]
        if folder
        else [
            Path.home() / ".cache/ms-playwright",
            Path.home() / "Library/Caches/ms-playwright",
            Path.home() / "AppData/Local/ms-playwright",
        ]
    )
    for pattern in (
        "chromium-*/chrome-linux*/chrome",
        "chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
        "chromium-*/chrome-win*/chrome.exe",
    ):
        for folder in folders:
            if matches := sorted(folder.glob(pattern)):
                return str(matches[-1])
    return None


def gpu_the_driver_names() -> str | None:
    try:
        names = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return names.stdout.strip().splitlines()[0] if names.returncode == 0 and names.stdout.strip() else None


def total_memory_gb() -> float | None:
    try:
        import psutil

        return psutil.virtual_memory().total / 1e9
    except Exception:  # noqa: BLE001 - absent or damaged
        return None


def look_at_python() -> Iterator[Finding]:
    absent = tuple(name for name in ("sqlite3", "ssl", "ctypes", "bz2", "lzma") if error_of_import(name))
    yield check_python(sys.version_info[:3], sys.executable, absent)


def look_at_machine() -> Iterator[Finding]:
    yield check_machine(os.cpu_count() or 1, total_memory_gb(), shutil.disk_usage(ROOT).free / 1e9)


def look_at_course() -> Iterator[Finding]:
    missing = tuple(name for name in ("lessons_lib", "packaging", "torch") if version_of(name) is None)
    damage = error_of_import("packaging.requirements") or error_of_import("packaging.version")
    yield check_install(missing, damage)


def look_at_packages() -> Iterator[Finding]:
    for requirement, module in requirements():
        installed = version_of(re.split("[<>=!~]", requirement)[0])
        yield check_package(requirement, installed, imports()[module]["error"] if installed else "")


def look_at_kernels() -> Iterator[Finding]:
    """The GPU and Triton, if torch can say anything about them."""
    torch = imports()["torch"]
    if torch["error"]:
        return
    yield check_gpu(gpu_the_driver_names(), torch["gpu"], torch["build"])
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    interpret = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    capability = tuple(torch["capability"]) if torch["capability"] else None
    yield check_triton(platform.system(), version_of("triton"), torch["gpu"], capability, compiler, interpret)


def look_at_teacher_tools() -> Iterator[Finding]:
    yield check_teacher_tools(version_of("nbgrader"))
    yield check_browser(find_chromium())


# In the order of the report. Those of LOOKS need an installed course.
FIRST_LOOKS = (look_at_python, look_at_machine, look_at_course)
LOOKS = (look_at_packages, look_at_kernels, look_at_teacher_tools)


def look() -> Iterable[Finding]:
    """Every finding about this machine, as soon as it is made. Takes seconds, because it imports torch."""
    first = [finding for look_at in FIRST_LOOKS for finding in look_at()]
    yield from first
    if any(finding.name == "course" and finding.level == FAIL for finding in first):
        return
    for look_at in LOOKS:
        yield from look_at()


@functools.cache
def imports() -> dict[str, dict]:
    """What `try_imports` reports of every package that the course needs."""
    return try_imports(["torch", *(module for _, module in requirements() if module != "torch")])


def requirements() -> list[tuple[str, str]]:
    """(requirement, module) of a learner's install, from the package's metadata; without Triton, which has its own
    check."""
    from packaging.requirements import Requirement

    needed = [Requirement(line) for line in importlib.metadata.requires("lessons_lib") or []]
    mine = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [(f"{each.name}{each.specifier}", module_of(each.name)) for each in mine if each.name != "triton"]


def module_of(package: str) -> str:
    """The name by which a package is imported: pyzmq is `zmq`. Its installed files say so; its own name, if it has
    none."""
    from packaging.utils import canonicalize_name

    names = [
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if canonicalize_name(package) in map(canonicalize_name, packages) and module.isidentifier()
    ]
    own = package.replace("-", "_")
    return own if own in names or not names else min(names, key=lambda name: (name[:1] == "_", len(name)))


def main() -> int:
    if sys.argv[1:2] == ["--model"] and len(sys.argv) == 3:
        from tools.doctor_model import main as look_at_model

        return look_at_model(sys.argv[2])
    print_any_text()
    findings = []
    for finding in look():
        print(finding, flush=True)
        findings.append(finding)
    print()
    print("The course can run here." if can_run(findings) else "The course cannot run here yet; see FAIL above.")
    return 0 if can_run(findings) else 1


if __name__ == "__main__":
    sys.exit(main())
