"""05.1, `pack`: one row without padding, and the indices that describe it."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Shown, Task, Watch, is_tensor, mistakes
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_03.books import counted

Case = tuple[list[list[int]], list[int]]  # new tokens of each sequence, and how many each has in the cache
FIELDS = ("input_ids", "positions", "seq_ids", "cu_seqlens_q", "context_lens", "logits_index")


def cases() -> Iterator[Case]:
    yield from (
        ([[5, 6, 8]], [0]), ([[7], [9]], [2, 4]), ([[7], [7]], [2, 4]), ([[5, 6, 8], [7]], [0, 0]),
        ([[7], [5, 6, 8], [9]], [2, 0, 4]), ([[5, 6], [8, 4, 3]], [3, 6]), ([[6, 6, 5], [6, 6, 5]], [0, 0]),
        ([[0], [0, 7]], [3, 0]), ([[9, 4], [3], [2, 8, 1]], [5, 1, 2]), ([], []),
    )  # fmt: skip
    draw = Random(5)
    for _ in range(25):
        new_tokens = [
            [draw.randrange(900) for _ in range(draw.choice((1, 1, 1, 2, 30)))] for _ in range(draw.randint(1, 9))
        ]
        yield new_tokens, [draw.choice((0, 1, 5, 64)) for _ in new_tokens]


def run(attempt: Any, case: Case, watch: Watch) -> None:
    """One field after another: a mistake in one is told whatever the next ones are."""
    packed = watch(call(case), attempt, *case, returns=kind_of)
    for name in FIELDS:
        watch(call(case), field_of, packed, name, case, returns=lambda field: None, look=lambda: seen(packed, name))


def kind_of(got: Any) -> Any:
    return Shown("a PackedBatch") if all(hasattr(got, name) for name in FIELDS) else got


def field_of(packed: Any, name: str, case: Case) -> None:
    """Look at a field's shape.

    Raises:
        Mistake: it isn't one-dimensional, or has another length.
    """
    field, tokens, sequences = getattr(packed, name), sum(map(len, case[0])), len(case[0])
    if not is_tensor(field):
        return
    if field.dim() != 1:
        what = f"after {call(case)}, `{name}` should be one-dimensional; yours has the shape {list(field.shape)}."
        raise Mistake(what, idea="A PackedBatch is one row and has no batch axis. That is added right before the pass.")
    length, idea = {
        "cu_seqlens_q": (
            sequences + 1,
            "N sequences have N + 1 entries: a 0 in front, then where each ends.",
        ),
        "context_lens": (sequences, "It has one length for each sequence."),
        "logits_index": (sequences, "It has one index for each sequence."),
    }.get(
        name,
        (tokens, "It has one element for each *new* token: none for a cached one, and not just one for a sequence."),
    )
    if len(field) != length:
        what = f"`{name}` should have {counted(length, 'element')}; yours has {len(field)}: {short(field)}."
        raise Mistake(f"after {call(case)}, {what}", idea=idea)


def seen(packed: Any, name: str) -> dict[str, Any]:
    """int32 is as good as int64."""
    field = getattr(packed, name)
    return {name: field.long() if str(getattr(field, "dtype", "")) == "torch.int32" else field}


def call(case: Case) -> str:
    return f"`pack({short(case[0])}, {short(case[1])})`"


def tell(case: Case) -> str:
    return call(case) + "."


def smaller(case: Case) -> Iterator[Case]:
    new_tokens, cached = case
    if len(new_tokens) > 1:
        for i in range(len(new_tokens)):
            yield new_tokens[:i] + new_tokens[i + 1 :], cached[:i] + cached[i + 1 :]
    for i, tokens in enumerate(new_tokens):
        if len(tokens) > 3:
            yield [*new_tokens[:i], tokens[:3], *new_tokens[i + 1 :]], cached


MISTAKES = """
Count positions from the start of the sequence, not from the start of its part of the row: after 2 cached tokens comes
position 2.
~ starts=cached_lens => starts=[0] * len(lengths)
You count through the row. Positions start again in every sequence, at its cached length.
~ positions=tags.positions => positions=torch.arange(sum(lengths))
Off by one: positions count from 0, so after 2 cached tokens comes position 2.
~ positions=tags.positions => positions=tags.positions + 1
or ~ positions=tags.positions => positions=tags.positions - 1
All new tokens of a sequence have the same position. Count up from its cached length.
~ positions=tags.positions => positions=torch.tensor(cached_lens, dtype=torch.int64)[tags.seq_ids]
You added the token's index in the row. Add its index in the sequence's own part.
~ positions=tags.positions => positions=torch.tensor(cached_lens)[tags.seq_ids].long() + torch.arange(sum(lengths))
Positions and sequence ids are swapped.
~ positions=tags.positions => positions=tags.seq_ids
Do you look up a sequence by its tokens, with `index` or in a dict? Two sequences may have the same ones. `zip` and
`enumerate` go by place.
< tags = => cached_lens = [cached_lens[new_tokens.index(tokens)] for tokens in new_tokens]
or
~ seq_ids=tags.seq_ids => seq_ids=torch.tensor([new_tokens.index(t) for t in new_tokens for _ in t], dtype=torch.int64)
A token may occur more than once in the row, so `index` may find another one. The running sum of the lengths says where
each sequence ends.
- logits_index=
+ logits_index=torch.tensor([sum(new_tokens, []).index(tokens[-1]) for tokens in new_tokens], dtype=torch.int64),
The row keeps the order of the sequences, and of their tokens: don't sort.
~ for token in tokens], => for token in sorted(tokens)],
or ~ [token for tokens in new_tokens for token in tokens] => sorted(token for tokens in new_tokens for token in tokens)
These are the lengths themselves. Take their running sum, with a 0 in front.
~ torch.cat([torch.zeros(1, dtype=torch.int64), ends]) => torch.tensor([0, *lengths])
The row has only the new tokens. You added the cached ones, too.
~ dtype=torch.int64), ends]) => dtype=torch.int64), ends + torch.tensor(cached_lens).cumsum(0).long()])
These are the cached tokens, before the pass. The pass adds the new ones.
- context_lens= => context_lens=torch.tensor(cached_lens, dtype=torch.int64),
These are only the new tokens. Count the cached ones, too: attention reads both.
- context_lens= => context_lens=torch.tensor(lengths, dtype=torch.int64),
That is the last token's position, one less than the number of tokens.
- context_lens=
+ context_lens=torch.tensor(cached_lens, dtype=torch.int64) + torch.tensor(lengths, dtype=torch.int64) - 1,
A sequence may have more than one new token: add all of them.
- context_lens= => context_lens=torch.tensor(cached_lens, dtype=torch.int64) + 1,
Each sequence has its own length. You took a running sum.
- context_lens= => context_lens=torch.tensor(cached_lens).cumsum(0).long() + ends,
Sequence i ends *before* `cu_seqlens_q[i + 1]`, where the next one begins: its last token is one before that.
~ logits_index=ends - 1 => logits_index=ends
Those are the first tokens. The next token comes from the logits of the *last* one.
~ logits_index=ends - 1 => logits_index=ends - torch.tensor(lengths, dtype=torch.int64)
You counted in each sequence. Count along the whole row.
~ logits_index=ends - 1 => logits_index=torch.tensor(lengths, dtype=torch.int64) - 1
Those are positions in the sequences. The row has no cached tokens, so its indices differ.
- logits_index=
+ logits_index=torch.tensor(cached_lens, dtype=torch.int64) + torch.tensor(lengths, dtype=torch.int64) - 1,
Every sequence has its own last token. That is the last one of the row.
~ logits_index=ends - 1 => logits_index=ends * 0 - 1
Python lists may differ in length, tensors have no ragged rows: join the lists first.
~ [token for tokens in new_tokens for token in tokens] => new_tokens
Without sequences there is nothing to join, and `torch.cat` needs at least one tensor. The row is empty then.
- input_ids= => input_ids=torch.cat([torch.tensor(tokens) for tokens in new_tokens]),
"""

TASK = Task(
    reference="lessons_lib.attention.packing:pack",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": "Return `PackedBatch(input_ids=..., positions=..., ...)` with all six fields.",
        "raised ValueError": "These lists are valid. A cached length of 0 is a prefill, and 0 is a token id.",
        "input_ids": "All new tokens of the first sequence come first, then all of the second, and so on.",
        "positions": "A sequence with c cached and n new tokens has the positions c to c + n - 1 in the row.",
        "seq_ids": "Sequence ids count from 0, and each is repeated for all new tokens of its sequence.",
        "cu_seqlens_q": "It starts with 0, and the running sum of the numbers of new tokens follows, up to T.",
        "context_lens": "For each sequence, add its cached and its new tokens.",
        "logits_index": "For each sequence, it has the index of its last new token. Cached tokens aren't in the row.",
    },
)

EXERCISE = TASK.exercise(
    id="05.1",
    title="one row without padding",
    hints=(
        "Which single list, computed once, do all fields but `input_ids` follow from, together with `cached_lens`?",
        "`lengths` is the number of new tokens of each sequence. `tag_tokens(lengths, starts=cached_lens)` gives "
        "positions and sequence ids. The running sum of the lengths gives the index where each sequence ends in the "
        "row; with a 0 in front, it gives where each begins.",
        "`ends = torch.tensor(lengths, dtype=torch.int64).cumsum(dim=0)`. Then `cu_seqlens_q` is "
        "`torch.cat([torch.zeros(1, dtype=torch.int64), ends])`, `logits_index` is `ends - 1`, and `context_lens` is "
        "the sum of two tensors, cached and new. The tokens are `[token for tokens in new_tokens for token in "
        "tokens]`.",
    ),
)
