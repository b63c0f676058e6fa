"""The numbers of the first page and of the README: read from the page of benchmarks, which is made from recordings, and
counted in the code. Nothing here imports more than Python's own library: the pages are built where no torch is."""

import importlib.util
import re
from pathlib import Path

from lessons_lib.checks.lessons import released_pages
from tools.site.doors import ROOT

PAGE = "tools/site/pages/benchmarks.md"
GPU = re.compile(r"^Tokens per second over vLLM's, all workloads: .*?\(geometric mean of \d+: ([\d.]+)\)", re.MULTILINE)
CPU = re.compile(r"^\| engine, fused \|.*\| ([\d.]+) \|$", re.MULTILINE)


def facts() -> dict[str, str]:
    """{name: number as text}: lines of the engine with its GPU path; rates over vLLM's and one request's; exercises."""
    page = Path(ROOT, PAGE).read_text(encoding="utf-8")
    gpu, cpu = GPU.search(page), CPU.search(page)
    if not gpu or not cpu:
        raise ValueError(f"{PAGE} has no mean of the rates over vLLM's, or no row of the fused engine.")
    lines = sum(_code_lines().closure("lessons_lib.engine.llm_engine", "lessons_lib.engine.gpu_model_runner").values())
    exercises = sum(len(lesson.exercises) + len(lesson.optional) for lesson in released_pages())
    return {
        "lines": f"{round(lines, -2):,}",
        "gpu": f"{float(gpu[1]):.1f}",
        "cpu": f"{float(cpu[1]):.0f}",
        "exercises": f"{exercises}",
    }


def _code_lines():
    """The module without its package, which imports numpy."""
    spec = importlib.util.spec_from_file_location("code_lines", ROOT / "lessons_lib/measuring/code_lines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
