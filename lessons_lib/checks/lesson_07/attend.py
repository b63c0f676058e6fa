"""Judges 07.5, `attend_blocks`: one query over a block table, block by block."""

from dataclasses import dataclass
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import LIMIT_32, cells, close, compiled_too, numbers_text, run_through, touched
from lessons_lib.checks.lesson_07.one_head import NOWHERE, OneHead, Reads
from lessons_lib.kernels.simple_paged import one_head_kernel

HEAD_DIM = 8


@dataclass
class Layout:
    """How a cache with one KV head lies in memory: as part of a larger tensor, or by itself.

    Attributes:
        block_gap, slot_gap: other blocks and other slots that lie between two of its own.
    """

    block_gap: int = 0
    slot_gap: int = 0


def check_attend_blocks(attempt) -> None:
    compiled_too(
        lambda: _check_results(attempt),
        attempt,
        _launch(attempt, torch.float32),
        _launch(attempt, torch.float16),
        kernel=one_head_kernel,
    )


def _launch(attempt, dtype) -> tuple[tuple, dict]:
    cache, table = torch.zeros(4, 4, HEAD_DIM, dtype=dtype), torch.zeros(2, dtype=torch.int32)
    return (attempt, cache[0, 0], cache, cache, table, cache[0, 1], 7, 0.3, *cache.stride()[:2]), dict(
        HEAD_DIM=HEAD_DIM, BLOCK_SIZE=4
    )


