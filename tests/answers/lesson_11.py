"""Answers to the exercises of lesson 11: what learners get wrong, and other ways to be right."""

import hashlib
import struct
from array import array

from answers import Wrong
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import PrefixCache, block_hash
from lessons_lib.scheduling.preemption import take_cached

# 11.1 block_hash


def forgets_the_parent(parent, token_ids):
    return block_hash(b"", token_ids)


def forgets_the_tokens(parent, token_ids):
    return hashlib.sha256(parent).digest()


def joins_without_a_gap(parent, token_ids):
    return hashlib.sha256(parent + "".join(map(str, token_ids)).encode()).digest()


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


# 11.2 PrefixCache


def sharing(match_prefix=PrefixCache.match_prefix, touch=PrefixCache.touch, free=PrefixCache.free):
    """The reference with one method made another way."""
    return type("PrefixCache", (PrefixCache,), {"match_prefix": match_prefix, "touch": touch, "free": free})


def finds_behind_a_gap(self, hashes):
    return [self.hash_to_block[one] for one in hashes if one in self.hash_to_block]


def fails_on_an_unknown_hash(self, hashes):
    return [self.hash_to_block[one] for one in hashes]


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


def touches_without_counting(self, blocks):
    for block in blocks:
        if block not in self.ref_count and block not in self.block_to_hash:
            raise ValueError(block)
        self.ref_count.setdefault(block, 1)
        self.free_queue.pop(block, None)
    self.used.update(blocks)


def knows_two_users_at_most(self, blocks):
    PrefixCache.touch(self, blocks)
    for block in blocks:
        self.ref_count[block] = 2 if self.ref_count[block] > 1 else 1


def leaves_the_queue_alone(self, blocks):
    queue = list(self.free_queue)
    PrefixCache.touch(self, blocks)
    self.free_queue.clear()
    self.free_queue.extend(queue)


def forgets_used(self, blocks):
    used = set(self.used)
    PrefixCache.touch(self, blocks)
    self.used = used


def touches_anything(self, blocks):
    for block in blocks:
        self.ref_count[block] = self.ref_count.get(block, 0) + 1
        self.free_queue.pop(block, None)
    self.used.update(blocks)


def touches_half(self, blocks):
    for block in blocks:
        if block not in self.ref_count and block not in self.block_to_hash:
            raise ValueError(block)
        self.ref_count[block] = self.ref_count.get(block, 0) + 1
        self.free_queue.pop(block, None)
        self.used.add(block)


def wants_a_hash(self, blocks):
    if any(block not in self.block_to_hash for block in blocks):
        raise ValueError("no hash")
    PrefixCache.touch(self, blocks)


def wants_a_free_block(self, blocks):
    for block in blocks:
        del self.free_queue[block]
    PrefixCache.touch(self, blocks)


def loses_hashes_in_touch(self, blocks):
    PrefixCache.touch(self, blocks)
    for block in blocks:
        if self.ref_count[block] == 1 and block in self.block_to_hash:
            del self.hash_to_block[self.block_to_hash.pop(block)]


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


def loses_the_hashes(self, blocks):
    PrefixCache.free(self, blocks)
    for block in blocks:
        if block not in self.ref_count and block in self.block_to_hash:
            del self.hash_to_block[self.block_to_hash.pop(block)]


def frees_one_at_a_time(self, blocks):
    for block in blocks:
        PrefixCache.free(self, [block])


def frees_to_the_front(self, blocks):
    PrefixCache.free(self, blocks)
    for block in blocks:
        if block not in self.ref_count:
            self.free_queue.move_to_end(block, last=False)


def frees_a_block_twice(self, blocks):
    BlockPool.free(self, [block for block in blocks if self.ref_count.get(block, 1) == 1])
    lower(self, blocks)


