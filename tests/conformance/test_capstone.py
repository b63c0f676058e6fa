"""The capstone's package, table, scoreboard, page and map."""

import importlib
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

import lessons_lib
from lessons_lib.conformance import contract, production_map
from lessons_lib.conformance.capstone import engine_of, start_capstone, template
from lessons_lib.conformance.contract import Engine
from lessons_lib.conformance.examples.batching_engine import make_batching_engine
from lessons_lib.conformance.examples.slow_engine import make_engine as make_slow_engine
from lessons_lib.conformance.examples.small_engine import SmallEngine, make_engine
from lessons_lib.conformance.level_table import Judged, judge_package
from lessons_lib.conformance.levels import LEVELS
from lessons_lib.conformance.report import Report, Verdict
from lessons_lib.conformance.scoreboard import Score, own_lines, race, serve, steps_of, workload
from lessons_lib.conformance.served import Broken

RIGHT = "from lessons_lib.conformance.examples.small_engine import make_engine\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def raced():
    return race(make_engine, "mine", num_requests=6, rounds=1)


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_the_empty_package_has_the_contract_s_methods_and_nothing_in_them(folder, size):
    assert f"Size {size}" in start_capstone(size)
    engine = engine_of()(None, None, None)
    assert "\nimport torch\n" in template(size)  # the models take tensors
    names = {name for name in vars(Engine) if not name.startswith("_")}
    for name in names | (set() if size == "small" else {"num_free_blocks", "block_tables"}):
        method = getattr(engine, name)
        assert len(inspect.getdoc(method)) > 20
        with pytest.raises(NotImplementedError, match=f"{name} isn't written yet"):
            method(*[None] * len(inspect.signature(method).parameters))
    assert max(map(len, template(size).split("\n"))) <= 120


def test_what_is_there_stays(folder):
    start_capstone()
    Path("my_serving/engine.py").write_text(RIGHT)
    assert "stays as it is" in start_capstone("medium")
    assert Path("my_serving/engine.py").read_text() == RIGHT
    with pytest.raises(ValueError, match=r"no size 'tiny'; choose one of small, medium, large\. Nothing was written\."):
        start_capstone("tiny", "elsewhere")
    assert not Path("elsewhere").exists()


def test_the_package_is_read_as_it_is_now(folder):
    with pytest.raises(ValueError, match="no my_serving/engine.py in this folder; `start_capstone"):
        engine_of()
    start_capstone()
    for text in ("def make_engine(*each): return 1\n", "def make_engine(*each): return 2\n"):
        Path("my_serving/engine.py").write_text(text)
        assert engine_of()() == int(text[-2])
    Path("my_serving/engine.py").write_text("make_engine = 3\n")
    with pytest.raises(ValueError, match="has no function make_engine"):
        engine_of()


def test_an_empty_package_reaches_nothing_and_hears_what_to_do_first(folder):
    start_capstone()
    judged = judge_package("answers")
    assert judged.report.reached == [] and judged.report.broken == []
    assert "add_request isn't written yet" in str(judged) and "Next, answers: Serve one request" in str(judged)
    assert str(judged).count("isn't written yet") == 1  # each reason once


def test_a_package_with_an_error_is_told(folder):
    start_capstone()
    Path("my_serving/engine.py").write_text("def make_engine(:\n")
    assert "SyntaxError" in str(judge_package()) and str(judge_package()).count("line 1") == 1


def test_a_failure_says_where_to_read():
    items = {item.name: item for level in LEVELS for item in level.items}
    assert items["answers.one_request"].where == "lesson 00"
    assert items["answers.full_context"].where == "contract: NewTokens"
    for item in items.values():
        if not item.lesson.isdigit():  # a name of the contract
            kind, _, method = item.lesson.partition(".")
            assert method in vars(getattr(contract, kind)) if method else hasattr(contract, kind)
    # The first level sends the learner to no lesson after the capstone's own prerequisites.
    assert {item.lesson for item in LEVELS[0].items if item.lesson.isdigit()} == {"00"}


def told(*verdicts):
    return Judged("mine", Report({"answers": list(verdicts)})).told()


