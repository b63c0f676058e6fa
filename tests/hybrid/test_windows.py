"""Layers with a window: which blocks they keep, and that the answers stay the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_architectures import tiny_model

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.hybrid.cache_groups import CacheGroup, longest_usable
from lessons_lib.hybrid.window_blocks import WindowBlocks, blocks_in_windows, slide
from lessons_lib.hybrid.windowed_runner import windows_of
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.sequence import Sequence
from tools.random_workloads import Letters

WINDOWED = ("mistral", "gemma3_text", "gpt_oss", "cohere2")
SIZES = dict(num_blocks=100, block_size=4, max_num_seqs=3, max_num_batched_tokens=16)
lengths, windows, sizes = st.integers(0, 60), st.integers(1, 20), st.integers(1, 8)


def blocks_read(num_computed, window, size):
    """By brute force: the blocks of all earlier tokens that the next token sees."""
    return {key // size for key in range(num_computed) if key > num_computed - window}


@given(lengths, windows, sizes)
def test_the_first_needed_block_is_the_first_that_is_read(num_computed, window, size):
    first = slide(range(0), num_computed, 1, window, size)[0].start
    assert first == min(blocks_read(num_computed, window, size), default=num_computed // size)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), windows, sizes)
def test_blocks_behind_the_window_are_those_that_no_later_token_reads(counts, window, size):
    held, start = range(0), 0
    for count in counts:
        needed, behind, new = slide(held, start, count, window, size)
        assert {*needed} == {*held} - {*behind} | {*new} and not {*held} & {*new} and {*behind} <= {*held}
        assert {*needed} == {key // size for key in range(max(0, start - window + 1), start + count)}
        held, start = needed, start + count


flags = st.lists(st.booleans(), min_size=3, max_size=12)


@given(st.lists(st.tuples(flags, st.integers(0, 13)), min_size=1, max_size=3))
def test_a_prefix_is_usable_if_every_group_has_its_last_blocks(groups):
    length = min(len(kept) for kept, _ in groups)
    groups = [CacheGroup(kept[:length], needed) for kept, needed in groups]
    usable = [n for n in range(1, length + 1) if all(all(kept[max(0, n - k) : n]) for kept, k in groups)]
    assert longest_usable(groups) == max(usable, default=0)


@given(st.lists(st.booleans(), max_size=12), windows, sizes)
def test_the_longest_usable_prefix_has_what_its_next_token_reads(is_kept, window, size):
    kept = {index for index, is_here in enumerate(is_kept) if is_here}
    counts = [count for count in range(len(is_kept) + 1) if blocks_read(count * size, window, size) <= kept]
    assert longest_usable([CacheGroup(is_kept, blocks_for(window - 1, size))]) == max(counts)


@given(st.lists(st.tuples(lengths, st.integers(1, 9)), min_size=1, max_size=6), windows, sizes)
def test_a_step_never_needs_more_blocks_than_the_bound(steps, window, size):
    needed = sum(len(slide(range(0), start, count, window, size)[0]) for start, count in steps)
    assert needed <= blocks_in_windows(len(steps), sum(count for _, count in steps), window, size)


def generated(model, prompt, count):
    ids = torch.tensor([prompt])
    options = dict(max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


def engine_for(family, **config):
    return LLMEngine(tiny_model(family), Letters(), EngineConfig(**SIZES | config))


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("family", WINDOWED)
def test_answers_are_those_of_generate(family, overlaps):
    make_runner = gpu_model_runner(compiled=False, capture=rerun) if overlaps else None
    engine = engine_for(family, overlap=overlaps, make_runner=make_runner, num_blocks=140)
    shared = list(range(20, 50))
    prompts = [shared, shared[:7], [5], [*shared[:25], 3], shared]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    for _ in range(2):  # the second time, prefixes are cached
        for prompt, output in zip(prompts, engine.generate(prompts, params)):
            assert output.completions[0].token_ids == generated(engine.model, prompt, 20)
    assert engine.runner.blocks.pool.num_blocks < engine.scheduler.pool.num_blocks


def test_blocks_in_use_are_bounded_by_the_window():
    engine = engine_for("mistral", max_num_seqs=1)
    window = max(windows_of(engine.model))
    engine.add_request([7] * 60, SamplingParams(max_tokens=60, ignore_eos=True))
    in_use = []
    while engine.has_unfinished():
        engine.step()
        in_use.append((len(engine.scheduler.pool.used), len(engine.runner.blocks.pool.used)))
    assert max(all_layers for all_layers, _ in in_use) == blocks_for(119, 4)
    assert max(own for _, own in in_use) <= blocks_in_windows(1, 16, window, 4)
    assert {own for _, own in in_use[20:-1]} <= {2, 3}  # decodes: a window of 6 tokens touches no more blocks of 4


def test_a_full_attention_model_and_a_wide_window_keep_the_plain_runner():
    assert not hasattr(engine_for("qwen2").runner, "blocks")
    assert not hasattr(engine_for("mistral", num_blocks=12).runner, "blocks")
    assert not hasattr(engine_for("mistral", num_swap_blocks=4).runner, "blocks")


def test_saved_memory_goes_to_the_other_layers():
    engine = engine_for("gemma3_text", num_blocks=None, cache_bytes=400_000)
    cache = engine.runner.cache
    used = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    one_more = sum(tensor[0].nbytes for tensor in (*cache.keys, *cache.values))
    assert 400_000 - 2 * one_more < used <= 400_000 + one_more  # and a null block
    assert engine.scheduler.pool.num_blocks > 400_000 // one_more


def test_a_sequence_that_loses_its_blocks_frees_those_of_its_windows():
    blocks = WindowBlocks(window=6, num_blocks=12, block_size=4)
    one, other = (Sequence(name, range(20), 1) for name in "ab")
    one.blocks, other.blocks = [9, 8, 7, 6, 5], [4, 3, 2, 1, 0]
    assert [*blocks.launch({one: 20, other: 4})] == [9, 8, 7, 6, 5, 4]
    one.num_computed_tokens, other.num_computed_tokens = 20, 4
    one.blocks = []
    blocks.launch({other: 8})
    assert {*map(blocks.pool.block_to_hash.get, blocks.pool.used)} == {4, 3, 2}
    assert blocks.usable(one, [9, 8, 7]) == [9, 8, 7]  # free, and not overwritten yet
    blocks.reset()
    assert blocks.usable(one, [9, 8, 7]) == [] == [*blocks.pool.used]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", WINDOWED)
def test_compiled_and_captured_steps_on_a_gpu(family):
    model = tiny_model(family).to("cuda")
    prompts = [list(range(20, 50)), [5], list(range(30, 47))]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    own, plain = EngineConfig(**SIZES, overlap=True), EngineConfig(**SIZES | dict(num_blocks=140, num_swap_blocks=1))
    with LLMEngine(model, Letters(), own) as engine, LLMEngine(model, Letters(), plain) as other:
        assert engine.runner.blocks.pool.num_blocks < engine.scheduler.pool.num_blocks
        assert not hasattr(other.runner, "blocks")
        for _ in range(2):
            found, expected = engine.generate(prompts, params), other.generate(prompts, params)
            assert [each.completions[0].token_ids for each in found] == [
                each.completions[0].token_ids for each in expected
            ]