def refuses_shared_blocks(self, blocks):
    if any(self.ref_count.get(block, 1) > 1 for block in blocks):
        raise ValueError("others use it")
    PrefixCache.free(self, blocks)


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
    PrefixCache.free(self, [block for block in blocks if block in self.ref_count])


def sorts_the_queue(self, blocks):
    PrefixCache.free(self, blocks)
    for block in sorted(self.free_queue):
        self.free_queue.move_to_end(block)


def frees_only_unhashed(self, blocks):
    PrefixCache.free(self, blocks)
    for block in blocks:
        if block in self.block_to_hash:
            self.free_queue.pop(block, None)


def finds_by_walking(self, hashes):
    found = ()
    for one in hashes:
        block = self.hash_to_block.get(one)
        if block is None:
            return found
        found += (block,)
    return found


def touches_in_two_loops(self, blocks):
    unknown = [block for block in blocks if not (block in self.used or block in self.block_to_hash)]
    if unknown:
        raise ValueError(f"{unknown} contain nothing")
    for block in blocks:
        if block in self.free_queue:
            del self.free_queue[block]
            self.used.add(block)
            self.ref_count[block] = 0
        self.ref_count[block] += 1


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


# 11.3 take_cached


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


def blocks_of_16(pool, sequence, blocks):
    take_cached(pool, sequence, blocks)
    sequence.num_computed_tokens = min(len(sequence.blocks) * 16, sequence.num_tokens - 1)


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


