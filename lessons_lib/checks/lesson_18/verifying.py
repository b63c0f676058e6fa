"""18.2, `verify`: which guesses of a packed row are kept, and what the pass computed for nothing."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Task, Watch, without_one
from lessons_lib.checks.lesson_18.verifying_mistakes import MISTAKES
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.sequence import Sequence

SIZE, END, VOCABULARY = 4, 0, 50  # SIZE of a block


class Row(NamedTuple):
    """A sequence of the row: its prompt's length, its answer's, its limit, the guesses, and what the model draws."""

    name: str
    prompt: int
    answered: int
    limit: int
    draft: list[int]
    own: list[int]


# Name, lengths of prompt and answer, sometimes the limit: guesses > what the model draws. 0 is the end token.
CASES = """
A 3+1: > 7
A 3+1: 7 > 7 8
A 3+1: 6 > 7 8
A 3+1: 7 8 9 > 7 8 9 5
A 3+1: 7 8 9 > 7 6 9 5
A 3+1: 7 8 9 > 1 8 9 5
A 5+0: > 7
A 5+0: > 0
A 3+1: 7 0 9 > 7 0 9 5
A 3+1: 7 8 > 7 0 5
A 3+1 m3: 7 8 > 7 8 9
A 3+1 m2: > 7
A 3+1: 7 7 7 > 7 7 7 7
A 3+1: 7 7 > 7 6 7
A 3+1: 7 8 9 6 5 > 1 2 3 4 5 6
A 3+1: 7 8 9 6 5 > 7 2 9 6 5 6
A 7+1: 5 6 > 1 5 6
A 7+1: 5 6 > 5 6 1
A 2+6: 5 6 7 8 9 > 5 6 7 8 9 4
A 3+1: > 7; B 4+2: > 8
A 3+1: 7 8 > 7 1 2; B 5+2: 9 > 9 9; C 4+1: > 3
A 3+1: 7 8 > 1 7 8; B 5+2: 9 9 > 9 3 4
A 3+1: > 5; B 3+1: 6 7 8 > 6 7 8 9; C 3+1: 6 > 6 7
A 6+2: 1 2 3 4 5 > 9 2 3 4 5 6; B 3+1: 7 > 7 7
A 3+1: 7 0 > 7 0 9; B 6+0: > 4; C 2+9: 4 5 > 4 5 6
"""


def cases() -> Iterator[list[Row]]:
    """Smallest first."""
    for line in CASES.strip().split("\n"):
        yield [row_of(*part.split(":")) for part in line.split(";")]
    draw = Random(18)
    for _ in range(12):
        rows = []
        for name in "ABC"[: draw.randint(1, 3)]:
            draft = draw.choices((1, 2, 3), k=draw.choice((0, 1, 3, 6)))
            own = [token if draw.random() < 0.7 else draw.randrange(4) for token in [*draft, 2]]
            rows.append(Row(name, draw.randint(1, 9), draw.randint(1, 5), 20, draft, own))
        yield rows


def row_of(head: str, tokens: str) -> Row:
    name, lengths, *limit = head.split()
    prompt, answered = map(int, lengths.split("+"))
    draft, own = (list(map(int, part.split())) for part in tokens.split(">"))
    return Row(name, prompt, answered, int(limit[0][1:]) if limit else 20, draft, own)


def run(attempt: Any, case: list[Row], watch: Watch) -> None:
    pool = BlockPool(32, SIZE)
    pool.allocate(2)  # of other sequences
    drafts, lines = {}, []
    for index, row in enumerate(case):
        answer = list(range(30, 30 + row.answered))
        sequence = Sequence(row.name, list(range(10, 10 + row.prompt)), row.limit, frozenset({END}), output_ids=answer)
        sequence.num_computed_tokens = sequence.num_tokens - 1 if answer else 0
        sequence.blocks = pool.allocate(blocks_for(sequence.num_tokens + len(row.draft), SIZE))
        drafts[sequence] = list(row.draft)
        for place, token in enumerate(row.own):  # what `draw` reads, with the noise of sequence and place
            lines.append((token - noise(index, row.answered + place)) % VOCABULARY)
    order = list(drafts)

    def draw(logits: torch.Tensor, sequence: Sequence, place: int) -> int:
        if not isinstance(logits, torch.Tensor) or not isinstance(sequence, Sequence):
            raise TypeError("`draw(row, sequence, place)`: a row of logits, a sequence, and a place, in this order.")
        if list(logits.shape) != [VOCABULARY]:
            raise TypeError(f"`draw` takes the logits of one token, [{VOCABULARY}]; yours are {list(logits.shape)}.")
        return (int(logits.argmax()) + noise(order.index(sequence), int(place))) % VOCABULARY

    logits = torch.nn.functional.one_hot(torch.tensor(lines), VOCABULARY).float()
    before = {each: each.blocks for each in order}

    def look() -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for each in order:
            seen[f"{each.id}.output_ids"] = each.output_ids
            seen[f"{each.id}.finish_reason"] = each.finish_reason
        for each in order:
            seen[f"{each.id}.num_computed_tokens"] = each.num_computed_tokens
            seen[f"{each.id}.blocks"] = each.blocks
            seen[f"{each.id}.prompt_ids"] = each.prompt_ids
            seen["a list of blocks that was changed in place"] = any(
                len(blocks) != blocks_for(row.prompt + row.answered + len(row.draft), SIZE)
                for blocks, row in zip(before.values(), case)
            )
        return seen | {"the free blocks": sorted(pool.free_queue), "the blocks in use": sorted(pool.used)}

    watch("`verify`", attempt, drafts, logits, draw, pool, look=look, returns=lambda found: None)


def noise(index: int, place: int) -> int:
    return 7 * place + 17 * index


def tell(case: list[Row]) -> str:
    told = [
        f"{row.name} has {row.prompt} + {row.answered} tokens{f', `max_new_tokens` {row.limit}' * (row.limit < 20)}, "
        f"the guesses {row.draft}, and the model draws {row.own}"
        for row in case
    ]
    return "; ".join(told) + ". 0 is the end token; blocks of 4."


TASK = Task(
    reference="lessons_lib.engine.verification:verify",
    cases=cases,
    run=run,
    tell=tell,
    smaller=without_one,
    known=MISTAKES,
    about={f"{name}.{key}": text for name in "ABC" for key, text in {
        "output_ids": "It gets the model's own tokens: one for each right guess before the first wrong one, plus one.",
        "num_computed_tokens": "All its tokens are computed but the newest.",
        "blocks": "It keeps the blocks of its computed tokens.",
    }.items()} | {"the free blocks": "Free the blocks past the computed tokens, each once: `pool.free(blocks)`."},
)  # fmt: skip

EXERCISE = TASK.exercise(
    id="18.2",
    title="verify",
    hints=(
        "Go through the picture, line by line. A sequence with k guesses has k + 1 rows of logits. What does the "
        "model draw from each of them? Which of these tokens come from a text that exists?",
        "For each sequence: draw from its k + 1 rows, with places that begin at `len(sequence.output_ids)`. Append "
        "them one by one; stop after the first that isn't the guess in its place, or when the sequence "
        "has finished. Then all tokens but the newest are computed, and blocks past them are freed.",
        "`rows = iter(logits)`; `own = [draw(next(rows), sequence, first + place) for place in range(len(draft) + 1)]`;"
        " `sequence.append_token(token)`; `sequence.num_computed_tokens = sequence.num_tokens - 1`; `needed = "
        "blocks_for(sequence.num_computed_tokens, pool.block_size)`; `pool.free(sequence.blocks[needed:])`; "
        "`sequence.blocks = sequence.blocks[:needed]`.",
    ),
)
