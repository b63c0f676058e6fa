"""05.1, `pack`: one row without padding, and the indices that describe it."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise, short

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
    made: list[Any] = []

    def pack(new_tokens: list[list[int]], cached_lens: list[int]) -> Any:
        made.append(attempt(new_tokens, cached_lens))
        return made[0]

    watch(call(case), pack, *case, returns=kind_of, look=lambda: fields_of(made))


def kind_of(got: Any) -> Any:
    return Shown("a PackedBatch") if all(hasattr(got, name) for name in FIELDS) else got


def fields_of(made: list[Any]) -> dict[str, Any]:
    """int32 is as good as int64."""
    if not made or isinstance(kind_of(made[0]), Shown) is False:
        return {}
    fields = {name: getattr(made[0], name) for name in FIELDS}
    return {
        name: each.long() if str(getattr(each, "dtype", "")) == "torch.int32" else each for name, each in fields.items()
    }


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
All new tokens of a sequence have the same position. Count up from its cached length.
~ positions=tags.positions => positions=torch.tensor(cached_lens, dtype=torch.int64)[tags.seq_ids]
There is a position for each token, not for each sequence.
~ positions=tags.positions => positions=torch.tensor(cached_lens, dtype=torch.int64)
You added the token's index in the row. Add its index in the sequence's own part.
~ positions=tags.positions => positions=torch.tensor(cached_lens)[tags.seq_ids].long() + torch.arange(sum(lengths))
Positions and sequence ids are swapped.
~ positions=tags.positions => positions=tags.seq_ids
~ seq_ids=tags.seq_ids => seq_ids=tags.positions
Do you look up a sequence by its tokens, with `index` or in a dict? Two sequences may have the same ones. `zip` and
`enumerate` go by place.
- tags =
+ cached_lens = [cached_lens[new_tokens.index(tokens)] for tokens in new_tokens]
+ ...
or
~ seq_ids=tags.seq_ids => seq_ids=torch.tensor([new_tokens.index(t) for t in new_tokens for _ in t], dtype=torch.int64)
A token may occur more than once in the row, so `index` may find another one. The running sum of the lengths says where
each sequence ends.
- return ... )
+ row = [token for tokens in new_tokens for token in tokens]
+ last = torch.tensor([row.index(tokens[-1]) for tokens in new_tokens], dtype=torch.int64)
+ cu = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
+ context = torch.tensor(cached_lens, dtype=torch.int64) + torch.tensor(lengths, dtype=torch.int64)
+ return PackedBatch(torch.tensor(row, dtype=torch.int64), tags.positions, tags.seq_ids, cu, context, last)
The row keeps the order of the sequences, and of their tokens: don't sort.
~ for token in tokens], => for token in sorted(tokens)],
or
~ [token for tokens in new_tokens for token in tokens] => sorted(token for tokens in new_tokens for token in tokens)
A sequence may contain the same token more than once. All of its new tokens go into the row.
~ for token in tokens], => for token in dict.fromkeys(tokens)],
or
~ [token for tokens in new_tokens for token in tokens] => list(dict.fromkeys(sum(new_tokens, [])))
Only the last token of each sequence is in your row. All new ones go in.
~ for token in tokens], => for token in tokens[-1:]],
Sequence ids count from 0.
~ seq_ids=tags.seq_ids => seq_ids=tags.seq_ids + 1
There is one id for each *token*: a sequence with 3 new tokens has its id 3 times.
~ seq_ids=tags.seq_ids => seq_ids=torch.arange(len(lengths))
Every token has the same id, so the mask couldn't keep the sequences apart.
~ seq_ids=tags.seq_ids => seq_ids=tags.seq_ids * 0
The 0 in front is missing. With it, sequence i is `row[cu[i]:cu[i + 1]]`, for i = 0, too.
~ torch.cat([torch.zeros(1, dtype=torch.int64), ends]) => ends
The end of the row is missing. N sequences have N + 1 entries: where each begins, and finally T.
~ torch.cat([torch.zeros(1, dtype=torch.int64), ends]) => ends - torch.tensor(lengths)
These are the lengths themselves. Take their running sum, with a 0 in front.
~ torch.cat([torch.zeros(1, dtype=torch.int64), ends]) => torch.tensor([0, *lengths])
or
~ torch.cat([torch.zeros(1, dtype=torch.int64), ends]) => torch.tensor(lengths, dtype=torch.int64)
The row has only the new tokens. You added the cached ones, too.
~ dtype=torch.int64), ends]) => dtype=torch.int64), ends + torch.tensor(cached_lens).cumsum(0).long()])
These are the cached tokens, before the pass. The pass adds the new ones.
- context_lens=
+ context_lens=torch.tensor(cached_lens, dtype=torch.int64),
These are only the new tokens. Count the cached ones, too: attention reads both.
- context_lens=
+ context_lens=torch.tensor(lengths, dtype=torch.int64),
That is the last token's position, one less than the number of tokens.
- context_lens=
+ context_lens=torch.tensor(cached_lens, dtype=torch.int64) + torch.tensor(lengths, dtype=torch.int64) - 1,
A sequence may have more than one new token: add all of them.
- context_lens=
+ context_lens=torch.tensor(cached_lens, dtype=torch.int64) + 1,
Each sequence has its own length. You took a running sum.
- context_lens=
+ context_lens=torch.tensor(cached_lens).cumsum(0).long() + ends,
The lengths of two lists are joined instead of added: `+` adds tensors, but appends lists.
- context_lens=
+ context_lens=torch.tensor(cached_lens + lengths, dtype=torch.int64),
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
~ logits_index=ends - 1 => logits_index=ends[-1:] - 1
or
~ logits_index=ends - 1 => logits_index=ends * 0 - 1
`context_lens` and `logits_index` are swapped.
- return ... )
+ cu = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
+ context = torch.tensor(cached_lens, dtype=torch.int64) + torch.tensor(lengths, dtype=torch.int64)
+ row = torch.tensor([token for tokens in new_tokens for token in tokens], dtype=torch.int64)
+ return PackedBatch(row, tags.positions, tags.seq_ids, cu, ends - 1, context)
A PackedBatch is one row and has no batch axis. That is added right before the pass.
~ for token in tokens], dtype=torch.int64) => for token in tokens], dtype=torch.int64)[None]
or
~ [token for tokens in new_tokens for token in tokens] => new_tokens
The model and the mask need all fields as tensors: `torch.tensor(...)`.
~ torch.tensor([token for tokens in new_tokens for token in tokens], dtype=torch.int64) => sum(new_tokens, [])
A tensor made from an empty list has a float dtype: pass `dtype=torch.int64`.
~ for token in tokens], dtype=torch.int64) => for token in tokens])
or
~ torch.tensor(lengths, dtype=torch.int64) => torch.tensor(lengths)
or
~ torch.tensor(cached_lens, dtype=torch.int64) => torch.tensor(cached_lens)
Without sequences there is nothing to join, and `torch.cat` needs at least one tensor. The row is empty then.
- input_ids=
+ input_ids=torch.cat([torch.tensor(tokens) for tokens in new_tokens]),
Without sequences, five fields are empty, and `cu_seqlens_q` is [0].
- return ... )
+ if not lengths: return PackedBatch(*[torch.empty(0, dtype=torch.int64)] * 6)
+ ...
A cached length of 0 is a prefill: nothing of this sequence is computed yet. It is valid.
~ any(cached < 0 for => any(cached <= 0 for
0 is a token id like any other. Ask for the number of tokens, `len(tokens)`.
~ or 0 in lengths or => or not all(map(all, new_tokens)) or
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
        "seq_ids": "The id of a sequence is repeated for each of its new tokens.",
        "cu_seqlens_q": "It starts with 0, followed by the running sum of the numbers of new tokens.",
        "context_lens": "For each sequence, add its cached and its new tokens.",
        "logits_index": "For each sequence, it has the index of its last new token in the row.",
    },
)

EXERCISE = Exercise(
    id="05.1",
    title="one row without padding",
    reference=TASK.reference,
    test=TASK,
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
