"""Tenants that must not learn what others asked, and a cache that can be emptied."""

import random

import pytest
from engine_cases import alone, an_engine, check_that_nothing_is_left, greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_hashes import hash_full_blocks, salt_root
from lessons_lib.scheduling.sequence import Sequence

PROMPT = list(range(10, 31))


def hashes(tokens, salt=None, size=4):
    return hash_full_blocks(Sequence("it", tokens, 1, cache_salt=salt), size)


def cached_tokens(engine, prompt, salt=None):
    """How many tokens of a prompt are found in the cache."""
    before = engine.metrics.cached_tokens
    (output,) = engine.generate([prompt], greedy(4), cache_salt=salt)
    assert output.token_ids == alone("qwen2", prompt, 4)
    return engine.metrics.cached_tokens - before


# Hashes


TOKENS = st.lists(
    st.sampled_from([0, 1, 2, 3, 12, 23, 123, 255, 256, 2**16, 2**31 - 1, 2**31, 2**63 - 1, -1]), max_size=12
)
SALTS = st.one_of(st.none(), st.text(max_size=4), st.sampled_from(["\0" * 8, "\1" + "\0" * 31, "a" * 32, "\ud800"]))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(one=st.tuples(TOKENS, SALTS), other=st.tuples(TOKENS, SALTS), size=st.integers(1, 4))
def test_hashes_are_equal_exactly_if_everything_before_is(one, other, size):
    ours, theirs = hashes(*one, size), hashes(*other, size)
    for index in range(min(len(ours), len(theirs))):
        end = (index + 1) * size
        assert (ours[index] == theirs[index]) == (one[0][:end] == other[0][:end] and one[1] == other[1])


def test_tokens_cannot_pass_for_a_salt_nor_a_salt_for_tokens():
    """The bytes of a block, or of a parent and a block, given as a salt, and a salt's hash as what stands before."""
    as_bytes = (1).to_bytes(8, "little") * 4
    assert hashes([1] * 4, as_bytes.decode())[0] not in hashes([1] * 8)
    parent = hashes([1] * 4)[0]
    assert hashes([1] * 4, parent.decode("latin-1"))[0] not in hashes([1] * 8)
    assert len(salt_root("x")) != len(parent)


# Salts


@pytest.mark.parametrize("num_swap_blocks", [0, 20])
def test_preempted_and_forked_sequences_keep_their_salt(num_swap_blocks):
    engine = an_engine(num_blocks=14, num_swap_blocks=num_swap_blocks)
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=1, n=2, ignore_eos=True)
    for salt in ("a", "b", "c"):
        engine.add_request(PROMPT[:9], params, request_id=salt, cache_salt=salt)
    seen = {}
    while engine.has_unfinished():
        engine.step()
        pool = engine.scheduler.pool
        for sequence in [*engine.scheduler.running, *engine.scheduler.waiting]:
            assert sequence.cache_salt == sequence.id[0]
            assert sequence.block_hashes == hashes(sequence.token_ids, sequence.id[0])[: len(sequence.block_hashes)]
            for block in sequence.blocks:
                if block in pool.block_to_hash:
                    assert seen.setdefault(pool.block_to_hash[block], sequence.id[0]) == sequence.id[0]
    assert engine.scheduler.num_preempted and seen
    check_that_nothing_is_left(engine)


def test_what_a_tenant_finds_depends_only_on_its_own_requests():
    rng = random.Random(0)
    requests = [(rng.choice(["a", "b", None]), PROMPT[: rng.choice([3, 8, 13, 21])]) for _ in range(20)]
    together = an_engine(num_blocks=300)
    apart = {salt: an_engine(num_blocks=300) for salt in ("a", "b", None)}
    found = [cached_tokens(together, prompt, salt) for salt, prompt in requests]
    assert found == [cached_tokens(apart[salt], prompt) for salt, prompt in requests] and max(found) == 20


# Emptying the cache


def test_a_reset_forgets_every_prefix():
    engine = an_engine()
    cached_tokens(engine, PROMPT)
    engine.reset_prefix_cache()
    assert not engine.scheduler.pool.hash_to_block and not engine.scheduler.pool.block_to_hash
    assert cached_tokens(engine, PROMPT) == 0
    assert cached_tokens(engine, PROMPT) == 20
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("config", [{}, {"num_blocks": 9, "num_swap_blocks": 9, "max_num_seqs": 2}])
def test_a_reset_is_refused_while_requests_have_blocks(config):
    engine = an_engine(**config)
    engine.reset_prefix_cache()
    for n in range(3):
        engine.add_request(PROMPT[n : n + 9], greedy(16, ignore_eos=True), request_id=str(n))
    engine.reset_prefix_cache()  # they only wait
    answers = {}
    while engine.has_unfinished():
        answers |= {output.request_id: output for output in engine.step()}
        pool = engine.scheduler.pool
        before = dict(pool.hash_to_block), dict(pool.block_to_hash), list(pool.free_queue)
        if pool.used or engine.scheduler.swap_space.used:
            with pytest.raises(RuntimeError, match="finish or abort .* first. Nothing changed"):
                engine.reset_prefix_cache()
            assert (pool.hash_to_block, pool.block_to_hash, list(pool.free_queue)) == before
    for n in range(3):
        assert answers[str(n)].token_ids == alone("qwen2", PROMPT[n : n + 9], 16, ignore_eos=True)
    engine.reset_prefix_cache()