def _check_results(attempt) -> None:
    _check_case(attempt, 1, [2], scores="small")
    _check_case(attempt, 3, [2], scores="small")
    _check_case(attempt, 4, [1], scores="small")
    _check_case(attempt, 6, [3, 1], scores="falling")
    _check_case(attempt, 7, [2, 0], scores="rising")
    _check_case(attempt, 8, [3, 1], scores="rising")
    _check_case(attempt, 9, [3, 0, 1], scores="rising")
    _check_case(attempt, 7, [2, 0], scores="rising", layout=Layout(slot_gap=1))
    _check_case(attempt, 7, [2, 3], scores="rising", layout=Layout(block_gap=1))
    _check_case(attempt, 10, [2, 0, 3], scores="high")
    _check_case(attempt, 10, [2, 0, 3], scores="plunging")
    _check_case(attempt, 3, [1], scores="low")
    rng = Random(5)
    for seed in range(4):
        size = rng.choice((2, 8, 16))
        num_tokens = rng.randint(1, 5 * size)
        blocks = rng.sample(range(12), -(-num_tokens // size))
        _check_case(
            attempt,
            num_tokens,
            blocks,
            "small",
            Layout(rng.choice((0, 2)), rng.choice((0, 1))),
            size,
            rng.choice((8, 16)),
            seed,
        )
    _check_large_pool(attempt)


def _check_case(attempt, num_tokens, table, scores, layout=Layout(), block_size=4, head_dim=HEAD_DIM, seed=0) -> None:
    one, caches = _make(num_tokens, table, scores, layout, block_size, head_dim, seed, unused=float("nan"))
    views = _views(caches, layout)
    case = (
        f"{num_tokens} token{'s' if num_tokens > 1 else ''} in the blocks {table} of {len(one.keys)}, BLOCK_SIZE = {block_size}, "
        f"stride_block = {views[0].stride(0)}, stride_slot = {views[0].stride(1)}{SAID[scores]}. Cells without a token hold NaN."
    )
    got, recording = _attend(attempt, one, views, case)
    want = one.want()
    if close(got, want):
        return
    what = f"the attention should be {numbers_text(want)}; yours is {numbers_text(got)}."
    if reason := _reads(recording).explain(one):
        raise Mistake(what, case=case, idea=reason)
    # The same with numbers in the unused cells: NaN would hide what was computed with them.
    other, caches = _make(num_tokens, table, scores, layout, block_size, head_dim, seed, unused=None)
    finite, _ = _attend(attempt, other, _views(caches, layout), case)
    if idea := other.recognise(finite):
        raise Mistake(what, case=case, idea=idea)
    if not bool(got.isfinite().all()):
        full, caches = _make(len(table) * block_size, table, scores, layout, block_size, head_dim, seed, unused=None)
        full_is_right = close(_attend(attempt, full, _views(caches, layout), case)[0], full.want())
        raise Mistake(what, case=case, idea=_why_not_finite(close(finite, want), full_is_right, scores))
    idea = "Compare line by line with `add_block` of lesson 06: the new maximum, the weights, the factor, the sum, the output; and the division at the end."
    raise Mistake(what, case=case, idea=idea)


def _reads(recording) -> Reads:
    program = recording.programs[0]
    entries = [entry for (entry,) in cells(recording, program, "load", "block_table", 1)]
    keys, values = (cells(recording, program, "load", name, 2) for name in ("k_cache", "v_cache"))
    turns = sum(access.tensor == "k_cache" for access in program.accesses)
    return Reads(keys, len(touched(recording, program, "load", "k_cache")), values, entries, turns)


SAID = {
    "small": "",
    "rising": "; the largest score is in the last block",
    "falling": "; the largest score is in the first block",
    "high": "; the scores are near 200",
    "plunging": "; the scores fall from 200 to −200",
    "low": "; all scores are near −200",
}


def _make(num_tokens, table, scores, layout, block_size, head_dim, seed, unused):
    """The case, and the tensors in which its caches lie. `unused`: what cells without a token hold; None for random numbers."""
    generator = torch.Generator().manual_seed(100 + seed)
    num_blocks = max(4, max(table) + 1)
    shape = (num_blocks * (1 + layout.block_gap), block_size * (1 + layout.slot_gap), 1, head_dim)
    caches = [torch.randn(shape, generator=generator) * 2 for _ in range(2)]
    scale = 0.3
    query = torch.randn(head_dim, generator=generator)
    keys, values = (view[:, :, 0] for view in _views(caches, layout))
    one = OneHead(query, keys, values, table, num_tokens, scale)
    for token, (block, slot) in enumerate(one.cells()):
        score = _score(scores, token, num_tokens, generator)
        if score is not None:  # a key that gives the score, but for what is at a right angle to the query
            keys[block, slot] += (score / scale - keys[block, slot] @ query) / (query @ query) * query
    if unused is not None:
        used = [torch.zeros(shape, dtype=torch.bool) for _ in caches]
        for mask in _views(used, layout):
            for block, slot in one.cells():
                mask[block, slot] = True
        for cache, mask in zip(caches, used):
            cache[~mask] = unused
    return one, caches


def _score(scores: str, token: int, num_tokens: int, generator) -> float | None:
    share, noise = token / max(num_tokens - 1, 1), torch.rand((), generator=generator).item()
    return {
        "small": None,
        "rising": -1 + 3 * share + noise,
        "falling": 2 - 3 * share - noise,
        "high": 200 + 2 * noise,
        "plunging": 200 - 400 * share + noise,
        "low": -200 + noise,
    }[scores]


def _views(caches, layout: Layout) -> list[torch.Tensor]:
    return [cache[:: 1 + layout.block_gap, :: 1 + layout.slot_gap] for cache in caches]


def _attend(attempt, one: OneHead, views, case: str):
    table = torch.tensor([*one.table, NOWHERE, NOWHERE], dtype=torch.int32)
    head_dim = one.query.shape[0]
    out = torch.full((head_dim,), float("nan"))
    arguments = (attempt, one.query, *views, table, out, one.num_tokens, one.scale, *views[0].stride()[:2])
    recording = run_through(
        attempt,
        one_head_kernel,
        (1,),
        *arguments,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=one.block_size,
        case=case,
        wild=lambda error: _wild(error, one, views[0]),
    )
    return out, recording


def _wild(error, one: OneHead, keys) -> str:
    if error.tensor == "block_table":
        return (
            f"The table has an entry for each block, {len(one.table)} here: position p stands in entry p // BLOCK_SIZE."
            if error.number >= 0
            else "The table is read before its first entry."
        )
    size, biggest = one.block_size, max(one.table)
    if abs(error.number) > abs(NOWHERE) // 2:
        return (
            f"That comes of an entry of the table that is not in use: {one.num_tokens} tokens at {size} a block need entries 0 to {len(one.table) - 1}. "
            "Position p stands in entry p // BLOCK_SIZE; go in steps of BLOCK_SIZE, and stop before `num_tokens`."
        )
    reach = biggest * keys.stride(0) + (2 * size - 1) * keys.stride(1) + 2 * one.query.shape[0]
    if error.number > reach:
        return "Block b begins b × stride_block behind the first number. That is all: stride_block has the slots of a block in it already."
    return "Look at the mask of the last block, and at the two strides: b × stride_block + offset × stride_slot + dim."


def _why_not_finite(finite_is_right: bool, full_is_right: bool, scores: str) -> str:
    if finite_is_right:
        return (
            "Cells without a token were read and used. A weight of 0 does not help: 0 × NaN is NaN. Give the loads of keys and of values a mask, with "
            "`other=0.0`."
        )
    if full_is_right and scores == "low":
        return (
            "Where the block is full, all is well. A slot without a token has a score of 0, and here 0 is above all real scores, so it becomes the maximum: exp(−200 − 0) "
            "is 0 in float32, and 0 / 0 is not a number. Put minus infinity in its place before `tl.max`; a weight of 0 afterwards is too late."
        )
    if full_is_right:
        return (
            "Where the block is full, all is well. Without `other`, what a mask hides may be anything, here NaN, and a weight of 0 does not help: "
            "0 × NaN is NaN. Load keys and values with `other=0.0`."
        )
    if scores == "high":
        return "exp(200) is infinite in float32. Every exponential must be relative to the largest score so far: exp(score − new_max)."
    if scores == "plunging":
        return "The factor overflows. Carry the largest score of all blocks so far, max(row_max, largest of this block): then no exponent is above 0."
    if scores == "low":
        return "exp(−200) is 0 in float32, and 0 / 0 is not a number. The maximum begins at minus infinity, not at 0 or another number that scores may lie below."
    return (
        "The factor is exp(row_max − new_max), in this order. Before the first block row_max is minus infinity, and exp(−infinity) is 0; the other "
        "way round it is infinite. And scores of minus infinity only give NaN where a whole block is masked."
    )


def _check_large_pool(attempt) -> None:
    """A block so far back in the cache that its offset needs more than 32 bits. Of the tensor only this block is touched."""
    size, head_dim = 8, 32
    num_blocks = LIMIT_32 // (size * head_dim) + 3
    try:
        cache = torch.empty(num_blocks, size, 1, head_dim, dtype=torch.float16)
    except RuntimeError:
        return  # no room for it on this machine, not even as an address range
    generator = torch.Generator().manual_seed(0)
    block = num_blocks - 1
    cache[block] = torch.randn(size, 1, head_dim, generator=generator)
    one = OneHead(torch.randn(head_dim, generator=generator), cache[:, :, 0], cache[:, :, 0], [block], size, 0.2)
    case = f"a cache with {cache.numel():,} numbers; the sequence lies in block {block:,}, stride_block = {cache.stride(0)}, float16."
    idea = (
        f"Block × stride is {block * cache.stride(0):,} here, and 32 bits end at {LIMIT_32 - 1:,}. What is beyond is cut off: an address that is negative, or, worse, one "
        "that looks right. The table holds 32-bit numbers, so the product has 32 bits, too. Make the block a 64-bit number before multiplying: `.to(tl.int64)`."
    )
    try:
        got, _ = _attend(attempt, one, (cache, cache), case)
    except Mistake as mistake:
        raise Mistake(mistake.what, case=case, idea=idea) from None
    if not close(got, one.want(), 2e-3):
        raise Mistake(
            f"the attention should be {numbers_text(one.want())}; yours is {numbers_text(got)}.", case=case, idea=idea
        )
