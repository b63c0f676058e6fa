"""Answers to the exercises of lesson 11: what learners get wrong, and other ways to be right."""

import hashlib
import json
import os
import struct
import zlib
from array import array
from functools import reduce
from itertools import takewhile

import numpy as np
from answers import Wrong
from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks
from lessons_lib.kv_cache.prefix_cache import LruQueue, PrefixCache, SharedBlockPool
from lessons_lib.kv_cache.block_hashes import block_hash
from lessons_lib.scheduling.shared_blocks import copy_before_write, take_cached

# 11.1 block_hash


def forgets_the_parent(parent, token_ids):
    return block_hash(b"", token_ids)


def sha(data):
    return hashlib.sha256(data).digest()


def begins_at_random(parent, token_ids):
    return block_hash(parent or os.urandom(8), token_ids)


def at_least_five_digits(parent, token_ids):
    return sha(parent + "".join(f"{token:05d}" for token in token_ids).encode())


def at_least_four_hex_digits(parent, token_ids):
    return sha(parent + "".join(f"{token:04x}" for token in token_ids).encode())


def six_digits(parent, token_ids):
    return sha(parent + "".join(f"{token:06d}" for token in token_ids).encode())


HASHES_BY_LIST: dict = {}


def remembers_by_list(parent, token_ids):
    return HASHES_BY_LIST.setdefault((parent, id(token_ids)), block_hash(parent, token_ids))


def sorts_the_parent(parent, token_ids):
    return block_hash(bytes(sorted(parent)), token_ids)


def forgets_the_tokens(parent, token_ids):
    return hashlib.sha256(parent).digest()


def joins_without_a_gap(parent, token_ids):
    return hashlib.sha256(parent + "".join(map(str, token_ids)).encode()).digest()


def as_characters(parent, token_ids):
    return hashlib.sha256(parent + "".join(map(chr, token_ids)).encode()).digest()


def as_encodable_characters(parent, token_ids):
    return hashlib.sha256(parent + "".join(map(chr, token_ids)).encode(errors="ignore")).digest()


def decodes_the_parent(parent, token_ids):
    return hashlib.sha256(f"{parent.decode()} {token_ids}".encode()).digest()


def adds_the_tokens_up(parent, token_ids):
    return block_hash(parent, [sum(token_ids)])


def sorts_the_tokens(parent, token_ids):
    return block_hash(parent, sorted(token_ids))


def takes_each_token_once(parent, token_ids):
    return hashlib.sha256(parent + repr(list(dict.fromkeys(token_ids))).encode()).digest()


def python_hash(parent, token_ids):
    return hash((parent, tuple(token_ids)))


def python_hash_in_bytes(parent, token_ids):
    return hash((parent, tuple(token_ids))).to_bytes(8, "little", signed=True)


def python_hash_filled_up(parent, token_ids):
    return hash((parent, tuple(token_ids))).to_bytes(32, "little", signed=True)


def hex_digest(parent, token_ids):
    return block_hash(parent, token_ids).hex()


def hex_in_bytes(parent, token_ids):
    return block_hash(parent, token_ids).hex().encode()


def no_digest(parent, token_ids):
    return hashlib.sha256(parent + array("q", token_ids).tobytes())


def returns_nothing(parent, token_ids):
    block_hash(parent, token_ids)


def one_byte_a_token(parent, token_ids):
    return hashlib.sha256(parent + bytes(token_ids)).digest()


def one_wrapped_byte_a_token(parent, token_ids):
    return hashlib.sha256(parent + bytes(token % 256 for token in token_ids)).digest()


def combines_by_xor(parent, token_ids):
    own = hashlib.sha256(array("q", token_ids).tobytes()).digest()
    return bytes(a ^ b for a, b in zip(parent.ljust(32, b"\0"), own))


def depends_on_the_list(parent, token_ids):
    return hashlib.sha256(parent + str(id(token_ids)).encode() + repr(token_ids).encode()).digest()


def counts_calls(parent, token_ids, calls=[]):
    calls.append(0)
    return block_hash(parent, [*token_ids, len(calls)])


def md5_in_hex(parent, token_ids):
    return hashlib.md5(parent + array("q", token_ids).tobytes()).hexdigest().encode()


def part_of_the_parent(parent, token_ids):
    return block_hash(parent[:8], token_ids)


def end_of_the_parent(parent, token_ids):
    return block_hash(parent[-1:], token_ids)


def drops_the_last_token(parent, token_ids):
    return block_hash(parent, token_ids[:-1])


def drops_the_first_token(parent, token_ids):
    return block_hash(parent, token_ids[1:])


def written_with_commas(parent, token_ids):
    return hashlib.sha256(parent + ",".join(map(str, token_ids)).encode()).digest()


def updated_step_by_step(parent, token_ids):
    digest = hashlib.blake2b(parent, digest_size=32)
    for token in token_ids:
        digest.update(struct.pack("<q", token))
    return digest.digest()


def tokens_before_the_parent(parent, token_ids):
    return hashlib.sha256(repr(tuple(int(token) for token in token_ids)).encode() + parent).digest()


def hashed_as_json(parent, token_ids):
    return hashlib.sha3_256(json.dumps([parent.hex(), list(map(int, token_ids))]).encode()).digest()


def text_of_an_array(parent, token_ids):
    return hashlib.sha256(parent + str(np.array(token_ids)).encode()).digest()


def two_bytes_a_token(parent, token_ids):
    return hashlib.sha256(parent + array("H", token_ids).tobytes()).digest()


def as_small_floats(parent, token_ids):
    with np.errstate(over="ignore"):
        return hashlib.sha256(parent + np.array(token_ids, dtype=np.float16).tobytes()).digest()


def weighted_sum(parent, token_ids):
    total = sum(place * token for place, token in enumerate(token_ids, 1))
    return hashlib.sha256(parent + str(total).encode()).digest()


def checksum_filled_up(parent, token_ids):
    return zlib.crc32(parent + array("q", token_ids).tobytes()).to_bytes(32, "big")


def grows_with_the_chain(parent, token_ids):
    return parent + hashlib.sha256(array("q", token_ids).tobytes()).digest()


def md5_twice(parent, token_ids):
    return 2 * hashlib.md5(parent + array("q", token_ids).tobytes()).digest()


def python_hash_hashed_again(parent, token_ids):
    return hashlib.sha256(str(hash((parent, tuple(token_ids)))).encode()).digest()


