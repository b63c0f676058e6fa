"""`make doctor`: what was found on this machine, one line each, and what to do about each problem.

    python -m tools.doctor                 exit status 0 if the course can run here, 1 if it cannot
    python -m tools.doctor --model NAME    instead, whether the engine can serve a model: a folder, or a name on the hub

Nothing here changes anything, and nothing at the top imports more than the standard library: it must be able to report
on a broken install.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.setup_errors import print_any_text

if TYPE_CHECKING:
    from packaging.requirements import Requirement

OK, NOTE, FAIL = "ok", "note", "FAIL"
ROOT = Path(__file__).resolve().parent.parent
AFRESH = "remove the folder .venv, then `make lab`"
SECONDS = 300  # for the import of a package
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOOK_AT_TORCH = """
import json, torch
build = next((f"{name} {of}" for name, of in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip)) if of), "CPU")
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
capability = torch.cuda.get_device_capability() if gpu and torch.version.cuda else None
print(json.dumps({"build": build, "gpu": gpu, "capability": capability}))
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report. "note": something works less well; "FAIL": the course cannot run."""

    name: str
    found: str
    level: str = OK
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<5} {self.name:<17} {self.found}"
        return line + (f"\n      {'':<17} -> {self.remedy}" if self.remedy else "")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# ---------------------------------------------------------------------------------------------------
# Packages
# ---------------------------------------------------------------------------------------------------


def version_of(name: str) -> str | None:
    """The installed version of a distribution; None if it is absent or has lost its metadata."""
    try:
        return importlib.metadata.version(name) or None
    except Exception:  # noqa: BLE001 - how a damaged one fails depends on the Python
        return None


def problem_of(wanted: Requirement) -> str:
    """What is wrong with the installed version of a requirement; "" if nothing is."""
    from packaging.version import InvalidVersion, Version

    installed = version_of(wanted.name)
    if installed is None:
        return "not installed"
    try:
        suits = wanted.specifier.contains(Version(installed), prereleases=True)
    except InvalidVersion:
        return f"damaged: it calls its version {installed!r}"
    return "" if suits else f"{installed}, but {wanted.specifier} is needed"


modules_here = functools.cache(importlib.metadata.packages_distributions)


def modules_of(name: str) -> list[str]:
    from packaging.utils import canonicalize_name

    same = canonicalize_name(name).replace("-", "_")
    names = {
        module
        for module, distributions in modules_here().items()
        if module.isidentifier() and not module.startswith("_")
        if canonicalize_name(name) in map(canonicalize_name, distributions)
    }
    return [same] if same in names else sorted(names)


def try_import(name: str) -> tuple[str, str]:
    """What the import of a package prints, and what went wrong, in one line.

    In a process of its own: a damaged package may end it, or never return.
    """
    code = LOOK_AT_TORCH if name == "torch" else "import " + ", ".join(modules_of(name) or ["sys"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "", f"it takes more than {SECONDS} seconds"
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return done.stdout, (said[-1] if said else f"it ends Python with status {done.returncode}") * (done.returncode != 0)


def look_at_packages() -> Iterator[Finding]:
    """A line for this Python, one for each package of pyproject.toml, and one for each problem of what those need."""
    try:
        from packaging.requirements import Requirement
    except Exception as error:  # noqa: BLE001 - whatever a broken install raises is what we report
        yield Finding("course", f"not installed, or damaged: {type(error).__name__}: {error}", FAIL, AFRESH)
        return
    yield check_python(sys.version_info[:3])
    wanted = [each for each in map(Requirement, project()["dependencies"]) if not each.marker or each.marker.evaluate()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each, (printed, error) in zip(wanted, pool.map(try_import, [each.name for each in wanted])):
            installed, problem = version_of(each.name), problem_of(each)
            if error and not problem:
                problem = f"{installed}, damaged: importing it fails: {error}"
            yield Finding(each.name, problem, FAIL, AFRESH) if problem else Finding(each.name, str(installed))
            if each.name == "torch" and not problem:
                yield from look_at_kernels(**json.loads(printed.splitlines()[-1]))
    yield from look_at_what_they_need()


def look_at_what_they_need() -> Iterator[Finding]:
    """What `pip check` says, a line each: packages that others need, and that are missing or too old."""
    command = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        for line in done.stdout.splitlines() or ["pip can't be started"]:
            yield Finding("requirements", line, FAIL, AFRESH)


# ---------------------------------------------------------------------------------------------------
# The rest of this machine
# ---------------------------------------------------------------------------------------------------


def check_python(version: tuple[int, ...], executable: str = sys.executable) -> Finding:
    from packaging.specifiers import SpecifierSet

    range_, found = project()["requires-python"], f"{'.'.join(map(str, version))} ({executable})"
    if not SpecifierSet(range_).contains(".".join(map(str, version))):
        return Finding("Python", found, FAIL, f"the course needs {range_}: `make lab PYTHON=python3.12`")
    return Finding("Python", found)


def look_at_kernels(build: str, gpu: str | None, capability: list[int] | None) -> Iterator[Finding]:
    """The GPU, and how Triton runs kernels: compiled for it, or interpreted on the CPU."""
    try:
        names = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
        driver = names.stdout.split(" (UUID")[0].strip() if names.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        driver = ""
    yield check_gpu(driver, gpu, build)
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    interpret = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    yield check_triton(platform.system(), version_of("triton"), gpu, capability, compiler, interpret)


def check_gpu(driver: str, gpu: str | None, build: str) -> Finding:
    """driver: the GPU that nvidia-smi names; gpu: the one that torch sees; build: "CPU", "CUDA 13.0", "ROCm 7.1"."""
    if gpu:
        return Finding("GPU", f"{gpu} (torch for {build})")
    if driver and build == "CPU":
        return Finding("GPU", f"{driver}, but this torch is built for the CPU alone", NOTE,
                       "remove the folder .venv, then `make lab TORCH_INDEX=none`")  # fmt: skip
    if driver:
        return Finding("GPU", f"{driver}, but torch for {build} cannot use it", NOTE,
                       "update the NVIDIA driver, or take a torch for its CUDA: `make lab TORCH_INDEX=...`, see "
                       "https://pytorch.org/get-started/locally/")  # fmt: skip
    return Finding("GPU", "none; every lesson runs on the CPU")


def check_triton(
    system: str, installed: str | None, gpu: str | None, capability: list[int] | None, compiler: str | None,
    interpret: bool,
) -> Finding:  # fmt: skip
    """capability: of an NVIDIA GPU; compiler: path of a C compiler; interpret: TRITON_INTERPRET is set."""
    if system != "Linux":
        return Finding("Triton", f"does not exist for {system}; all lessons work except the kernel lessons (07, 08)",
                       NOTE, "for those use Linux, WSL or a container")  # fmt: skip
    if interpret:
        return Finding("Triton", f"{installed}, will interpret kernels, because TRITON_INTERPRET is set")
    if gpu is None:
        return Finding("Triton", f"{installed}, will interpret kernels on the CPU")
    if capability and tuple(capability) < (8, 0):
        older = ".".join(map(str, capability))
        found = f"{installed}, but {gpu} (compute capability {older}) is older than Triton's 8.0"
        return Finding("Triton", found, NOTE, "set TRITON_INTERPRET=1 to interpret kernels instead")
    if compiler is None:
        return Finding("Triton", f"{installed}, would compile for {gpu}, but there is no C compiler", NOTE,
                       "Debian, Ubuntu: `apt install gcc`; or set TRITON_INTERPRET=1 to interpret kernels")  # fmt: skip
    return Finding("Triton", f"{installed}, will compile kernels for {gpu}")


def check_disk(free_gb: float) -> Finding:
    found = f"{os.cpu_count()} cores, {free_gb:.1f} GB of disk free"
    if free_gb < 0.2:
        return Finding("machine", found, FAIL, "free some disk space: notebooks cannot be saved")
    return Finding("machine", found)


def find_chromium(environ=os.environ) -> str | None:
    """Path of a Chromium for the browser tests: $CHROMIUM, one on the PATH, or the one playwright fetched."""
    for name in (environ.get("CHROMIUM"), *CHROMIUMS):
        path = shutil.which(name, path=environ.get("PATH")) if name else None
        if path:
            return path
    places = (".cache/ms-playwright", "Library/Caches/ms-playwright", "AppData/Local/ms-playwright")
    folders = [Path(environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / place) for place in places]
    patterns = ("linux*/chrome", "mac*/*.app/Contents/MacOS/*", "win*/chrome.exe")
    found = [path for folder in folders for end in patterns for path in sorted(folder.glob(f"chromium-*/chrome-{end}"))]
    return str(found[-1]) if found else None


def look_at_test_tools() -> Iterator[Finding]:
    for name, found, remedy in (
        ("nbgrader", version_of("nbgrader"), "`make test` installs it"),
        ("Chromium", find_chromium(), "`.venv/bin/python -m playwright install chromium`, or set CHROMIUM to its path"),
    ):
        missing = Finding(name, "not found; only tests and teachers need it", NOTE, remedy)
        yield Finding(name, found) if found else missing


def look() -> Iterator[Finding]:
    """Every finding about this machine. Takes seconds, because it imports torch."""
    yield check_disk(shutil.disk_usage(ROOT).free / 1e9)
    yield from look_at_packages()
    yield from look_at_test_tools()


def check_model(name: str) -> Finding:
    """Load a model from a folder or the hub, and probe it."""
    from lessons_lib.compat.probe import PAGED, probe
    from lessons_lib.models.configuration import UnsupportedModel
    from lessons_lib.models.loading import load_model

    try:
        model, _ = load_model(name)
        result = probe(model)
    except UnsupportedModel as error:
        return Finding("model", "can't be served", FAIL, str(error))
    except OSError as error:
        return Finding("model", "can't be loaded", FAIL, str(error))
    kind = f"{type(model).__name__}, {len(result.layer_shapes)} layers, {model.dtype}"
    if result.way == PAGED:
        return Finding("model", f"{kind}: served from the paged KV cache, equal to `generate`", OK)
    return Finding("model", f"{kind}: served one sequence at a time, equal to `generate`, slowly", NOTE, result.reason)


def main() -> int:
    print_any_text()
    if sys.argv[1:2] == ["--model"] and len(sys.argv) == 3:
        print(finding := check_model(sys.argv[2]))
        return int(finding.level == FAIL)
    findings = []
    for finding in look():
        print(finding, flush=True)
        findings.append(finding)
    fine = all(finding.level != FAIL for finding in findings)
    print("\nThe course can run here." if fine else "\nThe course cannot run here yet; see FAIL above.")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
