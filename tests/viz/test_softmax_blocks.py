"""The softmax block by block: its recording, and the picture of one step."""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.attention.online_softmax import Partial, add_block_naive
from lessons_lib.recording.softmax_steps import number_text, record_blocks, step_text
from lessons_lib.viz.softmax.blocks import draw_softmax_step

SVG = "{http://www.w3.org/2000/svg}"
SCORES = torch.tensor([1.2, 4.1, -2.0, 0.3, 3.9, 0.5, -math.inf, -1.0, 7.3, 2.0])
VALUES = torch.arange(30, dtype=torch.float32).reshape(10, 3) / 10 - 1.5
STEPS = record_blocks(SCORES, VALUES, 4)
LARGE = record_blocks(SCORES * 15, VALUES, 4, add_block=add_block_naive)


def texts(steps, i, names=None, kind="text"):
    return [element.text for element in ET.fromstring(draw_softmax_step(steps, i, names).svg).iter(SVG + kind)]


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
    assert record_blocks(SCORES[None], VALUES, 4) == STEPS
    assert {type(value) for step in STEPS for value in numbers(step)} == {int, float}
    with pytest.raises(AttributeError):
        STEPS[0].total = 1.0


def test_a_block_that_the_query_may_not_see_changes_nothing():
    steps = record_blocks(torch.tensor([-math.inf, -math.inf, 1.0]), VALUES[:3], 2)
    assert (steps[1].total, steps[1].factor, steps[1].weights, steps[1].remarks) == (0.0, 1.0, (0.0, 0.0), ())
    assert step_text(steps[1]) == "Block 1: the query may not attend to any of these keys, so nothing is added."
    assert steps[2].attention == pytest.approx(VALUES[2].tolist())
    assert "largest score so far: none yet" in texts(steps, 1)


def test_bare_exponentials_overflow_and_the_recording_says_so():
    small = record_blocks(SCORES, VALUES, 4, add_block=add_block_naive)
    assert small[-1].attention == pytest.approx(STEPS[-1].attention, rel=1e-4)
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


def test_sums_that_do_not_add_up_and_a_maximum_that_is_none_are_named():
    steps = record_blocks(SCORES, VALUES, 4, add_block=add_without_rescaling)
    assert [bool(step.remarks) for step in steps] == [False, False, False, True]
    found, expected = number_text(steps[3].total), number_text(STEPS[3].total)
    assert (
        steps[3].remarks[0]
        == f"It does not add up: the new sum is {found}, but old × factor + the block's part is {expected}."
    )

    def keeps_the_last(seen, scores, values):
        maximum = scores.max(dim=1).values
        weights, factor = (scores - maximum[:, None]).exp(), (seen.maximum - maximum).exp()
        return Partial(
            maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values
        )

    wrong = record_blocks(SCORES, VALUES, 4, add_block=keeps_the_last)[2]
    assert wrong.remarks == ("The maximum is 3.9, but the largest score so far is 4.1.",)


@pytest.mark.parametrize(
    "scores, values, block_size, words",
    [
        (torch.zeros(2, 3), torch.zeros(3, 1), 2, r"shape \[2, 3\].*one query"),
        (torch.zeros(3), torch.zeros(4, 1), 2, r"shape \[4, 1\]; 3 scores need"),
        (torch.zeros(3), torch.zeros(3), 2, r"shape \[3\]"),
        (torch.zeros(3), torch.zeros(3, 1), 0, "block_size is 0"),
    ],
)
def test_what_does_not_fit_is_refused(scores, values, block_size, words):
    with pytest.raises(ValueError, match=words):
        record_blocks(scores, values, block_size)


def test_numbers_in_one_or_three_digits_and_others_in_words():
    values = [7.3, 0.04076, -0.0, -2.0, 12345.6, 999.7, 1.234e-07, 2.96e30, math.inf, -math.inf, math.nan]
    texts = ["7.3", "0.0408", "0", "−2", "12,346", "1,000", "1e−7", "3e30", "infinity", "−infinity", "not a number"]
    assert [number_text(value) for value in values] == texts


# --- the picture


@pytest.mark.parametrize("i", range(4))
def test_same_step_same_picture_and_the_alt_text_says_what_happened(i):
    picture = draw_softmax_step(STEPS, i)
    ET.fromstring(picture.svg)
    assert picture == draw_softmax_step(STEPS, i)
    assert step_text(STEPS[i]) in picture.alt
    assert " ".join(texts(STEPS, i)).count(step_text(STEPS[i])) == 1
    told = [STEPS[i].total, *STEPS[i].weights, *STEPS[i].output] if i else []
    for value in told:
        assert number_text(value) in re.split(r"[ ,;]+|\.(?= |$)", picture.alt)
        assert number_text(value) in texts(STEPS, i)
    assert ("attention" in texts(STEPS, i)) == (i == 3)


def test_the_last_step_divides_by_the_sum():
    shown = texts(STEPS, 3)
    start = shown.index("attention")
    expected = (SCORES.softmax(0) @ VALUES).tolist()
    assert shown[start + 1 : start + 6] == [
        "output / sum",
        f"/ {number_text(STEPS[3].total)}",
        *map(number_text, expected),
    ]
    assert f"attention: {', '.join(map(number_text, expected))}." in draw_softmax_step(STEPS, 3).alt


def test_tokens_are_named_and_hovers_tell_the_key():
    names = [f" t{n}<" for n in range(10)]
    assert "4 ·t4<" in texts(STEPS, 2, names) and "·t9<" in texts(STEPS, 2, names)
    assert texts(STEPS, 2, names, "title")[6] == "key 6 '·t6<', block 2: score masked"
    with pytest.raises(ValueError, match="9 texts; there are 10 keys"):
        draw_softmax_step(STEPS, 2, names[:9])


@pytest.mark.parametrize("i", [-1, 4])
def test_a_step_that_is_not_there_is_refused(i):
    with pytest.raises(IndexError, match=f"i is {i}; the recording has 4 steps"):
        draw_softmax_step(STEPS, i)
