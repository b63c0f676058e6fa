"""04.1, `block_diagonal_mask`: own sequence, not in the future, not padding."""

from collections.abc import Iterator
from random import Random
from typing import Any

import torch

from lessons_lib.attention.masks import PADDING, Tags
from lessons_lib.checks.diagnosis import Task, Watch, mistakes

Case = tuple[str, str]  # queries and keys, such as "A1 B0": A's token at position 1, B's at 0; P is padding
PAIRS = "`queries.positions[:, None]` is [queries, 1], and comparing it with [keys] gives [queries, keys]: all pairs."
IDS = {"P": PADDING, "X": 256, "Y": 257} | {letter: seq_id for seq_id, letter in enumerate("ABCDE")}


def cases() -> Iterator[Case]:
    """Smallest first. The first one has fewer queries than keys, so rows and columns can't be mixed up."""
    yield from (("A1", "A0 A1 A2"), ("A2 B1", "A0 A1 A2 B0 B1"), ("A2 B1", "A0 A1 B0 A2 B1"), ("A1", "A2 A0 A1"))
    for row in ("A0 A1 A2", "A0 A1 A2 B0 B1", "B0 B1 A0 A1 A2", "A0 P0 P1", "P0 P1 A0 A1", "A0 A1 B0 C0 C1"):
        yield row, row
    row = "A0 A5000 A5002 A40000 A100001 B0 B1"
    yield row, row
    yield "A0 X0 Y0", "A0 X0 Y0"
    draw = Random(4)
    for _ in range(25):
        cached, new = [], []
        for letter in "ABCDE"[: draw.randint(1, 5)]:
            start = draw.randrange(6)
            cached += [f"{letter}{position}" for position in range(start)]
            new += [f"{letter}{position}" for position in range(start, start + draw.randint(1, 4))]
        queries = new + [f"P{index}" for index in range(draw.randrange(3))][: draw.randrange(3)]
        yield " ".join(queries), " ".join(draw.sample(cached + queries, len(cached + queries)))


def tags_of(text: str) -> Tags:
    tokens = text.split()
    ids, positions = [IDS[token[0]] for token in tokens], [int(token[1:]) for token in tokens]
    return Tags(torch.tensor(ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    queries, keys = map(tags_of, case)

    def block_diagonal_mask() -> Any:
        return attempt(queries, keys)

    def look() -> dict[str, Any]:
        return {
            f"the caller's `{name}.{field}`": getattr(tags, field)
            for name, tags in (("queries", queries), ("keys", keys))
            for field in ("seq_ids", "positions")
        }

    watch("`block_diagonal_mask`", block_diagonal_mask, look=look, subject="the mask")


def tell(case: Case) -> str:
    queries, keys = (
        ", ".join(f"{'padding' if token[0] == 'P' else token[0]} {token[1:]}" for token in text.split())
        for text in case
    )
    text = f"queries and keys {queries}" if case[0] == case[1] else f"queries {queries}; keys {keys}"
    return f"{text}{'; X and Y have the ids 256 and 257' if 'X' in text else ''}."


def smaller(case: Case) -> Iterator[Case]:
    queries, keys = (text.split() for text in case)
    if queries == keys:
        for index in range(len(queries)):
            row = " ".join(queries[:index] + queries[index + 1 :])
            if len(queries) > 1:
                yield row, row
        return
    for tokens, other in ((queries, 0), (keys, 1)):
        for index in range(len(tokens)):
            if len(tokens) > 1:
                fewer = " ".join(tokens[:index] + tokens[index + 1 :])
                yield (fewer, case[1]) if other == 0 else (case[0], fewer)


def rule_of_a_wrong_cell(mine: dict, want: dict) -> str:
    """What the rules say about the first wrong cell."""
    got, should = mine["returned"], want["returned"]
    if got.shape != should.shape:
        return f"A row for each query, a column for each key: {list(should.shape)}. Yours: {list(got.shape)}. {PAIRS}"
    if got.dtype != torch.bool:
        return "A mask is bool: True means allowed."
    row, column = (got != should).nonzero()[0].tolist()
    query, key = want["case"][0].split()[row], want["case"][1].split()[column]
    if should[row, column]:
        why = "All three rules allow it: the same sequence, no later position, no padding"
        if query == key:
            why = "It's the query's own token, to which it attends"
        elif int(query[1:]) > 1000:
            why += ". Positions can be large: compare ids and positions separately, as they are"
    elif key[0] == "P":
        why = "The padding rule forbids it: the key has the id PADDING. The row of a padding query is all False, too"
    elif key[0] != query[0]:
        why = "The sequence rule forbids it: the key's sequence id is another one, whatever the positions"
    else:
        why = "The causal rule forbids it: the key's position is later, wherever it is in the row"
    return f"Row {row}, column {column} of your mask is wrong. {why}."


MISTAKES = """
Python's `and` asks for a single True or False. `&` joins masks cell by cell, and it binds more tightly than `==`: put
parentheses around each comparison.
= return is_token and is_own and is_past
or = return keys.seq_ids != PADDING & keys.seq_ids == queries.seq_ids[:, None]
You have a row for each key. A row is a query, and a column is a key: add the new axis to the queries, not to the keys.
= return (is_token & is_own & is_past).T
It is inverted: True means that the query may attend.
= return ~(is_token & is_own & is_past)
All three rules have to allow a cell: `&`, not `|`.
= return is_token | is_own | is_past
or = return is_token & (is_own | is_past)
or = return is_own | (is_token & is_past)
Padding has the id PADDING, -1. Id 0 is the first sequence.
= is_token = keys.seq_ids > 0
A key's index says nothing about its position, least of all when keys are cached or in another order. Compare
`positions`.
= is_past = torch.arange(len(keys)) <= torch.arange(len(queries))[:, None]
or = return is_own & torch.ones(len(queries), len(keys), dtype=torch.bool).tril(len(keys) - len(queries))
"""


TASK = Task(
    reference="lessons_lib.attention.masks:block_diagonal_mask",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        **dict.fromkeys(
            (f"the caller's `{name}.{field}`" for name in ("queries", "keys") for field in ("seq_ids", "positions")),
            "The model uses the same tags. Compare tensors without writing to them.",
        ),
        "returned": rule_of_a_wrong_cell,
        "raised RuntimeError": PAIRS,
    },
)

EXERCISE = TASK.exercise(
    id="04.1",
    title="the mask from three comparisons",
    hints=(
        "Start with the sequence ids, for one query: compare its id with the ids of all keys. That's one row of "
        "the mask. Which shape must the queries' ids have so that a single comparison gives all rows?",
        "You need to compare every query with every key. So give the queries' tensors a second axis of size 1: "
        "`queries.positions[:, None]` has shape [queries, 1], and comparing it with `keys.positions`, of shape "
        "[keys], gives [queries, keys]. Do the same with the sequence ids. Padding depends only on the "
        "key. Combine masks with `&`, since Python's `and` doesn't work on tensors.",
        "`keys.seq_ids != PADDING`, `keys.seq_ids == queries.seq_ids[:, None]` and "
        "`keys.positions <= queries.positions[:, None]`, joined by `&`. Put parentheses around each comparison: "
        "`&` binds more tightly than `==`.",
    ),
)
