"""The reading scoreboard of lesson 07 counts loaded bytes, and accepts any function whose result is right."""

import pytest
from changed_kernels import changed

from lessons_lib.checks.lesson_07.scoreboard import HEADS, Head, reading_scoreboard, share_read
from lessons_lib.kernels.simple_paged import attend_blocks

VALUES = "block_values = tl.load(values + offsets, mask=is_key[:, None], other=0.0)"
LATE = ("        row_max = new_max\n", f"        {VALUES}\n        acc += tl.sum(weights[:, None] * block_values, axis=0)\n        row_max = new_max\n")  # fmt: skip


def values_that_count():
    late = LATE[1].replace("is_key[:, None]", "(weights > 1e-5 * row_sum)[:, None]")
    acc = "acc = acc * rescale + tl.sum(weights[:, None] * block_values, axis=0)"
    return changed(attend_blocks, (VALUES, ""), (acc, "acc = acc * rescale"), (LATE[0], late))


def test_everything_is_loaded_once_by_the_loop_over_all_blocks():
    assert share_read(attend_blocks, Head(HEADS[0])) == 1


def test_a_function_that_loads_less_scores_better_but_not_better_than_one_that_knows_the_weights():
    head = Head(HEADS[1])
    least = 0.5 + 0.5 * head.fewest_values() / 150
    assert least <= share_read(values_that_count(), head) < 0.6


@pytest.mark.parametrize(
    "pair, says",
    [
        (("range(0, num_tokens, BLOCK_SIZE)", "range(0, 64, BLOCK_SIZE)"), "is off by"),
        (("range(0, num_tokens, BLOCK_SIZE)", "range(0, 900, BLOCK_SIZE)"), "OutOfBounds"),
        (
            ("    return acc / row_sum", "    if tl.sum(acc) > 1e9:\n        acc = 0\n    return acc / row_sum"),
            "refuses",
        ),
    ],
)
def test_what_is_wrong_is_said(pair, says):
    assert says in reading_scoreboard(changed(attend_blocks, pair)).verdict
