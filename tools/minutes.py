"""python -m tools.minutes [NN ...]: how long each lesson takes, counted cell by cell with one yardstick.

Readers differ; this count doesn't, so that a lesson that grows is noticed. It follows what readers took who took the
lessons from the student notebook alone. What is under "Further", and what is optional, counts nothing.
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

from lessons_lib.checks.lessons import FURTHER, LessonPage, released_pages
from lessons_lib.checks.registry import quiz_of

ROOT = Path(__file__).resolve().parents[1]
WORDS, CODE_LINES = 170, 17  # read in a minute
STILL, PLAYER, PREDICTION, QUESTION = 1, 2, 2, 1  # minutes for each
UNDERSTAND, FAILED_CHECK = 3, 4  # an exercise's; its text is read within the first
EASY_LINES = 10  # of a solution take a minute each, further ones half a minute
HELPERS = re.compile(r"(predict|reveal|quiz|progress|hint|check|show_source|from|import)\b")
_CHECK = re.compile(r'check\("(\d\d\.\d+)"')
_TASK = re.compile(r"^\*\*(?:Your task|Exercise \d\d\.\d)", re.MULTILINE)


def minutes_of(page: LessonPage) -> Counter[str]:
    """Minutes for each kind of thing in the main part of a lesson."""
    cells = _cells("solutions", page)
    stubs = {cell["id"]: "".join(cell["source"]) for cell in _cells("notebooks", page)}
    minutes = Counter(imports=1)
    is_first_code = True
    for cell, following in zip(cells, [*cells[1:], {"source": ""}]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if source.startswith(FURTHER):
                break
            if not source.startswith("## References"):
                minutes["prose"] += _prose(source)
            continue
        check = _CHECK.search("".join(following["source"]))
        if check and "nbgrader" in cell["metadata"]:
            if check[1] in page.exercises:
                minutes["exercises"] += _solution(source, stubs[cell["id"]])
        elif "nbgrader" not in cell["metadata"]:
            minutes["predictions"] += PREDICTION * len(re.findall(r"^predict\(", source, re.MULTILINE))
            if not is_first_code:
                minutes["code"] += _code_lines(source) / CODE_LINES
            is_first_code = False
        minutes["pictures"] += sum(map(_picture, cell["outputs"]))
    minutes["quiz"] = QUESTION * len(quiz_of(page.number))
    return minutes


def _cells(folder: str, page: LessonPage) -> list[dict]:
    return json.loads((ROOT / folder / f"{page.name}.ipynb").read_text(encoding="utf-8"))["cells"]


def _prose(text: str) -> float:
    task = _TASK.search(text)
    read = re.sub(r"^\|.*$", "", text[: task.start()] if task else text, flags=re.MULTILINE)
    tables = len(re.findall(r"^\|[-| :]+\|$", text, re.MULTILINE))
    return len(read.split()) / WORDS + STILL * tables


def _solution(source: str, stub: str) -> float:
    """What the stub gives is read; the statements that it lacks are written."""
    given, solved = _statements(stub), _statements(source)
    count = sum((Counter(solved) - Counter(given)).values())
    written = min(count, EASY_LINES) + max(count - EASY_LINES, 0) / 2
    return UNDERSTAND + len(given) / CODE_LINES + written + FAILED_CHECK


def _statements(source: str) -> list[str]:
    """The first line of each statement, without imports and docstrings."""
    lines = source.splitlines()
    return [
        lines[node.lineno - 1].strip()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt)
        and not isinstance(node, (ast.Import, ast.ImportFrom))
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def _code_lines(source: str) -> int:
    """Lines of up to 120 characters: a statement that is wrapped for narrow screens isn't more to read."""
    lines = (line.strip() for line in ast.unparse(ast.parse(source)).splitlines())
    return sum(-(-len(line) // 120) for line in lines if not HELPERS.match(line))


def _picture(output: dict) -> int:
    shown = "".join(output.get("data", {}).get("text/html", ""))
    if "<lessons-" in shown or "widget-view" in str(output.get("data", {}).keys()):
        return PLAYER
    return STILL if "<table" in shown or "lessons-picture" in shown else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.minutes", description=__doc__)
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons, such as 00 02; all if none given")
    numbers = parser.parse_args(arguments).numbers
    for page in released_pages():
        if not numbers or page.number in numbers:
            found = minutes_of(page)
            told = ", ".join(f"{kind} {count:.0f}" for kind, count in found.items())
            print(f"{page.number}: {sum(found.values()):.0f} minutes counted, {page.minutes} stated ({told})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
