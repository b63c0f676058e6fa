"""Paged attention in PyTorch, for whole packed rows, against attention over gathered keys."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import error, make_case, slot_of

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.models.tiny_models import tiny_model


def attention(case):
    """A Case has of a PackedBatch what planning needs."""
    return plan_torch(case, case.block_tables, case.k_cache.shape[1])(case.q, case.k_cache, case.v_cache, case.scale)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lens=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 5, 17]), st.sampled_from([0, 0, 1, 7, 8, 15, 40])),
        min_size=1,
        max_size=6,
    ),
    heads=st.sampled_from([(4, 2), (3, 3), (7, 1), (14, 2)]),
    block_size=st.sampled_from([1, 8, 16]),
    shared=st.sampled_from([0, 2]),
    seed=st.integers(0, 99),
)
def test_packed_rows_against_gathered_keys(lens, heads, block_size, shared, seed):
    """The cells without a token hold NaN, and the tables beyond the last block hold nonsense."""
    q_lens, context_lens = [new for new, _ in lens], [new + cached for new, cached in lens]
    case = make_case(q_lens, context_lens, *heads, head_dim=16, block_size=block_size, seed=seed, shared=shared)
    assert error(attention(case), case.reference()) < 1e-5


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_half_precision(dtype, tolerance):
    case = make_case([4, 1], [9, 11], dtype=dtype)
    assert error(attention(case), case.reference()) < tolerance


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_what_is_written_lies_in_its_slot_and_nothing_else_changes(family):
    config = tiny_model(family).config
    cache = PagedKVCache(config, num_blocks=6, block_size=4)
    rng = random.Random(1)
    slots = rng.sample(range(24), 9)
    keys, values = torch.randn(9, *cache.keys[1].shape[2:]), torch.randn(9, *cache.keys[1].shape[2:])
    cache.write(1, keys, values, torch.tensor(slots))
    for place, slot in enumerate(slots):
        block, offset = divmod(slot, 4)
        assert slot_of([block], 4, offset) == slot
        assert torch.equal(cache.keys[1][block, offset], keys[place]) and torch.equal(
            cache.values[1][block, offset], values[place]
        )
    assert int((cache.keys[1] != 0).any(dim=-1).any(dim=-1).sum()) == 9
    assert not any(tensor.any() for tensor in (cache.keys[0], cache.values[0]))
    assert sum(tensor.nbytes for tensor in cache.keys + cache.values) == 24 * cache_bytes_per_token(config)


@pytest.mark.parametrize("num_blocks, block_size", [(0, 4), (4, 0), (-1, 16)])
def test_a_cache_of_impossible_size_is_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match=f"{num_blocks} blocks of {block_size} tokens"):
        PagedKVCache(tiny_model().config, num_blocks, block_size)
