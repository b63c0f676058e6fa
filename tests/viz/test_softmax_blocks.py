"""The softmax block by block: its recording, and the picture of one step."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_cases import SCORES, SOFTMAX, VALUES
from svg_reading import elements

from lessons_lib.attention.online_softmax import add_block_naive
from lessons_lib.recording.softmax_steps import number_text, record_blocks, step_text
from lessons_lib.viz.softmax import draw_softmax_step

LARGE = record_blocks(SCORES * 15, VALUES, 4, add_block=add_block_naive)


NAMES = [f" t{n}<" for n in range(10)]


def texts(steps, i, kind="text"):
    return [element.text for element in elements(draw_softmax_step(steps, i, NAMES), kind)]


@settings(max_examples=25)
@given(count=st.integers(1, 20), dim=st.integers(1, 4), block_size=st.integers(1, 22), seed=st.integers(0, 999))
def test_every_step_is_plain_softmax_over_the_keys_so_far(count, dim, block_size, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = 20 * torch.randn(count, generator=generator, dtype=torch.float64)
    values = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    steps = record_blocks(scores, values, block_size)
    assert len(steps) == 1 + math.ceil(count / block_size)
    assert [p for step in steps for p in step.positions] == list(range(count))
    assert [s for step in steps for s in step.scores] == scores.tolist()
    for before, step in itertools.pairwise(steps):
        end = step.positions[-1] + 1
        assert step.attention == pytest.approx((scores[:end].softmax(0) @ values[:end]).tolist())
        assert step.maximum == scores[:end].max()
        assert step.total == pytest.approx((scores[:end] - step.maximum).exp().sum().item())
        assert step.weights == pytest.approx([math.exp(s - step.maximum) for s in step.scores])
        so_far = step.maximum_before, step.total_before, step.output_before
        assert so_far == (before.maximum, before.total, before.output)
        assert step.total == pytest.approx(step.total_before * step.factor + step.added_total)
        added = [o * step.factor + a for o, a in zip(step.output_before, step.added_output)]
        assert step.output == pytest.approx(added)
        assert step.remarks == ()


def test_a_block_that_the_query_may_not_see_changes_nothing():
    steps = record_blocks(torch.tensor([-math.inf, -math.inf, 1.0]), VALUES[:3], 2)
    assert (steps[1].total, steps[1].factor, steps[1].weights, steps[1].remarks) == (0.0, 1.0, (0.0, 0.0), ())
    assert step_text(steps[1]) == "Block 1: the query may not attend to any of these keys, so nothing is added."
    assert steps[2].attention == pytest.approx(VALUES[2].tolist())
    assert "largest score so far: none yet" in texts(steps, 1)


def test_bare_exponentials_overflow_and_the_recording_says_so():
    small = record_blocks(SCORES, VALUES, 4, add_block=add_block_naive)
    assert small[-1].attention == pytest.approx(SOFTMAX[-1].attention, rel=1e-4)
    assert [step.remarks for step in small] == [()] * 4
    assert {(step.maximum, step.reference, step.factor) for step in LARGE} == {(-math.inf, 0.0, 1.0)}
    assert LARGE[2].remarks == () and LARGE[3].total == math.inf
    assert LARGE[3].remarks == ("The total: overflow: infinity.", "The output: overflow: infinity.")
    assert all(map(math.isnan, LARGE[3].attention))
    assert "no maximum is kept" in step_text(LARGE[3])


def test_numbers_in_one_or_three_digits_and_others_in_words():
    values = [7.3, 0.04076, -0.0, -2.0, 12345.6, 999.7, 1.234e-07, 2.96e30, math.inf, -math.inf, math.nan]
    texts = ["7.3", "0.0408", "0", "−2", "12,346", "1,000", "1e−7", "3e30", "infinity", "−infinity", "not a number"]
    assert [number_text(value) for value in values] == texts


@pytest.mark.parametrize("i", range(4))
def test_the_picture_and_its_alt_text_say_what_happened(i):
    alt, shown, step = draw_softmax_step(SOFTMAX, i, NAMES).alt, texts(SOFTMAX, i), SOFTMAX[i]
    assert step_text(step) in alt and " ".join(shown).count(step_text(step)) == 1
    for value in [step.total, *step.weights, *step.output] if i else []:
        assert number_text(value) in re.split(r"[ ,;]+|\.(?= |$)", alt) and number_text(value) in shown
    assert ("attention" in shown) == (i == 3)


def test_the_last_step_divides_by_the_sum():
    shown = texts(SOFTMAX, 3)
    start = shown.index("attention")
    expected = list(map(number_text, (SCORES.softmax(0) @ VALUES).tolist()))
    assert shown[start + 1 : start + 6] == ["output / total", f"/ {number_text(SOFTMAX[3].total)}", *expected]
    assert f"attention: {', '.join(expected)}." in draw_softmax_step(SOFTMAX, 3, NAMES).alt


def test_tokens_are_named_and_hovers_tell_the_key():
    assert record_blocks(SCORES[None], VALUES, 4) == SOFTMAX, "one row of scores is the same"
    assert "4 ·t4<" in texts(SOFTMAX, 2) and "·t9<" in texts(SOFTMAX, 2)
    assert texts(SOFTMAX, 2, "title")[6] == "key 6 '·t6<', block 2: score masked"
