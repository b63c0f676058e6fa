"""A model over a paged cache against the same model with a cache for each sequence."""

import random

import pytest
import torch
from transformers import DynamicCache

from lessons_lib.attention.hf_backend import paged_attention_in, paged_forward
from lessons_lib.attention.packing import pack
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model


def one_pass(model, cache, tables, new_tokens):
    """Compute new tokens of the sequences that have some; returns their logits."""
    names = [name for name in tables if new_tokens[name]]
    before = {name: tables[name].num_tokens for name in names}
    packed = pack([new_tokens[name] for name in names], list(before.values()))
    for name in names:
        tables[name].append(len(new_tokens[name]))
    slots = torch.cat(
        [slot_mapping(tables[n].blocks, cache.block_size, before[n], tables[n].num_tokens) for n in names]
    )
    longest = max(len(tables[name].blocks) for name in names)
    block_tables = torch.tensor([tables[name].blocks + [0] * (longest - len(tables[name].blocks)) for name in names])
    return dict(zip(names, paged_forward(model, packed.with_tables(slots, block_tables), cache)))


@torch.inference_mode()
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_prefills_chunks_and_decodes_equal_separate_runs(family, block_size):
    model, rng = tiny_model(family, seed=5), random.Random(block_size)
    cache = PagedKVCache(model.config, 1200, block_size)
    pool = BlockPool(1200, block_size)
    rng.shuffle(pool.free_queue)
    tables = {name: BlockTable(pool) for name in "ABCDE"}
    alone = {name: DynamicCache() for name in tables}
    for turn in range(12):
        sizes = [1, 1, 1, 4, 17] if turn else [1, 5, 16, 17, 33]
        new_tokens = {
            name: [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice(sizes) if rng.random() < 0.8 else 0)]
            for name in tables
        }
        new_tokens["A"] = new_tokens["A"] or [7]
        logits = one_pass(model, cache, tables, new_tokens)
        for name, got in logits.items():
            expected = model(input_ids=torch.tensor([new_tokens[name]]), past_key_values=alone[name]).logits[0, -1]
            assert float((got - expected).abs().max()) < 1e-4 * float(expected.abs().max())
        if turn == 6:  # C leaves, and its blocks go to others
            tables["C"].release()
            alone["C"] = DynamicCache()


def test_the_model_is_as_before_afterwards():
    model = tiny_model()
    before = model.config._attn_implementation
    with pytest.raises(ZeroDivisionError), paged_attention_in(model):
        assert model.config._attn_implementation == "paged"
        1 / 0
    assert model.config._attn_implementation == before
