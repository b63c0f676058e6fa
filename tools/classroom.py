"""python -m tools.classroom FOLDER: a class's exports (`make export`) as one table, for the teacher.

FOLDER holds a file NAME.json for each learner. It gets class.html, a heat map of exercises and learners that says where
they get stuck, and class.csv, the same as a table. Only the standard library is needed.
"""

import csv
import io
import json
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

from tools.learner_work import write
from tools.setup_errors import SetupError

ROOT = Path(__file__).resolve().parents[1]
SOLVED, SHOWN, STUCK, UNTRIED = "solved", "solved after seeing the solution", "tried, not solved", "not tried"
SIGNS = {SOLVED: "✓", SHOWN: "(✓)", STUCK: "✗", UNTRIED: "·"}
# Ground and text, which stand apart by 4.5:1 at least; the signs say the same without color.
COLORS = {SOLVED: "#bfe3c6", SHOWN: "#e6ecb0", STUCK: "#f6c4b0", UNTRIED: "#f2f2f2"}
COLUMNS = ["learner", "exercise", "state", "attempts", "hints"]


@dataclass(frozen=True)
class Entry:
    """One exercise of one learner."""

    state: str = UNTRIED
    attempts: int = 0
    hints: int = 0


@dataclass(frozen=True)
class Exercise:
    """One exercise over the class; those who saw its solution count as having tried only."""

    id: str
    tried: int
    solved: int
    attempts: float
    hints: int

    @property
    def stuck(self) -> int:
        return self.tried - self.solved


@dataclass(frozen=True)
class Class:
    """Everyone's entries: learner -> exercise -> Entry; and of files that are no exports, why."""

    entries: dict[str, dict[str, Entry]]
    unread: dict[str, str]

    def summary(self) -> list[Exercise]:
        found = []
        for id in next(iter(self.entries.values())):
            tried = [each[id] for each in self.entries.values() if each[id].state != UNTRIED]
            attempts = median([each.attempts for each in tried]) if tried else 0
            solved = sum(each.state == SOLVED for each in tried)
            found.append(Exercise(id, len(tried), solved, attempts, sum(each.hints for each in tried)))
        return found

    def where_they_get_stuck(self, most: int = 5) -> list[Exercise]:
        """The exercises that most learners tried and did not solve by themselves, the worst first."""
        stuck = [each for each in self.summary() if each.stuck]
        return sorted(stuck, key=lambda each: (-each.stuck, -each.attempts))[:most]


