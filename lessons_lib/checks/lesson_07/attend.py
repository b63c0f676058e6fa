"""Judges 07.3, `attend_blocks`: one query over a block table, one block per iteration."""

from dataclasses import dataclass, replace
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import LIMIT_32, cells, close, compiled_too, run_through, touched, values_text
from lessons_lib.checks.lesson_07.single_head import NOWHERE, Reads, SingleHead
from lessons_lib.kernels.simple_paged import single_head_kernel

HEAD_DIM = 8


@dataclass
class Layout:
    """The memory layout of a cache with one KV head: a tensor of its own, or a view of a larger one.

    Attributes:
        block_gap, slot_gap: blocks and slots of the larger tensor between two of the view.
    """

    block_gap: int = 0
    slot_gap: int = 0


DENSE = Layout()


def check_attend_blocks(attempt) -> None:
    compiled_too(
        lambda: _check_results(attempt),
        attempt,
        _launch(attempt, torch.float32),
        _launch(attempt, torch.float16),
        kernel=single_head_kernel,
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
    _check_case(attempt, 1, [2], scores="deep")
    _check_case(attempt, 8, [0, 2], scores="small", spare=0)
    _check_float16(attempt)
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


def _check_case(
    attempt, num_tokens, table, scores, layout=DENSE, block_size=4, head_dim=HEAD_DIM, seed=0, spare=2
) -> None:
    """`spare`: entries of the table past the blocks in use."""
    single, caches = _make(num_tokens, table, scores, layout, block_size, head_dim, seed, unused=float("nan"))
    views = _views(caches, layout)
    case = (
        f"{num_tokens} token{'s' if num_tokens > 1 else ''} in blocks {table} of a {len(single.keys)}-block pool, "
        f"BLOCK_SIZE = {block_size}, stride_block = {views[0].stride(0)}, stride_slot = "
        f"{views[0].stride(1)}{SCORES_TEXT[scores]}. Slots without a token hold NaN."
    )
    case += "" if spare else " The table has no more entries."
    got, recording = _attend(attempt, single, views, case, spare)
    want = single.want()
    if close(got, want):
        _refuse_idle_loads(_reads(recording), single, case)
        return
    what = f"the attention should be {values_text(want)}; yours is {values_text(got)}."
    if scores == "deep":
        idea = (
            "Something counted for more than the only key, whose score is that low: a slot without a token, or what "
            "`row_max` starts with. Both must be minus infinity, which is below every score."
        )
        raise Mistake(what, case=case, idea=idea)
    if reason := _reads(recording).explain(single):
        raise Mistake(what, case=case, idea=reason)
    # The same with finite values in the unused slots: NaN would hide what was computed with them.
    other, caches = _make(num_tokens, table, scores, layout, block_size, head_dim, seed, unused=None)
    finite, _ = _attend(attempt, other, _views(caches, layout), case)
    if idea := other.recognize(finite):
        raise Mistake(what, case=case, idea=idea)
    if not _reads(recording).values:
        idea = "No value was read. Is there a `tl.load(values + ...)`, and is its mask True for every token?"
        raise Mistake(what, case=case, idea=idea)
    loads = [access for access in recording.programs[0].accesses if access.tensor == "k_cache"]
    if len(loads) > len(table) and sum(len(access.offsets) for access in loads) > num_tokens * head_dim:
        idea = (
            f"Keys are loaded more than once: {len(loads)} loads, and the sequence is in {len(table)} "
            f"block{'s' * (len(table) > 1)}. Does your loop go from block to block, in steps of BLOCK_SIZE?"
        )
        raise Mistake(what, case=case, idea=idea)
    if not bool(got.isfinite().all()):
        full, caches = _make(len(table) * block_size, table, scores, layout, block_size, head_dim, seed, unused=None)
        full_is_right = close(_attend(attempt, full, _views(caches, layout), case)[0], full.want())
        raise Mistake(what, case=case, idea=_why_not_finite(close(finite, want), full_is_right, scores))
    if close(got, want, 2e-2):
        idea = (
            "Nearly right: something was rounded on the way. Everything is float32 here, `acc` too: it starts as "
            "`tl.zeros([HEAD_DIM], tl.float32)`."
        )
        raise Mistake(what, case=case, idea=idea)
    idea = (
        "Compare line by line with `add_block` of lesson 06: the new maximum, the weights, the factor, the sum, the "
        "output; and the division at the end."
    )
    raise Mistake(what, case=case, idea=idea)


def _refuse_idle_loads(reads: Reads, single: SingleHead, case: str) -> None:
    for name, read in (("keys", reads.keys), ("values", reads.values)):
        idle = [cell for cell in read if cell not in set(single.cells())]
        if idle:
            what = f"the result is right, but `{name}` is loaded from slot {idle[0][1]} of block {idle[0][0]}."
            idea = (
                "This slot holds no token. Give the load a mask, `mask=is_key[:, None], other=0.0`: masked elements "
                "aren't read."
            )
            raise Mistake(what, case=case, idea=idea)


def _reads(recording) -> Reads:
    program = recording.programs[0]
    entries = [entry for (entry,) in cells(recording, program, "load", "block_table", 1)]
    keys, values = (cells(recording, program, "load", name, 2) for name in ("k_cache", "v_cache"))
    iterations = sum(access.tensor == "k_cache" for access in program.accesses)
    return Reads(keys, len(touched(recording, program, "load", "k_cache")), values, entries, iterations)


SCORES_TEXT = {
    "small": "",
    "rising": "; the largest score is in the last block",
    "falling": "; the largest score is in the first block",
    "high": "; the scores are near 200",
    "plunging": "; the scores fall from 200 to −200",
    "low": "; all scores are near −200",
    "deep": "; the score is near −100,000",
}


def _make(num_tokens, table, scores, layout, block_size, head_dim, seed, unused):
    """The case, and the tensors that its caches are views of.

    `unused`: the value of slots without a token; None for random values.
    """
    generator = torch.Generator().manual_seed(100 + seed)
    num_blocks = max(4, max(table) + 1)
    shape = (num_blocks * (1 + layout.block_gap), block_size * (1 + layout.slot_gap), 1, head_dim)
    caches = [torch.randn(shape, generator=generator) * 2 for _ in range(2)]
    scale = 0.3
    query = torch.randn(head_dim, generator=generator)
    keys, values = (view[:, :, 0] for view in _views(caches, layout))
    single = SingleHead(query, keys, values, table, num_tokens, scale)
    for token, (block, slot) in enumerate(single.cells()):
        score = _score(scores, token, num_tokens, generator)
        if score is not None:  # changes the key along the query, so that its score is `score`
            keys[block, slot] += (score / scale - keys[block, slot] @ query) / (query @ query) * query
    if unused is not None:
        used = [torch.zeros(shape, dtype=torch.bool) for _ in caches]
        for mask in _views(used, layout):
            for block, slot in single.cells():
                mask[block, slot] = True
        for cache, mask in zip(caches, used):
            cache[~mask] = unused
    return single, caches


def _score(scores: str, token: int, num_tokens: int, generator) -> float | None:
    share, noise = token / max(num_tokens - 1, 1), torch.rand((), generator=generator).item()
    return {
        "small": None,
        "rising": -1 + 3 * share + noise,
        "falling": 2 - 3 * share - noise,
        "high": 200 + 2 * noise,
        "plunging": 200 - 400 * share + noise,
        "low": -200 + noise,
        "deep": -100_000 + noise,
    }[scores]


def _views(caches, layout: Layout) -> list[torch.Tensor]:
    return [cache[:: 1 + layout.block_gap, :: 1 + layout.slot_gap] for cache in caches]


def _attend(attempt, single: SingleHead, views, case: str, spare: int = 2):
    table = torch.tensor([*single.table, *[NOWHERE] * spare], dtype=torch.int32)
    head_dim = single.query.shape[0]
    out = torch.full((head_dim,), float("nan"))
    arguments = (attempt, single.query, *views, table, out, single.num_tokens, single.scale, *views[0].stride()[:2])
    recording = run_through(
        attempt,
        single_head_kernel,
        (1,),
        *arguments,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=single.block_size,
        case=case,
        explain=lambda error: _out_of_bounds(error, single, views[0]),
    )
    return out, recording


def _out_of_bounds(error, single: SingleHead, keys) -> str:
    if error.tensor == "block_table":
        return (
            f"The table has one entry per block, {len(single.table)} here: the block of position p is in entry "
            "p // BLOCK_SIZE. Positions end before `num_tokens`, and no block follows a full one."
            if error.number >= 0
            else "The table is read before its first entry."
        )
    if error.tensor not in ("k_cache", "v_cache"):
        return (
            "This address is in none of the caches. Was an address used where a value belongs? The block's index is "
            "`tl.load(table + entry)`; `table + entry` is only where it is stored."
        )
    size, biggest = single.block_size, max(single.table)
    if abs(error.number) > abs(NOWHERE) // 2:
        return (
            f"That comes from a table entry that is not in use: a context of {single.num_tokens} in blocks of {size} "
            f"needs entries 0 to {len(single.table) - 1}. The block of position p is in entry p // BLOCK_SIZE; go in "
            "steps of BLOCK_SIZE, and stop before `num_tokens`."
        )
    reach = biggest * keys.stride(0) + (2 * size - 1) * keys.stride(1) + 2 * single.query.shape[0]
    if error.number > reach:
        return "Block b starts at b × stride_block. That's all: stride_block already includes the slots of a block."
    if error.number >= 0:
        return (
            f"That would be in block {error.number // keys.stride(0)} of the pool. Is the block of each iteration an "
            "entry of the table, its own, and the slot below BLOCK_SIZE? b × stride_block + slot × stride_slot + dim."
        )
    return "Look at the mask of the last block, and at the two strides: b × stride_block + slot × stride_slot + dim."


def _why_not_finite(finite_is_right: bool, full_is_right: bool, scores: str) -> str:
    if finite_is_right:
        return (
            "Slots without a token were read and used. A weight of 0 doesn't help: 0 × NaN is NaN. Give the loads of "
            "keys and of values a mask, with `other=0.0`."
        )
    if full_is_right and scores == "low":
        return (
            "With full blocks the result is right. A slot without a token has a score of 0, and here 0 is above all "
            "real scores, so it becomes the maximum: exp(−200 − 0) is 0 in float32, and 0 / 0 is NaN. Replace its "
            "score with minus infinity before `tl.max`; a weight of 0 afterwards is too late."
        )
    if full_is_right:
        return (
            "With full blocks the result is right. Without `other`, masked elements may be anything, here NaN; and "
            "another `other` may be no better. A weight of 0 doesn't help against NaN or infinity. Load keys and "
            "values with `other=0.0`. If you do: is minus infinity, the score of a slot without a token, what you "
            "subtract? That would be `tl.min`, not `tl.max`."
        )
    if scores == "high":
        return (
            "exp(200) overflows float32. Make every exponential relative to the largest score so far: exp(score − "
            "new_max)."
        )
    if scores == "plunging":
        return (
            "The factor overflows. Carry the largest score of all blocks so far, max(row_max, maximum of this block): "
            "then no exponent is above 0."
        )
    if scores == "low":
        return (
            "exp(−200) is 0 in float32, and 0 / 0 is NaN. Start the maximum at minus infinity, not at 0 or another "
            "value that scores may be below."
        )
    return (
        "The factor is exp(row_max − new_max), in this order. Before the first block row_max is minus infinity, and "
        "exp(−infinity) is 0; the other way around it's infinite. And scores of minus infinity give NaN only if a "
        "whole block is masked."
    )


def _check_float16(attempt) -> None:
    """A float16 cache doesn't make the computation less accurate."""
    single, caches = _make(7, [2, 0], "rising", DENSE, 4, HEAD_DIM, 0, unused=float("nan"))
    views = [cache.half() for cache in caches]
    single = replace(single, keys=views[0][:, :, 0], values=views[1][:, :, 0])
    case = "7 tokens in blocks [2, 0] of a 4-block pool, BLOCK_SIZE = 4; a float16 cache and a float32 query."
    got, _ = _attend(attempt, single, views, case)
    if not close(got, single.want()):
        idea = (
            "With a float32 cache the result is right. The query is float32, so the scores, the weights, the sums and "
            "the result are, too: convert none of them to the dtype of the cache."
        )
        what = f"the attention should be {values_text(single.want(), 6)}; yours is {values_text(got, 6)}."
        raise Mistake(what, case=case, idea=idea)


def _check_large_pool(attempt) -> None:
    """A block so far back in the cache that its offset doesn't fit into 32 bits.

    Only this block of the tensor is touched.
    """
    size, head_dim = 8, 32
    num_blocks = LIMIT_32 // (size * head_dim) + 3
    try:
        cache = torch.empty(num_blocks, size, 1, head_dim, dtype=torch.float16)
    except RuntimeError:
        return  # not enough address space on this machine
    generator = torch.Generator().manual_seed(0)
    block = num_blocks - 1
    cache[block] = torch.randn(size, 1, head_dim, generator=generator)
    single = SingleHead(torch.randn(head_dim, generator=generator), cache[:, :, 0], cache[:, :, 0], [block], size, 0.2)
    case = (
        f"a cache with {cache.numel():,} elements; the sequence is in block {block:,}, stride_block = "
        f"{cache.stride(0)}, float16."
    )
    idea = (
        f"Block × stride is {block * cache.stride(0):,} here, and a 32-bit integer goes up to {LIMIT_32 - 1:,}. "
        "The product overflows to a negative address or, worse, to one that looks right. The table holds 32-bit "
        "integers, so the product has 32 bits too. Convert the block to 64 bits before you multiply: `.to(tl.int64)`."
    )
    try:
        got, _ = _attend(attempt, single, (cache, cache), case)
    except Mistake as mistake:
        raise Mistake(mistake.what, case=case, idea=idea) from None
    if not close(got, single.want(), 2e-3):
        raise Mistake(
            f"the attention should be {values_text(single.want())}; yours is {values_text(got)}.", case=case, idea=idea
        )
