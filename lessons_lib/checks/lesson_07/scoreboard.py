"""The stretch task of lesson 07: the attention of `attend_blocks`, with fewer bytes read. The scores are hidden."""

from statistics import mean
from typing import Any

import torch

from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.kernels.simple_paged import attend_blocks, single_head_kernel
from lessons_lib.measuring.compile_check import why_not_compiled
from lessons_lib.recording.kernel_accesses import record_kernel
from lessons_lib.viz.tables.table import Table

NUM_TOKENS, BLOCK_SIZE, HEAD_DIM = 150, 16, 32
SIZES: dict[str, Any] = dict(HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
SCALE, TOLERANCE = HEAD_DIM**-0.5, 1e-3
HEADS = ("the newest tokens", "the first token", "one in the middle", "all alike")  # which keys have the largest scores


class Head:
    """One query head over the scattered blocks of one sequence. Slots without a token hold NaN.

    Args:
        kind: one of HEADS.
    """

    def __init__(self, kind: str):
        generator = torch.Generator().manual_seed(HEADS.index(kind))
        num_blocks = -(-NUM_TOKENS // BLOCK_SIZE)
        self.table = torch.randperm(num_blocks + 2, generator=generator)[:num_blocks].int()
        self.query = torch.randn(HEAD_DIM, generator=generator)
        keys, values = (torch.randn(NUM_TOKENS, HEAD_DIM, generator=generator) for _ in range(2))
        wanted = torch.randn(NUM_TOKENS, generator=generator)
        position = torch.arange(NUM_TOKENS)
        if kind == HEADS[0]:
            wanted += 12 - 0.4 * (NUM_TOKENS - 1 - position)
        elif kind in HEADS[1:3]:
            wanted[position == (0 if kind == HEADS[1] else 70)] += 14
        keys += ((wanted / SCALE - keys @ self.query) / (self.query @ self.query))[:, None] * self.query
        self.scores, self.values = (keys @ self.query).double() * SCALE, values.double()
        self.caches = []
        for rows in (keys, values):
            cache = torch.full((num_blocks + 2, BLOCK_SIZE, HEAD_DIM), float("nan"))
            cache[self.table[position // BLOCK_SIZE].long(), position % BLOCK_SIZE] = rows
            self.caches.append(cache)

    def arguments(self, attend, out: torch.Tensor) -> tuple[Any, ...]:
        strides = self.caches[0].stride()[:2]
        return (attend, self.query, *self.caches, self.table, out, NUM_TOKENS, SCALE, *strides)

    def want(self) -> torch.Tensor:
        return self.scores.softmax(dim=0) @ self.values

    def fewest_values(self) -> int:
        """How many values suffice, those with the largest weights, if all weights are known beforehand."""
        weights, order = self.scores.softmax(dim=0).sort(descending=True)
        sums = (weights[:, None] * self.values[order]).cumsum(dim=0)
        wrong = ((sums - self.want()).abs().amax(dim=1) > TOLERANCE).nonzero().flatten().tolist()
        return max(wrong, default=-1) + 2


def share_read(attend, head: Head) -> float:
    """Bytes of keys and values that one launch loads, as a share of what the cache holds of the sequence.

    Raises:
        ValueError: an element of the result is off by more than TOLERANCE, or depends on an order a GPU doesn't keep.
    """
    out = torch.full((HEAD_DIM,), float("nan"))
    recording = record_kernel(single_head_kernel, (1,), *head.arguments(attend, out), **SIZES)
    error = (out.double() - head.want()).abs().max().item()
    if not error <= TOLERANCE:
        raise ValueError(f"an element of the result is off by {error:.2g}, and {TOLERANCE:g} is allowed.")
    if recording.race:
        raise ValueError(f"{recording.race}. {recording.race.lines}")
    loads = [access for access in recording.programs[0].accesses if access.tensor in ("k_cache", "v_cache")]
    return sum(len(access.offsets) for access in loads) / (2 * NUM_TOKENS * HEAD_DIM)


def reading_scoreboard(attend) -> Table:
    """Score a function with the arguments of `attend_blocks`."""
    heads = {kind: Head(kind) for kind in HEADS}
    course = [share_read(attend_blocks, head) for head in heads.values()]

    def cells(shares: list[float]) -> list[str]:
        return [f"{100 * share:.1f} %" for share in (*shares, mean(shares))]

    def yours() -> Scored:
        shares = []
        for kind, head in heads.items():
            try:
                shares.append(share_read(attend, head))
            except Exception as error:
                verdict = f"Yours, where the largest scores are those of “{kind}”: {type(error).__name__}: {error}"
                return [None] * (len(heads) + 1), verdict
        verdict = f"Yours: {100 * (mean(shares) - mean(course)):+.1f} percentage points on average."
        arguments = heads[HEADS[0]].arguments(attend, torch.zeros(HEAD_DIM))
        if refusal := why_not_compiled(single_head_kernel, *arguments, about=attend, **SIZES):
            verdict = f"{verdict} But a GPU's compiler refuses it: {refusal.text[:200]}"
        return cells(shares), verdict

    fewest = [0.5 + head.fewest_values() / NUM_TOKENS / 2 for head in heads.values()]
    caption = "Bytes of keys and values loaded, as a share of those in the cache; "
    return scoreboard(
        ["largest scores", *HEADS, "average"],
        {
            "attend_blocks": cells(course),
            "yours": yours,
            "every key, fewest values (knows the weights)": cells(fewest),
        },
        f"{caption}{NUM_TOKENS} tokens in blocks of {BLOCK_SIZE}",
    )
