"""The kernels with one idea taken out each: same results, and only the idea differs.

Small cases, interpreted where there is no GPU.
"""

import dataclasses
import inspect

from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import torch
import triton
import triton.language as tl
from compiled import Compiled
from paged_cases import error

from lessons_lib.kernels.launch import launch_decode, launch_prefill
from lessons_lib.kernels.paged_flash import decode_kernel, online_softmax
from lessons_lib.measuring.ablations import VARIANTS, with_functions, with_lines
from lessons_lib.measuring.attention_cases import Case, decode_case, make_inputs
from lessons_lib.measuring.attention_peers import gather_sdpa, lesson_07, ours
from lessons_lib.measuring.compile_check import can_compile
from lessons_lib.measuring.published import HOPPER
from lessons_lib.recording.kernel_accesses import Recorder
from tools.gpu_bench.__main__ import ABLATIONS, LADDER, each_table

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


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda a: f"{a.without}; {a.case}")
def test_without_an_idea_the_kernel_is_still_right(ablation):
    if ablation.without == HOPPER:
        pytest.skip("it takes 16 bits only, and Gluon isn't interpreted; tests/kernels/test_gpu.py tries it")
    inputs = small(ablation.case.split()[0])
    check(ablation.calls(inputs), inputs)


@pytest.mark.parametrize("step", LADDER)
def test_each_step_of_the_ladder_is_right(step):
    inputs = small("decode")
    check(each_table(LADDER[step])(inputs), inputs)


def test_lines_that_a_kernel_does_not_have_are_refused():
    with pytest.raises(ValueError, match="decode_kernel has no 'no such line' to replace"):
        with_lines(decode_kernel, ("no such line", ""))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_diff_of_a_variant_is_its_idea_and_nothing_else(name):
    variant = VARIANTS[name]
    assert variant.idea and variant.kernel is not variant.changed[0][0]
    diff = variant.diff().splitlines()
    removed, added = ([line[1:] for line in diff if line.startswith(sign)] for sign in "-+")
    assert (len(removed), len(added)) == CHANGED_LINES[name]
    for original, changed in variant.changed:
        old, new = (inspect.getsource(function.fn).splitlines() for function in (original, changed))
        assert f"  in {original.fn.__name__}:" in diff
        assert list(inspect.signature(original.fn).parameters) == list(inspect.signature(changed.fn).parameters)
        assert any(line in old and line not in new for line in removed)
        assert any(line in new and line not in old for line in added)


# name -> lines removed and added
CHANGED_LINES = {
    "one program per query head": (1, 1),
    "no tensor cores": (6, 6),
    "table read one iteration early": (1, 3),
    "natural exponentials": (4, 4),
    "a mask in every iteration": (1, 1),
    "first tokens first": (1, 1),
    "one kernel for prefills and decodes": (1, 1),
}


@pytest.mark.skipif(not can_compile(), reason="this Triton can not compile for a GPU that is not there")
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_compiles(name):
    variant, inputs = VARIANTS[name], make_inputs(SMALL["mixed"], "cpu", torch.bfloat16, 1)
    kernel, out = Compiled(variant.kernel), torch.empty_like(inputs.q)
    cache = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.tables[0], inputs.context_lens, inputs.cu_seqlens_q)
    if variant.kernel.fn.__name__ == "prefill_kernel":
        launch_prefill(*cache, out, inputs.scale, kernel=kernel)
    else:
        launch_decode(*cache, out, inputs.scale, 80, kernel=kernel)
    assert kernel.refusals == [None]


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
