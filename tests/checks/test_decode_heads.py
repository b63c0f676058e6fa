"""What 07.3 says about a kernel doesn't depend on the order in which its `attend_blocks` reads the blocks; and what
08.1 says about a load out of bounds."""

import answers
import pytest
from answers.lesson_07 import attend_newest_first
from changed_kernels import changed

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_08.offsets import TASK as OFFSETS
from lessons_lib.kernels.group_decode import tile_offsets
from lessons_lib.kernels.simple_paged import decode_heads_kernel


@pytest.mark.parametrize(
    "pair, says",
    [
        ((".to(tl.float32)", ""), "In float32 it would pass: a product of two float16 loses digits"),
        (("head // GROUP", "0"), "KV head h starts"),
    ],
)
def test_mistakes_are_named_whichever_block_is_read_first(pair, says):
    kernel = changed(decode_heads_kernel, pair)
    kernel.fn.__globals__["attend_blocks"] = attend_newest_first
    panel = answers.verdict("07.3", kernel)
    assert panel.kind == "wrong"
    assert says in str(panel), str(panel)


def test_a_load_out_of_bounds_is_told_in_its_own_case():
    wrong = changed(tile_offsets, ("table + position // BLOCK_SIZE", "table + position // BLOCK_SIZE * stride_block"))
    with pytest.raises(Mistake, match="would load element 8 of `table`") as refused:
        OFFSETS(wrong)
    assert "positions [4, 5, 6, 7]" in refused.value.case