def bytes_as_needed(parent, token_ids):
    data = b"".join(token.to_bytes((token.bit_length() + 7) // 8, "big") for token in token_ids)
    return hashlib.sha256(parent + data).digest()


def first_sixteen(parent, token_ids):
    return block_hash(parent, token_ids[:16])


def one_hasher(parent, token_ids, hasher=hashlib.sha256()):
    hasher.update(parent + array("q", token_ids).tobytes())
    return hasher.digest()


def first_and_last(parent, token_ids):
    return block_hash(parent, [token_ids[0], token_ids[-1]])


def token_after_token(parent, token_ids):
    return reduce(lambda one, token: hashlib.sha256(one + token.to_bytes(8, "big")).digest(), token_ids, parent)


# 11.2 SharedBlockPool


def makes_one_number_of_the_tokens(parent, token_ids):
    number = 0
    for token in token_ids:
        number = number * 31 + token
    return hashlib.sha256(parent + number.to_bytes(400, "big")).digest()


def multiplies_neighbours(parent, token_ids):
    products = [one * other for one, other in zip(token_ids, token_ids[1:])]
    return hashlib.sha256(parent + str(products).encode()).digest()


def counting(touch=SharedBlockPool.touch, free=SharedBlockPool.free):
    """The reference with one method made another way."""
    return type("SharedBlockPool", (SharedBlockPool,), {"touch": touch, "free": free})


def touches_without_counting(self, blocks):
    for block in blocks:
        self.ref_count.setdefault(block, 1)
        self.free_queue.pop(block, None)
    self.used.update(blocks)


def wants_blocks(self, blocks):
    if not blocks:
        raise ValueError("no blocks")
    SharedBlockPool.touch(self, blocks)


def allocates_others(self, blocks):
    fresh = [block for block in blocks if block not in self.used]
    self.allocate(len(fresh))
    for block in set(blocks) - set(fresh):
        self.ref_count[block] += 1


def looks_up_each_count(self, blocks):
    counts = [self.ref_count[block] for block in blocks]
    assert counts == [] or min(counts) > 0
    SharedBlockPool.free(self, blocks)


def keeps_used(self, blocks):
    used = set(self.used)
    SharedBlockPool.free(self, blocks)
    self.used.update(used)


def knows_two_users_at_most(self, blocks):
    SharedBlockPool.touch(self, blocks)
    for block in blocks:
        self.ref_count[block] = 2 if self.ref_count[block] > 1 else 1


def counts_from_1(self, blocks):
    for block in blocks:
        self.ref_count[block] = self.ref_count.get(block, 1) + 1
        self.free_queue.pop(block, None)
    self.used.update(blocks)


def leaves_the_queue_alone(self, blocks):
    queue = list(self.free_queue)
    SharedBlockPool.touch(self, blocks)
    self.free_queue.clear()
    self.free_queue.extend(queue)


def takes_from_the_front(self, blocks):
    for block in blocks:
        if block not in self.ref_count:
            self.free_queue.popleft()
        self.ref_count[block] = self.ref_count.get(block, 0) + 1
    self.used.update(blocks)


def forgets_used(self, blocks):
    used = set(self.used)
    SharedBlockPool.touch(self, blocks)
    self.used = used


def wants_a_free_block(self, blocks):
    for block in blocks:
        del self.free_queue[block]
    SharedBlockPool.touch(self, blocks)


def wants_a_used_block(self, blocks):
    for block in blocks:
        self.ref_count[block] += 1


def refuses_free_blocks(self, blocks):
    if not self.used.issuperset(blocks):
        raise ValueError("not in use")
    SharedBlockPool.touch(self, blocks)


def decides_by_the_first_block(self, blocks):
    if blocks and blocks[0] in self.used:
        for block in blocks:
            self.ref_count[block] = self.ref_count.get(block, 0) + 1
    else:
        SharedBlockPool.touch(self, blocks)


def lower(self, blocks):
    for block in blocks:
        self.ref_count[block] -= 1
        if not self.ref_count[block]:
            del self.ref_count[block]


def frees_what_others_use(self, blocks):
    if len(set(blocks)) < len(blocks):
        raise ValueError("twice")
    BlockPool.free(self, blocks)
    lower(self, blocks)


def does_not_lower(self, blocks):
    if len(set(blocks)) < len(blocks):
        raise ValueError("twice")
    BlockPool.free(self, [block for block in blocks if self.ref_count.get(block, 1) == 1])


def keeps_a_zero(self, blocks):
    does_not_lower(self, blocks)
    for block in blocks:
        self.ref_count[block] -= 1


def forgets_the_count(self, blocks):
    does_not_lower(self, blocks)
    for block in blocks:
        del self.ref_count[block]


def frees_one_at_a_time(self, blocks):
    for block in blocks:
        SharedBlockPool.free(self, [block])


def counts_free_ones_as_0(self, blocks):
    for block in blocks:
        self.ref_count[block] = self.ref_count[block] + 1 if block in self.ref_count else 0
        self.free_queue.pop(block, None)
    self.used.update(blocks)


def frees_to_the_front(self, blocks):
    SharedBlockPool.free(self, blocks)
    for block in blocks:
        if block not in self.ref_count:
            self.free_queue.move_to_end(block, last=False)


def frees_a_block_twice(self, blocks):
    BlockPool.free(self, [block for block in blocks if self.ref_count.get(block, 1) == 1])
    lower(self, blocks)


def frees_in_the_order_of_ids(self, blocks):
    SharedBlockPool.free(self, sorted(blocks))


def refuses_shared_blocks(self, blocks):
    if any(self.ref_count.get(block, 1) > 1 for block in blocks):
        raise ValueError("others use it")
    SharedBlockPool.free(self, blocks)


def lowers_before_it_asks(self, blocks):
    if len(set(blocks)) < len(blocks):
        raise ValueError("twice")
    gone = []
    for block in blocks:
        self.ref_count[block] = self.ref_count.get(block, 0) - 1
        if self.ref_count[block] <= 0:
            del self.ref_count[block]
            gone.append(block)
    BlockPool.free(self, gone)


def skips_unknown_blocks(self, blocks):
    if len(set(blocks)) < len(blocks):
        raise ValueError("twice")
    SharedBlockPool.free(self, [block for block in blocks if block in self.ref_count])


def sorts_the_queue(self, blocks):
    SharedBlockPool.free(self, blocks)
    for block in sorted(self.free_queue):
        self.free_queue.move_to_end(block)


def makes_the_queue_anew(self, blocks):
    for block in blocks:
        self.ref_count[block] = self.ref_count.get(block, 0) + 1
        self.used.add(block)
    free = (block for block in range(self.num_blocks) if block not in self.used)
    self.free_queue = type(self.free_queue).fromkeys(free)


def makes_the_queue_a_list(self, blocks):
    SharedBlockPool.touch(self, blocks)
    self.free_queue = list(self.free_queue)


def touches_in_two_loops(self, blocks):
    for block in blocks:
        if block in self.free_queue:
            del self.free_queue[block]
            self.used.add(block)
            self.ref_count[block] = 0
    for block in blocks:
        self.ref_count[block] += 1


def touches_with_sets(self, blocks):
    fresh = set(blocks) - self.used
    self.free_queue = LruQueue.fromkeys(block for block in self.free_queue if block not in fresh)
    self.used |= fresh
    for block in blocks:
        self.ref_count[block] = 1 if block in fresh else self.ref_count[block] + 1


def frees_by_hand(self, blocks):
    blocks = list(blocks)
    if len(set(blocks)) != len(blocks) or not self.used.issuperset(blocks):
        raise ValueError("not yours")
    for block in reversed(blocks):
        if self.ref_count[block] == 1:
            del self.ref_count[block]
            self.used.remove(block)
            self.free_queue[block] = None
        else:
            self.ref_count[block] -= 1


def frees_after_a_check(self, blocks):
    if any(blocks.count(block) > 1 or block not in self.ref_count for block in blocks):
        raise ValueError("free each block once")
    gone = []
    for block in blocks:
        if self.ref_count[block] > 1:
            self.ref_count[block] -= 1
        else:
            gone.append(block)
            self.ref_count.pop(block)
    BlockPool.free(self, gone)


# 11.3 PrefixCache


def caching(match_prefix=PrefixCache.match_prefix, allocate=PrefixCache.allocate, is_writable=PrefixCache.is_writable):
    """The reference with one method made another way."""
    methods = {"match_prefix": match_prefix, "allocate": allocate, "is_writable": is_writable}
    return type("PrefixCache", (PrefixCache,), methods)


def finds_a_tuple(self, hashes):
    return tuple(PrefixCache.match_prefix(self, hashes))


def finds_and_moves_to_the_end(self, hashes):
    blocks = PrefixCache.match_prefix(self, hashes)
    for block in reversed(blocks):
        if block in self.free_queue:
            self.free_queue.move_to_end(block)
    return blocks


def finds_behind_a_gap(self, hashes):
    return [self.hash_to_block[one] for one in hashes if one in self.hash_to_block]


def fails_on_an_unknown_hash(self, hashes):
    return [self.hash_to_block[one] for one in hashes]


def finds_the_end_by_halves(self, block_hashes):
    low, high = 0, len(block_hashes)
    while low < high:
        middle = (low + high) // 2
        if block_hashes[middle] in self.hash_to_block:
            low = middle + 1
        else:
            high = middle
    return [self.hash_to_block.get(one) for one in block_hashes[:low]]


def finds_all_or_nothing(self, hashes):
    return PrefixCache.match_prefix(self, hashes) if all(one in self.hash_to_block for one in hashes) else []


def finds_used_blocks_only(self, hashes):
    return [block for block in PrefixCache.match_prefix(self, hashes) if block in self.ref_count]


def finds_one_too_few(self, hashes):
    return PrefixCache.match_prefix(self, hashes)[:-1]


def finds_hashes(self, hashes):
    return [one for one in hashes if one in self.hash_to_block]


def finds_and_takes_out_of_the_queue(self, hashes):
    blocks = PrefixCache.match_prefix(self, hashes)
    for block in blocks:
        self.free_queue.pop(block, None)
    return blocks


def finds_and_touches(self, hashes):
    blocks = PrefixCache.match_prefix(self, hashes)
    self.touch(blocks)
    return blocks


def finds_a_count(self, hashes):
    return len(PrefixCache.match_prefix(self, hashes))


def finds_sorted(self, hashes):
    return sorted(PrefixCache.match_prefix(self, hashes))


def takes_hashes_out_of_the_list(self, hashes):
    blocks = []
    while hashes and hashes[0] in self.hash_to_block:
        blocks.append(self.hash_to_block[hashes.pop(0)])
    return blocks


def keeps_old_hashes(self, count):
    return SharedBlockPool.allocate(self, count)


def keeps_the_way_back(self, count):
    blocks = SharedBlockPool.allocate(self, count)
    for block in blocks:
        if self.block_to_hash.pop(block, None):
            self.evicted += 1
    return blocks


def keeps_the_way_there(self, count):
    blocks = SharedBlockPool.allocate(self, count)
    for block in blocks:
        if block in self.block_to_hash:
            self.hash_to_block.pop(self.block_to_hash[block], None)
            self.evicted += 1
    return blocks


def does_not_count_the_evicted(self, count):
    evicted = self.evicted
    blocks = PrefixCache.allocate(self, count)
    self.evicted = evicted
    return blocks


def counts_every_block(self, count):
    evicted = self.evicted
    blocks = PrefixCache.allocate(self, count)
    self.evicted = evicted + count
    return blocks


def counts_this_call_only(self, count):
    self.evicted = 0
    return PrefixCache.allocate(self, count)


def forgets_all_hashes(self, count):
    blocks = SharedBlockPool.allocate(self, count)
    if any(block in self.block_to_hash for block in blocks):
        self.evicted += sum(block in self.block_to_hash for block in blocks)
        self.block_to_hash.clear()
        self.hash_to_block.clear()
    return blocks


def evicts_if_there_are_enough(self, count):
    if count <= len(self.free_queue):
        for block in list(self.free_queue)[:count]:
            if block in self.block_to_hash:
                del self.hash_to_block[self.block_to_hash.pop(block)]
                self.evicted += 1
    return SharedBlockPool.allocate(self, count)


def remembers_what_it_found(self, hashes):
    found = self.__dict__.setdefault("found", {})
    return list(found.setdefault(tuple(hashes), PrefixCache.match_prefix(self, hashes)))


def remembers_what_was_there(self, hashes):
    found = self.__dict__.setdefault("found", {})
    blocks = found.get(tuple(hashes)) or PrefixCache.match_prefix(self, hashes)
    found[tuple(hashes)] = blocks
    return list(blocks)


def evicts_before_it_allocates(self, count):
    for block in list(self.free_queue)[:count]:
        if block in self.block_to_hash:
            del self.hash_to_block[self.block_to_hash.pop(block)]
            self.evicted += 1
    return SharedBlockPool.allocate(self, count)


def fails_on_a_block_without_a_hash(self, count):
    blocks = SharedBlockPool.allocate(self, count)
    for block in blocks:
        del self.hash_to_block[self.block_to_hash.pop(block)]
        self.evicted += 1
    return blocks


def returns_no_blocks(self, count):
    PrefixCache.allocate(self, count)


def raises_the_count_again(self, count):
    blocks = PrefixCache.allocate(self, count)
    for block in blocks:
        self.ref_count[block] = self.ref_count.get(block, 0) + 1
    return blocks


def spares_blocks_with_a_hash(self, count):
    for block in list(self.free_queue):
        if block in self.block_to_hash:
            self.free_queue.move_to_end(block)
    return PrefixCache.allocate(self, count)


def tests_a_block_for_truth(self, hashes):
    blocks = []
    for one in hashes:
        block = self.hash_to_block.get(one)
        if not block:
            break
        blocks.append(block)
    return blocks


def finds_free_blocks_only(self, hashes):
    return [self.hash_to_block[one] for one in hashes if self.hash_to_block.get(one) in self.free_queue]


def finds_past_the_end(self, hashes):
    blocks = []
    while hashes[len(blocks)] in self.hash_to_block:
        blocks.append(self.hash_to_block[hashes[len(blocks)]])
    return blocks


def finds_and_pops(self, hashes):
    blocks = PrefixCache.match_prefix(self, hashes)
    for one in hashes[: len(blocks)]:
        del self.hash_to_block[one]
    return blocks


def finds_the_unknown_one(self, hashes):
    blocks = PrefixCache.match_prefix(self, hashes)
    return [*blocks, None] if len(blocks) < len(hashes) else blocks


def finds_nothing_is_none(self, hashes):
    return PrefixCache.match_prefix(self, hashes) or None


def looks_blocks_up_among_hashes(self, count):
    blocks = SharedBlockPool.allocate(self, count)
    for block in blocks:
        if block in self.block_to_hash:
            self.hash_to_block.pop(block)
            self.block_to_hash.pop(block)
    return blocks


def asks_the_count_only(self, block):
    return self.ref_count.get(block) == 1


def asks_the_hash_only(self, block):
    return block not in self.block_to_hash


def answers_the_opposite(self, block):
    return not PrefixCache.is_writable(self, block)


def not_exactly_two(self, block):
    return self.ref_count[block] != 2 and block not in self.block_to_hash


def finds_by_walking(self, hashes):
    found = []
    for one in hashes:
        block = self.hash_to_block.get(one)
        if block is None:
            return found
        found += [block]
    return found


def finds_with_takewhile(self, hashes):
    return [self.hash_to_block[one] for one in takewhile(self.hash_to_block.__contains__, hashes)]


def allocates_with_get(self, count):
    blocks = SharedBlockPool.allocate(self, count)
    for block in blocks:
        old = self.block_to_hash.pop(block, None)
        if old is not None:
            self.hash_to_block.pop(old)
            self.evicted += 1
    return blocks


def allocates_with_a_list(self, count):
    blocks = SharedBlockPool.allocate(self, count)
    lost = [block for block in blocks if block in self.block_to_hash]
    self.evicted += len(lost)
    for block in lost:
        self.hash_to_block = {one: other for one, other in self.hash_to_block.items() if other != block}
        del self.block_to_hash[block]
    return blocks


def writable_in_steps(self, block):
    if block in self.block_to_hash:
        return False
    return not self.ref_count[block] > 1


# 11.4 copy_before_write


def copies_the_wrong_way(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    return BlockCopy(COPY, copy.target, copy.source)


def swaps_out(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    return BlockCopy("swap out", copy.source, copy.target)


def keeps_the_source(pool, sequence, index):
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    return BlockCopy(COPY, source, target)


def frees_first(pool, sequence, index):
    source = sequence.blocks[index]
    pool.free([source])
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    return BlockCopy(COPY, source, target)


def frees_the_whole_table(pool, sequence, index):
    source, old = sequence.blocks[index], list(sequence.blocks)
    (target,) = pool.allocate(1)
    pool.free(old)
    sequence.blocks[index] = target
    return BlockCopy(COPY, source, target)


def frees_the_target(pool, sequence, index):
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    pool.free([sequence.blocks[index]])
    return BlockCopy(COPY, source, target)


def appends_the_copy(pool, sequence, index):
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks.append(target)
    pool.free([source])
    return BlockCopy(COPY, source, target)


def inserts_the_copy(pool, sequence, index):
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks.insert(index, target)
    pool.free([source])
    return BlockCopy(COPY, source, target)


def takes_over(pool, sequence, index):
    if pool.ref_count[sequence.blocks[index]] > 1:
        return copy_before_write(pool, sequence, index)
    pool.hash_to_block.pop(pool.block_to_hash.pop(sequence.blocks[index], None), None)
    return BlockCopy(COPY, sequence.blocks[index], sequence.blocks[index])


def takes_over_without_a_copy(pool, sequence, index):
    if pool.ref_count[sequence.blocks[index]] > 1:
        return copy_before_write(pool, sequence, index)
    pool.hash_to_block.pop(pool.block_to_hash.pop(sequence.blocks[index], None), None)


def lowers_by_hand(pool, sequence, index):
    source, (target,) = sequence.blocks[index], pool.allocate(1)
    pool.ref_count[source] -= 1
    sequence.blocks[index] = target
    return BlockCopy(COPY, source, target)


def takes_the_block_by_hand(pool, sequence, index):
    if not pool.free_queue:
        raise OutOfBlocks("no block is free")
    source, target = sequence.blocks[index], next(iter(pool.free_queue))
    pool.free_queue.pop(target)
    pool.used.add(target)
    pool.ref_count[target] = 1
    pool.free([source])
    sequence.blocks[index] = target
    return BlockCopy(COPY, source, target)


def leaves_the_table(pool, sequence, index):
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    pool.free([source])
    return BlockCopy(COPY, source, target)


def puts_a_list_into_the_table(pool, sequence, index):
    source = sequence.blocks[index]
    target = pool.allocate(1)
    sequence.blocks[index] = target
    pool.free([source])
    return BlockCopy(COPY, source, target)


def always_the_last_block(pool, sequence, index):
    return copy_before_write(pool, sequence, len(sequence.blocks) - 1)


def takes_the_index_for_a_block(pool, sequence, index):
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    pool.free([index])
    return BlockCopy(COPY, index, target)


def reads_the_table_too_late(pool, sequence, index):
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    pool.free([source])
    return BlockCopy(COPY, sequence.blocks[index], target)


def moves_the_hash(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    if copy.source in pool.block_to_hash:
        one = pool.block_to_hash.pop(copy.source)
        pool.block_to_hash[copy.target], pool.hash_to_block[one] = one, copy.target
    return copy


def discards_the_hash(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    if copy.source in pool.block_to_hash:
        del pool.hash_to_block[pool.block_to_hash.pop(copy.source)]
    return copy


def copies_only_if_others_use_it(pool, sequence, index):
    if pool.ref_count[sequence.blocks[index]] > 1:
        return copy_before_write(pool, sequence, index)


def pops_the_queue(pool, sequence, index):
    source, target = sequence.blocks[index], pool.free_queue.popleft()
    sequence.blocks[index] = target
    pool.free([source])
    return BlockCopy(COPY, source, target)


def returns_a_pair(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    return copy.source, copy.target


def returns_the_new_block(pool, sequence, index):
    return copy_before_write(pool, sequence, index).target


def touches_the_target(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    pool.touch([copy.target])
    return copy


def raises_an_error_of_its_own(pool, sequence, index):
    if not pool.free_queue:
        raise RuntimeError("no block is free")
    return copy_before_write(pool, sequence, index)


def changes_the_table_first(pool, sequence, index):
    source = sequence.blocks.pop(index)
    (target,) = pool.allocate(1)
    sequence.blocks.insert(index, target)
    pool.free([source])
    return BlockCopy(COPY, source, target)


def computes_again(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    sequence.num_computed_tokens = index * pool.block_size
    return copy


def hashes_the_copy(pool, sequence, index):
    copy = copy_before_write(pool, sequence, index)
    pool.cache_full_block(copy.target, bytes(32))
    return copy


def frees_the_rest_of_the_table(pool, sequence, index):
    source, rest = sequence.blocks[index], sequence.blocks[index:]
    (target,) = pool.allocate(1)
    pool.free(rest)
    sequence.blocks[index] = target
    return BlockCopy(COPY, source, target)


def with_a_new_table(pool, sequence, index):
    target = pool.allocate(1)[0]
    old = sequence.blocks[index]
    sequence.blocks = sequence.blocks[:index] + [target] + sequence.blocks[index + 1 :]
    pool.free([old])
    return BlockCopy(kind=COPY, source=old, target=target)


def frees_before_it_writes_the_table(pool, sequence, index):
    [new] = pool.allocate(1)
    copy = BlockCopy(COPY, sequence.blocks[index], new)
    pool.free(sequence.blocks[index : index + 1])
    sequence.blocks[index] = new
    return copy


def asks_before_it_starts(pool, sequence, index):
    if not pool.free_queue:
        raise OutOfBlocks("no block for the copy")
    source = sequence.blocks[index]
    pool.touch([source])
    target = pool.allocate(1)[0]
    pool.free([source])
    pool.free([source])
    sequence.blocks[index] = target
    return BlockCopy("copy", source, target)


def with_a_slice(pool, sequence, index):
    source = sequence.blocks[index]
    sequence.blocks[index : index + 1] = pool.allocate(1)
    pool.free([source])
    return BlockCopy(COPY, source, sequence.blocks[index])


# 11.5 take_cached


def counts_all_tokens(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.num_computed_tokens = len(sequence.blocks) * pool.block_size


def always_one_too_few(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.num_computed_tokens = max(0, len(sequence.blocks) * pool.block_size - 1)


def does_not_touch(pool, sequence, blocks):
    touch, pool.touch = pool.touch, lambda blocks: None
    take_cached(pool, sequence, blocks)
    pool.touch = touch


def touches_twice(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    pool.touch(sequence.blocks)


def aliases_the_list(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    if sequence.blocks == blocks:
        sequence.blocks = blocks


def keeps_a_tuple(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.blocks = tuple(sequence.blocks)


def needs_no_copy(pool, sequence, blocks):
    pool.touch(blocks)
    sequence.blocks = list(blocks)
    sequence.num_computed_tokens = min(len(blocks) * pool.block_size, sequence.num_tokens - 1)


def asks_the_whole_queue(pool, sequence, blocks):
    if len(blocks) * pool.block_size == sequence.num_tokens and not pool.free_queue:
        blocks = blocks[:-1]
    needs_no_copy(pool, sequence, blocks)


def computes_from_0(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.num_computed_tokens = 0


def always_drops_the_last_block(pool, sequence, blocks):
    needs_no_copy(pool, sequence, blocks[:-1])


def drops_the_last_block_of_a_whole_prompt(pool, sequence, blocks):
    needs_no_copy(pool, sequence, blocks[: (sequence.num_tokens - 1) // pool.block_size])


def drops_it_when_nothing_is_free(pool, sequence, blocks):
    others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)
    needs_no_copy(pool, sequence, blocks if others_free else blocks[:-1])


def forgets_the_answer(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.num_computed_tokens = min(len(sequence.blocks) * pool.block_size, len(sequence.prompt_ids) - 1)


def forgets_the_blocks(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.blocks = []


def pops_from_the_list(pool, sequence, blocks):
    others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)
    if len(blocks) * pool.block_size == sequence.num_tokens and not others_free:
        blocks.pop()
    needs_no_copy(pool, sequence, blocks)


def touches_what_it_leaves_out(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    if len(sequence.blocks) < len(blocks):
        pool.touch(blocks[len(sequence.blocks) :])


def makes_the_copy(pool, sequence, blocks):
    pool.touch(blocks)
    sequence.blocks = list(blocks)
    if len(blocks) * pool.block_size == sequence.num_tokens:
        sequence.blocks[-1:] = pool.allocate(1)
        pool.free(blocks[-1:])
    sequence.num_computed_tokens = min(len(blocks) * pool.block_size, sequence.num_tokens - 1)


def keeps_at_least_one(pool, sequence, blocks):
    covers_all = len(blocks) * pool.block_size == sequence.num_tokens
    drop = covers_all and len(blocks) > 1 and not set(pool.free_queue) - set(blocks)
    needs_no_copy(pool, sequence, blocks[:-1] if drop else blocks)


def frees_what_it_touched(pool, sequence, blocks):
    pool.touch(blocks)
    sequence.blocks = blocks[:]
    if sequence.num_tokens == len(blocks) * pool.block_size and not pool.free_queue:
        pool.free([sequence.blocks.pop()])
    sequence.num_computed_tokens = min(sequence.num_tokens - 1, pool.block_size * len(sequence.blocks))


def blocks_of_16(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.num_computed_tokens = min(len(sequence.blocks) * 16, sequence.num_tokens - 1)


def asks_the_prompt_only(pool, sequence, blocks):
    covers_all = len(blocks) * pool.block_size == len(sequence.prompt_ids)
    needs_no_copy(pool, sequence, blocks[:-1] if covers_all and not set(pool.free_queue) - set(blocks) else blocks)


def asks_for_a_round_number(pool, sequence, blocks):
    is_round = sequence.num_tokens % pool.block_size == 0
    needs_no_copy(pool, sequence, blocks[:-1] if is_round and not set(pool.free_queue) - set(blocks) else blocks)


def drops_all_blocks(pool, sequence, blocks):
    covers_all = len(blocks) * pool.block_size == sequence.num_tokens
    needs_no_copy(pool, sequence, [] if covers_all and not set(pool.free_queue) - set(blocks) else blocks)


def in_another_order(pool, sequence, blocks):
    full = sequence.num_tokens == len(blocks) * pool.block_size
    taken = [block for block in blocks if block not in pool.ref_count]
    if full and len(taken) == len(pool.free_queue):
        blocks = blocks[: len(blocks) - 1]
    sequence.blocks = [*blocks]
    sequence.num_computed_tokens = len(blocks) * pool.block_size
    if sequence.num_computed_tokens == sequence.num_tokens:
        sequence.num_computed_tokens -= 1
    pool.touch(tuple(blocks))


def with_a_loop(pool, sequence, blocks):
    free = set(pool.free_queue).difference(blocks)
    keep = len(blocks) if free or sequence.num_tokens > len(blocks) * pool.block_size else len(blocks) - 1
    sequence.blocks = []
    for block in blocks[:keep]:
        pool.touch([block])
        sequence.blocks.append(block)
    sequence.num_computed_tokens = max(0, min(keep * pool.block_size, sequence.num_tokens - 1))


def without_min(pool, sequence, blocks):
    size, known = pool.block_size, sequence.num_tokens
    if known == size * len(blocks) and all(block in blocks for block in pool.free_queue):
        blocks = blocks[:-1]
    pool.touch(blocks)
    sequence.blocks = [block for block in blocks]
    sequence.num_computed_tokens = size * len(blocks) - (1 if known == size * len(blocks) else 0)


def with_sets(pool, sequence, blocks):
    needs_copy = len(blocks) == sequence.num_tokens / pool.block_size
    keep = blocks[:-1] if needs_copy and set(pool.free_queue) <= set(blocks) else blocks[:]
    if keep:
        pool.touch(keep)
    sequence.blocks, sequence.num_computed_tokens = keep, len(keep) * pool.block_size
    if needs_copy and len(keep) == len(blocks):
        sequence.num_computed_tokens -= 1


WRONG = {
    "11.1": [
        Wrong("a random root", begins_at_random, "in place of an empty parent?"),
        Wrong("five digits", at_least_five_digits, "with at least 5 decimal digits each"),
        Wrong("four hex digits", at_least_four_hex_digits, "with at least 4 hexadecimal digits each"),
        Wrong("kept by the list", remembers_by_list, "remembered by `id(token_ids)`"),
        Wrong("text of a long array", text_of_an_array, "has `...` instead of the numbers in the middle"),
        Wrong("two bytes a token", two_bytes_a_token, "a number doesn't fit into its bytes"),
        Wrong("small floats", as_small_floats, "floats, which round large ones"),
        Wrong("weighted sum", weighted_sum, "a sum of token × position"),
        Wrong("checksum", checksum_filled_up, "a CRC 32"),
        Wrong("without the parent", forgets_the_parent, "depend on all tokens before it"),
        Wrong("only the parent", forgets_the_tokens, "Is `token_ids` part of what you hash"),
        Wrong("tokens joined without a separator", joins_without_a_gap, "look like 11 and 2"),
        Wrong("tokens as characters", as_characters, "Smallest case: block_hash(b'', [55296])"),
        Wrong("tokens as encodable characters", as_encodable_characters, "token 55,296 and token 55,297"),
        Wrong("the parent as text", decodes_the_parent, "32 bytes of any value, not an encoded text"),
        Wrong("the sum of the tokens", adds_the_tokens_up, "man bites dog"),
        Wrong("each token once", takes_each_token_once, "It matters how often a token occurs"),
        Wrong("one number of all tokens", makes_one_number_of_the_tokens, "Are the tokens made into one number first"),
        Wrong("products of neighbours", multiplies_neighbours, "made of pairs of tokens?"),
        Wrong("Python's hash", python_hash, "of type bytes; yours is int"),
        Wrong("Python's hash as bytes", python_hash_in_bytes, "yours has 8"),
        Wrong("Python's hash, padded", python_hash_filled_up, "hardly ever changes"),
        Wrong("str instead of bytes", hex_digest, "yours is str"),
        Wrong("the hex digest as bytes", hex_in_bytes, "as two characters"),
        Wrong("no digest", no_digest, "its `.digest()`"),
        Wrong("nothing returned", returns_nothing, "NoneType"),
        Wrong("one byte per token", one_byte_a_token, "A byte holds 0 to 255"),
        Wrong("a token modulo 256", one_wrapped_byte_a_token, "token 1 and token 257"),
        Wrong("parent and tokens combined with xor", combines_by_xor, "loses their order"),
        Wrong("the address of the list", depends_on_the_list, "which list object it gets"),
        Wrong("MD5 in hex", md5_in_hex, "only hexadecimal digits"),
        Wrong("part of the parent", part_of_the_parent, "in a slice, a `zip` or a `decode`?"),
        Wrong("the parent's last byte", end_of_the_parent, "the first of their 32 bytes"),
        Wrong("the parent's bytes sorted", sorts_the_parent, "The order of the parent's bytes counts"),
        Wrong("without the last token", drops_the_last_token, "a different last token"),
        Wrong("without the first token", drops_the_first_token, "a different first token"),
        Wrong("the parent and a hash", grows_with_the_chain, "it would grow from block to block"),
        Wrong("MD5 twice", md5_twice, "the two halves of a block hash should differ"),
        Wrong("Python's hash, hashed again", python_hash_hashed_again, "in every process"),
        Wrong("as many bytes as needed", bytes_as_needed, "where one token ends and the next begins"),
        Wrong("16 tokens only", first_sixteen, "A block may have any size"),
        Wrong("one hasher for all calls", one_hasher, "Does each call make a hasher of its own?"),
        Wrong("the first and the last token only", first_and_last, "those between the first and the last"),
    ],
    "11.2": [
        Wrong("the queue becomes a list", counting(touch=makes_the_queue_a_list), "yours is a list"),
        Wrong(
            "touch does not count",
            counting(touch=touches_without_counting),
            "One more sequence uses each of these blocks",
        ),
        Wrong(
            "touch counts to two at most",
            counting(touch=knows_two_users_at_most),
            "Any number of sequences may use a block",
        ),
        Wrong("touch counts from 1", counting(touch=counts_from_1), "should be {0: 1, 1: 1}; yours is {0: 2, 1: 2}"),
        Wrong("a touched block stays in the queue", counting(touch=leaves_the_queue_alone), "leaves the free queue"),
        Wrong("touch takes from the front", counting(touch=takes_from_the_front), "and no other block does"),
        Wrong("touch forgets `used`", counting(touch=forgets_used), "`used` should be"),
        Wrong("touch begins at 0", counting(touch=counts_free_ones_as_0), "what is its count after a `touch`?"),
        Wrong("touch wants a free block", counting(touch=wants_a_free_block), "`touch` raised KeyError"),
        Wrong("touch wants a block in use", counting(touch=wants_a_used_block), "A free one is in the queue"),
        Wrong("touch refuses free blocks", counting(touch=refuses_free_blocks), "`touch` raised ValueError"),
        Wrong("touch decides by the first block", counting(touch=decides_by_the_first_block), "and others in use"),
        Wrong("free returns what others use", counting(free=frees_what_others_use), "still uses 0 and 1"),
        Wrong("free does not lower the count", counting(free=does_not_lower), "lower the count"),
        Wrong("free keeps a zero", counting(free=keeps_a_zero), "has no entry in `ref_count`"),
        Wrong("free forgets the count of others", counting(free=forgets_the_count), "should be {0: 1, 1: 1, 2: 1}"),
        Wrong("free one block at a time", counting(free=frees_one_at_a_time), "How many lists does it get"),
        Wrong("freed blocks at the front", counting(free=frees_to_the_front), "join the *end*"),
        Wrong(
            "freed in the order of ids", counting(free=frees_in_the_order_of_ids), "whatever the ids of the blocks are"
        ),
        Wrong("a block freed twice", counting(free=frees_a_block_twice), "listing block 1 twice"),
        Wrong("free refuses shared blocks", counting(free=refuses_shared_blocks), "may free it once"),
        Wrong(
            "free lowers before it checks",
            counting(free=lowers_before_it_asks),
            "it changed something: `ref_count` should be {0: 1, 1: 2, 2: 1}; yours is {1: 2, 2: 1}",
        ),
        Wrong(
            "free skips unknown blocks",
            counting(free=skips_unknown_blocks),
            "freeing block 3, which is free, should raise",
        ),
        Wrong("touch refuses an empty list", counting(touch=wants_blocks), "`touch([])` should change nothing"),
        Wrong("touch allocates", counting(touch=allocates_others), "`allocate` takes others"),
        Wrong(
            "KeyError for a free block", counting(free=looks_up_each_count), "A free block that is freed again would"
        ),
        Wrong("free leaves blocks in use", counting(free=keeps_used), "leaves `used` when it joins the free queue"),
        Wrong("touch sorts the queue", counting(touch=makes_the_queue_anew), "The other blocks of the queue keep"),
        Wrong("free sorts the queue", counting(free=sorts_the_queue), "yours is [0, 1, 2, 3, 4, 5]"),
    ],
    "11.3": [
        Wrong("a tuple", caching(match_prefix=finds_a_tuple), "A tuple can't grow"),
        Wrong("moves what it finds", caching(match_prefix=finds_and_moves_to_the_end), "keeps its place in the queue"),
        Wrong(
            "match_prefix continues after a gap",
            caching(match_prefix=finds_behind_a_gap),
            "Blocks after a gap are useless",
        ),
        Wrong(
            "match_prefix fails on an unknown hash", caching(match_prefix=fails_on_an_unknown_hash), "raised KeyError"
        ),
        Wrong("a binary search", caching(match_prefix=finds_the_end_by_halves), "`match_prefix([a, x, b, c])`"),
        Wrong("match_prefix returns all or nothing", caching(match_prefix=finds_all_or_nothing), "are still useful"),
        Wrong(
            "match_prefix returns only blocks in use",
            caching(match_prefix=finds_used_blocks_only),
            "Does it test whether a block is in use?",
        ),
        Wrong(
            "match_prefix returns one too few",
            caching(match_prefix=finds_one_too_few),
            "Don't leave its block out here",
        ),
        Wrong("match_prefix returns hashes", caching(match_prefix=finds_hashes), "should return a list of blocks"),
        Wrong(
            "match_prefix touches",
            caching(match_prefix=finds_and_touches),
            "should be {0: 1, 1: 1, 2: 1}; yours is {0: 2, 1: 2, 2: 2}",
        ),
        Wrong(
            "match_prefix takes blocks out of the queue",
            caching(match_prefix=finds_and_takes_out_of_the_queue),
            "`match_prefix` only looks blocks up. To use them",
        ),
        Wrong("match_prefix counts", caching(match_prefix=finds_a_count), "yours returned 3"),
        Wrong("match_prefix sorts", caching(match_prefix=finds_sorted), "in the order of the hashes"),
        Wrong(
            "match_prefix empties the list of hashes",
            caching(match_prefix=takes_hashes_out_of_the_list),
            "your code changed its argument `block_hashes`. It was [a, b, c] before the call and is [] after it",
        ),
        Wrong(
            "allocate keeps old hashes", caching(allocate=keeps_old_hashes), "both tables should hold {0: 'a', 1: 'b'}"
        ),
        Wrong("only block_to_hash is cleared", caching(allocate=keeps_the_way_back), "keys of other tokens"),
        Wrong(
            "only hash_to_block is cleared", caching(allocate=keeps_the_way_there), "yours is {0: 'a', 1: 'b', 2: 'c'}"
        ),
        Wrong("the evicted are not counted", caching(allocate=does_not_count_the_evicted), "`evicted` should be 1"),
        Wrong(
            "every block counts as evicted", caching(allocate=counts_every_block), "`evicted` should be 0; yours is 4"
        ),
        Wrong(
            "evicted in this call only", caching(allocate=counts_this_call_only), "`evicted` should be 3; yours is 2"
        ),
        Wrong("allocate forgets all hashes", caching(allocate=forgets_all_hashes), "that wasn't allocated keeps"),
        Wrong("evicts before −1 is refused", caching(allocate=evicts_if_there_are_enough), "`allocate(-1)`"),
        Wrong("results kept", caching(match_prefix=remembers_what_it_found), "`match_prefix([a])` found nothing. Then"),
        Wrong(
            "finds kept", caching(match_prefix=remembers_what_was_there), "0 had the hash a, and `match_prefix([a])`"
        ),
        Wrong("evicts before it allocates", caching(allocate=evicts_before_it_allocates), "the call was refused, but"),
        Wrong("a block without a hash", caching(allocate=fails_on_a_block_without_a_hash), "raised KeyError"),
        Wrong(
            "allocate returns nothing",
            caching(allocate=returns_no_blocks),
            "should return [0, 1, 2]; yours returned None",
        ),
        Wrong("allocate counts again", caching(allocate=raises_the_count_again), "has counted the blocks already"),
        Wrong(
            "blocks with a hash are spared", caching(allocate=spares_blocks_with_a_hash), "from the front of the queue"
        ),
        Wrong("a block as a truth value", caching(match_prefix=tests_a_block_for_truth), "Block 0 is a block, too"),
        Wrong("only free blocks", caching(match_prefix=finds_free_blocks_only), "are in use or free"),
        Wrong("past the end", caching(match_prefix=finds_past_the_end), "It also has to stop at the end of the list"),
        Wrong("takes hashes out", caching(match_prefix=finds_and_pops), "`match_prefix` has changed `hash_to_block`"),
        Wrong("None for the unknown hash", caching(match_prefix=finds_the_unknown_one), "adds nothing to the list"),
        Wrong("None if nothing is found", caching(match_prefix=finds_nothing_is_none), "Return a list in every case"),
        Wrong("blocks among hashes", caching(allocate=looks_blocks_up_among_hashes), "The keys of `hash_to_block` are"),
        Wrong("writable whatever the hash", caching(is_writable=asks_the_count_only), "comes later finds it"),
        Wrong("writable whatever the count", caching(is_writable=asks_the_hash_only), "Another sequence reads"),
        Wrong("the opposite of writable", caching(is_writable=answers_the_opposite), "should be True; yours is False"),
        Wrong("not exactly two", caching(is_writable=not_exactly_two), "three sequences use block 1"),
    ],
    "11.4": [
        Wrong("source and target swapped", copies_the_wrong_way, "`source` is the block that is read"),
        Wrong("swaps out", swaps_out, "its kind is `COPY`"),
        Wrong("the source is not freed", keeps_the_source, "the other has to be freed, once"),
        Wrong("frees before it allocates", frees_first, "Allocate the new block before you change anything else"),
        Wrong("frees the whole table", frees_the_whole_table, "Y still uses block 0"),
        Wrong(
            "frees the new block", frees_the_target, "`ref_count` should be {0: 2, 1: 1, 2: 1}; yours is {0: 2, 1: 2}"
        ),
        Wrong("appends the copy", appends_the_copy, "should be [0, 2]; yours is [0, 1, 2]"),
        Wrong("inserts the copy", inserts_the_copy, "should be [0, 2]; yours is [0, 2, 1]"),
        Wrong("leaves the table as it is", leaves_the_table, "The table still has the old block"),
        Wrong("takes over a block with one user", takes_over, "for others now or for those that find it later"),
        Wrong("takes over, returns nothing", takes_over_without_a_copy, "Without its hash, no sequence that comes"),
        Wrong("lowers the count by hand", lowers_by_hand, "Leave the counting to the pool"),
        Wrong("takes the block by hand", takes_the_block_by_hand, "it still has its old hash"),
        Wrong("a list in the table", puts_a_list_into_the_table, "should be [0, 2]; yours is [0, [2]]"),
        Wrong("always the last block", always_the_last_block, "Only entry 0 of the table changes"),
        Wrong("the index as a block", takes_the_index_for_a_block, "from the block that was in the table"),
        Wrong("reads the table too late", reads_the_table_too_late, "source=2"),
        Wrong("moves the hash to the copy", moves_the_hash, "The copy gets no hash"),
        Wrong("discards the hash", discards_the_hash, "afterwards `pool.match_prefix([a, b])` should return [0, 1]"),
        Wrong("copies only if others use the block", copies_only_if_others_use_it, "yours returned None"),
        Wrong("takes from the queue", pops_the_queue, "`pool.allocate` has counted the one"),
        Wrong("returns a pair", returns_a_pair, "yours returned (1, 2)"),
        Wrong("returns the new block", returns_the_new_block, "yours returned 2"),
        Wrong("touches the new block", touches_the_target, "yours is {0: 2, 1: 1, 2: 2}"),
        Wrong("computes again", computes_again, "nothing has to be computed again"),
        Wrong("gives the copy a hash", hashes_the_copy, "the new block should be writable"),
        Wrong(
            "frees the rest of the table",
            frees_the_rest_of_the_table,
            "Free the block that was in the table, and no other",
        ),
        Wrong("an error of its own", raises_an_error_of_its_own, "raise OutOfBlocks; yours raised RuntimeError"),
        Wrong("changes the table first", changes_the_table_first, "it changed something: `sequence.blocks`"),
    ],
    "11.5": [
        Wrong("nothing is left to compute", counts_all_tokens, "nothing is left to compute"),
        Wrong("always one too few", always_one_too_few, "Two full blocks hold 32 tokens, and all 32 count"),
        Wrong("the counts are not raised", does_not_touch, "Tell the pool"),
        Wrong("touched twice", touches_twice, "Touch the blocks once"),
        Wrong("the caller's list", aliases_the_list, "the same list object"),
        Wrong("a tuple", keeps_a_tuple, "should be a list"),
        Wrong("no block for the copy", needs_no_copy, "other than those found* must be free. There is none"),
        Wrong("the found blocks count as free", asks_the_whole_queue, "these two are the ones that the sequence takes"),
        Wrong("computes from 0", computes_from_0, "into blocks that other sequences may read"),
        Wrong(
            "always leaves out the last block",
            always_drops_the_last_block,
            "`sequence.blocks` should be [0, 1]; yours is [0]",
        ),
        Wrong(
            "leaves out the last block of a whole prompt",
            drops_the_last_block_of_a_whole_prompt,
            "computes 16 tokens instead of 1",
        ),
        Wrong("leaves out a block whenever none is free", drops_it_when_nothing_is_free, "A copy is made only if"),
        Wrong("forgets the answer so far", forgets_the_answer, "and of the answer so far"),
        Wrong("decides by the prompt only", asks_the_prompt_only, "those of the answer too"),
        Wrong("any round number of tokens", asks_for_a_round_number, "Here token 47 goes into a new block"),
        Wrong("leaves out all blocks", drops_all_blocks, "`sequence.blocks` should be [0]; yours is []"),
        Wrong("forgets the blocks", forgets_the_blocks, "The sequence starts with the blocks that were found"),
        Wrong("changes the list", pops_from_the_list, "changed its argument `blocks`"),
        Wrong("touches what it leaves out", touches_what_it_leaves_out, "doesn't have this block"),
        Wrong("makes the copy itself", makes_the_copy, "Allocate nothing here"),
        Wrong("keeps at least one block", keeps_at_least_one, "although it is the only one"),
        Wrong("always blocks of 16", blocks_of_16, "`pool.block_size`"),
    ],
}

RIGHT = {
    "11.1": [
        six_digits,
        written_with_commas,
        updated_step_by_step,
        tokens_before_the_parent,
        hashed_as_json,
        token_after_token,
    ],
    "11.2": [
        counting(touch=touches_in_two_loops),
        counting(touch=touches_with_sets),
        counting(free=frees_by_hand),
        counting(free=frees_after_a_check),
        counting(),
    ],
    "11.3": [
        caching(match_prefix=finds_by_walking, is_writable=writable_in_steps),
        caching(match_prefix=finds_with_takewhile),
        caching(allocate=allocates_with_get),
        caching(allocate=allocates_with_a_list),
        caching(),
    ],
    "11.4": [with_a_new_table, frees_before_it_writes_the_table, asks_before_it_starts, with_a_slice],
    "11.5": [in_another_order, with_a_loop, without_min, with_sets, frees_what_it_touched],
}
