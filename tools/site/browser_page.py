"""The site's page of exercises that run in the reader's browser, in Pyodide: no install, no server that computes.

Pyodide's npm package brings Python without numpy, torch and transformers, so only exercises that need none of them are
here. `npm install pyodide` puts it beside the course; without it the site has no such page.
"""

import html
import os
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

from lessons_lib.checks.registry import get_exercise
from tools.site.doors import ROOT

PAGE = "in_the_browser"
EXERCISES = ("03.1", "03.2", "03.3", "03.6")  # not 03.4, which makes tensors, and 03.5, which reads a model's config
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
SCRIPTS = Path(__file__).parent / "browser"
HEAD = """# Exercises in your browser

Write the code and check it here: Python itself runs in this page, with the same checks as in the notebooks. The first
check loads 13 MB. What you write stays in this browser. The pages must come from a web server, so this doesn't work
from a file on your disk.
"""


def pyodide(root: Path = ROOT) -> Path | None:
    """The folder of Pyodide's npm package; PYODIDE names another one. None if it isn't there."""
    folder = Path(os.environ.get("PYODIDE", root / "node_modules" / "pyodide"))
    return folder if all((folder / name).exists() for name in FILES) else None


def browser_page(stubs: dict[str, str], pages: dict[str, str]) -> str:
    """The page, in MyST Markdown.

    Args:
        stubs: {exercise: what learners start from}, in order.
        pages: {lesson's number: name of its page}.
    """
    return "\n".join([HEAD, *(_exercise(id, stub, pages[id[:2]]) for id, stub in stubs.items()), _scripts()])


def _exercise(id: str, stub: str, page: str) -> str:
    exercise, lines = get_exercise(id), stub.count("\n") + 1
    buttons = "".join(
        f"<button type='button' class='btn btn-outline-primary btn-sm' data-does='{does}'>{words}</button> "
        for does, words in (("check", "Check"), ("hint", "Hint"), ("solution", "Solution"), ("reset", "Start again"))
    )
    slug = id.replace(".", "-")
    return f"""
## {id} {exercise.title}

`{exercise.name}`: the contract is in [lesson {id[:2]}]({page}.ipynb).

````{{raw}} html
<div class="lessons-exercise" id="ex-{slug}" data-exercise="{id}">
<textarea spellcheck="false" autocapitalize="off" rows="{min(lines + 3, 40)}" aria-label="your code of {id}"
>{html.escape(stub)}</textarea>
<p>{buttons}</p><div class="lessons-says" aria-live="polite"></div></div>
````
"""


def _scripts() -> str:
    return '```{raw} html\n<script type="module" src="_static/browser/page.js"></script>\n```\n'


def write_browser_files(package: Path, out: Path, root: Path = ROOT) -> None:
    """Add to the built site what the page loads: our scripts, Pyodide, and the course's Python files."""
    static = out / "_static" / "browser"
    shutil.copytree(SCRIPTS, static, dirs_exist_ok=True)
    (static / "pyodide").mkdir(exist_ok=True)
    for name in FILES:
        shutil.copy(package / name, static / "pyodide")
    _zip(sorted((root / "lessons_lib").rglob("*.py")), static / "lessons_lib.zip", root)


def _zip(files: Iterable[Path], archive: Path, root: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            packed.write(file, file.relative_to(root).as_posix())
