"""The learner's notebooks in work/: copied, renewed, exported, and no text ever lost."""

import copy
import hashlib
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.learner_work import ROOT, copy_missing, export, update
from tools.merge_notebooks import grade_id, is_changed, keyed, matched, merge, text
from tools.setup_errors import SetupError

STUB_END = "raise NotImplementedError()"
STUB = "def f():\n    raise NotImplementedError()"


def cell(id, source, kind="code"):
    graded = {"nbgrader": {"grade_id": id, "solution": id.startswith("ex-")}} if "-" in id else {}
    return {"cell_type": kind, "id": id, "metadata": graded, "source": source}


def notebook(*cells):
    return {"cells": [cell(*each) for each in cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


ids = st.lists(st.sampled_from(["a", "b", "c", "ex-1", "check-1"]), unique=True)
sources = st.sampled_from(["one", "two", "three", STUB])
notebooks = ids.flatmap(lambda names: st.tuples(*[st.tuples(st.just(n), sources) for n in names])).map(
    lambda cells: notebook(*cells)
)
edits = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["write", "add", "copy", "delete"])), max_size=4)


def edited(base, changes):
    """The learner's notebook, and the texts that it must not lose."""
    mine, written = copy.deepcopy(base), []
    for number, (where, what) in enumerate(changes):
        cells, place = mine["cells"], where % (len(mine["cells"]) or 1)
        if what == "add" or not cells:
            cells.insert(place, {"cell_type": "code", "id": f"own{number}", "metadata": {}, "source": f"mine {number}"})
        elif what == "write":
            cells[place]["source"] = f"mine {number}"
        elif what == "copy":
            cells.insert(place, {**copy.deepcopy(cells[place]), "source": f"mine {number}"})
        else:
            del cells[place]
    written = [text(each) for each in mine["cells"] if text(each).startswith("mine")]
    return mine, written


@settings(max_examples=60, deadline=None)
@given(notebooks, edits, notebooks)
def test_a_merge_loses_neither_the_learners_text_nor_the_new_release(base, changes, new):
    mine, written = edited(base, changes)
    before = copy.deepcopy((base, mine, new))
    merged = merge(base, mine, new).notebook
    assert (base, mine, new) == before
    texts = [text(each) for each in merged["cells"]]
    for each in written:
        assert texts.count(each) == written.count(each)
    released = keyed(base)
    for key, each in keyed(new).items():
        if text(each) != text(released.get(key, {})):
            assert any(text(each) in found for found in texts)
    assert len({each["id"] for each in merged["cells"]}) == len(merged["cells"])
    assert list(map(text, merge(new, merged, new).notebook["cells"])) == texts
    assert list(map(text, merge(base, merged, new).notebook["cells"])) == texts  # an update that was interrupted
    if mine == base and not [each for each in base["cells"] if each["id"] == "ex-1"]:
        assert texts == list(map(text, new["cells"]))


LESSON = json.loads((ROOT / "notebooks/03_block_allocator.ipynb").read_text(encoding="utf-8"))
NEWER = copy.deepcopy(LESSON)  # words changed, a cell more, a cell less, another order
del NEWER["cells"][2]
NEWER["cells"][7]["source"] = ["Other words.\n", "And more of them."]
NEWER["cells"].insert(9, cell("new-cell", "Read this first.", "markdown"))
NEWER["cells"][20:22] = NEWER["cells"][21:19:-1]


def without(*names):
    return lambda each: {name: value for name, value in each.items() if name not in names}


