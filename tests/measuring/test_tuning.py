"""Sizes found by trying: the largest batch that fits, and what a block size costs."""

import math

import pytest
from engine_cases import LetterTokenizer, a_model, measured
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lessons_lib.compat.probe import probe
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.measuring import tuning
from lessons_lib.measuring.memory_limit import OutOfMemory
from lessons_lib.measuring.tuning import BlockSizeCost, block_size_costs, engine_fits, largest_that_fits


@pytest.fixture(autouse=True, scope="module")
def probed():
    """The engine's verdict on the model is kept, so none may come from a test that breaks or limits something."""
    probe(a_model())


@settings(deadline=None)
@given(st.integers(1, 3000), st.data())
def test_the_largest_that_fits_is_found_with_few_tries(most, data):
    largest = data.draw(st.one_of(st.integers(0, most), st.sampled_from([0, 1, most - 1, most, most + 5])))
    tried = []

    def fits(size):
        assert 1 <= size <= most and size not in tried, "out of range, or tried twice"
        tried.append(size)
        return size <= largest

    assert largest_that_fits(fits, most) == min(largest, most)
    assert len(tried) <= math.ceil(math.log2(most + 1))


@pytest.fixture(scope="module")
def peak():
    """Bytes that an engine for 8 sequences of 64 tokens takes, found by trying."""
    low, high = 0, 2**24
    assert engine_fits(a_model(), LetterTokenizer(), 8, 64, high, 64)
    while high - low > 4096:
        middle = (low + high) // 2
        low, high = (low, middle) if engine_fits(a_model(), LetterTokenizer(), 8, 64, middle, 64) else (middle, high)
    return high


def test_an_engine_that_fits_and_one_that_does_not(peak):
    def fits(size):
        return engine_fits(a_model(), LetterTokenizer(), size, 64, peak, 64)

    assert largest_that_fits(fits, 32) == 8
    cache = 8 * 64 * 2 * 2 * 2 * 8 * 4  # sequences, tokens, keys and values, layers, heads, their width, bytes
    assert peak > 1.2 * cache, "a formula of the cache alone would be wrong"
    assert not engine_fits(a_model(), LetterTokenizer(), 8, 64, 1000), "not even the cache"


def test_other_errors_are_no_question_of_size(monkeypatch):
    monkeypatch.setattr("lessons_lib.engine.model_runner.ModelRunner.forward", lambda self, plan: [][0])
    with pytest.raises(IndexError):
        engine_fits(a_model(), LetterTokenizer(), 2, 20, 2**30)


def test_running_out_in_the_middle_of_a_step_fails_only_that_step():
    """What the search relies on: an allocation that fails is an error of the requests, and the engine goes on."""
    engine = LLMEngine(a_model(), LetterTokenizer(), EngineConfig(num_blocks=40, block_size=4))
    with tuning.memory_limit(50_000):
        (output,) = engine.generate([[1, 2, 3] * 40], SamplingParams(max_tokens=3))
    assert isinstance(output.error, OutOfMemory)
    assert engine.generate([[1, 2, 3]], SamplingParams(max_tokens=3))[0].error is None


def test_costs_of_block_sizes_by_hand():
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 6, 7, 8], [7]]
    assert block_size_costs(prompts, [3, 1, 1, 8], (1, 4, 8)) == [
        # In the cache: 10, 6, 8 and 8 tokens.
        BlockSizeCost(1, blocks=32, empty_share=0, table_entries=10, shareable_tokens=5 + 7),
        BlockSizeCost(4, blocks=3 + 2 + 2 + 2, empty_share=1 - 32 / 36, table_entries=3, shareable_tokens=4 + 4),
        BlockSizeCost(8, blocks=2 + 1 + 1 + 1, empty_share=1 - 32 / 40, table_entries=2, shareable_tokens=0 + 0),
    ]
    assert block_size_costs([], [], (16,)) == [BlockSizeCost(16, 0, 0.0, 0, 0)], "no requests cost nothing"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=14), min_size=1, max_size=6), st.integers(1, 5))
@example([[1, 1, 1], [1, 1, 1]], 3)
def test_shareable_tokens_are_those_that_an_engine_finds(prompts, size):
    (cost,) = block_size_costs(prompts, [1] * len(prompts), [size])
    engine = measured(LLMEngine(a_model(), LetterTokenizer(), EngineConfig(num_blocks=200, block_size=size)))
    for prompt in prompts:
        engine.generate([prompt], SamplingParams(max_tokens=1))
    assert engine.metrics.cached_tokens == cost.shareable_tokens
