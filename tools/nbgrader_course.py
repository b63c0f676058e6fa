"""python -m tools.nbgrader_course FOLDER: an nbgrader course of these lessons, an assignment for each.

    FOLDER/source/NN_name/NN_name.ipynb     from solutions/, which have the solutions between nbgrader's marks
    FOLDER/nbgrader_config.py               the course's name and settings

Then, in FOLDER: `nbgrader generate_assignment 03_block_allocator`, and so on; see tools/site/pages/teachers.md. What is
there already is kept: a folder that has a source of some lesson is only completed.
"""

import argparse
import re
import sys
from pathlib import Path
from shutil import copy2

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """\
c = get_config()
c.CourseDirectory.course_id = "{name}"
c.CourseDirectory.root = {root!r}
c.Execute.timeout = 300  # seconds for a cell
"""


def make_course(folder: Path, lessons: list[str] = ()) -> list[str]:  # type: ignore[assignment]
    """Make or complete an nbgrader course of some lessons, or all. Returns the assignments that were added."""
    solved = {path.stem[:2]: path for path in sorted((ROOT / "solutions").glob("[0-9][0-9]_*.ipynb"))}
    if unknown := [number for number in lessons if number not in solved]:
        raise ValueError(f"no lesson {', '.join(unknown)}; there are {', '.join(solved)}.")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG.format(name=folder.resolve().name, root=str(folder.resolve())), encoding="utf-8")
    added = []
    for number in lessons or solved:
        path = solved[number]
        target = folder / "source" / path.stem / path.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(path, target)
            added.append(path.stem)
    return added


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.nbgrader_course", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="numbers of lessons; all if none is given")
    options = parser.parse_args(arguments)
    if re.fullmatch(r"\d\d", str(options.folder)):
        parser.error(f"which folder? For this lesson: make nbgrader FOLDER=course ARGS={options.folder}")
    try:
        added = make_course(options.folder, options.lessons)
    except ValueError as error:
        parser.error(str(error))
    there = len(list((options.folder / "source").glob("*/*.ipynb"))) - len(added)
    names = f": {', '.join(added)}" if added else ""
    print(f"{options.folder}: {len(added)} assignments added{names}; {there} were there.")
    print("Next, in that folder: nbgrader generate_assignment NAME, then release it, collect, autograde, feedback.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
