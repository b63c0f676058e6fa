"""For each part of the engine, a right answer that is written differently from the reference."""

from collections import deque

from answers import lesson_03, lesson_06, lesson_09, lesson_10, lesson_11, lesson_12, lesson_13

from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache as ReferenceCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache as ReferencePrefixCache
from lessons_lib.kv_cache.prefix_cache import SharedBlockPool as ReferenceSharedPool
from lessons_lib.scheduling.stalling import Scheduler as ReferenceScheduler


class BlockPool:
    """Nothing of the reference's."""

    def __init__(self, num_blocks, block_size):
        if num_blocks < 0 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.reset()

    def reset(self):
        self.free_queue = deque()
        for block in range(self.num_blocks):
            self.free_queue.append(block)
        self.used = set()

    def allocate(self, count):
        if count < 0:
            raise ValueError(count)
        if len(self.free_queue) < count:
            raise OutOfBlocks(f"{count} blocks needed")
        blocks = []
        while len(blocks) < count:
            block = self.free_queue.popleft()
            self.used.add(block)
            blocks.append(block)
        return blocks

    def free(self, blocks):
        given = list(blocks)
        if len(given) != len(set(given)) or not self.used.issuperset(given):
            raise ValueError(given)
        while given:
            self.used.remove(given[-1])
            self.free_queue.append(given.pop())

    @property
    def utilization(self):
        return len(self.used) / max(1, self.num_blocks)


class PagedKVCache(ReferenceCache):
    def write(self, layer, keys, values, slot_mapping):
        shape = (len(slot_mapping), *self.keys[layer].shape[2:])
        if keys.shape != shape or values.shape != (*shape[:2], self.values[layer].shape[-1]):
            raise ValueError(f"{keys.shape}, {values.shape}")
        blocks, offsets = slot_mapping // self.block_size, slot_mapping % self.block_size
        self.keys[layer][blocks, offsets] = keys
        self.values[layer].index_put_((blocks, offsets), values)


class SharedBlockPool(ReferenceSharedPool):
    def touch(self, blocks):
        lesson_11.touches_with_sets(self, blocks)

    def free(self, blocks):
        lesson_11.frees_by_hand(self, blocks)


class PrefixCache(ReferencePrefixCache):
    def match_prefix(self, block_hashes):
        return lesson_11.finds_with_takewhile(self, block_hashes)

    def is_writable(self, block):
        return lesson_11.writable_in_steps(self, block)


class Scheduler(ReferenceScheduler):
    def schedule_waiting(self, scheduler_output):
        left = 0 if scheduler_output.stalled else self.max_num_batched_tokens - scheduler_output.num_tokens
        while left > 0 and len(self.waiting) > 0 and self.max_num_seqs > len(self.running):
            candidate = self.waiting.next(self.running)
            if not self.admission(self, candidate):
                return
            self.admit(scheduler_output, candidate)
            tokens = candidate.num_tokens - candidate.num_computed_tokens
            tokens = left if tokens > left else tokens
            self.allocate_slots(scheduler_output, candidate, tokens)
            left -= tokens

    def allocate_slots(self, scheduler_output, sequence, count):
        lesson_09.allocate_block_by_block(self, scheduler_output, sequence, count)


class PriorityWithAgeing:
    name = "mine"

    def __init__(self, patience, head_start=0.0):
        if min(patience, head_start) < 0:
            raise ValueError(f"{patience}, {head_start}")
        self.patience, self.head_start = patience, head_start

    def rank(self, sequence):
        return sequence.arrival_time - self.head_start * sequence.is_interactive + self.patience * sequence.tier


class GraphStore:
    """Nothing of the reference's: a key as text, and graphs as lists."""

    def __init__(self, capture):
        self.capture, self.graphs, self.num_captured = capture, {}, 0

    def key_of(self, inputs, weights, settings):
        return repr([[(id(each), each.data_ptr()) for each in inputs], [each.data_ptr() for each in weights], settings])

    def has(self, size, key):
        return size in self.graphs and self.graphs[size][0] == key

    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.graphs.pop(size, None)
            self.graphs[size] = [key, keeps(), *self.capture(step)]
            self.num_captured += 1
        *_, replay, output = self.graphs[size]
        replay()
        return output


KV, SCHEDULING = "lessons_lib.kv_cache", "lessons_lib.scheduling"
ATTENTION, ENGINE = "lessons_lib.attention", "lessons_lib.engine"
ANSWERS = {
    f"{KV}.block_pool:blocks_for": lesson_03.by_divmod,
    f"{KV}.block_pool:BlockPool": BlockPool,
    f"{KV}.cache_slots:slot_mapping": lesson_03.by_ranges,
    f"{KV}.paged_kv_cache:PagedKVCache": PagedKVCache,
    f"{KV}.block_hashes:block_hash": lesson_11.written_with_commas,
    f"{KV}.prefix_cache:SharedBlockPool": SharedBlockPool,
    f"{KV}.prefix_cache:PrefixCache": PrefixCache,
    f"{ATTENTION}.online_softmax:add_block": lesson_06.add_with_where,
    f"{ATTENTION}.plain_attention:attention_in_place": lesson_06.in_place_without_add_block,
    f"{ATTENTION}.hf_backend:paged_attention_forward": lesson_06.forwards_by_squeezing,
    f"{SCHEDULING}.policies:PriorityWithAgeing": PriorityWithAgeing,
    f"{SCHEDULING}.scheduler:share_budget": lesson_09.in_two_dicts,
    f"{SCHEDULING}.scheduler:conservative": lesson_09.subtracts_one_by_one,
    f"{SCHEDULING}.stalling:Scheduler": Scheduler,
    f"{SCHEDULING}.preemption:last_in_rank": lesson_10.by_a_loop,
    f"{SCHEDULING}.preemption:preempt_sequence": lesson_10.in_another_order,
    f"{SCHEDULING}.shared_blocks:copy_before_write": lesson_11.with_a_slice,
    f"{SCHEDULING}.shared_blocks:take_cached": lesson_11.with_a_loop,
    f"{ENGINE}.plain_sampling:token_probabilities": lesson_12.row_by_row,
    f"{ENGINE}.detokenizer:releasable": lesson_12.walking_through,
    f"{ENGINE}.core:run_step": lesson_12.with_else,
    f"{ENGINE}.input_batch:next_tokens": lesson_13.by_slices,
    f"{ATTENTION}.custom_op:replace_placeholders": lesson_13.by_gather,
    f"{ENGINE}.cuda_graphs:GraphStore": GraphStore,
    f"{ENGINE}.plain_sampling:draw_on_device": lesson_13.by_softmax,
    f"{ENGINE}.core:overlapped_step": lesson_13.with_counts,
}