DAMAGE = {
    "no ids": without("id"),
    "one id": lambda each: each | {"id": "ex-03-1"},
    "the id of a cell of words": lambda each: each | {"id": LESSON["cells"][0]["id"]},
    "new ids": lambda each: each | {"id": hashlib.sha256(text(each).encode()).hexdigest()[:8]},
    "no metadata": without("metadata"),
    "metadata of another tool": lambda each: without("id")(each) | {"metadata": {"id": "1a2b", "outputId": "3c4d"}},
    "empty metadata": lambda each: each | {"metadata": None},
    "Windows": lambda each: each | {"source": text(each).replace("\n", "\r\n")},
    "lists": lambda each: each | {"source": (text(each) + "\n").splitlines(keepends=True)},
    "blanks": lambda each: each | {"source": "".join(f"{line}  \n" for line in text(each).split("\n")) + "\n"},
    "nothing": lambda each: each,
}
OUTPUTS = [{"output_type": "stream", "name": "stdout", "text": "3\n"}]
numbers = st.integers(0, len(LESSON["cells"]) - 1)
learners = st.fixed_dictionaries(
    {
        "answered": st.sets(st.sampled_from([n for n, c in enumerate(LESSON["cells"]) if c["id"].startswith("ex-")])),
        "deleted": st.sets(numbers, max_size=3),
        "added": st.lists(numbers, max_size=4),
        "damage": st.lists(st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=3),
        "whole": st.booleans(),  # or every second cell
        "order": st.none() | st.randoms(use_true_random=False),
    }
)


def learners_notebook(answered, deleted, added, damage, whole, order):
    """A notebook as it may come back from other programs, and the learner's texts in it."""
    cells, written = copy.deepcopy(LESSON["cells"]), []
    for number in answered - deleted:
        cells[number]["source"] = text(cells[number]).replace("raise NotImplementedError()", f"return {number}")
        cells[number] |= {"outputs": OUTPUTS}
        written.append(text(cells[number]))
    kept = [each for number, each in enumerate(cells) if number not in deleted]
    for number, place in enumerate(added):
        own = cell(f"own{number}", f"print({number})  # an experiment of mine")
        kept.insert(place, own)
        written.append(text(own))
    if order:
        order.shuffle(kept)
    for name in damage:
        kept = [DAMAGE[name](each) if whole or number % 2 else each for number, each in enumerate(kept)]
    return {**LESSON, "nbformat_minor": 4, "cells": kept}, sorted(written)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(learners, st.sampled_from([NEWER, LESSON]))
def test_a_notebook_that_another_program_wrote_is_merged_cell_by_cell(learner, new):
    mine, written = learners_notebook(**learner)
    merged = merge(LESSON, mine, new)
    assert not merged.conflicts
    texts = Counter(map(text, merged.notebook["cells"]))
    answers = {id: text(each) for id, each in keyed(merged.notebook).items() if id.startswith("ex-")}
    assert sorted(each for each in written if each in answers.values() or "experiment" in each) == written
    expected = [
        text(each) for each in new["cells"] if grade_id(each) not in answers or STUB_END in answers[grade_id(each)]
    ]
    assert texts == Counter(expected + written)
    assert [each["id"] for each in merged.notebook["cells"] if each["id"] in keyed(new)] == list(keyed(new))
    assert merge(new, merged.notebook, new).notebook == merged.notebook
    release = keyed(LESSON)
    listed = [text(each) for key, each in matched(mine, LESSON, {}).items() if is_changed(each, release.get(key))]
    assert sorted(listed) == written, "what `make export` lists"


def test_an_answer_written_anew_without_ids_goes_where_its_exercise_is():
    mine = copy.deepcopy(LESSON)
    for each in mine["cells"]:
        each.pop("id"), each.pop("metadata")
        if text(each).startswith("def blocks_for"):
            each["source"] = "# My own way.\ndef blocks_for(tokens, size):\n    return -(-tokens // size)"
    merged = merge(LESSON, mine, NEWER)
    assert "My own way" in text(keyed(merged.notebook)["ex-03-6"]) and merged.kept == ["ex-03-6"]


def test_a_notebook_that_was_doubled_heals():
    copies = map(DAMAGE["new ids"], map(DAMAGE["no metadata"], LESSON["cells"]))
    assert merge(LESSON, {**LESSON, "cells": [*LESSON["cells"], *copies]}, NEWER).notebook["cells"] == NEWER["cells"]


