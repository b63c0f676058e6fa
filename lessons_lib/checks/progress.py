"""The learner's progress, stored in one small local file.

The file is `.progress.json` in the notebook's folder, or the path in the environment variable LESSONS_PROGRESS.
If the file is lost, only the progress table is lost: no lesson depends on it.
"""

import json
import os
from pathlib import Path

from lessons_lib.checks.registry import exercises_of, lesson_numbers
from lessons_lib.viz.tables.table import Table

# By exercise id, prediction key, prediction key (what was measured), and lesson (question number -> first choice).
PARTS = ("exercises", "predictions", "measured", "quiz")


def progress_file() -> Path:
    return Path(os.environ.get("LESSONS_PROGRESS") or ".progress.json")


def load() -> dict:
    """The stored record; a missing or damaged file counts as empty."""
    try:
        record = json.loads(progress_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = {}
    record = record if isinstance(record, dict) else {}
    for part in PARTS:
        if not isinstance(record.get(part), dict):
            record[part] = {}
    record["quiz"] = {lesson: chosen for lesson, chosen in record["quiz"].items() if isinstance(chosen, dict)}
    return record


def save(record: dict) -> None:
    """Write the whole file or nothing. If the folder isn't writable, the lesson goes on without a record."""
    path = progress_file()
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
        draft.replace(path)
    except OSError:
        pass


def note_exercise(id: str, **changes) -> dict:
    """Update the entry of one exercise and return it.

    Keys: passed (bool), attempts (int), hints (int, steps shown), solution (bool, shown).
    """
    record = load()
    entry = {"passed": False, "attempts": 0, "hints": 0, "solution": False} | record["exercises"].get(id, {}) | changes
    record["exercises"][id] = entry
    save(record)
    return entry


def progress(lesson: str | None = None) -> Table:
    """A table of all exercises of the course, or of one lesson such as "00": state, attempts, hints used."""
    done = load()["exercises"]
    rows = []
    for number in [lesson] if lesson else lesson_numbers():
        for exercise in exercises_of(number):
            entry = done.get(exercise.id, {})
            rows.append([exercise.id, exercise.title, _state(entry), entry.get("attempts", 0), entry.get("hints", 0)])
    solved = sum(row[2].startswith("✓") for row in rows)
    return Table(
        columns=["exercise", "title", "state", "attempts", "hints"],
        rows=rows,
        caption=f"{solved} of {len(rows)} exercises solved",
    )


def _state(entry: dict) -> str:
    if entry.get("passed"):
        return "✓ solved after seeing the solution" if entry.get("solution") else "✓ solved"
    return "✗ not yet" if entry.get("attempts") else "○ not tried"
