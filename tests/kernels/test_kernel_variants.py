"""Kernels that call other functions; and the ways that the benchmark compares, on small cases, interpreted where there
is no GPU.
"""

import dataclasses

from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import torch
import triton
import triton.language as tl
from paged_cases import error

from lessons_lib.kernels.launch import launch_decode
from lessons_lib.kernels.paged_flash import decode_kernel, online_softmax
from lessons_lib.measuring.ablations import with_functions, with_lines
from lessons_lib.measuring.attention_cases import Case, decode_case, make_inputs
from lessons_lib.measuring.attention_peers import gather_sdpa, lesson_07, ours
from lessons_lib.recording.kernel_accesses import Recorder

HEADS = (8, 2, 32)
SMALL = {
    "decode": decode_case(HEADS, [5, 33, 600], "small"),
    "prefill": Case("small prefills", "prefill", *HEADS, (9, 20, 3), (9, 41, 19)),
    "mixed": Case("small mixed", "mixed", *HEADS, (9, 1, 20, 1), (9, 17, 41, 80)),
}
EVEN = {
    "decode": decode_case(HEADS, [33, 33], "even"),
    "prefill": Case("even prefills", "prefill", *HEADS, (20, 20), (20, 20)),
}


def small(kind, cases=SMALL):
    return make_inputs(cases[kind], kernel_device(), torch.float32, 2)


def check(calls, inputs, upto=2e-6):
    """One call for each table; each table has blocks of its own."""
    assert len(calls) == len(inputs.tables) == 2
    for call, table in zip(calls, inputs.tables):
        expected = dataclasses.replace(inputs, tables=[table]).reference()
        assert error(call(), expected) < upto
    assert error(calls[0](), expected) > 0.1  # the tables differ


def test_lines_that_a_kernel_does_not_have_are_refused():
    with pytest.raises(ValueError, match="decode_kernel has no 'no such line' to replace"):
        with_lines(decode_kernel, ("no such line", ""))


# --- what the benchmark compares


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SMALL)
def test_our_functions_and_gathering_are_right_in_the_benchmark(kind):
    inputs = small(kind)
    check(ours(inputs), inputs)
    check(gather_sdpa(inputs), inputs)


@pytest.mark.parametrize("kind", EVEN)
def test_gathering_and_lesson_07_are_right_where_all_sequences_are_alike(kind):
    inputs = small(kind, EVEN)
    check(gather_sdpa(inputs), inputs)
    if kind == "decode":
        check(lesson_07(inputs), inputs)
    else:
        assert lesson_07(inputs) is None


STEPS = []


@triton.jit
def counted_softmax(scores, row_max, row_sum, acc):
    STEPS.append(tl.program_id(0))  # only ever interpreted, where a kernel is Python
    return online_softmax(scores, row_max, row_sum, acc)


def test_a_kernel_can_be_given_other_functions_and_stays_as_it_was():
    inputs = small("decode")
    out = torch.empty_like(inputs.q)
    arguments = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.tables[0], inputs.context_lens)
    for kernel, is_counted in (
        (with_functions(decode_kernel, online_softmax=counted_softmax), True),
        (decode_kernel, False),
    ):
        STEPS.clear()
        launch_decode(*arguments, inputs.cu_seqlens_q, out, inputs.scale, 600, kernel=Recorder(kernel))
        assert bool(STEPS) == is_counted and error(out, inputs.reference()) < 2e-6
