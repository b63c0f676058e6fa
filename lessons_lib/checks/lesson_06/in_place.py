"""Checks 06.3, `attention_in_place`: one sequence over its scattered blocks, against softmax over all its keys."""

from collections.abc import Callable
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_06.in_place_call import check_shape, run_case
from lessons_lib.checks.lesson_06.in_place_cases import Case, make
from lessons_lib.checks.lesson_06.in_place_dense import dense, same
from lessons_lib.checks.lesson_06.in_place_memory import check_one_block_at_a_time
from lessons_lib.checks.lesson_06.in_place_nan import why_if_not_nan, why_nan
from lessons_lib.checks.lesson_06.in_place_reads import check_reads
from lessons_lib.checks.lesson_06.in_place_why import why_wrong

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
        _check_one(attempt, make(lens, q_heads, kv_heads, block_size, spare, seed))
    _check_one(attempt, make((5, 1), 2, 1, 4, 0, seed=20, larger=100.0))
    _check_one(attempt, make((0, 3), 1, 1, 4, 0, seed=7, larger=1e5))
    check_one_block_at_a_time(attempt)
    check_reads(attempt)
    _check_one(attempt, make((5, 2), 2, 1, 4, 0, seed=21, dtype=torch.float64))
    rng = Random(6)
    for seed in range(30, 40):
        lens, heads = (rng.choice((0, 1, 15, 16, 33)), rng.choice((1, 1, 2, 9))), rng.choice(((4, 2), (3, 3), (6, 1)))
        _check_one(attempt, make(lens, *heads, rng.choice((1, 4, 16)), rng.choice((0, 1)), seed))


def _check_one(attempt: Callable, case: Case) -> None:
    got, want = run_case(attempt, case), dense(case)
    check_shape(got, case)
    if same(got.double(), want):
        return
    if bool(got.isnan().any()):
        idea = why_if_not_nan(attempt, case) or why_nan(case, got)
        raise Mistake("the attention contains NaN.", case=case.words, idea=idea)
    far = float((got.double() - want).abs().max())
    what = f"the attention differs by up to {far:.2g} from softmax over all {case.num_tokens} keys."
    raise Mistake(what, case=case.words, idea=why_wrong(got.double(), want, case))
