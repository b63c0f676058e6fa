"""Where a program was at each load and store, and what its variables held."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from kernel_moments import BLOCK_SIZE, CONTEXT, HEAD_DIM, TABLE, recorded

from lessons_lib.recording import record_kernel


def test_only_the_asked_for_program_has_moments():
    for program in recorded()[0].programs:
        assert {access.moment is not None for access in program.accesses} == {program.ids == (1, 1)}
    assert not any(access.moment for program in recorded(None)[0].programs for access in program.accesses)


def test_a_moment_is_at_the_line_that_loads_in_the_function_that_loads():
    accesses = recorded()[0].programs[-1].accesses
    told = [(access.moment.function, access.moment.source[access.moment.line].strip()) for access in accesses]
    assert told[0] == ("decode_heads_kernel", "query = tl.load(q + offsets).to(tl.float32)")
    assert told[1][1] == "num_tokens = tl.load(context_lens + seq)"
    loop = [("block = tl.load", "block_tables"), ("block_keys = tl.load", "k_cache"), ("block_values = tl", "v_cache")]
    for place, (begins, tensor) in enumerate(loop * 3, start=2):
        assert told[place][0] == "attend_blocks" and told[place][1].startswith(begins)
        assert accesses[place].tensor == tensor
    assert told[-1] == ("decode_heads_kernel", "tl.store(out + offsets, result)")


def test_variables_hold_what_the_loop_has_computed_before_the_line():
    recording, q, keys, out = recorded()
    accesses = recording.programs[-1].accesses
    scores = []
    for iteration, block in enumerate(TABLE):
        table, key = (accesses[2 + 3 * iteration + n].moment.variables for n in (0, 1))
        assert "block" not in table or table["block"].numbers == (float(TABLE[iteration - 1]),)
        assert key["block"].numbers == (float(block),) and key["first"].numbers == (float(iteration * BLOCK_SIZE),)
        assert key["acc"].shape == (HEAD_DIM,)
        if iteration:
            so_far = torch.cat(scores)
            assert key["row_max"].numbers[0] == pytest.approx(so_far.max().item(), abs=1e-5)
            assert key["row_sum"].numbers[0] == pytest.approx((so_far - so_far.max()).exp().sum().item(), abs=1e-5)
        else:
            assert key["row_max"].numbers == (float("-inf"),) and key["row_sum"].numbers == (0.0,)
            assert set(key["acc"].numbers) == {0.0}
        scores.append(keys[block, : CONTEXT - iteration * BLOCK_SIZE, 0] @ q[1, 1] * 0.5)
    result = accesses[-1].moment.variables["result"]
    np.testing.assert_allclose(result.numbers, out[1, 1].numpy(), atol=1e-6)


@triton.jit
def odd_kernel(x, y, N: tl.constexpr):
    index = tl.arange(0, N)
    large = tl.zeros([512], tl.float32)
    pointer = x + index
    half = tl.zeros([N], tl.bfloat16)
    is_even = index % 2 == 0
    tl.store(y + index, tl.load(pointer, mask=is_even, other=0.0) + tl.sum(large) + tl.max(half.to(tl.float32)))


def test_pointers_and_indices_are_left_out_and_large_or_brief_tiles_have_no_numbers():
    recording = record_kernel(odd_kernel, (1,), torch.ones(4), torch.zeros(4), N=4, moments_of=(0,))
    variables = recording.programs[0].accesses[0].moment.variables
    assert {name: (value.shape, value.numbers is None) for name, value in variables.items()} == {
        "large": ((512,), True),
        "half": ((4,), True),
    }
