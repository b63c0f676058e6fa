"""Packing and unpacking, caches joined and scattered, and one packed pass against a pass for each sequence."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from lessons_lib.attention.packing import (
    cache_of,
    concatenate_caches,
    copied_tokens,
    key_tags,
    pack,
    packed_forward,
    packed_mask,
    scatter_cache,
)
from lessons_lib.batching.ragged_batching import RaggedBatch, ragged_step
from lessons_lib.batching.request import Request
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

FAMILIES = ["gpt2", "llama", "qwen2"]
sequences = st.lists(st.tuples(st.lists(st.integers(0, 96), min_size=1, max_size=9), st.integers(0, 12)), max_size=6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sequences=sequences)
def test_every_new_token_sees_its_sequence_so_far_and_nothing_else(sequences):
    packed = pack([tokens for tokens, _ in sequences], [count for _, count in sequences])
    keys = key_tags(packed)
    owners = list(zip(keys.seq_ids.tolist(), keys.positions.tolist()))
    assert sorted(owners) == [
        (i, p) for i, (tokens, cached) in enumerate(sequences) for p in range(cached + len(tokens))
    ]
    for row, sequence, position in zip(packed_mask(packed), packed.seq_ids.tolist(), packed.positions.tolist()):
        assert {owner for owner, may in zip(owners, row) if may} == {(sequence, p) for p in range(position + 1)}


@pytest.mark.parametrize("new, cached", [([[1]], []), ([[1], []], [0, 0]), ([[1]], [-1]), ([], [3])])
def test_what_makes_no_row_is_refused(new, cached):
    with pytest.raises(ValueError, match="at least one new token for each sequence"):
        pack(new, cached)


def contents(cache):
    return [(layer.keys, layer.values) for layer in cache.layers]


def test_a_cache_made_of_tensors_holds_these_tensors():
    keys, values = torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)
    cache = cache_of([(keys, values)])
    assert cache.get_seq_length() == 3 and cache.layers[0].keys is keys and cache.layers[0].values is values
    cache.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), 0)
    assert cache.get_seq_length() == 4 and keys.shape[2] == 3


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_one_packed_pass_equals_a_pass_for_each_sequence(family):
    """Prefills and decodes side by side, and what they leave in the caches."""
    model = tiny_model(family, seed=5)
    for seed in range(20):
        rng = random.Random(seed)
        words = lambda lengths: [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice(lengths))]
        histories = [words((0, 0, 1, 7, 30)) for _ in range(rng.choice((1, 2, 5)))]
        new = [words((1,) if history and rng.random() < 0.7 else (1, 4, 19)) for history in histories]
        caches = [DynamicCache() for _ in histories]
        for history, cache in zip(histories, caches):
            if history:
                model(input_ids=torch.tensor([history]), past_key_values=cache)
        packed, joined = pack(new, list(map(len, histories))), concatenate_caches(caches)
        logits = packed_forward(model, packed, joined)
        apart = scatter_cache(joined, packed)
        expected = torch.stack(
            [
                model(input_ids=torch.tensor([tokens]), past_key_values=cache).logits[0, -1]
                for tokens, cache in zip(new, caches)
            ]
        )
        assert logits.shape == expected.shape
        assert float((logits - expected).abs().max()) < 1e-4 * float(expected.abs().max())
        for got, alone in zip(apart, caches, strict=True):
            torch.testing.assert_close(contents(got), contents(alone), rtol=1e-4, atol=1e-4)


class CountCopies(TorchDispatchMode):
    """Adds up the bytes of the tensors that `torch.cat` makes along the tokens of a cache."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten.cat.default and result.dim() == 4 and args[1] in (2, -2):
            self.bytes += result.nbytes
        return result


def test_copied_tokens_are_those_that_are_copied():
    """GPT-2: it has no rotary embedding, which joins tensors too, though along another axis."""
    model = tiny_model("gpt2")
    batch = RaggedBatch(model, 3)
    for name, length in (("A", 5), ("B", 1), ("C", 9)):
        batch.submit(Request(name, list(range(1, length + 1)), 6))
    for _ in range(4):
        with CountCopies() as copies:
            ragged_step(batch)
        written_once = sum(batch.packed.new_lens)
        assert copies.bytes == (copied_tokens(batch.packed) + written_once) * cache_bytes_per_token(model.config)
