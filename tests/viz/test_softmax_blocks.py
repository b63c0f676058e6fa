"""The softmax block by block: its recording, and the picture of one step."""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_cases import SCORES, SOFTMAX, VALUES
from svg_reading import elements

from lessons_lib.attention.online_softmax import Partial, add_block_naive
from lessons_lib.recording.softmax_steps import number_text, record_blocks, step_text
from lessons_lib.viz.softmax.blocks import draw_softmax_step

LARGE = record_blocks(SCORES * 15, VALUES, 4, add_block=add_block_naive)


NAMES = [f" t{n}<" for n in range(10)]


def texts(steps, i, kind="text"):
    return [element.text for element in elements(draw_softmax_step(steps, i, NAMES), kind)]


def numbers(step):
    for value in vars(step).values():
        yield from value if isinstance(value, tuple) else [value]


def add_without_rescaling(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)
    weights = (scores - maximum[:, None]).exp()
    return Partial(maximum, seen.total + weights.sum(dim=1), seen.output + weights @ values)


# --- the recording


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
        assert (step.maximum_before, step.total_before, step.output_before) == (
            before.maximum,
            before.total,
            before.output,
        )
        assert step.total == pytest.approx(step.total_before * step.factor + step.added_total)
        assert step.output == pytest.approx(
            [o * step.factor + a for o, a in zip(step.output_before, step.added_output)]
        )
        assert step.remarks == ()


def test_a_recording_is_plain_data_and_one_row_of_scores_is_the_same():
    assert record_blocks(SCORES[None], VALUES, 4) == SOFTMAX
    assert {type(value) for step in SOFTMAX for value in numbers(step)} == {int, float}
    with pytest.raises(AttributeError):
        SOFTMAX[0].total = 1.0


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
    assert [step.maximum for step in LARGE] == [-math.inf] * 4
    assert [step.reference for step in LARGE] == [0.0] * 4
    assert [step.factor for step in LARGE] == [1.0] * 4
    assert LARGE[2].remarks == ()
    assert LARGE[3].total == math.inf and LARGE[3].remarks == (
        "The sum: overflow: infinity.",
        "The output: overflow: infinity.",
    )
    assert all(map(math.isnan, LARGE[3].attention))
    assert "no maximum is kept" in step_text(LARGE[3])


def test_not_a_number_is_named():
    steps = record_blocks(torch.tensor([-math.inf, 1.0]), VALUES[:2], 1, add_block=add_without_rescaling)
    assert steps[1].remarks == ("The sum: not a number.", "The output: not a number.")


def test_numbers_in_one_or_three_digits_and_others_in_words():
    values = [7.3, 0.04076, -0.0, -2.0, 12345.6, 999.7, 1.234e-07, 2.96e30, math.inf, -math.inf, math.nan]
    texts = ["7.3", "0.0408", "0", "−2", "12,346", "1,000", "1e−7", "3e30", "infinity", "−infinity", "not a number"]
    assert [number_text(value) for value in values] == texts


# --- the picture


@pytest.mark.parametrize("i", range(4))
def test_same_step_same_picture_and_the_alt_text_says_what_happened(i):
    picture = draw_softmax_step(SOFTMAX, i, NAMES)
    ET.fromstring(picture.svg)
    assert picture == draw_softmax_step(SOFTMAX, i, NAMES)
    assert step_text(SOFTMAX[i]) in picture.alt
    assert " ".join(texts(SOFTMAX, i)).count(step_text(SOFTMAX[i])) == 1
    told = [SOFTMAX[i].total, *SOFTMAX[i].weights, *SOFTMAX[i].output] if i else []
    for value in told:
        assert number_text(value) in re.split(r"[ ,;]+|\.(?= |$)", picture.alt)
        assert number_text(value) in texts(SOFTMAX, i)
    assert ("attention" in texts(SOFTMAX, i)) == (i == 3)


def test_the_last_step_divides_by_the_sum():
    shown = texts(SOFTMAX, 3)
    start = shown.index("attention")
    expected = (SCORES.softmax(0) @ VALUES).tolist()
    assert shown[start + 1 : start + 6] == [
        "output / sum",
        f"/ {number_text(SOFTMAX[3].total)}",
        *map(number_text, expected),
    ]
    assert f"attention: {', '.join(map(number_text, expected))}." in draw_softmax_step(SOFTMAX, 3, NAMES).alt


def test_tokens_are_named_and_hovers_tell_the_key():
    assert "4 ·t4<" in texts(SOFTMAX, 2) and "·t9<" in texts(SOFTMAX, 2)
    assert texts(SOFTMAX, 2, "title")[6] == "key 6 '·t6<', block 2: score masked"
