"""The loop over one pool of blocks: no token changes, no block is lost, used or promised twice, nothing is moved."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import END, TINY_TOKENIZER, answered_requests, generate_alone, ragged_requests
from paged_cases import slot_of

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.batching.paged_batching import PagedBatch, paged_generate, paged_step
from lessons_lib.batching.ragged_batching import ragged_generate
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.recording.forward_passes import watch_forwards
from lessons_lib.recording.pool_states import watch_paged_passes
from lessons_lib.recording.serving import record_run

FAMILIES = ["gpt2", "llama", "qwen2"]


def serve(family="qwen2", **kwargs):
    prompts, max_tokens_each, _ = answered_requests(family)
    return record_run(
        paged_generate, tiny_model(family, seed=3), TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each, **kwargs
    )


def poisoned_cache(*args):
    """A cache full of NaN: reading a slot that was not written spoils the answer."""
    cache = PagedKVCache(*args)
    for tensor in [*cache.keys, *cache.values]:
        tensor.fill_(float("nan"))
    return cache


def bits(cache):
    """Every number of a cache, so that NaN equals NaN: [layers and kinds, slots, numbers of a slot]."""
    return torch.stack([tensor.flatten(0, 1).flatten(1).view(torch.int32) for tensor in [*cache.keys, *cache.values]])


def hostile_step(batch):
    """A checked step in a pool in disorder: blocks are allocated at random, and every unused cache slot is NaN."""
    random.Random(len(batch.pool.free_queue)).shuffle(batch.pool.free_queue)
    size, unused = batch.pool.block_size, set(range(batch.cache.num_blocks * batch.cache.block_size))
    for table in batch.caches.values():
        unused -= {slot_of(table.blocks, size, n) for n in range(table.num_tokens)}
    for tensor in [*batch.cache.keys, *batch.cache.values]:
        tensor.flatten(0, 1)[sorted(unused)] = float("nan")
    checked_step(batch)


def check_pool(batch):
    """What holds between two steps."""
    pool, running, size = batch.pool, {request.id: request for request in batch.running}, batch.pool.block_size
    held = [block for table in batch.caches.values() for block in table.blocks]
    assert len(set(held)) == len(held), "a block is in two tables"
    assert set(held) == pool.used, "a block is used and in no table"
    assert sorted([*pool.free_queue, *pool.used]) == list(range(pool.num_blocks)), "a block is lost, or free and used"
    assert batch.caches.keys() == running.keys(), "a table without a request, or a request without a table"
    for name, table in batch.caches.items():
        assert table.num_tokens == running[name].num_computed_tokens
        assert len(table.blocks) == blocks_for(table.num_tokens, size), "more blocks than the tokens need"
    promised = sum(needed_by(request, size) for request in batch.running)
    assert promised <= pool.num_blocks and len(running) <= batch.max_num_seqs
    assert all(request.state is not RequestState.FINISHED for request in batch.running)
    if batch.waiting and len(running) < batch.max_num_seqs:
        assert promised + needed_by(batch.waiting[0], size) > pool.num_blocks, "a request waits although there is room"


def needed_by(request, block_size):
    """The last token needs no place."""
    return blocks_for(len(request.prompt_ids) + request.max_new_tokens - 1, block_size)


def checked_step(batch):
    """A step, and whether it did what a step may do, and nothing else."""
    check_pool(batch)
    before, requests = bits(batch.cache), {request.id: request for request in batch.running}
    with watch_paged_passes(batch) as passes:
        paged_step(batch)
    after, (access,) = bits(batch.cache), passes
    written = {slot for slots in access.written.values() for slot in slots}
    moved = (before != after).any(dim=(0, 2)).nonzero()[:, 0].tolist()
    assert set(moved) <= written, "a place changed that no new token has"
    assert not after.view(torch.float32)[:, sorted(written)].isnan().any(), "a new token was not written"
    assert list(access.written) == list(requests) == list(access.tables)
    for name, slots in access.written.items():
        count = requests[name].num_computed_tokens
        assert access.context_lens[name] == count
        blocks = access.tables[name]
        assert slots == tuple(slot_of(blocks, batch.pool.block_size, n) for n in range(count))[-len(slots) :]
        if name in batch.caches:
            assert blocks == tuple(batch.caches[name].blocks)
    check_pool(batch)
    return access


# --- the same tokens


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_generate_and_the_ragged_loop(family, block_size):
    prompts, max_tokens_each, expected = answered_requests(family)
    for max_num_seqs in (1, 4, 18):
        sizes = dict(max_num_seqs=max_num_seqs, block_size=block_size)
        paged = serve(family, **sizes, step=hostile_step, make_cache=poisoned_cache)
        model, limits = tiny_model(family, seed=3), dict(max_new_tokens=max_tokens_each, max_num_seqs=max_num_seqs)
        ragged = record_run(ragged_generate, model, TINY_TOKENIZER, prompts, **limits)
        assert paged.outputs == expected == ragged.outputs
        # With the pool that it makes for itself, no request ever waits for blocks: the rows are those of lesson 05.
        assert [step.names for step in paged.packed] == [step.names for step in ragged.packed]
        assert all(torch.equal(p.packed.input_ids, r.packed.input_ids) for p, r in zip(paged.packed, ragged.packed))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_one_token_and_of_the_context_less_one(family):
    model = tiny_model(family, seed=3, context=64)
    prompts, _ = ragged_requests(4, seed=8, prompt_lengths=[63, 1, 62])
    assert {1, 63} <= {len(ids) for ids in prompts}
    expected = [generate_alone(model, ids, 64 - len(ids), END) for ids in prompts]
    for block_size in (1, 16, 100):
        sizes = dict(max_new_tokens=None, max_num_seqs=2, block_size=block_size)
        assert paged_generate(model, TINY_TOKENIZER, prompts, **sizes, step=hostile_step) == expected


def test_a_model_of_another_type_gets_a_cache_of_its_type():
    model = copy.deepcopy(tiny_model("llama", seed=3)).double()
    prompts, max_tokens_each, _ = answered_requests("llama", 8)
    assert paged_generate(model, TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each) == [
        generate_alone(model, ids, max_tokens, END) for ids, max_tokens in zip(prompts, max_tokens_each)
    ]


@settings(max_examples=25)
@given(
    family=st.sampled_from(FAMILIES),
    arrivals=st.dictionaries(st.integers(0, 17), st.integers(0, 40), min_size=1, max_size=10),
    block_size=st.sampled_from([1, 3, 16]),
    max_num_seqs=st.integers(1, 5),
    spare=st.integers(0, 60),
)
def test_neither_arrivals_nor_the_size_of_the_pool_change_a_token(family, arrivals, block_size, max_num_seqs, spare):
    prompts, max_tokens_each, expected = answered_requests(family)
    requests = {number: Request(str(number), prompts[number], max_tokens_each[number], END) for number in arrivals}
    num_blocks = max(needed_by(request, block_size) for request in requests.values()) + spare // block_size
    model = tiny_model(family, seed=3)
    cache = poisoned_cache(model.config, num_blocks, block_size)
    batch = PagedBatch(model, max_num_seqs, pool=BlockPool(num_blocks, block_size), cache=cache)
    for step in range(41 + sum(max_tokens_each[number] for number in requests)):
        for number, at in arrivals.items():
            if at == step:
                batch.submit(requests[number])
                check_pool(batch)
        if batch.running:
            hostile_step(batch)
    for number, request in requests.items():
        assert request.output_ids == expected[number]
    assert not batch.caches and not batch.waiting and len(batch.pool.free_queue) == num_blocks


# --- the pool


def test_without_a_size_the_pool_has_room_for_the_largest_requests():
    prompts, max_tokens_each, _ = answered_requests("qwen2")
    sizes = sorted(-(-(len(ids) + max_tokens - 1) // 3) for ids, max_tokens in zip(prompts, max_tokens_each))[::-1]
    for max_num_seqs in (1, 4, 50):
        assert serve(max_num_seqs=max_num_seqs, block_size=3).accesses[0].num_blocks == sum(sizes[:max_num_seqs])


def new_batch(num_blocks):
    model = tiny_model("qwen2", seed=3)
    cache = PagedKVCache(model.config, num_blocks, 4)
    return PagedBatch(model, 4, pool=BlockPool(num_blocks, 4), cache=cache)


def request(name, prompt_length, max_tokens):
    return Request(name, list(range(20, 20 + prompt_length)), max_tokens)


def test_what_is_larger_than_the_pool_is_refused_and_nothing_changes():
    batch = new_batch(4)
    batch.submit(request("A", 8, 5))
    paged_step(batch)
    batch.submit(request("B", 12, 2))
    state = lambda: copy.deepcopy((batch.running, batch.waiting, batch.pool.free_queue, batch.caches["A"].blocks))
    before = state()
    with pytest.raises(OutOfBlocks, match="request 'C' may need 5 blocks of 4 tokens; the pool has 4. Lower its max"):
        batch.submit(request("C", 12, 6))
    assert before == state()


# --- the call


@pytest.mark.parametrize(
    "kwargs, error, words",
    [
        ({"block_size": 0}, BadRequest, "block_size is 0; it must be at least 1"),
        ({"num_blocks": 0}, ValueError, "0 blocks of 16 tokens; both must be at least 1"),
        ({"max_num_seqs": 0}, BadRequest, "max_num_seqs is 0; it must be at least 1"),
        ({"prompts": [[5] * 20], "num_blocks": 1}, OutOfBlocks, "request '0' may need 2 blocks of 16 tokens; the pool"),
        ({"backend": "cuda"}, ValueError, "there is no backend 'cuda'; choose 'torch' or 'triton'"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_computed(kwargs, error, words):
    model = tiny_model("qwen2", seed=3)
    with watch_forwards(model) as forwards, pytest.raises(error, match=words):
        paged_generate(model, TINY_TOKENIZER, **{"prompts": [[5, 6, 7]], "max_new_tokens": 4} | kwargs)
    assert not forwards


def test_a_backend_may_be_a_function():
    planned, attended = [], []

    def plan(packed, block_tables, block_size):
        planned.append((packed.context_lens.tolist(), block_tables.tolist(), block_size))
        attend = plan_torch(packed, block_tables, block_size)
        return lambda query, *args: attended.append(query.shape) or attend(query, *args)

    result = serve(backend=plan, block_size=3, make_cache=poisoned_cache)
    assert result.outputs == answered_requests("qwen2")[2]
    assert len(attended) == 2 * len(planned) == 2 * len(result.accesses)  # two layers
    for (contexts, tables, block_size), access in zip(planned, result.accesses):
        own = list(access.tables.values())
        assert contexts == list(access.context_lens.values()) and block_size == 3
        assert [tuple(table[: len(each)]) for table, each in zip(tables, own)] == own
