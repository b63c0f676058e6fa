"""Import packages in a process of their own: a damaged one can end the process that imports it, or never return.

    python -m tools.try_imports torch numpy        prints one line of JSON for each

`try_imports` starts that process, and another one for the packages after one that ended it.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "course-try-imports:"  # packages print things of their own
SECONDS = 300


def try_imports(modules: list[str], seconds: float = SECONDS) -> dict[str, dict]:
    """Module -> {"error": what goes wrong when it is imported, in one line; "" when nothing does}.

    For torch also "build" ("CPU", "CUDA 13.0", "ROCm 7.1"), "gpu" (its name or None) and "capability".
    """
    reports: dict[str, dict] = {}
    while left := [module for module in modules if module not in reports]:
        command = [sys.executable, "-m", "tools.try_imports", *left]
        try:
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds)
            printed, end = done.stdout, f"it ends Python with status {done.returncode}"
        except subprocess.TimeoutExpired as error:
            printed, end = error.stdout or b"", f"it takes more than {seconds:.0f} seconds"
        for line in printed.decode("utf-8", "replace").splitlines():
            if line.startswith(MARK):
                reports.update(json.loads(line[len(MARK) :]))
        culprit = next((module for module in left if module not in reports), None)
        if culprit:
            reports[culprit] = {"error": end}
    return reports


def error_of_import(module: str) -> str:
    """The first line of what goes wrong when `module` is imported; empty when nothing does."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a broken install raises is what we report
        return first_line(error)
    return ""


def look_at_torch() -> dict:
    """What torch is built for and which GPU it sees."""
    report = {"error": "", "build": "CPU", "gpu": None, "capability": None}
    try:
        import torch

        if torch.version.cuda:
            report["build"] = f"CUDA {torch.version.cuda}"
        elif torch.version.hip:
            report["build"] = f"ROCm {torch.version.hip}"
        if torch.cuda.is_available():
            report["gpu"] = torch.cuda.get_device_name()
            report["capability"] = torch.cuda.get_device_capability() if torch.version.cuda else None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above; an empty folder "torch" imports without an error
        report["error"] = first_line(error)
    return report


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    for module in sys.argv[1:]:
        report = look_at_torch() if module == "torch" else {"error": error_of_import(module)}
        print("\n" + MARK + json.dumps({module: report}), flush=True)