def test_each_cell_is_kept_renewed_or_in_conflict():
    base = notebook(("intro", "old words", "markdown"), ("ex-1", STUB), ("check-1", "check()"), ("ex-2", STUB))
    mine = copy.deepcopy(base)
    mine["cells"][1]["source"], mine["cells"][3]["source"] = "def f(): return 1", "def f(): return 2"
    new = notebook(("intro2", "new words", "markdown"), ("ex-1", STUB), ("check-1", "check(2)"), ("ex-2", STUB + "#"))
    merged = merge(base, mine, new)
    assert (merged.kept, merged.renewed, merged.conflicts) == (["ex-1"], ["check-1"], ["ex-2"])
    assert list(keyed(merged.notebook))[:4] == ["intro2", "ex-1", "check-1", "ex-2"]
    assert "newer release" in text(merged.notebook["cells"][4]) and STUB + "#" in text(merged.notebook["cells"][4])
    solved = notebook(("ex-1", "def f(): return 1"))  # copied with the release
    assert merge(solved, solved, notebook(("ex-1", STUB))).notebook["cells"][0]["source"] == "def f(): return 1"


@pytest.fixture
def course(tmp_path):
    (tmp_path / "notebooks").mkdir()
    release(tmp_path, notebook(("words", "old", "markdown"), ("ex-1", STUB)))
    (tmp_path / "notebooks/glossary.md").write_text("# Glossary\n")
    return tmp_path


def release(root, content):
    (root / "notebooks/01_lesson.ipynb").write_text(json.dumps(content))


def answer(root, source="def f(): return 1"):
    path = root / "work/01_lesson.ipynb"
    content = json.loads(path.read_text())
    content["cells"][1]["source"] = source
    path.write_text(json.dumps(content))


def test_lab_copies_what_is_missing_and_overwrites_nothing(course):
    (course / "notebooks/.progress.json").write_text("{}")
    assert copy_missing(course) == ["01_lesson.ipynb", "glossary.md"]
    answer(course)
    (course / "work/glossary.md").unlink()
    assert copy_missing(course) == ["glossary.md"]
    assert "return 1" in (course / "work/01_lesson.ipynb").read_text()
    assert (course / "work/.progress.json").exists()


def test_update_renews_and_reports_and_makes_a_backup_first(course):
    copy_missing(course)
    answer(course)
    release(course, notebook(("words2", "new", "markdown"), ("ex-1", STUB)))
    (course / "work/02_mine.ipynb").write_text("{}")
    report = update(course)
    assert report[0] == "01_lesson.ipynb: 1 cell of yours kept" and ".backups" in report[1]
    cells = json.loads((course / "work/01_lesson.ipynb").read_text())["cells"]
    assert [each["source"] for each in cells] == ["new", "def f(): return 1"]
    (backup,) = (course / "work/.backups").glob("*/01_lesson.ipynb")
    assert "old" in backup.read_text()
    assert update(course) == ["work/ has the newest release already."]


def test_a_damaged_notebook_and_one_without_a_lesson_are_left_alone(course):
    copy_missing(course)
    (course / "work/01_lesson.ipynb").write_text("half a noteb")
    release(course, notebook(("words2", "new", "markdown")))
    assert "left alone" in update(course)[0]
    assert (course / "work/01_lesson.ipynb").read_text() == "half a noteb"
    (course / "notebooks/01_lesson.ipynb").unlink()
    assert "no lesson of this name" in update(course)[0]
    assert export(course) and "half a noteb" in (course / "work/export.json").read_text()


def test_export_holds_answers_progress_and_kept_answers(course):
    with pytest.raises(SetupError, match="no folder work/"):
        export(course)
    copy_missing(course)
    answer(course)
    (course / "work/.progress.json").write_text('{"predictions": {"01.a": 3}}')
    (course / "work/work").mkdir()
    (course / "work/work/01.1_f.py").write_text("def f(): return 1")
    written = json.loads(export(course).read_text())
    assert written["lessons"] == {"01_lesson": {"answers": {"ex-1": "def f(): return 1"}, "other_cells": {}}}
    assert written["progress"]["predictions"] == {"01.a": 3} and "01.1_f.py" in written["kept_answers"]
