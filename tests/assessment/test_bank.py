"""The bank: every question has one right choice for every seed, and its code does what the key says."""

import ast
import re
from pathlib import Path

import pytest

from lessons_lib.assessment.exam import NOTEBOOKS
from lessons_lib.assessment.question import ITEMS, KINDS, Item
from lessons_lib.checks.lessons import FURTHER

ROOT = Path(__file__).parents[2]
BUGS = [item for item in ITEMS if item.kind == "bug"]


def test_names_are_unique_and_every_lesson_has_questions_of_two_kinds():
    assert len({item.name for item in ITEMS}) == len(ITEMS) >= 70
    assert {item.kind for item in ITEMS} == set(KINDS)
    assert {item.lesson for item in ITEMS} == {name[:2] for name in NOTEBOOKS}
    for name in NOTEBOOKS:
        assert len({item.kind for item in ITEMS if item.lesson == name[:2]}) >= 2, name


@pytest.mark.parametrize("kind, num_seeds", [("compute", 50), ("bug", 2), ("design", 2)])
def test_one_right_choice_for_every_seed(kind, num_seeds):
    for item in (item for item in ITEMS if item.kind == kind):
        told = set()
        for seed in range(num_seeds):
            question, where = item.ask(seed), (item.name, seed)
            assert [choice.right for choice in question.choices].count(True) == 1, where
            assert len({choice.text for choice in question.choices}) == len(question.choices) == 4, where
            assert all(choice.explanation.strip() for choice in question.choices), where
            assert question.text.strip(), where
            told.add((question.text, question.choices[question.right].text))
        assert (len(told) > 1) == (kind == "compute"), f"{item.name} is not drawn by seed"


def test_each_question_is_about_a_required_part():
    texts = {name: (ROOT / "solutions" / f"{name}.py").read_text().partition(FURTHER)[0] for name in NOTEBOOKS}
    headings = {
        name[:2]: {heading for heading in re.findall(r"^##+ (.+)$", text, re.MULTILINE) if "ptional" not in heading}
        for name, text in texts.items()
    }
    missing = [(item.name, item.heading) for item in ITEMS if item.heading not in headings[item.lesson]]
    assert missing == []


def run(item, code):
    names = {}
    for part in (item.entry.get("setup", ""), code, item.entry["trial"]):
        exec(part, names)


def test_the_right_code_passes_and_the_wrong_one_fails():
    for item in BUGS:
        ast.parse(item.wrong_code)
        run(item, item.entry["code"])
        with pytest.raises(Exception) as raised:
            run(item, item.wrong_code)
            pytest.fail(f"{item.name}: the wrong code passes its trial")
        assert not isinstance(raised.value, (NameError, SyntaxError)), item.name


def test_neither_form_nor_an_unused_name_betrays_the_wrong_line():
    for item in BUGS:
        lines = item.wrong_code.split("\n")
        assert 8 <= len(lines) <= 12 and all(len(line) <= 96 for line in lines), item.name
        numbers = [int(re.match(r"line (\d+):", choice.text)[1]) for choice in item.ask(0).choices]
        assert numbers == sorted(set(numbers)) and all(lines[number - 1].strip() for number in numbers), item.name
        nodes = list(ast.walk(ast.parse(item.wrong_code)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        stored |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        assert stored - {node.id for node in names if isinstance(node.ctx, ast.Load)} <= {"_"}, item.name


def test_neither_length_nor_place_gives_the_answer_away():
    designs = [item.ask(0) for item in ITEMS if item.kind == "design"]
    by_length = [sorted(len(choice.text) for choice in one.choices) for one in designs]
    for place, share in ((-1, 0.4), (0, 0.45)):  # the longest, the shortest
        told = sum(len(one.choices[one.right].text) == lengths[place] for one, lengths in zip(designs, by_length))
        assert told <= share * len(designs)
    assert all(lengths[-1] <= 1.7 * lengths[0] + 8 for lengths in by_length)
    places = [item.ask(seed).right for item in ITEMS if item.kind == "design" for seed in range(8)]
    assert all(0.15 < places.count(place) / len(places) < 0.35 for place in range(4))
    lines = [item.ask(0).right for item in BUGS]
    assert all(0.1 < lines.count(place) / len(lines) < 0.4 for place in range(4)), "where the wrong line is listed"


def test_choices_that_are_equal_are_drawn_again():
    entry = dict(text="{n}?", numbers={"n": "randint(1, 2)"}, right=["{n}", "it"])
    entry["wrong"] = [["1", "a"], ["3", "b"], ["4", "c"]]
    item = Item("twice", "00", "compute", "", entry)
    assert {item.ask(seed).text for seed in range(20)} == {"2?"}
    never = Item("never", "00", "compute", "", entry | {"unless": "n == 2"})
    with pytest.raises(RuntimeError, match="question 'never' found no numbers for seed 3"):
        never.ask(3)
