"""Block pools, block tables and the prefix cache against simple models: no block lost, none owned twice, the right one
found again, and a refused call changes nothing."""

import copy
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from paged_cases import slot_of

from lessons_lib.kv_cache.block_hashes import block_hash, hash_full_blocks
from lessons_lib.kv_cache.block_memory import block_bytes, blocks_in_budget
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks
from lessons_lib.kv_cache.block_serving import serve_in_blocks, step_in_blocks, step_with_oracle
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.sequence import Sequence

LONG = settings(max_examples=40, stateful_step_count=50, deadline=None, derandomize=True)


def state_of(thing):
    """The fields of a pool or a table. The order of a free queue counts."""
    fields = {name: value for name, value in vars(thing).items() if name != "pool"}
    return copy.deepcopy({name: list(value) if name == "free_queue" else value for name, value in fields.items()})


def refused(error, call, *things):
    """The call raises `error`, and the pools and tables are afterwards what they were before."""
    before = list(map(state_of, things))
    with pytest.raises(error) as caught:
        call()
    assert list(map(state_of, things)) == before
    return str(caught.value)


class PoolAgainstModel(RuleBasedStateMachine):
    """The model: the free blocks in order, and what each holder holds."""

    make = BlockPool

    @initialize(num_blocks=st.integers(0, 7), block_size=st.integers(1, 4))
    def begin(self, num_blocks, block_size):
        self.pool = self.make(num_blocks, block_size)
        self.free, self.held = list(range(num_blocks)), []
        self.name, self.lost = {}, 0  # of blocks in a prefix cache; how many were evicted

    def is_held(self, block):
        return any(block in blocks for blocks in self.held)

    @rule(count=st.integers(-1, 6))
    def allocate(self, count):
        if count < 0:
            refused(ValueError, lambda: self.pool.allocate(count), self.pool)
        elif count > len(self.free):
            message = refused(OutOfBlocks, lambda: self.pool.allocate(count), self.pool)
            needed = f"{count} block{'s' if count != 1 else ''} needed"
            assert message.startswith(f"{needed}, {len(self.free)} free of {self.pool.num_blocks}.")
        else:
            expected, self.free = self.free[:count], self.free[count:]
            assert self.pool.allocate(count) == expected
            self.held.append(expected)
            self.lost += sum(self.name.pop(block, None) is not None for block in expected)

    @rule(data=st.data())
    def free_one_holder(self, data):
        if self.held:
            blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.pool.free(list(blocks))
            self.free += [block for block in reversed(blocks) if not self.is_held(block)]

    @rule(wrong=st.sampled_from([-1, 12, 1000, None, "1", "free", "twice"]), data=st.data())
    def free_a_wrong_block(self, wrong, data):
        """A foreign block, a free one or one of them twice among good ones: none of them is freed."""
        good = list(data.draw(st.sampled_from(self.held))) if self.held else []
        others = {"free": self.free, "twice": good}.get(wrong, [wrong])
        if others:
            place, other = data.draw(st.integers(0, len(good))), data.draw(st.sampled_from(others))
            refused(ValueError, lambda: self.pool.free([*good[:place], other, *good[place:]]), self.pool)

    @invariant()
    def every_block_is_in_one_place(self):
        if hasattr(self, "pool"):
            held = {block for blocks in self.held for block in blocks}
            assert list(self.pool.free_queue) == self.free and self.pool.used == held
            assert sorted([*self.free, *held]) == list(range(self.pool.num_blocks))


class CacheAgainstModel(PoolAgainstModel):
    """And the name of each block."""

    make = PrefixCache

    @rule(data=st.data(), name=st.sampled_from([b"x", b"y", b"z"]))
    def cache_full_block(self, data, name):
        held = sorted({block for blocks in self.held for block in blocks})
        block = data.draw(st.sampled_from([*held, *held, *held, *self.free, -1, 12]))
        if not self.is_held(block):
            refused(ValueError, lambda: self.pool.cache_full_block(block, name), self.pool)
            return
        self.pool.cache_full_block(block, name)
        if name not in self.name.values():
            self.name.setdefault(block, name)

    @rule(names=st.lists(st.sampled_from([b"x", b"y", b"z", b"unknown"]), max_size=4, unique=True))
    def find_and_share(self, names):
        hash_to_block, expected = {name: block for block, name in self.name.items()}, []
        for name in names:
            if name not in hash_to_block:
                break
            expected.append(hash_to_block[name])
        before = state_of(self.pool)
        assert self.pool.match_prefix(names) == expected
        assert state_of(self.pool) == before
        self.share(expected)

    def share(self, blocks):
        self.pool.touch(blocks)
        self.held.append(list(blocks))
        self.free = [block for block in self.free if block not in blocks]

    @rule(data=st.data())
    def share_with_a_holder(self, data):
        blocks = data.draw(st.sampled_from(self.held)) if self.held else []
        self.share(blocks)
        nothing = [block for block in self.free if block not in self.name]
        for wrong in [*nothing[:1], -1, 99]:
            refused(ValueError, lambda: self.pool.touch([*blocks, wrong]), self.pool)

    @invariant()
    def each_block_is_counted_and_named(self):
        if not hasattr(self, "pool"):
            return
        pool, counts = self.pool, Counter(block for blocks in self.held for block in blocks)
        assert pool.ref_count == dict(counts) and pool.evicted == self.lost
        assert pool.block_to_hash == self.name
        assert pool.hash_to_block == {name: block for block, name in self.name.items()}
        for block in range(pool.num_blocks):
            assert pool.is_writable(block) == (counts[block] == 1 and block not in self.name)


