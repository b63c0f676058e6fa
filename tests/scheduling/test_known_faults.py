"""Faults that real engines had: each is a test of its own here, called after what went wrong."""

import functools

import pytest
import torch
from engine_cases import an_engine, check_that_nothing_is_left, run_out
from oracle import END, generate_alone

from lessons_lib.attention.hf_backend import paged_attention_in
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_copies import copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler
from lessons_lib.scheduling.swapping import never_swap

FAMILIES = ["gpt2", "llama", "qwen2"]


@functools.cache
def alone(family, prompt, max_tokens):
    return generate_alone(tiny_model(family, seed=3), list(prompt), max_tokens, None)


class Machine:
    """A scheduler, a model and its caches. `scheduler_outputs` are those of all steps so far."""

    def __init__(self, family, num_blocks, block_size=4, swap_blocks=0, **limits):
        limits = dict(max_num_seqs=4, max_num_batched_tokens=40) | limits
        self.scheduler = CopyOnWriteScheduler(
            PrefixCache(num_blocks, block_size), swap_space=BlockPool(swap_blocks, block_size), **limits
        )
        model = tiny_model(family, seed=3)
        self.runner = ModelRunner(model, num_blocks, block_size)
        self.swap_cache = PagedKVCache(model.config, max(swap_blocks, 1), block_size)
        self.scheduler_outputs = []

    def step(self, before_forward=lambda: None):
        scheduler_output = self.scheduler.schedule()
        copy_blocks(scheduler_output.block_copies, self.runner.cache, self.swap_cache)
        before_forward()
        self.scheduler.update(scheduler_output, self.runner.forward(scheduler_output).argmax(dim=-1).tolist())
        audit(self.scheduler)
        self.scheduler_outputs.append(scheduler_output)

    def serve(self, *sequences, before_forward=lambda: None):
        for sequence in sequences:
            self.scheduler.add(sequence)
        while self.scheduler.has_unfinished():
            self.step(before_forward)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_blocks, prompt", [(12, 8), (12, 4), (12, 16), (3, 8), (2, 8), (1, 4)])
def test_a_prompt_wholly_in_the_prefix_cache_left_nothing_to_compute(family, num_blocks, prompt):
    """The last token is computed again: its logits are what the first new token is chosen from. In a pool without a
    block for the copy, too."""
    machine = Machine(family, num_blocks)
    prompt = list(range(20, 20 + prompt))
    max_tokens = min(6, num_blocks * 4 - len(prompt) + 1)
    for name in "AB":
        sequence = Sequence(name, prompt, max_tokens)
        machine.serve(sequence)
        assert sequence.output_ids == alone(family, tuple(prompt), max_tokens)
    again = next(
        scheduler_output for scheduler_output in machine.scheduler_outputs if sequence in scheduler_output.admitted
    )
    assert again.num_scheduled_tokens[sequence] >= 1
    if num_blocks == 12:
        assert again.cached[sequence] == len(prompt) - 1 and again.num_scheduled_tokens[sequence] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_preemption_followed_by_a_prefix_hit_broke_the_block_table(family):
    """A sequence that comes back and finds its blocks in the cache has each block once, in the order of its tokens."""
    machine = Machine(family, 8, swap_blocks=0, should_swap=never_swap)
    prompts = [list(range(start, start + 6)) for start in (20, 50)]
    sequences = [Sequence(name, prompt, 20, arrival_time=n) for n, (name, prompt) in enumerate(zip("AB", prompts))]
    machine.serve(*sequences)
    victim = sequences[1]
    assert any(victim in scheduler_output.preempted for scheduler_output in machine.scheduler_outputs)
    hits = [scheduler_output for scheduler_output in machine.scheduler_outputs if victim in scheduler_output.cached]
    assert hits and all(0 < scheduler_output.cached[victim] < victim.num_tokens for scheduler_output in hits)
    for sequence, prompt in zip(sequences, prompts):
        assert sequence.output_ids == alone(family, tuple(prompt), 20)


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 7, 8])
def test_can_append_looked_at_the_wrong_token_at_a_block_boundary(prompt, block_size):
    """A step takes a block if, and only if, the token that it computes is the first of a block; with none free, only
    then is anybody preempted."""
    pool = PrefixCache(2 * blocks_for(prompt + 9, block_size), block_size)
    scheduler = CopyOnWriteScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64, share_prefixes=False)
    early, late = Sequence("A", list(range(prompt)), 10), Sequence("B", list(range(prompt)), 10, arrival_time=1.0)
    for sequence in (early, late):
        scheduler.add(sequence)
    first = scheduler.schedule()
    scheduler.update(first, [0, 0])
    others = pool.allocate(len(pool.free_queue))  # another sequence has all the rest
    position = early.num_computed_tokens
    while late in scheduler.running:
        held, starts_a_block = len(early.blocks), position % block_size == 0
        scheduler_output = scheduler.schedule()
        assert (late in scheduler_output.preempted) == starts_a_block
        assert len(early.blocks) == held + starts_a_block == blocks_for(position + 1, block_size)
        scheduler.update(scheduler_output, [0] * len(scheduler_output.num_scheduled_tokens))
        position += 1
    assert position <= prompt + block_size
    pool.free(others)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_paged_attention_function_called_without_its_cache_ran_without_the_causal_mask(family):
    """Without the pass it is refused: the model has no mask under that name, so that any answer would look into the
    future."""
    model = tiny_model(family, seed=3)
    row = torch.arange(20, 26)[None]
    before = model(input_ids=row).logits
    with paged_attention_in(model), pytest.raises(TypeError, match="paged"):
        model(input_ids=row, use_cache=False)
    after = model(input_ids=row).logits
    assert torch.equal(before, after)
    assert torch.allclose(
        model(input_ids=row[:, :3]).logits, after[:, :3], atol=1e-4
    )  # its own attention has a mask again


@pytest.mark.parametrize("max_tokens, samples", [(1, 1), (8, 1), (8, 3), (None, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_immediate_end_of_text_lost_the_request(family, max_tokens, samples):
    """A request whose first token is the end is answered, with that token and no text; and so are the requests
    that run with it."""
    engine, told = an_engine(family), []
    prompt = next([token, 50] for token in range(97) if END in alone(family, (token, 50), 12))
    answer = alone(family, tuple(prompt), 12)
    prompt += answer[: answer.index(END)]
    params = SamplingParams(max_tokens=max_tokens, n=samples)
    engine.add_request(prompt, params, request_id="ends", on_token=told.append)
    engine.add_request([9, 8, 7], SamplingParams(max_tokens=5, ignore_eos=True), request_id="goes on")
    outputs = run_out(engine)
    assert [(own.token_ids, own.text, own.finish_reason) for own in outputs["ends"].completions] == [
        ([END], "", "stop")
    ] * samples
    assert [(token.token, token.finish_reason) for token in told] == [(END, "stop")] * samples
    assert outputs["goes on"].token_ids == alone(family, (9, 8, 7), 5)
    check_that_nothing_is_left(engine)
