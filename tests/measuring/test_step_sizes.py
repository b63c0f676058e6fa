"""Which sizes to capture: the histogram of a workload, and the sizes that pad it the least."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.measuring.step_sizes import least_padding, padding, tokens_of_steps


def test_steps_with_prompts_are_counted():
    # 3 + 2 tokens; a decode and 4 tokens of the last prompt. A decode and its last token are like two decodes.
    assert tokens_of_steps([(3, 3), (2, 1), (5, 3)], max_num_seqs=2, max_tokens=5) == {5: 2}


@given(st.dictionaries(st.integers(1, 60), st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 5))
def test_no_other_sizes_pad_less(histogram, max_graphs):
    sizes = least_padding(histogram, max_graphs)
    counts = sorted(histogram)
    smaller = [some for number in range(max_graphs) for some in combinations(counts[:-1], number)]
    assert sizes == sorted(set(sizes)) and len(sizes) <= max_graphs and sizes[-1] == counts[-1]
    assert padding(histogram, sizes) == min(padding(histogram, [*some, counts[-1]]) for some in smaller)


def test_a_step_without_room_is_refused():
    with pytest.raises(ValueError):
        padding({5: 1}, [4])
