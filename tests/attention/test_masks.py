"""Masks from tags against a mask made cell by cell, and packed logits against each sequence alone."""

import functools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.attention.masks import (
    PADDING,
    RULES,
    Tags,
    block_diagonal_mask,
    combine,
    not_in_the_future,
    not_padding,
    same_sequence,
    tag_tokens,
)
from lessons_lib.batching.packed_logits import packed_logits
from lessons_lib.models.loading import load_model
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

FAMILIES = ["gpt2", "llama", "qwen2"]
tag_lists = st.lists(st.tuples(st.sampled_from([PADDING, 0, 1, 2, 7]), st.integers(0, 9)), max_size=12)


def tags_from(pairs):
    return Tags(*(torch.tensor([pair[part] for pair in pairs], dtype=torch.int64) for part in (0, 1)))


ONE_CELL = {
    not_padding: lambda query, key: key[0] != PADDING,
    not_in_the_future: lambda query, key: key[1] <= query[1],
    same_sequence: lambda query, key: key[0] == query[0],
}


def brute_force(rules, queries, keys):
    return [[all(ONE_CELL[rule](query, key) for rule in rules) for key in keys] for query in queries]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(queries=tag_lists, keys=tag_lists, rules=st.sets(st.sampled_from(RULES)))
def test_every_combination_of_rules_against_brute_force(queries, keys, rules):
    mask = combine(rules, tags_from(queries), tags_from(keys))
    assert mask.dtype == torch.bool and mask.shape == (len(queries), len(keys))
    assert mask.tolist() == brute_force(rules, queries, keys)
    whole = block_diagonal_mask(tags_from(queries), tags_from(keys))
    assert whole.dtype == torch.bool and torch.equal(whole, combine(RULES, tags_from(queries), tags_from(keys)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(pieces=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5))
def test_tags_are_those_of_sequences_one_behind_the_other(pieces):
    lengths, starts = [length for length, _ in pieces], [start for _, start in pieces]
    tags = tag_tokens(lengths, starts)
    expected = [(index, start + offset) for index, (length, start) in enumerate(pieces) for offset in range(length)]
    assert list(zip(tags.seq_ids.tolist(), tags.positions.tolist())) == expected
    assert tags.seq_ids.dtype == tags.positions.dtype == torch.int64
    assert len(tags) == sum(lengths)
    both = tags.followed_by(tag_tokens(lengths))
    assert both.positions.tolist() == tags.positions.tolist() + tag_tokens(lengths).positions.tolist()
    assert both.seq_ids.tolist() == tags.seq_ids.tolist() * 2


@functools.cache
def model_of(name):
    return load_model()[0] if name == "bundled" else tiny_model(name, seed=5)


# Float32 keeps about seven digits. The same sums are computed in another order and with other kernels, so each of the
# hundreds of additions may round differently: 1e-4 of the largest logit is a generous bound. A leak of one key changes
# far more.
TOLERANCE = 1e-4


def difference(model, sequences, mask=block_diagonal_mask):
    """Largest difference between packed and separate logits, relative to the largest logit."""
    worst = largest = 0.0
    with torch.inference_mode():
        for sequence, packed in zip(sequences, packed_logits(model, sequences, mask), strict=True):
            alone = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
            assert packed.shape == alone.shape
            worst, largest = max(worst, float((packed - alone).abs().max())), max(largest, float(alone.abs().max()))
    return worst / largest


def random_sequences(seed, model, counts=(1, 2, 5), lengths=(1, 2, 3, 8, 21)):
    rng = random.Random(seed)
    vocabulary = min(VOCAB_SIZE, model.config.vocab_size)
    return [[rng.randrange(vocabulary) for _ in range(rng.choice(lengths))] for _ in range(rng.choice(counts))]


@pytest.mark.parametrize("name", [*FAMILIES, "bundled"])
def test_packed_logits_equal_separate_runs(name):
    model = model_of(name)
    for seed in range(10):
        assert difference(model, random_sequences(seed, model)) < TOLERANCE
    if name != "bundled":
        whole = tiny_model(name, seed=5, context=32)
        assert difference(whole, [list(range(32)), [1], list(range(40, 72))]) < TOLERANCE
