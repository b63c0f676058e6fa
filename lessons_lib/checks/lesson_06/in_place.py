"""06.3, `attention_in_place`: one sequence over its scattered blocks, one block at a time."""

from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.lesson_06.operators import one_block_at_a_time, reads_filled_slots_only
from lessons_lib.measuring.random_batches import random_row

# (cached, new), query heads, KV heads, block size, blocks too many, seed, factor of the query, dtype, and what is in
# slots without a token.
Case = tuple[tuple[int, int], int, int, int, int, int, float, torch.dtype, float]
NOT_READ, ANY = float("nan"), 0.7


def cases() -> Iterator[Case]:
    """Each with finite numbers in unused slots, which shows what is wrong, and then with NaN there."""
    for seed, (lens, *sizes) in enumerate((
        ((2, 1), 1, 1, 4, 0), ((3, 1), 1, 1, 4, 0), ((0, 1), 1, 1, 4, 0), ((9, 1), 1, 1, 4, 0), ((2, 1), 1, 1, 4, 1),
        ((5, 1), 2, 2, 4, 0), ((5, 1), 4, 2, 4, 0), ((0, 3), 1, 1, 4, 0), ((3, 2), 1, 1, 4, 0), ((4, 6), 4, 2, 4, 0),
        ((4, 6), 4, 2, 4, 2), ((6, 3), 6, 3, 1, 0), ((20, 1), 2, 1, 16, 1), ((0, 24), 3, 3, 8, 0),
        ((15, 9), 6, 2, 4, 1), ((16, 16), 2, 1, 16, 0),
    )):  # fmt: skip
        for unused in (ANY, NOT_READ):
            yield lens, *sizes, seed, 1.0, torch.float32, unused
    for lens, sizes, factor in (((5, 1), (2, 1, 4, 0), 1e3), ((0, 3), (1, 1, 4, 0), 1e5), ((5, 2), (2, 1, 4, 0), 1.0)):
        yield lens, *sizes, 21, factor, torch.float64, ANY


def run(attempt: Any, case: Case, watch: Watch) -> None:
    query, keys, values, blocks, num_tokens, scale = arguments(case)
    before = keys.clone(), values.clone()

    def attention_in_place(query: torch.Tensor, blocks: list[int]) -> Any:
        return attempt(query, keys, values, blocks, num_tokens, scale)

    def cache() -> dict[str, Any]:
        same = all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, (keys, values)))
        return {"the cache": Shown("unchanged" if same else "changed")}

    watch("`attention_in_place`", attention_in_place, query, blocks, look=cache, subject="the attention")


def arguments(case: Case) -> tuple[Any, ...]:
    lens, q_heads, kv_heads, size, spare, seed, factor, dtype, unused = case
    row = random_row([lens], q_heads, kv_heads, size, seed, dtype=dtype)
    blocks = row.block_tables[0].tolist()
    blocks += [block for block in range(len(row.keys)) if block not in blocks][:spare]
    keys, values = (cache.nan_to_num(nan=unused) for cache in (row.keys, row.values))
    return row.query * factor, keys, values, blocks, sum(lens), row.scale


def tell(case: Case) -> str:
    (cached, new), q_heads, kv_heads, size, spare, _, factor, dtype, unused = case
    blocks = arguments(case)[3]
    told = f"{cached + new} tokens in blocks {blocks} of {size}, the last {new if new > 1 else 'one'} new"
    told += ", `blocks` is longer than needed" if spare else ""
    told += f"; query heads: {q_heads}, KV heads: {kv_heads}"
    told += "; NaN in slots without a token" if unused != unused else ""
    return told + ("; very large scores" if factor > 1 else "") + ("; float64." if dtype != torch.float32 else ".")


def facts(case: Case) -> dict[str, Any]:
    (cached, new), *_ = case
    return {"tokens": cached + new, "cached": cached, "size": case[3], "q_heads": case[1], "kv_heads": case[2]}


def first_wrong(mine: dict, want: dict) -> str:
    """Which query heads or tokens are wrong, if others are right."""
    got, wanted = mine["returned"], want["returned"]
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return ""
    if bool(got.isnan().any()):
        return NAN
    wrong = ~torch.isclose(got, wanted, rtol=1e-4, atol=1e-6).all(dim=2)
    (cached, new), _, _, size, _, _, factor, *_ = want["case"]
    tokens, heads = wrong.any(dim=1).tolist(), wrong.any(dim=0).tolist()
    if not all(heads):
        return (
            f"Query head {heads.index(False)} is right, {heads.index(True)} isn't. Which KV head do its keys and its "
            "values come from, and does it start with an empty state?"
        )
    if not all(tokens):
        position = cached + tokens.index(True)
        return (
            f"The new token at position {cached + tokens.index(False)} is right, the one at position {position} isn't. "
            f"It sees keys 0 to {position}."
        )
    return CARRY if cached + new > size and factor == 1 else COMPARE


