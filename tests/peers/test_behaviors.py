"""The table of behaviors: every test that it names is there and runs, and the README is made from it."""

import ast
import functools
from collections import Counter

from tests.peers.behaviors import PROJECTS, TOPICS
from tools.peers import BROKEN, HELD, NOT_OFFERED, NOT_YET, README, ROOT, table

BEHAVIORS = [behavior for topic in TOPICS for behavior in topic.behaviors]


@functools.cache
def collected(path):
    """Name of each test that pytest collects from a file -> its marks, and those of its module, as text."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    of_module, found = "", {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for name in map(ast.unparse, node.targets):
                if name == "pytestmark":
                    of_module = ast.unparse(node.value)
                elif name.startswith("Test"):  # Hypothesis's state machines
                    found[name] = ""
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found[node.name] = " ".join(map(ast.unparse, node.decorator_list))
    return {name: f"{marks} {of_module}" for name, marks in found.items()}


def has_mark(test, *marks):
    path, name = test.split("::")
    return any(f"mark.{mark}" in collected(path)[name] for mark in marks)


def test_there_are_many_and_each_is_said_once():
    assert len(BEHAVIORS) >= 150
    for what in ("id", "sentence"):
        counts = Counter(getattr(behavior, what) for behavior in BEHAVIORS)
        assert not [value for value, count in counts.items() if count > 1]


def test_each_says_all_that_the_table_needs():
    for behavior in BEHAVIORS:
        assert behavior.status in (HELD, BROKEN, NOT_YET, NOT_OFFERED), behavior
        assert bool(behavior.tests) == (behavior.status in (HELD, BROKEN)) != bool(behavior.reason), behavior
        assert behavior.source.split()[0] in PROJECTS and ".py::" in behavior.source, behavior
        assert behavior.sentence.endswith("."), behavior
        assert "|" not in f"{behavior.sentence}{behavior.source}{behavior.reason}", behavior


def test_what_holds_them_is_collected():
    missing = []
    for test in {test for behavior in BEHAVIORS for test in behavior.tests}:
        path, name = test.split("::")
        is_file = path.split("/")[-1].startswith("test_") and (ROOT / "tests" / path).is_file()
        if not is_file or name not in collected(path):
            missing.append(test)
    assert not missing


def test_what_holds_them_runs_on_every_machine_and_what_is_broken_is_expected_to_fail():
    for behavior in BEHAVIORS:
        for test in behavior.tests:
            assert not has_mark(test, "skip", "skipif", "gpu", "browser"), test
            assert has_mark(test, "xfail") == (behavior.status == BROKEN), test


def test_the_readme_is_made_from_them():
    assert README.read_text(encoding="utf-8") == table(TOPICS, PROJECTS), "run `python -m tools.peers --write`"
