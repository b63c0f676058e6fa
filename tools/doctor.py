"""`make doctor`: what was found on this machine, one line each, and what to do about each problem.

    python -m tools.doctor                 exit status 0 if the course can run here, 1 if it cannot
    python -m tools.doctor --model NAME    instead, whether the engine can serve a model: a folder, or a name on the hub

Each check is a plain function from what was found to a `Finding`, so that a test can simulate any machine.
`look()` alone looks at the real one. Nothing here installs or changes anything, and nothing at the top imports
more than the standard library: it must be able to report on a broken install.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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

    wanted = Requirement(requirement)
    if installed is None:
        return Finding(wanted.name, "not installed", FAIL, "`make lab` installs it")
    if not wanted.specifier.contains(installed, prereleases=True):
        return Finding(
            wanted.name,
            f"{installed}, but the course needs {wanted.specifier}",
            FAIL,
            "remove the folder .venv, then `make lab`",
        )
    if import_error:
        return Finding(
            wanted.name,
            f"{installed}, but importing it fails: {import_error}",
            FAIL,
            "remove the folder .venv, then `make lab`",
        )
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


def check_install(missing: tuple[str, ...]) -> Finding:
    if missing:
        return Finding("course", f"not installed ({', '.join(missing)} missing)", FAIL, "`make lab` installs it")
    return Finding("course", "installed")


def can_run(findings: list[Finding]) -> bool:
    return all(finding.level != FAIL for finding in findings)


# ---------------------------------------------------------------------------------------------------
# Looking at this machine
# ---------------------------------------------------------------------------------------------------


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def error_of_import(module: str) -> str:
    """The first line of what goes wrong when `module` is imported; empty when nothing does."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever a broken install raises is what we report
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def look_at_torch() -> tuple[str | None, tuple[int, int] | None, str, str]:
    """(name of the GPU, its compute capability, what torch is built for, first line of an error), with any torch."""
    gpu = capability = None
    build = "CPU"
    try:
        import torch

        if torch.version.cuda:
            build = f"CUDA {torch.version.cuda}"
        elif torch.version.hip:
            build = f"ROCm {torch.version.hip}"
        if torch.cuda.is_available():
            gpu = torch.cuda.get_device_name()
            capability = torch.cuda.get_device_capability() if torch.version.cuda else None
    except Exception as error:  # noqa: BLE001 - as above; an install that was cut short can leave an empty torch
        return None, None, build, f"{type(error).__name__}: {error}".splitlines()[0]
    return gpu, capability, build, ""


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
    except ImportError:
        return None
    return psutil.virtual_memory().total / 1e9


def look() -> list[Finding]:
    """Every finding about this machine. Takes seconds, because it imports torch and transformers."""
    absent = tuple(name for name in ("sqlite3", "ssl", "ctypes", "bz2", "lzma") if error_of_import(name))
    findings = [
        check_python(sys.version_info[:3], sys.executable, absent),
        check_machine(os.cpu_count() or 1, total_memory_gb(), shutil.disk_usage(ROOT).free / 1e9),
    ]
    missing = tuple(name for name in ("lessons_lib", "packaging", "torch") if version_of(name) is None)
    findings.append(check_install(missing))
    if missing:
        return findings

    gpu, capability, build, torch_error = look_at_torch()
    for requirement in _requirements():
        name = requirement.split(";")[0].strip()
        module = name.split(">")[0].replace("-", "_")
        if module == "triton":
            continue
        installed = version_of(module)
        error = torch_error if module == "torch" else error_of_import(module) if installed else ""
        findings.append(check_package(name, installed, error))

    findings.append(check_gpu(gpu_the_driver_names(), gpu, build))
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    findings.append(
        check_triton(
            platform.system(),
            version_of("triton"),
            gpu,
            capability,
            compiler,
            os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"),
        )
    )
    findings.append(check_teacher_tools(version_of("nbgrader")))
    findings.append(check_browser(find_chromium()))
    return findings


def _requirements() -> list[str]:
    """The requirements of a learner's install in pyproject.toml, without the extras."""
    return [line for line in importlib.metadata.requires("lessons_lib") or [] if "extra ==" not in line]


def main() -> int:
    if sys.argv[1:2] == ["--model"] and len(sys.argv) == 3:
        from tools.doctor_model import main as look_at_model

        return look_at_model(sys.argv[2])
    findings = look()
    for finding in findings:
        print(finding)
    print()
    print("The course can run here." if can_run(findings) else "The course cannot run here yet; see FAIL above.")
    return 0 if can_run(findings) else 1


if __name__ == "__main__":
    sys.exit(main())
