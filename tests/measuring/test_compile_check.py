"""What the compiler refuses, checked without a GPU; and the check leaves Triton as it was."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from lessons_lib.recording.interpreter import LANGUAGE

import pytest
import torch
import triton
import triton.language as tl

from lessons_lib.kernels.basics import add_kernel
from lessons_lib.kernels.simple_paged import attend_blocks, single_head_kernel
from lessons_lib.measuring.compile_check import can_compile, rounded_products, tensor_core_products, why_not_compiled
from lessons_lib.recording.kernel_accesses import record_kernel

pytestmark = pytest.mark.skipif(not can_compile(), reason="this Triton can not compile for a GPU that is not there")
X = torch.zeros(8)


@triton.jit
def sum_from(x, out, count, START: tl.constexpr):
    total = START
    for i in range(count):
        total += tl.load(x + i)
    tl.store(out, total)


@triton.jit
def grows(x, out, count):
    total = tl.zeros([4], tl.float32)
    for _ in range(count):
        total = total + tl.arange(0, 4)[:, None]
    tl.store(out, tl.sum(total))


@triton.jit
def asks_a_tile(x, out, count):
    place = tl.arange(0, 4)
    if place < count:
        tl.store(out + place, tl.load(x + place))


@triton.jit
def doubled_in_a_loop(x):
    total = 0
    for _ in range(2):
        total += x * 0.5
    return total


@triton.jit
def calls(FUNCTION: tl.constexpr, x, out):
    tl.store(out, FUNCTION(tl.max(tl.load(x + tl.arange(0, 4)), axis=0)))


def test_what_compiles():
    assert why_not_compiled(add_kernel, X, X, X, 8, BLOCK=4) is None
    assert why_not_compiled(sum_from, X, X, 8, START=0.0) is None


@pytest.mark.parametrize(
    "kernel, arguments, text, line",
    [
        (sum_from, dict(START=0), "total has initial type int32 but is re-assigned to fp32", "for i in range(count):"),
        (grows, {}, "total has initial type", "for _ in range(count):"),
        (asks_a_tile, {}, "Boolean value", "if place < count:"),
    ],
)
def test_what_only_the_compiler_refuses_is_named_with_its_line(kernel, arguments, text, line):
    refusal = why_not_compiled(kernel, X, X, 2, **arguments)
    assert text in refusal.text and refusal.line == line


def test_the_line_of_a_function_that_the_kernel_calls():
    refusal = why_not_compiled(calls, doubled_in_a_loop, X, X, about=doubled_in_a_loop)
    assert refusal.line == "for _ in range(2):"


@triton.jit
def largest_of_products(x, out, PRECISION: tl.constexpr):
    tile = tl.load(x + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])
    products = tl.dot(tile, tile.trans(), input_precision=PRECISION)
    tl.store(out + tl.arange(0, 16), products.max(axis=1) + products.sum(axis=1))


@pytest.mark.parametrize(
    "dtype, precision, rounded, on_tensor_cores",
    [
        ("float32", None, 1, (1, 0)),
        ("float32", "tf32x3", None, (1, 0)),
        ("float32", "ieee", 0, (0, 1)),
        ("float16", None, 0, None),
        ("float16", "ieee", None, (1, 0)),
    ],
)
def test_products_of_rounded_factors_and_on_tensor_cores_are_counted(dtype, precision, rounded, on_tensor_cores):
    call = (largest_of_products, torch.zeros(16, 16, dtype=getattr(torch, dtype)), torch.zeros(16))
    if rounded is not None:
        assert rounded_products(*call, PRECISION=precision) == rounded
    if on_tensor_cores:
        assert tensor_core_products(*call, PRECISION=precision) == on_tensor_cores


@triton.jit
def product(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def product_of_products(x, out):
    places = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(x + places)
    tl.store(out + places, product(product(tile, tile), tl.trans(tile).to(tl.float32)))


def test_products_in_functions_that_the_kernel_calls_are_counted():
    assert tensor_core_products(product_of_products, torch.zeros(16, 16), torch.zeros(16, 16)) == (0, 2)
    half = torch.zeros(16, 16, dtype=torch.float16)
    assert tensor_core_products(product_of_products, half, torch.zeros(16, 16)) == (1, 1)


def test_all_stays_as_it_was_and_kernels_run_before_and_after():
    cache, table, out = torch.ones(4, 4, 8), torch.zeros(2, dtype=torch.int32), torch.zeros(8)
    args = (attend_blocks, cache[0, 0], cache, cache, table, out, 7, 0.3, 32, 8)
    constants = dict(HEAD_DIM=8, BLOCK_SIZE=4)
    if not torch.cuda.is_available():
        single_head_kernel[(1,)](*args, **constants)  # leaves the language changed
    before = [dict(vars(owner)) for owner in (*LANGUAGE, tl.standard)]
    own = dict(globals())
    assert why_not_compiled(single_head_kernel, *args, **constants) is None
    assert why_not_compiled(calls, doubled_in_a_loop, X, X) is not None
    assert [dict(vars(owner)) for owner in (*LANGUAGE, tl.standard)] == before
    assert dict(globals()) == own
    record_kernel(single_head_kernel, (1,), *args, **constants)
    assert torch.allclose(out, torch.ones(8))


def test_a_wrong_call_is_no_word_of_the_compiler():
    assert why_not_compiled(add_kernel, X) is None