WRONG = {
    "11.1": [
        Wrong("without the parent", forgets_the_parent, "depend on all tokens before it"),
        Wrong("only the parent", forgets_the_tokens, "Is `token_ids` part of what you hash"),
        Wrong("tokens joined without a separator", joins_without_a_gap, "look like 11 and 2"),
        Wrong("the sum of the tokens", adds_the_tokens_up, "man bites dog"),
        Wrong("each token once", takes_each_token_once, "It matters how often a token occurs"),
        Wrong("Python's hash", python_hash, "of type bytes; yours is int"),
        Wrong("Python's hash as bytes", python_hash_in_bytes, "yours has 8"),
        Wrong("Python's hash, padded", python_hash_filled_up, "hardly ever changes"),
        Wrong("str instead of bytes", hex_digest, "yours is str"),
        Wrong("the hex digest as bytes", hex_in_bytes, "yours has 64"),
        Wrong("no digest", no_digest, "its `.digest()`"),
        Wrong("nothing returned", returns_nothing, "NoneType"),
        Wrong("one byte per token", one_byte_a_token, "A byte holds 0 to 255"),
        Wrong("a token modulo 256", one_wrapped_byte_a_token, "token 1 and token 257"),
        Wrong("parent and tokens combined with xor", combines_by_xor, "loses their order"),
        Wrong("the address of the list", depends_on_the_list, "which list object it gets"),
        Wrong("MD5 in hex", md5_in_hex, "only hexadecimal digits"),
        Wrong("part of the parent", part_of_the_parent, "All 32 bytes of the parent"),
        Wrong("without the last token", drops_the_last_token, "a different last token"),
        Wrong("without the first token", drops_the_first_token, "a different first token"),
    ],
    "11.2": [
        Wrong(
            "match_prefix continues after a gap",
            sharing(match_prefix=finds_behind_a_gap),
            "Blocks after a gap are useless",
        ),
        Wrong(
            "match_prefix fails on an unknown hash", sharing(match_prefix=fails_on_an_unknown_hash), "raised KeyError"
        ),
        Wrong("match_prefix returns all or nothing", sharing(match_prefix=finds_all_or_nothing), "are still useful"),
        Wrong(
            "match_prefix returns only blocks in use",
            sharing(match_prefix=finds_used_blocks_only),
            "The hashes are still there",
        ),
        Wrong(
            "match_prefix returns one too few",
            sharing(match_prefix=finds_one_too_few),
            "should return [0, 1, 2]; yours returned [0, 1]",
        ),
        Wrong("match_prefix returns hashes", sharing(match_prefix=finds_hashes), "should return a list of blocks"),
        Wrong(
            "match_prefix touches",
            sharing(match_prefix=finds_and_touches),
            "`match_prefix` only looks blocks up. To use them",
        ),
        Wrong(
            "match_prefix takes blocks out of the queue",
            sharing(match_prefix=finds_and_takes_out_of_the_queue),
            "only looks blocks up, free ones too",
        ),
        Wrong("match_prefix counts", sharing(match_prefix=finds_a_count), "yours returned 3"),
        Wrong("match_prefix sorts", sharing(match_prefix=finds_sorted), "in the order of the hashes"),
        Wrong(
            "touch does not count",
            sharing(touch=touches_without_counting),
            "One more sequence uses each of these blocks",
        ),
        Wrong(
            "touch counts to two at most",
            sharing(touch=knows_two_users_at_most),
            "Any number of sequences may use a block",
        ),
        Wrong("a touched block stays in the queue", sharing(touch=leaves_the_queue_alone), "must leave the free queue"),
        Wrong("touch forgets `used`", sharing(touch=forgets_used), "`used` should be"),
        Wrong("touch accepts anything", sharing(touch=touches_anything), "which is free and has no hash, should raise"),
        Wrong("touch does half", sharing(touch=touches_half), "it changed something"),
        Wrong("touch wants a hash", sharing(touch=wants_a_hash), "A block in use may have no hash yet"),
        Wrong("touch wants a free block", sharing(touch=wants_a_free_block), "KeyError"),
        Wrong("touch loses hashes", sharing(touch=loses_hashes_in_touch), "Shared blocks keep their hashes"),
        Wrong("free returns what others use", sharing(free=frees_what_others_use), "still uses 0 and 1"),
        Wrong("free does not lower the count", sharing(free=does_not_lower), "lower the count"),
        Wrong("free keeps a zero", sharing(free=keeps_a_zero), "has no entry in `ref_count`"),
        Wrong("free loses the hashes", sharing(free=loses_the_hashes), "A free block keeps its contents"),
        Wrong("free one block at a time", sharing(free=frees_one_at_a_time), "in one call, in the order of the tokens"),
        Wrong("freed blocks at the front", sharing(free=frees_to_the_front), "join the *end*"),
        Wrong("a block freed twice", sharing(free=frees_a_block_twice), "listing block 1 twice"),
        Wrong("free refuses shared blocks", sharing(free=refuses_shared_blocks), "may free it once"),
        Wrong(
            "free lowers before it checks",
            sharing(free=lowers_before_it_asks),
            "it changed something: `ref_count` should be {0: 1, 1: 2, 2: 1}; yours is {1: 2, 2: 1}",
        ),
        Wrong(
            "free skips unknown blocks",
            sharing(free=skips_unknown_blocks),
            "freeing block 3, which is free, should raise",
        ),
        Wrong("free sorts the queue", sharing(free=sorts_the_queue), "yours is [0, 1, 2, 3, 4, 5]"),
        Wrong(
            "blocks with a hash never come back",
            sharing(free=frees_only_unhashed),
            "the free queue should contain [3, 4, 5, 2, 1, 0]",
        ),
    ],
    "11.3": [
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
        Wrong("forgets the blocks", forgets_the_blocks, "The sequence starts with the blocks that were found"),
        Wrong("changes the list", pops_from_the_list, "changed its argument `blocks`"),
        Wrong("touches what it leaves out", touches_what_it_leaves_out, "doesn't have this block"),
        Wrong("always blocks of 16", blocks_of_16, "`pool.block_size`"),
    ],
}

RIGHT = {
    "11.1": [written_with_commas, updated_step_by_step, tokens_before_the_parent],
    "11.2": [
        sharing(match_prefix=finds_by_walking),
        sharing(touch=touches_in_two_loops, free=frees_by_hand),
        sharing(),
    ],
    "11.3": [in_another_order, with_a_loop],
}
