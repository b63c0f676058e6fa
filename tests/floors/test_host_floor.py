"""The first floor below the pool: evicted blocks are kept in host memory, and loaded when a prompt comes back."""

from unittest.mock import Mock

import pytest
import torch
from engine_cases import KINDS, a_model, alone, check_that_nothing_is_left, engine_of_kind, greedy, run_out
from tiny_architectures import tiny_model

from lessons_lib.floors.block_mover import BlockMover
from lessons_lib.floors.floor import Floor
from lessons_lib.floors.host_cache import HostCache, bytes_of_block
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape
from tools.random_workloads import FlooredWorkload, audit_floors, run

BLOCK = block_bytes(a_model().config, 4)
PROMPTS = [list(range(start, start + 21)) for start in (10, 40, 70)]


def a_floored_engine(slots=40, kind="waits", **config):
    config = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 4, "num_blocks": 10, **config}
    return engine_of_kind(kind, host_cache_bytes=slots * BLOCK, **config)


def ask(engine, prompt, max_tokens=4, salt=None):
    """How many tokens of a prompt were found, on all floors. The answer must be right."""
    (output,) = engine.generate([prompt], greedy(max_tokens, ignore_eos=True), cache_salt=salt)
    assert output.token_ids == alone("qwen2", prompt, max_tokens, ignore_eos=True)
    audit_floors(engine.scheduler.pool)
    return output.num_cached_tokens


# Rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_holds_all_layers_of_a_block(dtype):
    shapes = [KVShape(2, 4, 6), KVShape(1, 8, 8)]
    cache = PagedKVCache(a_model().config, 5, 4, dtype, layer_shapes=shapes)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn_like(tensor))
    host = HostCache(cache, 3)
    assert host.rows.shape == (3, bytes_of_block(cache)) == (3, 4 * (2 * 10 + 16) * dtype.itemsize)
    mover = BlockMover(cache, host)
    mover.store([4, 1], [0, 2])
    assert torch.cat([part[1].flatten().view(torch.uint8) for part in (*cache.keys, *cache.values)]).equal(host.rows[2])
    before = [tensor[4].clone() for tensor in (*cache.keys, *cache.values)]
    mover.load([0], [3])
    assert all(tensor[3].equal(old) for tensor, old in zip((*cache.keys, *cache.values), before))
    assert not host.rows[1].any()


# Slots


def a_floor(names, slots=4, choose=None):
    floor = Floor(slots, 4, choose)
    for depth, name in enumerate(names):
        slot = floor.take()
        floor.fill(slot, name.encode(), depth)
        floor.release([slot])
    return floor


def names_on(floor):
    return "".join(floor.block_to_hash[slot].decode() for slot in floor.free_queue if slot in floor.block_to_hash)


def test_the_least_recently_used_block_leaves_a_full_floor():
    floor = a_floor("abcd")
    assert floor.renew(b"a") and not floor.renew(b"x")
    assert names_on(floor) == "bcda"
    floor.take()
    assert names_on(floor) == "cda"


def test_another_order_sees_depths_and_hits():
    def shallow_first(floor):
        return min(floor.free_queue, key=lambda slot: (floor.hits[slot], floor.depths[slot]))

    floor = a_floor("abcd", choose=shallow_first)
    floor.hits[floor.hash_to_block[b"a"]] += 1
    floor.take()
    assert names_on(floor) == "acd"


def test_empty_slots_are_filled_first():
    floor = a_floor("abcd")
    floor.forget([b"b", b"d", b"x"])
    one, other = floor.take(), floor.take()
    assert names_on(floor) == "ac"
    floor.release([one])
    floor.fill(other, b"e", 0)
    floor.release([other])
    assert names_on(floor) == "ace" and floor.take() == one


def test_recovery_keeps_complete_blocks_and_loses_no_slot():
    floor = a_floor("abc")
    floor.take()
    floor.touch([floor.hash_to_block[b"b"]])
    del floor.block_to_hash[floor.hash_to_block[b"c"]]  # as an interrupt in the middle of an eviction leaves it
    floor.recover()
    assert names_on(floor) == "ba" and floor.hash_to_block.keys() == {b"a", b"b"}
    assert not floor.used and not floor.ref_count and sorted(floor.free_queue) == [0, 1, 2, 3]
    assert [floor.take() for _ in range(2)] and names_on(floor) == "ba"


