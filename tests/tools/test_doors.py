"""Docker, Binder, Codespaces and Colab install what everything else does: the same Python, pins and index of torch."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tools.authoring import assemble
from tools.authoring.colab import colab_cell, is_colab_cell
from tools.install import CPU_INDEX
from tools.lab import FIRST_PAGES
from tools.site.sources import lesson_page

ROOT = Path(__file__).resolve().parents[2]
INSTALL = f"python -m pip install --no-cache-dir --extra-index-url {CPU_INDEX} -c constraints.txt -e ."
DEVCONTAINER = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
DOCKERFILE, RUNTIME, POST_BUILD, PYPROJECT = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("Dockerfile", ".binder/runtime.txt", ".binder/postBuild", "pyproject.toml")
)
PYTHONS = {
    "docker": re.search(r"^FROM python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE)[1],
    "binder": re.fullmatch(r"python-([\d.]+)\n", RUNTIME)[1],
    "devcontainer": re.fullmatch(r"mcr\.microsoft\.com/devcontainers/python:([\d.]+)-\w+", DEVCONTAINER["image"])[1],
}


def test_every_door_has_the_same_supported_python():
    assert len(set(PYTHONS.values())) == 1, PYTHONS
    supported = SpecifierSet(re.search(r'^requires-python = "(.+)"', PYPROJECT, re.MULTILINE)[1])
    assert supported.contains(f"{PYTHONS['docker']}.1")


def test_every_door_installs_the_pinned_versions_with_a_torch_for_cpus():
    assert f"\nRUN {INSTALL}\n" in DOCKERFILE
    assert POST_BUILD.startswith("#!/bin/bash\n") and POST_BUILD.endswith(f"\nset -eu\n{INSTALL}\n")
    assert (ROOT / ".binder/postBuild").stat().st_mode & 0o111, "Binder runs it"
    assert DEVCONTAINER["postCreateCommand"] == INSTALL


def test_docker_and_codespaces_open_the_learners_copy_and_keep_it():
    assert DEVCONTAINER["onCreateCommand"] == "python -m tools.learner_work update"
    assert DEVCONTAINER["customizations"]["codespaces"]["openFiles"] == [FIRST_PAGES[0]]
    assert 'CMD ["python", "-m", "tools.lab", "--ip=0.0.0.0"]' in DOCKERFILE
    run = "docker run --rm -p 8888:8888 -v glass-vllm-work:/home/learner/course/work glass-vllm"
    assert run in DOCKERFILE and run in (ROOT / "tools/site/pages/install.md").read_text(encoding="utf-8")
    assert "\nwork\n" in (ROOT / ".dockerignore").read_text(), "an image would carry the answers of who built it"


@pytest.mark.parametrize("in_colab", [False, True])
def test_the_cell_for_colab_installs_there_and_does_nothing_elsewhere(monkeypatch, in_colab):
    [cell] = colab_cell("somebody/course")
    if in_colab:
        monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    commands = []
    exec(cell.source, {"get_ipython": lambda: types.SimpleNamespace(system=commands.append)})
    assert commands == ["pip install -q git+https://github.com/somebody/course"] * in_colab
    assert colab_cell("") == []


def test_only_a_course_with_a_home_has_the_cell_and_no_other_cell_changes(monkeypatch):
    toy = ROOT / "tests" / "toy_course"
    monkeypatch.syspath_prepend(str(toy))
    from toylib import checks as registry

    path = toy / "solutions" / "99_toy.py"
    monkeypatch.setattr(assemble, "home_of_record", lambda: "")
    without = assemble.Lesson(path, registry).notebook
    monkeypatch.setattr(assemble, "home_of_record", lambda: "somebody/course")
    with_cell = assemble.Lesson(path, registry).notebook
    assert is_colab_cell(with_cell.cells[1]) and with_cell.cells[:1] + with_cell.cells[2:] == without.cells
    page = lesson_page(with_cell, with_cell, path.stem, "somebody/course")
    assert not any(is_colab_cell(cell) for cell in page.cells)