class TablesAgainstModel(RuleBasedStateMachine):
    """Several tables on one pool. The model knows only how many tokens each has."""

    @initialize(num_blocks=st.integers(1, 10), block_size=st.integers(1, 5), num_tables=st.integers(1, 4))
    def begin(self, num_blocks, block_size, num_tables):
        self.pool = BlockPool(num_blocks, block_size)
        self.tables = [BlockTable(self.pool) for _ in range(num_tables)]
        self.tokens = [0] * num_tables

    def blocks_of(self, tokens):
        """One for each token that finds the last block full."""
        return sum(token % self.pool.block_size == 0 for token in range(tokens))

    @rule(data=st.data(), count=st.integers(-3, 12))
    def append(self, data, count):
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, tokens = self.tables[index], self.tokens[index] + count
        needed = self.blocks_of(tokens)
        if count < 0:
            message = refused(ValueError, lambda: table.append(count), self.pool, table)
            assert f"can't append {count} tokens; `count` must be at least 0" in message
        elif needed - len(table.blocks) > len(self.pool.free_queue):
            refused(OutOfBlocks, lambda: table.append(count), self.pool, table)
        else:
            before = list(table.blocks)
            table.append(count)
            assert table.blocks[: len(before)] == before, "blocks with tokens in them have moved"
            self.tokens[index] = tokens

    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.tables) - 1))
        blocks = list(self.tables[index].blocks)
        self.tables[index].release()
        self.tokens[index] = 0
        assert list(self.pool.free_queue)[len(self.pool.free_queue) - len(blocks) :] == blocks[::-1]

    @invariant()
    def every_token_has_a_slot_of_its_own(self):
        if not hasattr(self, "pool"):
            return
        slots, size = [], self.pool.block_size
        for table, tokens in zip(self.tables, self.tokens):
            assert (table.num_tokens, len(table.blocks)) == (tokens, self.blocks_of(tokens))
            slots += [slot_of(table.blocks, size, position) for position in range(tokens)]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < self.pool.num_blocks * size for slot in slots)
        assert len(self.pool.used) == sum(len(table.blocks) for table in self.tables)


TestPoolAgainstModel, TestCacheAgainstModel, TestTablesAgainstModel = (
    machine.TestCase for machine in (PoolAgainstModel, CacheAgainstModel, TablesAgainstModel)
)
TestPoolAgainstModel.settings = TestCacheAgainstModel.settings = TestTablesAgainstModel.settings = LONG


def test_every_position_of_a_slot_mapping_has_a_slot():
    for size, blocks in ((4, [5, 2]), (1, [3]), (4, [])):
        most = size * len(blocks)
        for start, end in product(range(-3, most + 3), repeat=2):
            if 0 <= start <= end <= most:
                slots = [slot_of(blocks, size, position) for position in range(start, end)]
                assert slot_mapping(blocks, size, start, end).tolist() == slots
                continue
            with pytest.raises(IndexError, match=f"<= {most}, got {start}, {end}; `append` first"):
                slot_mapping(blocks, size, start, end)


@pytest.mark.parametrize("num_blocks, block_size", [(4, 0), (4, -1), (-1, 16)])
def test_impossible_sizes_are_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match=f"{num_blocks} blocks of {block_size} tokens"):
        BlockPool(num_blocks, block_size)
    with pytest.raises(ValueError, match=f"block_size is {block_size} and budget_bytes {num_blocks}"):
        blocks_in_budget(tiny_model().config, block_size, num_blocks)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_budget(family):
    config = tiny_model(family).config
    one = block_bytes(config, 16)
    # Two layers, keys and values, heads of size 8, float32; GPT-2 has 4 KV heads, the others share 2.
    assert one == 16 * 2 * 2 * (4 if family == "gpt2" else 2) * 8 * 4 == 16 * cache_bytes_per_token(config)
    assert block_bytes(config, 16, bytes_per_element=2) == one // 2
    budgets = {0: 0, one - 1: 0, one: 1, 10 * one - 1: 9, 10 * one: 10}
    assert {budget: blocks_in_budget(config, 16, budget) for budget in budgets} == budgets
    assert type(blocks_in_budget(config, 16, 1e6)) is int


# --- names


def test_names_are_of_32_bytes_and_the_same_in_every_process():
    name = block_hash(block_hash(b"", [1, 2]), [3])
    assert name.hex() == "109c8329e986718a0b672ea234aa5d73b459deb09a2bfe17fed447e2ef58c63a"


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    prompt=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    answer=st.lists(st.integers(0, 50), max_size=12),
    size=st.integers(1, 5),
)
def test_names_that_were_reckoned_as_a_sequence_grew_are_those_of_all_at_once(prompt, answer, size):
    grows = Sequence("A", prompt, 99)
    for token in answer:
        hash_full_blocks(grows, size)
        grows.append_token(token)
    names = hash_full_blocks(grows, size)
    assert names == hash_full_blocks(Sequence("B", prompt + answer, 1), size)
    assert len(names) == (len(prompt) + len(answer)) // size


# --- the step with the oracle: room for whole answers, so no request starts over


LENGTHS = [(2, 4), (3, 3), (1, 6)]  # 5, 5 and 6 tokens in the end


def test_the_oracle_admits_only_what_has_room_to_its_end():
    steps = serve_in_blocks(LENGTHS, BlockPool(10, 1), step=step_with_oracle)
    assert [step.running for step in steps[:4]] == [2, 2, 2, 1]
    assert not any(step.restarted for step in steps)
    assert len(steps) == 10  # the third starts when both others have left


def test_without_the_oracle_all_start_and_one_starts_over():
    steps = serve_in_blocks(LENGTHS, BlockPool(10, 1), step=step_in_blocks)
    assert steps[0].running == 3
    assert any(step.restarted for step in steps)
