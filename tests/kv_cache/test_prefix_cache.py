"""The prefix cache against a simple model: who holds what, what is found again, what is lost first; a refused call
changes nothing."""

import copy
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lessons_lib.kv_cache.block_hashes import block_hash, hash_full_blocks
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.sequence import Sequence

LONG = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)


def state_of(pool):
    return copy.deepcopy({key: list(value) if key == "free_queue" else value for key, value in vars(pool).items()})


def refused(error, call, pool):
    """The call raises `error`, and the pool is afterwards what it was before."""
    before = state_of(pool)
    with pytest.raises(error) as caught:
        call()
    assert state_of(pool) == before
    return str(caught.value)


class CacheAgainstModel(RuleBasedStateMachine):
    """The model: the free blocks in order, what each holder holds, and the name of each block."""

    @initialize(num_blocks=st.integers(1, 8))
    def begin(self, num_blocks):
        self.pool = PrefixCache(num_blocks, 4)
        self.free, self.held, self.name, self.lost = list(range(num_blocks)), [], {}, 0

    def is_held(self, block):
        return any(block in blocks for blocks in self.held)

    @rule(count=st.integers(-1, 6))
    def allocate(self, count):
        if count < 0:
            refused(ValueError, lambda: self.pool.allocate(count), self.pool)
        elif count > len(self.free):
            message = refused(OutOfBlocks, lambda: self.pool.allocate(count), self.pool)
            assert f"{len(self.free)} free of {self.pool.num_blocks}" in message
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

    @rule(data=st.data(), name=st.sampled_from([b"x", b"y", b"z"]))
    def cache_full_block(self, data, name):
        held = sorted({block for blocks in self.held for block in blocks})
        block = data.draw(st.sampled_from([*held, *held, *held, *self.free, -1, 9]))
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
        self.pool.touch(expected)
        self.held.append(expected)
        self.free = [block for block in self.free if block not in expected]

    @rule(data=st.data())
    def share_with_a_holder(self, data):
        if self.held:
            blocks = data.draw(st.sampled_from(self.held))
            self.pool.touch(blocks)
            self.held.append(list(blocks))

    @rule(data=st.data())
    def refuse_half_of_what_is_asked(self, data):
        sound = data.draw(st.sampled_from(self.held)) if self.held else []
        nothing = [block for block in self.free if block not in self.name]
        for wrong in [*nothing[:1], -1, 99]:
            refused(ValueError, lambda: self.pool.touch([*sound, wrong]), self.pool)
        for wrong in [*self.free[:1], -1, 99]:
            refused(ValueError, lambda: self.pool.free([*sound, wrong]), self.pool)
        if sound:
            refused(ValueError, lambda: self.pool.free([*sound, sound[0]]), self.pool)

    @invariant()
    def agrees(self):
        if not hasattr(self, "pool"):
            return
        pool, counts = self.pool, Counter(block for blocks in self.held for block in blocks)
        assert list(pool.free_queue) == self.free
        assert pool.ref_count == dict(counts) and pool.used == set(counts)
        assert pool.block_to_hash == self.name and pool.hash_to_block == {
            name: block for block, name in self.name.items()
        }
        assert pool.evicted == self.lost
        assert [block for block in range(pool.num_blocks) if pool.is_writable(block)] == [
            b for b in range(pool.num_blocks) if counts[b] == 1 and b not in self.name
        ]


CacheAgainstModel.TestCase.settings = LONG
TestCacheAgainstModel = CacheAgainstModel.TestCase


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
