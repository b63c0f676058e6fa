"""Ragged requests for the tests of lesson 13, and what greedy decoding answers to them, one step after the other."""

import random

from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_copies import copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler
from lessons_lib.scheduling.swapping import SwappingScheduler

BLOCK = 4


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
