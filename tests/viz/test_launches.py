"""The three ways to run the same decode steps."""

from itertools import pairwise

import pytest

from lessons_lib.viz.launches import KERNEL, KERNELS, LAUNCH, REPLAY, SCHEDULE, TOKENS, WAYS, draw_launches, steps_of

COMPUTED = KERNELS * KERNEL


@pytest.mark.parametrize(
    ("way", "per_step"),
    [
        (WAYS[0], SCHEDULE + KERNELS * LAUNCH + KERNEL + TOKENS),  # the last kernel is waited for
        (WAYS[1], SCHEDULE + REPLAY + COMPUTED + TOKENS),
        (WAYS[2], COMPUTED),  # all of the CPU's work is hidden
    ],
)
def test_a_step_takes_what_the_slower_side_needs(way, per_step):
    spans = steps_of(way)
    ends = [span.end for span in spans if span.what == "tokens"]
    assert {later - earlier for earlier, later in pairwise(ends)} <= {per_step}
    for side in ("CPU", "GPU"):  # each does one thing at a time
        busy = [span for span in spans if span.side == side]
        assert all(one.end <= other.start for one, other in pairwise(busy))


def test_the_picture_counts_what_is_finished():
    alt = draw_launches(160).alt
    assert "launched one by one: 0 steps finished" in alt and "CUDA graphs: 1 step finished" in alt
    assert draw_launches(580).svg.count("kernel of step 1<") == 3 * KERNELS
