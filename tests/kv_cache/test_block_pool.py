"""The block pool and the block table against a simple model: no block lost, none owned twice, a refused call changes
nothing."""

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from lessons_lib.kv_cache.block_memory import block_bytes, blocks_in_budget
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks
from lessons_lib.kv_cache.block_table import BlockTable, TableFull, slot_of
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.models.tiny_models import tiny_model

LONG = settings(max_examples=40, stateful_step_count=50, deadline=None, derandomize=True)


def refused(error, call, *pools_and_tables):
    """The call raises `error`, and all of these are afterwards what they were before."""

    def state():
        return [
            copy.deepcopy({name: value for name, value in vars(each).items() if name != "pool"})
            for each in pools_and_tables
        ]

    before = state()
    with pytest.raises(error) as caught:
        call()
    assert state() == before
    return str(caught.value)


class PoolAgainstModel(RuleBasedStateMachine):
    """The model is a list of the free blocks in order, and a list of the pieces that are handed out."""

    pieces = Bundle("pieces")

    @initialize(num_blocks=st.integers(0, 12), block_size=st.integers(1, 4))
    def begin(self, num_blocks, block_size):
        self.pool = BlockPool(num_blocks, block_size)
        self.free = list(range(num_blocks))
        self.held = []

    @rule(target=pieces, count=st.integers(-3, 8))
    def allocate(self, count):
        if count < 0:
            refused(ValueError, lambda: self.pool.allocate(count), self.pool)
            return multiple()
        if count > len(self.free):
            message = refused(OutOfBlocks, lambda: self.pool.allocate(count), self.pool)
            needed = f"{count} block{'s' if count != 1 else ''} needed"
            assert message.startswith(f"{needed}, {len(self.free)} free of {self.pool.num_blocks}.")
            return multiple()
        expected, self.free = self.free[:count], self.free[count:]
        blocks = self.pool.allocate(count)
        assert blocks == expected
        self.held.append(tuple(blocks))
        return tuple(blocks)

    @rule(blocks=consumes(pieces))
    def free_a_piece(self, blocks):
        self.pool.free(list(blocks))
        self.held.remove(blocks)
        self.free += reversed(blocks)
        if blocks:
            refused(ValueError, lambda: self.pool.free(blocks), self.pool)

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
            held = [block for blocks in self.held for block in blocks]
            assert list(self.pool.free_queue) == self.free and self.pool.used == set(held)
            assert sorted([*self.free, *held]) == list(range(self.pool.num_blocks))


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = LONG


class TablesAgainstModel(RuleBasedStateMachine):
    """Several tables on one pool. The model knows only how many tokens each has."""

    @initialize(
        num_blocks=st.integers(1, 10),
        block_size=st.integers(1, 5),
        limits=st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=4),
    )
    def begin(self, num_blocks, block_size, limits):
        self.pool = BlockPool(num_blocks, block_size)
        self.tables = [BlockTable(self.pool, limit) for limit in limits]
        self.tokens = [0] * len(limits)

    def blocks_of(self, tokens):
        """One for each token that finds the last block full."""
        return sum(token % self.pool.block_size == 0 for token in range(tokens))

    @rule(data=st.data(), count=st.integers(-3, 12))
    def append(self, data, count):
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, tokens = self.tables[index], self.tokens[index] + count
        needed = self.blocks_of(tokens)
        if count < 0:
            refused(ValueError, lambda: table.append(count), self.pool, table)
        elif table.max_blocks is not None and needed > table.max_blocks:
            message = refused(TableFull, lambda: table.append(count), self.pool, table)
            assert f"{tokens} tokens need {needed} blocks" in message and f"may hold {table.max_blocks}" in message
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


TestTablesAgainstModel = TablesAgainstModel.TestCase
TestTablesAgainstModel.settings = LONG


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
