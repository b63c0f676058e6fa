"""Ragged requests and steps for the tests of lesson 13, and what greedy decoding answers to the requests, one step after
the other."""

import random

import torch

from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_copies import copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler
from lessons_lib.scheduling.swapping import SwappingScheduler

BLOCK, SPARE = 4, 40  # tokens of a block; the null block, behind those of the pool


def ragged(seed, count=14, vocabulary=97, stops=3, longest=30):
    """Requests that share beginnings, of very different lengths; some end at a stop token, some at their cap."""
    rng = random.Random(seed)
    shared = [rng.randrange(vocabulary) for _ in range(20)]

    def request(number):
        prompt = shared[: rng.choice((0, 8, 20))] + [rng.randrange(vocabulary) for _ in range(rng.randint(1, longest))]
        stop = frozenset(rng.sample(range(vocabulary), stops))
        return Sequence(str(number), prompt, rng.choice((1, 2, 7, 20)), stop, arrival_time=float(number))

    return [request(number) for number in range(count)]


def answers(model, sequences, max_num_seqs=5, num_blocks=200, block_size=BLOCK):
    """The oracle: lesson 09's loop, with a block for everything."""
    scheduler = Scheduler(BlockPool(num_blocks, block_size), max_num_seqs=max_num_seqs, max_num_batched_tokens=24)
    return serve_greedily(ModelRunner(model, num_blocks, block_size), scheduler, sequences)


def sharing_scheduler(num_blocks, block_size=BLOCK, swap_blocks=0, max_num_seqs=5, **options):
    limits = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=24) | options
    return SwappingScheduler(
        PrefixCache(num_blocks, block_size), swap_space=BlockPool(swap_blocks, block_size), **limits
    )


def mover(runner, scheduler):
    """function (plan): the moves of blocks that it orders, done."""
    space = scheduler.swap_space
    swap_cache = (
        PagedKVCache(runner.model.config, space.num_blocks, space.block_size, runner.model.dtype)
        if space.num_blocks
        else None
    )
    return lambda scheduler_output: copy_blocks(scheduler_output.block_copies, runner.cache, swap_cache)


def random_plan(seed, decodes=False):
    """Sequences with any number of tokens known and computed, in blocks scattered over 40."""
    rng = random.Random(seed)
    free = rng.sample(range(SPARE), SPARE)
    scheduler_output = SchedulerOutput()
    for number in range(rng.randint(1, 5)):
        prompt, output = ([rng.randrange(97) for _ in range(rng.randint(1, most))] for most in (12, 9))
        known = len(prompt) + len(output)
        count = 1 if decodes else rng.randint(1, known)
        computed = known - 1 if decodes else rng.randint(0, known - count)
        blocks = [free.pop() for _ in range(-(-(computed + count) // BLOCK))]
        sequence = Sequence(str(number), prompt, 30, output_ids=output, num_computed_tokens=computed, blocks=blocks)
        scheduler_output.num_scheduled_tokens[sequence] = count
    return scheduler_output


def with_the_same_past(*runners, seed=0):
    """Fill the caches of all runners with the same random numbers."""
    for runner in runners:
        caches = [*runner.cache.keys, *runner.cache.values]
        generator = torch.Generator(caches[0].device).manual_seed(seed)
        for cache in caches:
            cache[:SPARE].normal_(generator=generator)


# Changes of what a captured step reads: a graph that is replayed afterwards reads the old tensors.


def swap_layer(runner):
    runner.cache.keys[1] = runner.cache.keys[1].clone()


def move_weight(runner):
    weight = runner.model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.clone()


def replace_weight(runner):
    projection = runner.model.model.layers[1].self_attn.q_proj
    projection.weight = torch.nn.Parameter(projection.weight.data.clone(), requires_grad=False)


def other_tokens(runner):
    runner.previous_tokens = runner.previous_tokens.clone()


CHANGES = (swap_layer, move_weight, replace_weight, other_tokens)
