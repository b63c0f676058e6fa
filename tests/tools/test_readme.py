"""The README says nothing that is not so: its files exist, its commands work, its picture is the real one."""

import re

import pytest
from readme_tables import (
    engine_markdown,
    kernels_against_production,
    summary_markdown,
    ways_markdown,
    workloads_markdown,
    workloads_summary,
)

from tools.authoring.build import lesson_files
from tools.authoring.cover import COVER, cover
from tools.authoring.execute import LIBRARY

README = (LIBRARY / "README.md").read_text(encoding="utf-8")


def test_links_lead_to_files():
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    [alt] = re.findall(rf"!\[([^\]]*)\]\({re.escape(COVER)}\)", README)
    assert len(alt) > 60
    assert links and [link for link in links if not (LIBRARY / link).exists()] == []


def test_every_lesson_is_listed_with_its_minutes():
    for lesson in lesson_files(LIBRARY):
        minutes = re.search(r"^([\d–]+) minutes ·", lesson.read_text(encoding="utf-8"), re.MULTILINE).group(1)
        told = re.findall(r"part of its ([\d–]+) minutes", lesson.read_text(encoding="utf-8"))
        assert set(told) <= {minutes}, f"{lesson.stem}: its end says {told} minutes, its beginning {minutes}"
        row = rf"\(notebooks/{lesson.stem}\.ipynb\) \|.*\| {minutes} \|$"
        assert re.search(row, README, re.MULTILINE), (lesson.stem, minutes)


def test_commands_are_targets_of_the_makefile():
    makefile = (LIBRARY / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([\w-]+)", README)) | set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    "recorded",
    [
        kernels_against_production, summary_markdown, engine_markdown, workloads_summary, workloads_markdown, ways_markdown,
    ],
)  # fmt: skip
def test_kernel_times_and_rates_are_the_recorded_ones(recorded):
    assert recorded() in README


@pytest.mark.nightly  # `make notebooks` draws it anew, with whatever changes the pictures of the lessons
def test_the_picture_is_that_of_a_run_of_today():
    assert (LIBRARY / COVER).read_text(encoding="utf-8") == cover().svg


def test_the_architecture_page_names_what_exists():
    page = (LIBRARY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:lessons_lib|tools|tests|solutions|notebooks)[\w/.]*)`", page):
        assert (LIBRARY / path.replace("_NN", "_00")).exists() or path.startswith("solutions/"), path
    for path in re.findall(r" (\w+/\w+\.py)  ", page):
        assert (LIBRARY / "lessons_lib" / path).exists(), path


def test_the_architecture_page_s_step_is_that_of_the_code():
    page = (LIBRARY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```\nLLMEngine\.step\(\)\n(.*?)```", page, re.DOTALL)
    files = ("engine/llm_engine.py", "engine/core.py", "engine/model_runner.py", "attention/hf_backend.py")
    sources = "".join((LIBRARY / "lessons_lib" / file).read_text(encoding="utf-8") for file in files)
    for line in block.splitlines():
        for code in line.strip().partition("  ")[0].split(", "):
            assert code.removesuffix("...)") in sources, code
