"""python -m tools.learner_work update|export: the learner's notebooks in work/, which git ignores.

    work/NN_name.ipynb, .progress.json      what the learner works on
    work/.released/                         the release that each notebook was copied from or last merged with
    work/.backups/DATE/                     every file as it was before an update changed it

Only the standard library is needed. Nothing here removes a file of the learner's.
"""

import json
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path

from tools.merge_notebooks import NOTE, grade_id, is_changed, keyed, matched, merge, source_of
from tools.setup_errors import SetupError

ROOT = Path(__file__).resolve().parents[1]
EXPORT = "export.json"


def copy_missing(root: Path = ROOT) -> list[str]:
    """Copy each released file that work/ lacks, and remember its release. Returns the names of the copies.

    Work in notebooks/ itself (progress and kept answers) is copied once too, for whoever began there.
    """
    released, work = root / "notebooks", root / "work"
    (work / ".released").mkdir(parents=True, exist_ok=True)
    copied = []
    for source in released_files(released):
        if not (work / source.name).exists():
            write(work / ".released" / source.name, source.read_bytes())
            write(work / source.name, source.read_bytes())
            copied.append(source.name)
    if (released / ".progress.json").exists() and not (work / ".progress.json").exists():
        write(work / ".progress.json", (released / ".progress.json").read_bytes())
    if (released / "work").is_dir() and not (work / "work").exists():
        shutil.copytree(released / "work", work / "work")
    return copied


def update(root: Path = ROOT) -> list[str]:
    """Bring work/ to the release in notebooks/ and keep every answer. Returns the report, a line per changed file."""
    released, work = root / "notebooks", root / "work"
    backup = work / ".backups" / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    report = [f"{name}: copied" for name in copy_missing(root)]
    for source in released_files(released):
        mine, base = work / source.name, work / ".released" / source.name
        known = base.read_bytes() if base.exists() else b'{"cells": []}'
        if known == source.read_bytes():
            continue
        try:
            content, words = _renewed(known, mine.read_bytes(), source)
        except (ValueError, AttributeError, TypeError, KeyError):
            report.append(f"{source.name}: left alone, because it isn't a notebook any more. Move it away and run "
                          "`make lab` for a fresh copy.")  # fmt: skip
            continue
        backup.mkdir(parents=True, exist_ok=True)
        shutil.copy2(mine, backup / source.name)
        write(mine, content)
        write(base, source.read_bytes())
        report.append(f"{source.name}: {words}")
    gone = {path.name for path in released_files(work)} - {path.name for path in released_files(released)}
    known = {path.name for path in released_files(work / ".released")}
    report += [f"{name}: kept; the course has no lesson of this name any more" for name in sorted(gone & known)]
    if backup.exists():
        report.append(f"The files as they were: {backup.relative_to(root).as_posix()}. Notebooks that are open in "
                      "JupyterLab: close them without saving, and open them again.")  # fmt: skip
    return report or ["work/ has the newest release already."]


def _renewed(base: bytes, mine: bytes, source: Path) -> tuple[bytes, str]:
    if source.suffix != ".ipynb":
        return source.read_bytes(), "renewed"
    merged = merge(json.loads(base), json.loads(mine), json.loads(source.read_bytes()))
    parts = []
    for cells, words in ((merged.kept, "of yours kept"), (merged.renewed, "renewed"), (merged.conflicts, "")):
        if cells and words:
            parts.append(f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'} {words}")
        elif cells:
            parts.append(f"changed by you and by the release, both kept: {', '.join(cells)}")
    return json.dumps(merged.notebook, indent=1, ensure_ascii=False).encode() + b"\n", "; ".join(parts) or "renewed"


def export(root: Path = ROOT) -> Path:
    """Write all of the learner's answers, own cells, progress, predictions and quiz answers into work/export.json."""
    work = root / "work"
    if not work.is_dir():
        raise SetupError("There is no folder work/ to export. `make lab` makes it.")
    lessons = {}
    for path in sorted(work.glob("*.ipynb")):
        base = work / ".released" / path.name
        try:
            release = json.loads(base.read_bytes()) if base.exists() else {}
            known, cells = keyed(release), matched(json.loads(path.read_bytes()), release, {})
        except (ValueError, AttributeError, TypeError, KeyError):
            lessons[path.stem] = {"damaged": path.read_text(encoding="utf-8", errors="replace")}
            continue
        changed = {key: source_of(cell) for key, cell in cells.items() if is_changed(cell, known.get(key))}
        changed = {key: source for key, source in changed.items() if source.strip() and not source.startswith(NOTE)}
        answers = {key for key in changed if grade_id(known.get(key, cells[key]))}
        if changed:
            lessons[path.stem] = {
                "answers": {key: source for key, source in changed.items() if key in answers},
                "other_cells": {key: source for key, source in changed.items() if key not in answers},
            }
    try:
        record = json.loads((work / ".progress.json").read_bytes())
    except (OSError, ValueError):
        record = {}
    kept = {path.name: path.read_text(encoding="utf-8") for path in sorted((work / "work").glob("*.py"))}
    everything = {"lessons": lessons, "progress": record, "kept_answers": kept}
    write(work / EXPORT, json.dumps(everything, indent=1, ensure_ascii=False).encode() + b"\n")
    return work / EXPORT


def released_files(folder: Path) -> list[Path]:
    """The notebooks and pages of a folder; hidden files and checkpoints are none."""
    files = sorted(path for path in folder.glob("*") if path.suffix in (".ipynb", ".md"))
    return [path for path in files if path.is_file() and not path.name.startswith(".")]


def write(path: Path, content: bytes) -> None:
    """The whole file or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


def main(arguments: list[str]) -> int:
    if arguments == ["update"]:
        print("\n".join(update()))
    elif arguments == ["export"]:
        print(f"Written: {export().relative_to(ROOT).as_posix()}")
    else:
        print((__doc__ or "").splitlines()[0])
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        sys.exit(str(error))
