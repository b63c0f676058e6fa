"""python -m tools.classroom FOLDER: a class's exports (`make export`) as one table, for the teacher.

FOLDER holds a file NAME.json for each learner. It gets class.csv, a row for each learner and exercise; where the class
gets stuck is printed. Only the standard library is needed.
"""

import csv
import io
import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tools.learner_work import write
from tools.setup_errors import SetupError

ROOT = Path(__file__).resolve().parents[1]
SOLVED, SHOWN, STUCK, UNTRIED = "solved", "solved after seeing the solution", "tried, not solved", "not tried"


class Row(NamedTuple):
    """One exercise of one learner."""

    learner: str
    exercise: str
    state: str = UNTRIED
    attempts: int = 0
    hints: int = 0


def read_class(folder: Path, exercises: list[str]) -> tuple[list[Row], dict[str, str]]:
    """The exports of a folder: a row for each learner and exercise, and file name -> why it is no export.

    Raises:
        SetupError: the folder isn't there, or has no export.
    """
    if not folder.is_dir():
        raise SetupError(f"There is no folder {folder}. Put each learner's export.json into one, as NAME.json.")
    found, unread = {}, {}
    for path in sorted(folder.glob("*.json")):
        try:
            done = json.loads(path.read_bytes())["progress"].get("exercises", {})
            found[path.stem] = {str(id): _row(path.stem, str(id), each) for id, each in done.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            unread[path.name] = f"{type(error).__name__}: {error}"
    if not found:
        raise SetupError(f"No export in {folder}: learners make one with `make export`; name it NAME.json.")
    known = sorted({*exercises, *(id for rows in found.values() for id in rows)})
    return [rows.get(id, Row(name, id)) for name, rows in found.items() for id in known], unread


def _row(learner: str, exercise: str, record: dict) -> Row:
    attempts, hints = int(record.get("attempts", 0)), int(record.get("hints", 0))
    solved, tried = SHOWN if record.get("solution") else SOLVED, STUCK if attempts else UNTRIED
    return Row(learner, exercise, solved if record.get("passed") else tried, attempts, hints)


def course_exercises(root: Path = ROOT) -> list[str]:
    """The numbers of all exercises, as the released notebooks check them."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "notebooks").glob("[0-9]*.ipynb"))]
    return sorted({number for text in texts for number in re.findall(r'check\(\\"(\d\d\.\d+)\\"', text)})


def where_they_get_stuck(rows: list[Row], most: int = 5) -> list[str]:
    """The exercises that most learners tried and did not solve by themselves, the worst first, a sentence each.

    Those who saw the solution count as having tried.
    """
    told = []
    for id in dict.fromkeys(row.exercise for row in rows):
        tried = [row for row in rows if row.exercise == id and row.state != UNTRIED]
        if stuck := sum(row.state != SOLVED for row in tried):
            attempts, hints = median(row.attempts for row in tried), sum(row.hints for row in tried)
            sentence = (
                f"{id}: {stuck} of {len(tried)} who tried did not solve it by themselves "
                f"(median {attempts:g} attempts, {hints} hints)"
            )
            told.append((-stuck, -attempts, sentence))
    return [sentence for *_, sentence in sorted(told)[:most]]


def as_csv(rows: list[Row]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(Row._fields)
    table.writerows(row._replace(learner=_plain(row.learner)) for row in rows)
    return out.getvalue()


def _plain(name: str) -> str:
    """A spreadsheet takes a text that begins with one of these for a formula."""
    return "'" + name if name[:1] in "=+-@" else name


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("Give the folder with your learners' exports, each as NAME.json: make class FOLDER=exports")
        return 2
    folder = Path(arguments[0])
    rows, unread = read_class(folder, course_exercises())
    write(folder / "class.csv", as_csv(rows).encode())
    learners, exercises = {row.learner for row in rows}, {row.exercise for row in rows}
    print(f"{len(learners)} learners, {len(exercises)} exercises: {folder / 'class.csv'}")
    for name, why in unread.items():
        print(f"  not read: {name} ({why})")
    for sentence in where_they_get_stuck(rows):
        print(f"  stuck at {sentence}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        sys.exit(str(error))