def read_class(folder: Path, exercises: list[str]) -> Class:
    """The exports of a folder; SetupError if there is none."""
    if not folder.is_dir():
        raise SetupError(f"There is no folder {folder}. Put each learner's export.json into one, as NAME.json.")
    entries, unread = {}, {}
    for path in sorted(folder.glob("*.json")):
        try:
            done = json.loads(path.read_bytes())["progress"].get("exercises", {})
            entries[path.stem] = {str(id): _entry(each) for id, each in done.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            unread[path.name] = f"{type(error).__name__}: {error}"
    if not entries:
        raise SetupError(f"No export in {folder}: learners make one with `make export`; name it NAME.json.")
    known = sorted({*exercises, *(id for each in entries.values() for id in each)})
    return Class({name: {id: each.get(id, Entry()) for id in known} for name, each in entries.items()}, unread)


def _entry(record: dict) -> Entry:
    attempts, hints = int(record.get("attempts", 0)), int(record.get("hints", 0))
    if record.get("passed"):
        return Entry(SHOWN if record.get("solution") else SOLVED, attempts, hints)
    return Entry(STUCK if attempts else UNTRIED, attempts, hints)


def course_exercises() -> list[str]:
    """The numbers of all exercises, as the released notebooks check them."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))]
    return sorted({number for text in texts for number in re.findall(r'check\(\\"(\d\d\.\d+)\\"', text)})


def as_csv(everyone: Class) -> str:
    """A row for each learner and exercise."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    for learner, entries in everyone.entries.items():
        for exercise, entry in entries.items():
            rows.writerow([_plain(learner), exercise, entry.state, entry.attempts, entry.hints])
    return out.getvalue()


def _plain(name: str) -> str:
    """A spreadsheet takes a text that begins with one of these for a formula."""
    return "'" + name if name[:1] in "=+-@" else name


def as_html(everyone: Class) -> str:
    """The heat map: a column for each exercise, a row for each learner, and below it the class."""
    summary = everyone.summary()
    heads = "".join(f"<th scope='col'>{escape(each.id)}</th>" for each in summary)
    rows = "".join(_row(learner, entries) for learner, entries in everyone.entries.items())
    below = "".join(
        f"<tr><th scope='row'>{words}</th>{''.join(f'<td>{value(each)}</td>' for each in summary)}</tr>"
        for words, value in (
            ("solved", lambda each: f"{each.solved}/{each.tried}" if each.tried else ""),
            ("attempts, median", lambda each: f"{each.attempts:g}" if each.tried else ""),
            ("hints", lambda each: each.hints or ""),
        )
    )
    legend = " ".join(f"<span style='background:{COLORS[each]}'>{SIGNS[each]} {each}</span>" for each in SIGNS)
    unread = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in everyone.unread.items())
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The class</title>
<style>
  body {{ font: 15px/1.4 sans-serif; margin: 1rem; color: #1a1a1a; background: #fff; }}
  .sheet {{ overflow: auto; max-height: 80vh; }}
  table {{ border-collapse: collapse; }}
  th, td {{ padding: 0.2rem 0.45rem; text-align: center; border: 1px solid #ddd; white-space: nowrap; }}
  thead th {{ position: sticky; top: 0; background: #fff; }}
  th[scope=row] {{ position: sticky; left: 0; background: #fff; text-align: left; }}
  span {{ padding: 0.1rem 0.4rem; margin-right: 0.4rem; }}
</style>
<h1>The class: {len(everyone.entries)} learners</h1>
<p>{legend} A number is the attempts.</p>
<h2>Where they get stuck</h2>
<ul>{"".join(f"<li>{_stuck(each)}</li>" for each in everyone.where_they_get_stuck()) or "<li>nowhere</li>"}</ul>
<div class="sheet" tabindex="0" role="region" aria-label="exercises and learners">
<table><thead><tr><th scope="col">learner</th>{heads}</tr></thead><tbody>{rows}</tbody><tfoot>{below}</tfoot></table>
</div>
{f"<h2>Not read</h2><ul>{unread}</ul>" if unread else ""}
</html>
"""


def _row(learner: str, entries: dict[str, Entry]) -> str:
    cells = []
    for exercise, entry in entries.items():
        words = f"{exercise}: {entry.state}, {entry.attempts} attempts, {entry.hints} hints"
        number = f" {entry.attempts}" if entry.attempts > 1 else ""
        cells.append(
            f"<td style='background:{COLORS[entry.state]}' title='{escape(words)}'>{SIGNS[entry.state]}{number}</td>"
        )
    return f"<tr><th scope='row'>{escape(learner)}</th>{''.join(cells)}</tr>"


def _stuck(exercise: Exercise) -> str:
    return (
        f"{escape(exercise.id)}: {exercise.stuck} of {exercise.tried} who tried did not solve it by themselves "
        f"(median {exercise.attempts:g} attempts, {exercise.hints} hints)"
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("Give the folder with your learners' exports, each as NAME.json: make class FOLDER=exports")
        return 2
    folder = Path(arguments[0])
    everyone = read_class(folder, course_exercises())
    write(folder / "class.html", as_html(everyone).encode())
    write(folder / "class.csv", as_csv(everyone).encode())
    print(f"{len(everyone.entries)} learners, {len(everyone.summary())} exercises: {folder / 'class.html'}, class.csv")
    for name, why in everyone.unread.items():
        print(f"  not read: {name} ({why})")
    for exercise in everyone.where_they_get_stuck():
        print(f"  stuck at {_stuck(exercise)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        sys.exit(str(error))