# Engines


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_comes_back_is_loaded(kind):
    engine = a_floored_engine(kind=kind)
    assert [ask(engine, prompt) for prompt in PROMPTS] == [0, 0, 0]
    pool = engine.scheduler.pool
    assert pool.match_prefix(list(pool.below.hash_to_block)) == []  # evicted
    assert [ask(engine, prompt) for prompt in PROMPTS] == [20, 20, 20]
    assert pool.num_loaded == 15 and engine.metrics.cached_tokens == 60
    check_that_nothing_is_left(engine)


def test_only_what_the_floor_has_room_for_is_found():
    engine = a_floored_engine(slots=7)
    for prompt in PROMPTS:
        ask(engine, prompt)
    found = [ask(engine, prompt) for prompt in PROMPTS]
    assert max(found) < 20 and len(engine.scheduler.pool.below.hash_to_block) == 7


def test_a_preempted_sequence_finds_its_blocks_on_the_floor():
    engine = a_floored_engine(num_blocks=12)
    for name, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, greedy(24, ignore_eos=True), request_id=str(name))
    outputs = run_out(engine)
    for name, prompt in enumerate(PROMPTS):
        assert outputs[str(name)].token_ids == alone("qwen2", prompt, 24, ignore_eos=True)
    assert engine.scheduler.num_preempted and engine.scheduler.pool.num_loaded
    check_that_nothing_is_left(engine)


def test_prompt_logits_are_computed_not_loaded():
    engine = a_floored_engine()
    for prompt in PROMPTS:
        ask(engine, prompt)
    engine.generate([PROMPTS[0]], greedy(3, prompt_logprobs=1))
    assert engine.scheduler.pool.num_loaded == 0


def test_a_reset_empties_all_floors():
    engine = a_floored_engine()
    for prompt in PROMPTS:
        ask(engine, prompt)
    engine.reset_prefix_cache()
    assert not engine.scheduler.pool.below.hash_to_block
    assert [ask(engine, prompt) for prompt in PROMPTS] == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_failed_step_the_floor_keeps_what_is_complete(kind):
    engine = a_floored_engine(kind=kind)
    for prompt in PROMPTS:
        ask(engine, prompt)
    forward, engine.runner.forward = engine.runner.forward, None
    (output,) = engine.generate([PROMPTS[0]], greedy(4))
    assert output.error
    engine.runner.forward = forward
    assert ask(engine, PROMPTS[0]) == 0  # its blocks may be wrong: they are forgotten everywhere
    assert ask(engine, PROMPTS[1]) == 20


def test_memory_that_runs_out_while_a_block_is_registered_is_no_failed_copy(monkeypatch):
    floor = a_floored_engine().scheduler.pool.below
    monkeypatch.setattr(floor, "fill", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):  # the step begins again; otherwise, the floor would be half changed
        floor.keep({0: b"a"}, [0])


@pytest.mark.parametrize(
    "config, message",
    [
        ({"share_prefixes": False}, "host_cache_bytes is .*; it must be 0 without share_prefixes"),
        ({"num_swap_blocks": 3}, "host_cache_bytes is .*; it must be 0 with num_swap_blocks"),
        ({"disk_cache_bytes": 3}, "cache_dir is None; it must be a folder"),
        ({"disk_cache_bytes": 3, "slots": 0}, "host_cache_bytes is 0; it must be above 0 if disk_cache_bytes is"),
        (
            {"model": tiny_model("mamba2")},
            "host_cache_bytes is .*; it must be 0 for this model: its layers keep states",
        ),
    ],
)
def test_what_rules_floors_out_is_named(config, message):
    with pytest.raises(ValueError, match=message):
        a_floored_engine(**config)


def test_random_workloads_over_floors():
    happened, failed = run(12, seed=0, kind=FlooredWorkload)
    assert not failed and min(happened[each] for each in ("loads", "failed to load", "failed to store")) > 1, happened
