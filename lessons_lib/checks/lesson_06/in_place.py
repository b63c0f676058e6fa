"""Checks 06.3, `attention_in_place`: one sequence over its scattered blocks, against softmax over all its keys."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.measuring.random_batches import random_row

HEAD_DIM = 4  # of `random_row`
LARGE, FAR = 20.0, 1e4  # elements of a query above which exponentials overflow, or scores are below any finite stand-in


@dataclass(frozen=True)
class Case:
    """One sequence in one layer. Slots without a token of it are NaN.

    Attributes:
        query: [new, q_heads, head_dim]; keys, values: [num_blocks, block_size, kv_heads, head_dim].
        blocks: its blocks, and perhaps more.
        words: the case as a learner reads it.
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    blocks: list[int]
    num_tokens: int
    scale: float
    words: str

    @property
    def slots(self) -> list[int]:
        """The slot of each token."""
        size = self.keys.shape[1]
        return [self.blocks[position // size] * size + position % size for position in range(self.num_tokens)]


# (cached, new), query heads, KV heads, block size, blocks too many; smallest first.
CASES = (
    ((2, 1), 1, 1, 4, 0),
    ((3, 1), 1, 1, 4, 0),
    ((0, 1), 1, 1, 4, 0),
    ((9, 1), 1, 1, 4, 0),
    ((2, 1), 1, 1, 4, 1),
    ((5, 1), 2, 2, 4, 0),
    ((5, 1), 4, 2, 4, 0),
    ((0, 3), 1, 1, 4, 0),
    ((3, 2), 1, 1, 4, 0),
    ((4, 6), 4, 2, 4, 0),
    ((4, 6), 4, 2, 4, 2),
)


def check_attention_in_place(attempt: Callable) -> None:
    for seed, (lens, q_heads, kv_heads, block_size, spare) in enumerate(CASES):
        _check_one(attempt, _case(lens, q_heads, kv_heads, block_size, spare, seed))
    _check_one(attempt, _case((5, 1), 2, 1, 4, 0, seed=20, larger=100.0))
    _check_one(attempt, _case((0, 3), 1, 1, 4, 0, seed=7, larger=1e5))
    _check_one_block_at_a_time(attempt)
    _check_one(attempt, _case((5, 2), 2, 1, 4, 0, seed=21, dtype=torch.float64))
    rng = Random(6)
    for seed in range(30, 40):
        lens, heads = (rng.choice((0, 1, 15, 16, 33)), rng.choice((1, 1, 2, 9))), rng.choice(((4, 2), (3, 3), (6, 1)))
        _check_one(attempt, _case(lens, *heads, rng.choice((1, 4, 16)), rng.choice((0, 1)), seed))


def _case(
    lens: tuple[int, int], q_heads: int, kv_heads: int, block_size: int, spare: int, seed: int,
    larger: float = 1.0, dtype: torch.dtype = torch.float32,
) -> Case:  # fmt: skip
    row = random_row([lens], q_heads, kv_heads, block_size, seed, dtype=dtype)
    blocks = row.block_tables[0].tolist()
    words = f"{_tokens(sum(lens))} in blocks {blocks} of {block_size}, "
    words += f"the last {lens[1] if lens[1] > 1 else 'one'} new"
    if spare:
        unused = [block for block in range(len(row.keys)) if block not in blocks][:spare]
        blocks += unused
        words += f"; `blocks` is {blocks}, longer than the sequence needs"
    words += f"; query heads: {q_heads}, KV heads: {kv_heads}"
    if larger != 1:
        words += f"; scores up to about {_largest_score(row) * larger:.0f}"
    words += f"; {str(dtype).removeprefix('torch.')}." if dtype != torch.float32 else "."
    return Case(row.query * larger, row.keys, row.values, blocks, sum(lens), row.scale, words)


def _largest_score(row) -> float:
    keys = row.keys.flatten(0, 1).nan_to_num(0.0)
    return float(torch.einsum("qhd,kgd->qhkg", row.query, keys).max()) * row.scale


def _check_one(attempt: Callable, case: Case) -> None:
    got, want = _call(attempt, case), _dense(case)
    _check_shape(got, case)
    if torch.allclose(got.double(), want, rtol=1e-3, atol=1e-4):
        return
    if bool(got.isnan().any()):
        idea = _why_if_not_nan(attempt, case) or _why_nan(case, got)
        raise Mistake("the attention contains NaN.", case=case.words, idea=idea)
    far = float((got.double() - want).abs().max())
    what = f"the attention differs by up to {far:.2g} from softmax over all {case.num_tokens} keys."
    raise Mistake(what, case=case.words, idea=_why(got.double(), want, case))


def _call(attempt: Callable, case: Case):
    before = case.keys.clone(), case.values.clone()

    def over_the_cache(query: torch.Tensor, blocks: list[int]):
        # `call` compares its arguments before and after, and the NaN in the cache is not equal to itself.
        return attempt(query, case.keys, case.values, blocks, case.num_tokens, case.scale)

    try:
        got = call(over_the_cache, case.query, list(case.blocks), case=case.words)
    except (IndexError, RuntimeError) as error:
        size = case.keys.shape[1]
        if not (idea := _too_many_blocks(case)) and size != 4 and str(error) == "list index out of range":
            idea = (
                f"`blocks` has one entry per block, and a block has {size} slots here: position p is in "
                f"`blocks[p // {size}]`. The shape of `keys` tells how many."
            )
        if "non-zero size" in str(error) and case.num_tokens % size == 0:
            idea = (
                f"An iteration of your loop has no keys. Every block is full here, the last one too: {case.num_tokens} "
                f"% {size} is 0."
            )
        if not idea:
            raise
        raise Mistake(
            f"your code raised {type(error).__name__}: {str(error)[:120]}", case=case.words, idea=idea
        ) from None
    if any(not torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, (case.keys, case.values))):
        idea = "Only read the cache. `keys[block]` is a view: an operation in place, such as `*=`, changes the cache."
        raise Mistake("your code changed the cache.", case=case.words, idea=idea)
    return got


def _check_shape(got, case: Case) -> None:
    if not isinstance(got, torch.Tensor):
        idea = (
            "`attention_of(seen)` divides the sums of one query head at the end."
            if hasattr(got, "total")
            else "Return one tensor for all new tokens and all query heads."
        )
        raise Mistake(f"expected a tensor; your function returned {type(got).__name__}.", case=case.words, idea=idea)
    if got.shape != case.query.shape:
        idea = "The result has the shape of the query, [Q, query heads, head size]."
        if got.shape == case.query.transpose(0, 1).shape:
            idea += " Tokens come before heads."
        elif got.shape == case.query[:, 0].shape or got.shape == case.query[0].shape:
            idea += " Is there an entry for every query head of every new token?"
        elif got.shape == case.query.flatten(1).shape:
            idea += " Keep the heads separate."
        raise Mistake(
            f"the attention should have the shape {list(case.query.shape)}; yours has {list(got.shape)}.",
            case=case.words,
            idea=idea,
        )
    if got.dtype != case.query.dtype:
        want, found = (str(tensor.dtype).removeprefix("torch.") for tensor in (case.query, got))
        raise Mistake(
            f"the attention should be {want}, like the query; yours is {found}.",
            case=case.words,
            idea="`torch.empty_like(query)` has the query's dtype, and so does `nothing_seen(..., query.dtype)`.",
        )


def _why_if_not_nan(attempt: Callable, case: Case) -> str:
    """What is wrong apart from the NaN, seen with other values in the slots without a token; "" if it isn't known."""
    generator = torch.Generator().manual_seed(1)
    keys, values = (
        torch.where(cache.isnan(), torch.randn(cache.shape, generator=generator).to(cache.dtype), cache)
        for cache in (case.keys, case.values)
    )
    case = replace(case, keys=keys, values=values)
    got = _call(attempt, case).double()
    if torch.allclose(got, _dense(case), rtol=1e-3, atol=1e-4):
        return ""
    if bool(got.isnan().all()) and float(case.query.abs().max()) <= LARGE and case.num_tokens % case.keys.shape[1]:
        return (
            "It is NaN whatever the slots without a token hold, so they aren't the reason. Did the queries get any "
            "key? Without one, the total is 0, and 0 / 0 is NaN. `num_tokens` counts the new tokens too: does your "
            "loop reach the last of them, in a block that is only partly filled? And are keys hidden by their "
            "positions in the sequence, which have nothing to do with the ids of the blocks?"
        )
    return next((idea for guess, idea in _guesses(case) if torch.allclose(got, guess, rtol=1e-3, atol=1e-4)), "")


def _why_nan(case: Case, got: torch.Tensor) -> str:
    size = case.keys.shape[1]
    if float(case.query.abs().max()) > LARGE:
        return "With scores this large, bare exponentials overflow. `add_block` subtracts the largest score first."
    if idea := _too_many_blocks(case):
        return idea
    if case.num_tokens == len(got) and bool(got[0].isnan().all()) and not bool(got[1:].isnan().any()):
        return (
            "Only the first token has NaN. Which keys may it attend to? It must see itself, or it sees none. And does "
            "your loop reach it? `num_tokens` counts the new tokens too."
        )
    if case.num_tokens % size:
        return (
            f"The last block contains {_tokens(case.num_tokens % size)}, and `num_tokens` counts the new ones too. "
            "Its other slots may hold anything, here NaN. "
            "Hiding them isn't enough, because weight 0 × NaN is NaN: read only the filled slots."
        )
    return (
        "Every slot of these blocks holds a token, and the others are NaN. Do you read other blocks? Or too few keys: "
        f"{case.num_tokens} % {size} is 0, and the last block is full? Without a key, the total is 0, and 0 / 0 is NaN."
    )


def _too_many_blocks(case: Case) -> str:
    """What to say if `blocks` is longer than the sequence needs; "" if it isn't."""
    in_use = -(-case.num_tokens // case.keys.shape[1])
    if len(case.blocks) <= in_use:
        return ""
    return (
        f"{_tokens(case.num_tokens)} need only {in_use} of these {len(case.blocks)} blocks. Does your loop end after "
        f"{_tokens(case.num_tokens)}, or does it take every entry of `blocks`?"
    )


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count > 1 else ''}"


def _dense(
    case: Case, visible=lambda key, query: key <= query, kv_head=None, scale=None, slots=None, swapped=False,
    keys_only=False, hidden_score=float("-inf"),
) -> torch.Tensor:  # fmt: skip
    """The attention with all keys at once, in float64; the arguments are mistakes to compare with.

    Args:
        visible: (key position [1, K], query position [Q, 1]) -> bool [Q, K].
        kv_head: query head -> KV head.
    """
    num_new, q_heads = case.query.shape[:2]
    kv_heads = case.keys.shape[2]
    keys, values = (cache.flatten(0, 1)[slots or case.slots].double() for cache in (case.keys, case.values))
    keys, values = (values, keys) if swapped else (keys, keys if keys_only else values)
    of = [kv_head(head) if kv_head else head * kv_heads // q_heads for head in range(q_heads)]
    scores = torch.einsum("qhd,khd->hqk", case.query.double(), keys[:, of]) * (case.scale if scale is None else scale)
    query_position = torch.arange(case.num_tokens - num_new, case.num_tokens)[:, None]
    hidden = ~visible(torch.arange(len(keys))[None], query_position)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, hidden_score).softmax(dim=-1), values[:, of])