def test_failures_are_told_each_reason_once_in_the_suite_s_order():
    items, reasons = LEVELS[0].items, ("first", "second", "first", "third", "fourth", "first")
    lines = told(*(Verdict(item, "broken", reason) for item, reason in zip(items, reasons)))
    assert [line.split(" (")[0] for line in lines[:3]] == [f"✗ {items[index].name}" for index in (0, 1, 3)]
    assert "and 3 more of this level" in lines[3] and "Next, answers: Serve one request" in lines[4]
    judged = Judged("mine", Report({"answers": [Verdict(items[0], "broken", "`step`, <2>")]}))
    assert "`step`, <2>" in str(judged) and "<code>step</code>, &lt;2&gt;" in judged._repr_mimebundle_()["text/html"]
    assert told(Verdict(items[0], "held")) == []


def test_once_half_of_a_level_holds_it_says_what_is_broken_and_not_how_to_begin():
    items = LEVELS[0].items
    verdicts = [Verdict(items[0], "broken", "wrong"), *(Verdict(item, "held") for item in items[1:])]
    lines = told(*verdicts)
    assert len(lines) == 2 and lines[1] == f"Level answers: 1 of its {len(items)} items is broken."


def test_the_scoreboard_compares_engines_on_the_same_requests(raced):
    mine, reference = raced.scores.values()
    assert mine.num_tokens == reference.num_tokens > 40
    assert mine.num_steps == reference.num_steps and mine.num_computed == reference.num_computed
    assert re.fullmatch(r"\d slots of 64", mine.memory) and re.fullmatch(r"\d+ blocks of 4", reference.memory)
    assert len(mine.trace.steps) == mine.num_steps
    assert mine.trace.tokens_useful == mine.trace.tokens_computed == mine.num_computed
    assert mine.trace.slots == 4 and len(mine.trace.requests) == 6
    assert 550 <= mine.num_lines <= 700 and reference.num_lines > 2000
    assert [row[0] for row in raced.table().rows][2:4] == ["steps", "tokens computed"]


def test_a_race_against_another_engine():
    def one_slot(model, limits, tokenizer):
        return make_batching_engine(model, replace(limits, max_num_seqs=1), tokenizer)

    raced = race(one_slot, "mine", against=("slow", make_slow_engine), num_requests=3, rounds=1)
    mine, slow = raced.scores.values()
    assert slow.trace.tokens_computed == slow.num_computed > 3 * slow.trace.tokens_useful
    assert list(raced.scores) == ["mine", "slow"] and mine.num_steps == slow.num_steps
    assert mine.num_computed == mine.trace.tokens_useful < slow.num_computed / 3
    small = make_engine(None, None, None)
    assert 40 < own_lines(small) - mine.num_lines < 70  # with those of the class that it extends


def test_a_wrong_answer_loses_the_race():
    class Wrong(SmallEngine):
        def step(self):
            return [replace(event, token_ids=[(event.token_ids[0] + 1) % 97]) for event in super().step()]

    with pytest.raises(Broken, match="`generate` gives"):
        serve(lambda model, limits, tokenizer: Wrong(model, limits), workload(0, 3), Score())


def test_steps_and_lines(folder):
    assert steps_of(make_engine, [12, 2, 2, 2, 2, 2], max_num_seqs=3) == 12
    assert own_lines(object()) is None
    Path("my_serving").mkdir()
    Path("my_serving/__init__.py").touch()
    Path("my_serving/parts.py").write_text("a = 1\n\n# nothing\nb = 2\n")
    Path("my_serving/engine.py").write_text(
        "from lessons_lib.models.validate import BadRequest\nclass Engine:\n    pass\ndef make_engine(*each):\n    return Engine()\n"
    )
    assert own_lines(engine_of()()) > 2 + 5


def test_the_map_names_what_exists():
    root = Path(lessons_lib.__file__).parent
    for part in production_map.PARTS:
        file, name = part["ours"].split()
        assert re.search(rf"(def|class) {name}\b", (root / file).read_text()), part["ours"]
        if place := part["there"].get("transformers"):
            file, name = place.split()
            path = file[1:] if file.startswith("/") else production_map.ENGINES["transformers"]["folder"] + file
            module = importlib.util.find_spec(path.removesuffix(".py").replace("/", "."))
            assert module and re.search(rf"(def|class) {name}\b", Path(module.origin).read_text()), place
    assert {len(part["there"]) for part in production_map.PARTS} <= {2, 3, 4}
    with pytest.raises(ValueError, match="the map has no 'Orca'"):
        production_map.parts_in("Orca")
