"""The kernels between lesson 07's and the engine's: the same attention, and every key loaded once per group."""

import pytest
import torch

from lessons_lib.kernels import decode_groups, decode_groups_kernel, decode_heads, decode_splits, kernel_device
from lessons_lib.measuring.ablations import decode_groups_by_sums
from lessons_lib.recording import Recorder


def some_decodes(head_dim=16):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 6, head_dim, generator=generator)
    keys, values = (torch.randn(10, 8, 2, head_dim, generator=generator) for _ in range(2))
    tables = torch.randperm(9, generator=generator).reshape(3, 3).int()
    lens = torch.tensor([1, 17, 24], dtype=torch.int32)
    return *(x.to(kernel_device()) for x in (q, keys, values, tables, lens)), 0.3


def test_groups_and_splits_give_what_lesson_07_gives():
    inputs = some_decodes()
    want = decode_heads(*inputs)
    torch.testing.assert_close(decode_groups(*inputs, keys_per_tile=16), want)
    torch.testing.assert_close(decode_splits(*inputs, split_size=16, keys_per_tile=16), want)
    for keys_per_tile in (8, 16, 32):
        torch.testing.assert_close(decode_groups_by_sums(*inputs, keys_per_tile), want)


def test_a_group_loads_each_key_once():
    inputs, recorder = some_decodes(), Recorder(decode_groups_kernel)
    decode_groups(*inputs, keys_per_tile=16, kernel=recorder)
    loads = [a for program in recorder.recording.programs for a in program.accesses if a.tensor == "k_cache"]
    assert sum(len(access.offsets) for access in loads) == 2 * (1 + 17 + 24) * 16
    assert len(loads) == 2 * (1 + 2 + 2)


def test_caches_that_are_laid_out_differently_are_refused():
    q, keys, values, *rest = some_decodes()
    with pytest.raises(ValueError, match="both must be the same"):
        decode_groups(q, keys, values.transpose(1, 2).contiguous().transpose(1, 2), *rest)