NAN = "NaN comes from a slot without a token, from 0 / 0 where no key was added, or from 0 × ∞ or ∞ − ∞."
CARRY = "With one block, it is right. Is one state carried from block to block, and divided once, after the last one?"
COMPARE = "Which keys does each query see, in which block, with which weight? `attention_gathered` shows it."
MISTAKES = """
Later keys must be hidden: each new token attends to keys up to its own position, and the first new one is at {cached},
since `num_tokens` counts the new ones, too. Where a key's position is larger, its score is minus infinity.
~ scores.masked_fill(is_later, float("-inf")) => scores
The new tokens come last: {cached} tokens are cached, so the first new one is at position {cached}, not 0.
= position = torch.arange(num_new)[:, None]
A token also attends to itself. Read the keys of all {tokens} tokens, and hide only those at *larger* positions.
~ filled) > position => filled) >= position
Each new token also attended to the key after it.
~ filled) > position => filled) > position + 1
A key's position counts from the start of the sequence. In entry i of `blocks`, the first key is at i × block_size.
~ torch.arange(start, start + filled) => torch.arange(filled)
or ~ torch.arange(start, start + filled) => torch.arange(start // block_size, start // block_size + filled)
or ~ torch.arange(start, start + filled) => block * block_size + torch.arange(filled)
A hidden key's score must be minus infinity: exp(0 − maximum) is a weight like any other, and a finite score can be
larger than the others.
~ float("-inf") => 0.0
or ~ float("-inf") => -1e4
The mask is inverted: it hides what should be seen.
~ filled) > position => filled) < position
NaN is 0 / 0, 0 × ∞ or ∞ − ∞ here. Is the new state assigned, `seen = add_block(seen, ...)`? Are later keys hidden with
`masked_fill`, not with 0 × −∞? Do all exponentials come from `add_block`, where they can't overflow?
- seen = add_block => add_block(seen, scores.masked_fill(is_later, float("-inf")), values[block, :filled, kv_head])
Neighboring query heads share a KV head: with {q_heads} query heads and {kv_heads} KV heads, query head h uses h ×
{kv_heads} // {q_heads}.
~ head * kv_heads // q_heads => head % kv_heads
or ~ head * kv_heads // q_heads => 0
The scale is a factor of the scores: multiply each by `scale`, once.
~ .T * scale => .T
or ~ .T * scale => .T / scale
or ~ .T * scale => .T * scale * scale
or ~ .T * scale => .T * head_dim**-0.5
Scores come from keys, and the output from values.
~ values[block, :filled, kv_head] => keys[block, :filled, kv_head]
Carry the state of `add_block` from block to block, and divide once. You start again in each block.
> filled = => seen = nothing_seen(num_new, head_dim, query.dtype)
`attention_of(seen)` divides the sums by the total, once all blocks are added.
~ attention_of(seen) => seen.output
Only the last block is partly filled. The others have {size} tokens each.
= filled = num_tokens % block_size or block_size
When the last block is full, `num_tokens % block_size` is 0, but it has {size} tokens.
= filled = block_size if start + block_size < num_tokens else num_tokens % block_size
The last block is left out, or its tokens. Round up: a block that is begun counts, with the tokens that it has.
~ range(0, num_tokens, block_size) => range(0, num_tokens // block_size * block_size, block_size)
Slots without a token hold anything, here NaN. Hiding them isn't enough, since 0 × NaN is NaN: read the filled ones.
= filled = block_size
The rest of the last block isn't this sequence's. It has {tokens} tokens: `num_tokens` counts the new ones.
= filled = block_size
- is_later = => is_later = torch.zeros(num_new, filled, dtype=torch.bool)
or < num_new, q_heads, head_dim => num_tokens += len(query)
`blocks` is in the order of the tokens, and ids come in any order: don't sort or reverse them.
~ block_size), blocks) => block_size), sorted(blocks[: -(-num_tokens // block_size)]))
or ~ block_size), blocks) => block_size), blocks[: -(-num_tokens // block_size)][::-1])
The next block of the sequence is the next entry of `blocks`, anywhere in the pool. You read others.
~ block_size), blocks) => block_size), [(blocks[0] + i) % len(keys) for i in range(len(keys))])
or ~ block_size), blocks) => block_size), range(len(keys)))
`blocks` may be longer than needed: stop after {tokens} tokens.
~ in zip(range(0, num_tokens, block_size), blocks): => in zip(range(0, len(blocks) * block_size, block_size), blocks):
The block size is `keys.shape[1]`, not always 4 or 16.
= block_size, kv_heads = 4, keys.shape[2]
or = block_size, kv_heads = 16, keys.shape[2]
"""

TASK = Task(
    reference="lessons_lib.attention.plain_attention:attention_in_place",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    facts=facts,
    about={
        "returned": first_wrong,
        "the cache": "Only read the cache. `keys[block]` is a view, so an operation in place changes the cache.",
        "raised IndexError": "Query head h uses KV head h × KV heads // query heads. Entry i of `blocks` has positions "
        "i × block_size to (i + 1) × block_size − 1, and `blocks` may be longer than the sequence needs.",
    },
    probes=(one_block_at_a_time, reads_filled_slots_only),
)

EXERCISE = TASK.exercise(
    id="06.3",
    title="paged attention",
    hints=(
        "For block i of the table: at which position is its first key, and how many of its slots hold tokens? And "
        "at which position is query j of Q? These three numbers say what to read and what to hide.",
        "For each query head: start with `nothing_seen`, and go through the blocks with the position at which each "
        "of them starts, 0, block_size, 2 × block_size, …, below `num_tokens`. In each: how many slots are filled? "
        "The scores are query @ keys.T × scale; they are minus infinity where a key's position is larger "
        "than the query's; then `add_block`. After the last block, `attention_of` is this head's output.",
        "`position = torch.arange(num_tokens - num_new, num_tokens)[:, None]`; "
        "`for start, block in zip(range(0, num_tokens, block_size), blocks)`; "
        "`filled = min(block_size, num_tokens - start)`; "
        "`scores = query[:, head] @ keys[block, :filled, kv_head].T * scale`; "
        "`is_later = torch.arange(start, start + filled) > position`; "
        '`scores.masked_fill(is_later, float("-inf"))`. The KV head is `head * kv_heads // q_heads`.',
    ),
    points=4,
)
