"""Agents that come back: the trace is what it says, and floors save most of what would be computed again."""

import itertools

import pytest
from engine_cases import a_model, an_engine

from lessons_lib.measuring.agents import agents_trace, compare, play_agents, statistics_of, summary
from lessons_lib.models.tiny_models import VOCAB_SIZE

TRACE = agents_trace(num_agents=6, turns=4, num_tools=2, shared=24, vocab_size=VOCAB_SIZE, seed=1)


def make_engine(**options):
    return an_engine(model=a_model(), num_blocks=70, max_num_batched_tokens=64, **options)


def test_a_trace_has_pauses_branches_and_shared_prompts():
    trace = agents_trace()
    facts = statistics_of(trace)
    assert facts["agents"] == 12 and facts["turns"] == 72 and facts["turns that branch off"] > 3
    assert facts["longest pause in s"] > 60 > 20 > facts["median pause in s"]
    assert [turn.at for turn in trace] == sorted(turn.at for turn in trace)
    first = {turn.agent: turn.text[:160] for turn in reversed(trace)}
    assert len(set(first.values())) == 3


def test_a_dropped_branch_is_found_again():
    results = play_agents(make_engine(host_cache_bytes=2**20), TRACE, itertools.count().__next__)
    assert summary(results)["computed"] < summary(results)["prompt tokens"] / 2
    assert all(each.cached_tokens > 0 for each in results if each.is_returning)


def test_floors_save_computing():
    ratios = compare(make_engine, TRACE, itertools.count().__next__)
    assert ratios["computed"] < 0.7


def test_another_answer_is_noticed():
    engines = iter([make_engine(), an_engine("llama", num_blocks=70, max_num_batched_tokens=64)])
    with pytest.raises(ValueError, match="an answer is another one"):
        compare(lambda **options: next(engines), TRACE, itertools.count().__next__)