def _guesses(case: Case) -> Iterator[tuple[torch.Tensor, str]]:
    """Attention with one mistake each, and what to say about it."""
    new, q_heads, _ = case.query.shape
    size, kv_heads = case.keys.shape[1:3]
    first_new = case.num_tokens - new
    yield _dense(case, scale=1.0), "The scores were not multiplied by `scale`."
    yield _dense(case, scale=case.scale**2), "The scores were multiplied by `scale` twice."
    yield (
        _dense(case, scale=HEAD_DIM**-0.5),
        "The scores were multiplied by 1 / sqrt(head size). Multiply by `scale`: a model may use another factor.",
    )
    for scale in (1.0, case.scale):
        yield (
            _dense(case, scale=scale) * case.scale,
            "You multiplied the result by `scale`. It is a factor of the scores.",
        )
    yield _dense(case, scale=1 / case.scale), "The scores were divided by `scale`. Multiply them by it."
    yield _dense(case, swapped=True), "Keys and values are swapped: scores come from keys, the output from values."
    yield _dense(case, keys_only=True), "The keys were used as values, too."
    if new > 1:
        yield (
            _dense(case, visible=lambda key, query: key + query >= 0),
            f"Every new token attended to all {case.num_tokens} keys, also to those after it. Where a key's position "
            "is larger than the query's, the score is minus infinity."
            + (
                " Its position counts from the start of the sequence, not of its block."
                if case.num_tokens > size
                else ""
            ),
        )
        yield (
            _dense(case, hidden_score=0.0),
            "A hidden key has a score of 0 here, and exp(0 − maximum) is a weight like any other. Its score must be "
            "minus infinity.",
        )
        last = (case.num_tokens - 1) // size * size
        yield (
            _dense(case, visible=lambda key, query: (key <= query) | (key < last)),
            "Later keys are hidden in the last block only. The new tokens may be spread over several blocks.",
        )
        yield (
            _dense(case, visible=lambda key, query: key <= query - first_new),
            f"The first new token attended to key 0 only. It isn't at position 0: {first_new} tokens are cached, so "
            f"it is at position {first_new}.",
        )
        yield (
            _dense(case, visible=lambda key, query: (key < query) | (query == 0)),
            "A token also attends to itself: only keys at *larger* positions are hidden.",
        )
        yield (
            _dense(case, visible=lambda key, query: key <= query + 1),
            "Each new token also attended to the key after it.",
        )
    if kv_heads > 1:
        yield (
            _dense(case, kv_head=lambda head: head % kv_heads),
            f"Query heads 0 and 1 share KV head 0: with {q_heads} query heads and {kv_heads} KV heads, *neighboring* "
            "query heads share one.",
        )
        yield _dense(case, kv_head=lambda head: 0), "Every query head used KV head 0."
    for order, how in ((sorted(case.blocks), "in the order of their ids"), (case.blocks[::-1], "from last to first")):
        shuffled = [order[position // size] * size + position % size for position in range(case.num_tokens)]
        yield (
            _dense(case, slots=shuffled),
            f"The blocks were taken {how}. `blocks` is in the order of the tokens, and ids may come in any order.",
        )
    pool = case.keys.shape[0] * size
    for start in (0, case.blocks[0] * size):
        yield (
            _dense(case, slots=[(start + position) % pool for position in range(case.num_tokens)]),
            f"You read {case.num_tokens} slots in a row, from slot {start} on. Entry i of `blocks` is the block of "
            f"positions i × {size} to i × {size} + {size - 1}, and it may be anywhere.",
        )
    tail = case.num_tokens % size
    if 0 < tail < case.num_tokens:
        yield (
            _dense(case, visible=lambda key, query: (key <= query) & (key % size < tail)),
            f"Only {tail} slots of *every* block were read. Only the last block is partly filled; the others "
            f"have {size} each.",
        )
    right = _dense(case)
    by_heads, by_tokens = (
        right.reshape(q_heads, new, HEAD_DIM).transpose(0, 1),
        right.transpose(0, 1).reshape(right.shape),
    )
    yield by_heads, "Tokens and heads are mixed up: `reshape` keeps the order in memory, `transpose` swaps the axes."
    yield (
        by_tokens,
        "Tokens and heads are mixed up: a tensor of yours has the heads first, and `reshape` keeps the order in "
        "memory. `transpose(0, 1)` swaps the axes.",
    )
    yield (
        _averaged(case) * -(-case.num_tokens // size),
        "You added the attentions of the blocks, each already divided. Carry the sums of `add_block` from block to "
        "block, and divide once.",
    )
    yield (
        _averaged(case),
        "You averaged the attentions of the blocks. A block with larger scores weighs more: carry the sums of "
        "`add_block` from block to block, and divide once.",
    )


def _averaged(case: Case) -> torch.Tensor:
    size = case.keys.shape[1]
    parts = [
        _dense(case, visible=lambda key, query, s=start: (key <= query) & (key >= s) & (key < s + size))
        for start in range(0, case.num_tokens, size)
    ]
    return torch.stack(parts).nanmean(dim=0)


def _totals(case: Case) -> torch.Tensor:
    """The denominator of each query, relative to its largest score: [Q, q_heads, 1]."""
    kv_heads, q_heads = case.keys.shape[2], case.query.shape[1]
    of = [head * kv_heads // q_heads for head in range(q_heads)]
    keys = case.keys.flatten(0, 1)[case.slots][:, of].double()
    scores = torch.einsum("qhd,khd->qhk", case.query.double(), keys) * case.scale
    position = torch.arange(case.num_tokens - len(scores), case.num_tokens)[:, None, None]
    scores = scores.masked_fill(torch.arange(case.num_tokens) > position, float("-inf"))
    return (scores - scores.amax(dim=-1, keepdim=True)).exp().sum(dim=-1, keepdim=True)


def _why(got: torch.Tensor, want: torch.Tensor, case: Case) -> str:
    """Recognize a wrong attention by what it equals."""

    def same(guess: torch.Tensor) -> bool:
        return torch.allclose(got, guess, rtol=1e-3, atol=1e-4)

    if float(case.query.abs().max()) > FAR:
        return (
            "The scores of visible keys are far below zero here. The score of a hidden key has to be lower than any of "
            "them, however low: minus infinity."
        )
    if not bool(got.any()):
        return (
            "It is 0 everywhere. Is the result of each query head written, and may each token see a key? A key's "
            "position counts from the start of the sequence; the ids of the blocks have nothing to do with it."
        )
    if same(want * _totals(case)):
        return "The output was not divided by the total: `attention_of(seen)` does that, after the last block."
    for guess, idea in _guesses(case):
        if same(guess):
            return idea
    for first in range(case.num_tokens):
        for end in range(first + 1, case.num_tokens + 1):
            if same(_dense(case, visible=lambda key, query: (key <= query) & (key >= first) & (key < end))):
                return _only_some(first, end, case)
    return _which_are_wrong(got, want)


def _only_some(first: int, end: int, case: Case) -> str:
    """Attention over consecutive keys, but not all: it may have several causes, so name it and ask."""
    size = case.keys.shape[1]
    what = f"What you computed is the attention over keys {first} to {end - 1}; the sequence has keys 0 to "
    what += f"{case.num_tokens - 1}, in blocks of {size}. "
    if first % size:
        return what + "That isn't where a block starts: does your code hide earlier keys instead of later ones?"
    if first:
        return what + "Does your loop start with the first block, and does each block add to the same state?"
    if end % size == 0:
        return what + "Does your loop end too early, with a `return` inside it or before a partly filled block?"
    if end == len(case.query) < case.num_tokens - 1:
        return what + (
            f"The new tokens are the last ones: the first of them is at position {case.num_tokens - end}. Does your "
            "code put it at 0, or does a loop end too early?"
        )
    return what + "Which keys may the last token see, and how many of the last block's slots hold a token?"


def _which_are_wrong(got: torch.Tensor, want: torch.Tensor) -> str:
    right = torch.isclose(got, want, rtol=1e-3, atol=1e-4).all(dim=-1)
    heads, tokens = right.all(dim=0).tolist(), right.all(dim=1).tolist()
    if any(heads) and not all(heads):
        which = f"Query head {heads.index(True)} is right, and query head {heads.index(False)} is wrong. "
        return which + "Does each head start with an empty state, and use its own query and its KV head?"
    if any(tokens) and not all(tokens):
        which = f"New token {tokens.index(True)} is right, and new token {tokens.index(False)} is wrong. "
        return (
            which + "Is a result written for each of them, from its own query and from the positions that it may see?"
        )
    return (
        "It is not a mistake that this check knows. Try one token first, then two blocks: which keys and values does "
        "each iteration of your loop use, and at which positions are they?"
    )


class LargestTensor(TorchDispatchMode):
    """While active, `shape` is that of the largest float tensor that an operator makes; views of the cache don't
    count."""

    def __init__(self, case: Case):
        super().__init__()
        self.shape, self.size = [0], 0
        self.views_of = {cache.untyped_storage().data_ptr() for cache in (case.keys, case.values)}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            if tensor.untyped_storage().data_ptr() not in self.views_of and tensor.numel() > self.size:
                self.shape, self.size = list(tensor.shape), tensor.numel()
        return out


def _check_one_block_at_a_time(attempt: Callable) -> None:
    """No tensor may grow with the number of blocks."""
    few, many = (_case((count * 4 - 1, 1), 2, 1, 4, 0, seed=22) for count in (3, 30))
    sizes = []
    for case in (few, many):
        with LargestTensor(case) as largest:
            got = attempt(case.query, case.keys, case.values, list(case.blocks), case.num_tokens, case.scale)
        sizes.append(largest)
    if sizes[1].size > 2 * sizes[0].size:
        what = (
            f"your code made a tensor of shape {sizes[1].shape} for 30 blocks, and none larger than "
            f"{sizes[0].shape} for 3 blocks."
        )
        idea = (
            "No tensor of keys, values or scores may grow with the context. `keys[block]` with one integer is a view; "
            "a list of blocks, `torch.cat` and a row of all scores are new memory. Add one block to the state, then "
            "forget its scores."
        )
        raise Mistake(what, case=_many_words(many), idea=idea)
    _check_shape(got, many)


def _many_words(case: Case) -> str:
    return f"{case.num_tokens} tokens in {len(case.blocks)} blocks of 4, one of them new; query heads: 2, KV heads: 1."
