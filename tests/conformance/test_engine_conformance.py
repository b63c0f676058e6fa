"""The conformance suite holds of the course's engines, and names each broken one."""

import re
import sys
from dataclasses import replace

import pytest
import torch
from broken_engines import BROKEN
from served_engine import make_engine as make_served
from transformers import DynamicCache

from lessons_lib.conformance.__main__ import main
from lessons_lib.conformance.adapters.course import make_engine, make_overlapped_engine
from lessons_lib.conformance.examples.batching_engine import BatchingEngine
from lessons_lib.conformance.examples.slow_engine import SlowEngine
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.levels import LEVELS, levels_up_to, manners
from lessons_lib.conformance.report import Verdict, is_reached, judge

ITEMS = {item.name: item for level in LEVELS for item in level.items}


def only(name):
    return [Level("one", "", [ITEMS[name]])]


def test_the_course_engine_holds_everything_but_the_server():
    report = judge(make_engine, levels_up_to("sampling"))
    assert report.broken == [], report
    assert report.reached == ["answers", "batches", "manners", "memory", "sharing", "sampling"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_engine_is_named(name, monkeypatch):
    monkeypatch.setattr(manners, "LONGEST_WAIT", 1.0)
    broken, item = BROKEN[name]
    (verdict,) = judge(broken, only(item), seconds=20).verdicts["one"]
    assert verdict.status == "broken", verdict
    assert len(verdict.reason) > 40


def test_an_end_may_come_in_an_entry_of_its_own():
    def halves(event):
        if event.finish_reason and event.token_ids:
            return [replace(event, finish_reason=None), replace(event, token_ids=[], text="")]
        return [event]

    def apart(model, limits, tokenizer):
        engine = make_engine(model, limits, tokenizer)
        step = engine.step
        engine.step = lambda: [part for event in step() for part in halves(event)]
        return engine

    report = judge(apart, levels_up_to("answers"))
    assert report.broken == [] and report.reached == ["answers"], report


def hanging(model, limits, tokenizer):
    engine = make_engine(model, limits, tokenizer)
    engine.step = lambda: [None for _ in iter(int, 1)]
    return engine


def failing(model, limits, tokenizer):
    raise KeyError("no such part")


@pytest.mark.parametrize(
    "make, says", [(hanging, "a loop doesn't end. It was last seen in"), (failing, "KeyError: 'no such part'")]
)
def test_an_engine_that_hangs_or_cannot_be_made_is_broken(make, says):
    (verdict,) = judge(make, only("answers.one_request"), seconds=0.5).verdicts["one"]
    assert verdict.status == "broken" and re.search(says, verdict.reason), verdict


def test_a_level_counts_if_half_of_it_can_be_shown():
    item = ITEMS["answers.one_request"]
    held, missing, broken = (Verdict(item, status) for status in ("held", "not offered", "broken"))
    assert is_reached([held, missing]) and is_reached([held])
    assert not is_reached([held, missing, missing]) and not is_reached([held, broken]) and not is_reached([])


def test_the_levels_of_a_size():
    assert [level.name for level in levels_up_to("small")] == ["answers", "batches", "manners"]
    assert levels_up_to("large") == LEVELS
    with pytest.raises(ValueError, match="no level or size 'huge'; there are small, medium, large, answers"):
        levels_up_to("huge")


DEAF = """
from lessons_lib.conformance.adapters.course import make_engine as right

def make_engine(*arguments):
    engine = right(*arguments)
    engine.abort = lambda name: None
    return engine
"""
UNWRITTEN = "def make_engine(*arguments):\n    raise NotImplementedError('nothing is written yet')\n"


@pytest.mark.parametrize(
    "source, only, says, count",
    [
        (DEAF, "manners.abort_a", "✗ manners.abort_anywhere", 1),
        (UNWRITTEN, "answers.end_token", "nothing is written yet", 1),
        (UNWRITTEN, "answers.end_t", "nothing is written yet", 3),
        (UNWRITTEN, "answers.no_such", "nothing is written yet", 0),
    ],
)
def test_the_command_tries_items_by_name(source, only, says, count, tmp_path, monkeypatch, capsys):
    """What offers nothing has not passed."""
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert main(["mine", "--size", "small", "--only", only]) == 1
    said = capsys.readouterr().out
    assert said.count(says) == count and "Levels reached: none yet." in said


def test_the_command_names_what_it_cannot_find(capsys):
    for target, message in (("no_such_module:f", "no module 'no_such_module'"), ("json:f", "has no function 'f'")):
        with pytest.raises(SystemExit):
            main([target])
        assert message in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("make", [make_overlapped_engine, make_served], ids=["overlapped", "served"])
def test_the_other_engines_hold_everything(make):
    report = judge(make, LEVELS)
    assert report.broken == [], report


def test_the_served_engine_speaks_the_protocol():
    report = judge(make_served, LEVELS[-1:])
    assert report.broken == [] and report.reached == ["server"], report


class KeepsTheCache(SlowEngine):
    """Tries a failed pass again with the cache in which some layers have its keys already."""

    def next_token(self, prompt, answer):
        if not answer:
            self.cache = DynamicCache(config=self.model.config)
        new = answer[-1:] or prompt
        return int(self.model(input_ids=torch.tensor([new]), past_key_values=self.cache).logits[0, -1].argmax())


@pytest.mark.parametrize("engine, status", [(BatchingEngine, "held"), (KeepsTheCache, "broken")])
def test_a_pass_that_fails_after_its_layers_is_not_tried_with_the_same_cache(engine, status):
    report = judge(lambda model, limits, tokenizer: engine(model, limits), only("manners.a_pass_fails"))
    (verdict,) = report.verdicts["one"]
    assert verdict.status == status, verdict
    assert status == "held" or "was the pass tried again with the same cache?" in verdict.reason
