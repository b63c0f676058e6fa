"""The glossary is made from the lessons' own definitions."""

from pathlib import Path

import pytest

from tools.authoring import __main__ as command
from tools.authoring.build import lesson_files
from tools.authoring.errors import BuildError
from tools.authoring.execute import LIBRARY
from tools.authoring.glossary import definitions, glossary

LESSON = '''# %% [markdown]
"""
Some text.

> **slot**: a row of the batch.
> It has one owner.
> **wave**: requests that leave together.

> a quotation that defines nothing
"""
'''


def lesson(folder: Path, name: str, text: str = LESSON) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def test_definitions_are_collected_in_order(tmp_path):
    found = definitions([lesson(tmp_path, "01_a"), lesson(tmp_path, "02_b", "> **batch**: rows.\n")])
    assert [(d.term, d.text, d.lesson) for d in found] == [
        ("batch", "rows.", "02_b"),
        ("slot", "a row of the batch. It has one owner.", "01_a"),
        ("wave", "requests that leave together.", "01_a"),
    ]


def test_a_term_is_defined_once(tmp_path):
    with pytest.raises(BuildError, match="02_b.py: 'Slot' is defined in 01_a already"):
        definitions([lesson(tmp_path, "01_a"), lesson(tmp_path, "02_b", "> **Slot**: again.\n")])


def test_pages_are_written_and_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "pages", lambda root: {"notebooks/glossary.md": "- **slot**: a row.\n"})
    assert command.write_pages(tmp_path, check_only=True) == 1
    assert command.write_pages(tmp_path, check_only=False) == 0
    assert command.write_pages(tmp_path, check_only=True) == 0
    (tmp_path / "notebooks" / "glossary.md").write_text("something else")
    assert command.write_pages(tmp_path, check_only=True) == 1
    assert "glossary.md: differs. Run `make notebooks`." in capsys.readouterr().out


def test_the_committed_glossary_is_the_lessons_own():
    page = LIBRARY / "notebooks" / "glossary.md"
    assert page.read_text(encoding="utf-8") == glossary(lesson_files(LIBRARY))
