"""notebooks/START.ipynb: the first page, with its still output, which shows the lessons and no learner's progress."""

import json
import re
from pathlib import Path

import nbformat

from lessons_lib.checks.home import Home
from lessons_lib.checks.lessons import FURTHER, page_of
from tools.authoring.assemble import NOTEBOOK_METADATA

EXERCISE = re.compile(r'^# %% .*exercise="([\d.]+)"', re.MULTILINE)
START = "START.ipynb"
WELCOME = """# glass-vllm

Build the engine that serves a language model, and see every block of it. Click into the cell below and press
Ctrl+Enter, or ▶ above, to see **your progress**. Each lesson opens with a click on its name. In a narrow window, the
list symbol at the left shows the contents.

You work on your own copy in `work/`; `make update` brings newer lessons to it and keeps your answers. In a lesson,
`hint("00.1")` helps with an exercise, and `reset("00.1")` puts it, as it was, into a new cell."""
ROOM = """## Engine room

The engine that you are going to build, on one page: turn its knobs, send it stories, watch every block of its memory.
Run the cell below."""
ROOM_CELL = "from lessons_lib.viz.engine_room.notebook import engine_room\n\nengine_room()"
DOCTOR = """## Doctor

If something doesn't work, run this cell. It says what was found on this machine, and what to do about each problem."""
HOME_CELL = "from lessons_lib.checks import home\n\nhome()"
DOCTOR_CELL = """import subprocess
import sys

print(subprocess.run([sys.executable, "-m", "tools.doctor"], cwd="..", capture_output=True, text=True).stdout)"""


def start_page(lessons: list[Path], tiles: dict[str, str] | None = None) -> str:
    """The notebook as text, from the lessons' sources and the tiles' pictures, {lesson's number: SVG}."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in lessons}
    tiles = tiles or {}
    pages = []
    for name, text in texts.items():
        required, _, further = text.partition(FURTHER)
        ids = (tuple(EXERCISE.findall(part)) for part in (required, further))
        pages.append(page_of(name, text, *ids, tiles.get(name[:2], "")))
    still = Home(pages)
    data = {"text/html": still._repr_html_().replace("../notebooks/", ""), "text/plain": repr(still)}
    cells = [
        nbformat.v4.new_markdown_cell(WELCOME, id="welcome"),
        nbformat.v4.new_code_cell(HOME_CELL, id="home", outputs=[nbformat.v4.new_output("display_data", data)]),
        nbformat.v4.new_markdown_cell(ROOM, id="room-words"),
        nbformat.v4.new_code_cell(ROOM_CELL, id="room"),
        nbformat.v4.new_markdown_cell(DOCTOR, id="doctor-words"),
        nbformat.v4.new_code_cell(DOCTOR_CELL, id="doctor"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=json.loads(json.dumps(NOTEBOOK_METADATA)))
    return nbformat.writes(notebook).rstrip("\n") + "\n"
