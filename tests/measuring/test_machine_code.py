"""The instructions of a kernel, counted without a GPU."""

import pytest
import torch

from lessons_lib.kernels import decode_groups, decode_groups_kernel
from lessons_lib.measuring.ablations import decode_groups_by_sums, decode_groups_by_sums_kernel
from lessons_lib.measuring.compile_check import can_compile
from lessons_lib.measuring.machine_code import MachineCode


def compiled(function, kernel, dtype, keys_per_tile=64):
    q, cache = torch.zeros(2, 32, 128, dtype=dtype), torch.zeros(4, 16, 8, 128, dtype=dtype)
    table = torch.zeros(2, 4, dtype=torch.int32)
    code = MachineCode(kernel)
    function(q, cache, cache, table, table[:, 0], 1.0, keys_per_tile, kernel=code)
    return code


@pytest.mark.skipif(not can_compile(), reason="this Triton can't compile without a GPU")
def test_tensor_cores_multiply_in_16_bits_only():
    both_products = 2 * (16 * 64 * 128) // (16 * 8 * 16)
    code = compiled(decode_groups, decode_groups_kernel, torch.bfloat16)
    assert code.count("mma") == both_products // 4  # by four warps
    assert code.count("mma.sync.aligned.m16n8k16") == code.count("mma")
    in_float32 = compiled(decode_groups, decode_groups_kernel, torch.float32)
    assert in_float32.count("mma") == 0 and in_float32.count("fma", ending=".f32") >= 2 * 16 * 64 * 128 // 128


@pytest.mark.skipif(not can_compile(), reason="this Triton can't compile without a GPU")
def test_a_loop_of_sums_takes_many_times_as_many_instructions():
    code = compiled(decode_groups_by_sums, decode_groups_by_sums_kernel, torch.bfloat16)
    assert code.count("mma") == 0 and code.count("shfl") > 1000
    assert code.count("") > 6 * compiled(decode_groups, decode_groups_kernel, torch.bfloat16).count("")


def test_nothing_is_counted_where_nothing_can_be_compiled(monkeypatch):
    monkeypatch.setattr("lessons_lib.measuring.machine_code.ptx_of", lambda *args, **kwargs: None)
    assert compiled(decode_groups, decode_groups_kernel, torch.bfloat16).count("mma") is None
