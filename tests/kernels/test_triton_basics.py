"""The kernels of lesson 07 against PyTorch: compiled on a machine with a GPU, interpreted on others."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paged_cases import as_views, error, make_case

from lessons_lib.kernels.simple_paged import decode_heads, decode_heads_kernel
from lessons_lib.kernels.write_pair import write_pair
from lessons_lib.recording.kernel_accesses import Recorder

DEVICE = kernel_device()
SEVERAL = settings(max_examples=12)


# --- writing


def cache_of(kind, num_blocks, block_size, kv_heads, head_dim, dtype):
    """A cache of NaN: of its own, or the keys (values) of a tensor that holds both."""
    if kind == "dense":
        return torch.full((num_blocks, block_size, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE)
    both = torch.full((num_blocks, block_size, 2, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE)
    return both[:, :, 1]


@SEVERAL
@given(
    data=st.data(), num_blocks=st.integers(1, 6), block_size=st.integers(1, 9), kv_heads=st.integers(1, 3),
    dims=st.tuples(st.sampled_from([1, 5, 16]), st.sampled_from([1, 8, 16])),
    kind=st.sampled_from(["dense", "slots apart"]), dtype=st.sampled_from([torch.float32, torch.float16]),
    layout=st.sampled_from(["rows of their own", "parts of one product", "heads first"]),
)  # fmt: skip
def test_new_keys_and_values_go_to_their_slots_and_nowhere_else(
    data, num_blocks, block_size, kv_heads, dims, kind, dtype, layout
):
    slots = data.draw(st.lists(st.integers(0, num_blocks * block_size - 1), unique=True, max_size=8))
    sizes = [kv_heads * dim for dim in dims]
    product = torch.randn(len(slots), 7 + sum(sizes)).to(dtype=dtype, device=DEVICE)
    pair = [part.unflatten(1, (kv_heads, -1)) for part in product[:, 7:].split(sizes, dim=1)]
    if layout == "rows of their own":
        pair = [new.clone() for new in pair]
    elif layout == "heads first":  # as keys come from a model: [kv_heads, T, head_dim]
        pair = [new.transpose(0, 1).contiguous().transpose(0, 1) for new in pair]
    caches = [cache_of(kind, num_blocks, block_size, kv_heads, dim, dtype) for dim in dims]
    write_pair(*pair, *caches, torch.tensor(slots, dtype=torch.int64, device=DEVICE))
    for new, cache in zip(pair, caches):
        for token, slot in enumerate(slots):
            assert cache[slot // block_size, slot % block_size].equal(new[token])
        assert int((~cache.isnan()).sum()) == new.numel()
        whole = cache if kind == "dense" else cache._base
        assert int((~whole.isnan()).sum()) == new.numel()


def test_a_cache_whose_slots_are_not_evenly_spaced_is_refused_and_stays_as_it_was():
    """Slot 4 of blocks of 4 isn't 4 times as far as slot 1: a write by slot alone would hit the wrong address."""
    good, both = torch.zeros(3, 4, 2, 8, device=DEVICE), torch.zeros(3, 2, 4, 2, 8, device=DEVICE)
    new, slot = torch.ones(1, 2, 8, device=DEVICE), torch.tensor([5], device=DEVICE)
    for cache in (both[:, 0], torch.zeros(3, 4, 8, 2, device=DEVICE).transpose(2, 3)):
        with pytest.raises(ValueError, match="evenly spaced"):
            write_pair(new, new, good, cache, slot)
        assert not cache.any() and not good.any()


# --- attention


@settings(max_examples=10)
@given(
    context_lens=st.lists(st.integers(1, 33), min_size=1, max_size=2), group=st.integers(1, 4),
    kv_heads=st.integers(1, 2),
    head_dim=st.sampled_from([16, 32, 64]), block_size=st.sampled_from([1, 2, 4, 8, 16]), shared=st.integers(0, 3),
    kind=st.sampled_from(["of their own", "keys beside values", "heads first", "one of several layers"]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 999),
)  # fmt: skip
@example([1, 8, 9], 2, 2, 16, 8, 0, "of their own", torch.float32, 0)
@example([16, 15, 17], 3, 2, 16, 16, 1, "one of several layers", torch.float32, 1)
@example([5, 6, 4], 1, 1, 32, 2, 2, "keys beside values", torch.float16, 2)
def test_decode_of_several_sequences(context_lens, group, kv_heads, head_dim, block_size, shared, kind, dtype, seed):
    lengths, sizes = ([1] * len(context_lens), context_lens), (kv_heads * group, kv_heads, head_dim, block_size)
    case = make_case(*lengths, *sizes, dtype=dtype, seed=seed, device=DEVICE, shared=shared)
    expected, case = case.reference(), as_views(case, kind)
    read = (case.q, case.k_cache, case.v_cache, case.block_tables)
    before = [tensor.clone() for tensor in read]
    got = decode_heads(*case.decode_inputs)
    assert got.shape == case.q.shape and got.dtype == dtype
    assert error(got, expected) < (1e-6 if dtype == torch.float32 else 2e-3)  # NaN is never less
    torch.testing.assert_close([*read], before, rtol=0, atol=0, equal_nan=True)


def test_a_block_beyond_what_32_bits_can_count():
    try:  # memory that is never written isn't allocated, where the system allows it
        cache = torch.empty(2**20 + 32, 16, 2, 64, dtype=torch.float16, device=DEVICE)
    except RuntimeError:
        pytest.skip("a cache with more than 2**31 elements can't be allocated here")
    last = len(cache) - 1
    assert last * cache.stride(0) > 2**31
    cache[last] = torch.randn(16, 2, 64, dtype=torch.float16)
    cache[3] = 7.0  # not where a truncated 32-bit product would lead either: negative offsets don't exist
    q = torch.randn(1, 4, 64).half().to(DEVICE)
    tables = torch.tensor([[last, -(10**6)]], dtype=torch.int32, device=DEVICE)
    inputs = (q, cache, cache, tables, torch.tensor([11], dtype=torch.int32, device=DEVICE), 0.125)
    if DEVICE == "cpu":  # an address outside would end the process
        decode_heads(*inputs, kernel=Recorder(decode_heads_kernel))
    got = decode_heads(*inputs)
    keys = cache[last, :11].float().repeat_interleave(2, 1)
    weights = (torch.einsum("hd,khd->hk", q[0].float(), keys) * 0.125).softmax(1)
    assert error(got[0], torch.einsum("hk,khd->hd", weights, keys)) < 2e-3
    new = torch.randn(1, 2, 64).half().to(DEVICE)
    write_pair(new, new, cache, cache, torch.tensor([last * 16 + 12], device=DEVICE))
    assert cache[last, 12].equal(new[0])


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(v_cache=lambda t: t.transpose(0, 1).contiguous().transpose(0, 1)), "both must be the same"),
        (dict(v_cache=lambda t: t[:-1]), "both must be the same"),
        (dict.fromkeys(("q", "k_cache", "v_cache"), lambda t: t[..., :24]), "the head size is 24 and the block size 8"),
    ],
)
def test_what_decode_heads_does_not_support_is_refused(changes, says):
    case = make_case([1, 1], [9, 3])
    for name, change in changes.items():
        setattr(case, name, change(getattr(case, name)))
    with pytest.raises(ValueError, match=says):
        decode_heads(*case.decode_inputs)
