"""08.3, `merge_splits`: the attentions of the splits of one query, each weighted by its share of the whole sum."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.kernels import compiles, launch, near, refuse_other_tiles
from lessons_lib.kernels.group_decode import merge_kernel
from lessons_lib.measuring.ablations import with_functions

NONE = float("-inf")
Case = tuple[list[float], list[list[float]]]  # the log-sum-exp and the attention of each split


@triton.jit
def merging_kernel(MERGE: tl.constexpr, lse, outputs, out, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr):
    split, dim = tl.arange(0, SPLITS), tl.arange(0, HEAD_DIM)
    result = MERGE(tl.load(lse + split), tl.load(outputs + split[:, None] * HEAD_DIM + dim[None, :]))
    refuse_other_tiles(result, attention=list(dim.shape))
    tl.store(out + dim, result)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    lse, outputs = map(torch.tensor, case)
    weights = (lse.double() - lse.max().double()).exp2()
    want = weights @ outputs.double() / weights.sum()
    out = torch.zeros(outputs.shape[1])
    launch(
        watch, "`merge_splits`", attempt, merging_kernel, (1,), attempt, lse, outputs, out, SPLITS=len(lse),
        HEAD_DIM=outputs.shape[1], look=lambda _: {"the attention": near(out, want)},
    )  # fmt: skip


def tell(case: Case) -> str:
    lse, outputs = case
    return f"log-sum-exps {lse} and attentions {outputs}."


def cases() -> Iterator[Case]:
    yield [0.0, 1.0], [[2.0, 4.0], [8.0, 1.0]]
    yield [3.0], [[2.0, 4.0]]
    yield [2.0, -1.0], [[1.0, 2.0, 3.0, 4.0], [8.0, 6.0, -4.0, 0.0]]
    yield [1.0, 0.0, 2.0, -3.0], [[3.0, 8.0], [-5.0, 2.0], [1.0, 9.0], [4.0, -4.0]]
    yield [1.0, 2.0, NONE, NONE], [[3.0, 8.0], [-5.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    yield [-1.0, -4.0, NONE, NONE], [[3.0, 8.0], [-5.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    yield [300.0, 299.0], [[3.0, 8.0], [-5.0, 2.0]]
    yield [-300.0, -301.0], [[3.0, 8.0], [-5.0, 2.0]]
    yield [-300.0, NONE], [[3.0, 8.0], [0.0, 0.0]]
    yield [90.0, -90.0, 89.0, NONE], [[3.0, 8.0], [-5.0, 2.0], [1.0, 9.0], [0.0, 0.0]]
    yield [-200.0, 200.0], [[3.0, 8.0], [-5.0, 2.0]]
    yield [0.3, 0.0], [[203.7, 401.9], [-197.3, -303.1]]
    yield [0.0, -20.3], [[3.0, 8.0], [1e6, -5e5]]


MISTAKES = """
This is the plain mean of the splits. A split's weight is its share of the whole sum: 2 to the power of its log-sum-exp.
= return tl.sum(outputs, axis=0) / tl.sum(tl.where(lse > float("-inf"), 1.0, 0.0), axis=0)
or = return tl.sum(outputs, axis=0) / lse.shape[0]
The log-sum-exps are in base 2, like everything in the decode kernel: `tl.exp2`, not `tl.exp`.
~ exp2 => exp
or ~ exp2(lse - tl.max(lse, axis=0)) => exp2((lse - tl.max(lse, axis=0)) * 0.6931471805599453)
Cutting off the exponents changes the weights. Subtract the largest log-sum-exp instead: then none overflows.
~ lse - tl.max(lse, axis=0) => tl.maximum(tl.minimum(lse, 100.0), -100.0)
Subtract the largest log-sum-exp. Only a difference keeps the ratio of the weights.
~ lse - tl.max(lse, axis=0) => lse / tl.max(lse, axis=0)
Divide by the sum of the weights: they are shares of a whole.
= return tl.sum(outputs * weights[:, None], axis=0)
You divide by the number of splits. Divide by the sum of the weights.
~ tl.sum(weights, axis=0) => lse.shape[0]
The log-sum-exps themselves are no weights: a weight is 2 to the power of one.
= weights = lse
or = weights = lse - tl.max(lse, axis=0)
This is only the split with the largest log-sum-exp. The others count, too.
= weights = tl.where(lse == tl.max(lse, axis=0), 1.0, 0.0)
Each attention is multiplied by its weight before you add them. It is divided by its own sum already.
~ outputs * weights[:, None] => outputs
or ~ outputs * weights => outputs / weights
The exponent has the wrong sign: a split's log-sum-exp minus the largest one.
~ lse - tl.max(lse, axis=0) => tl.max(lse, axis=0) - lse
The largest is `tl.max`: relative to a smaller one, weights overflow.
~ tl.max => tl.min
The sum of the weights that you multiplied by is what you divide by.
~ tl.sum(weights, axis=0) => tl.sum(lse, axis=0)
or ~ tl.sum(weights, axis=0) => tl.sum(tl.exp2(lse), axis=0)
Weights belong to splits, which are the rows of `outputs`: make them a column, `weights[:, None]`.
~ weights[:, None] => weights[None, :]
Add along the splits: they are the rows, so `axis=0`.
~ tl.sum(outputs * weights[:, None], axis=0) => tl.sum(outputs * weights[:, None], axis=1)
Add them up: the attention is the sum of the splits' shares, not the largest share.
~ tl.sum(outputs => tl.max(outputs
"""


def weighted(mine: dict, want: dict) -> str:
    """What the smallest case says about a wrong attention: the simpler ones are right."""
    lse, outputs = want["case"]
    if len(lse) > 1 and lse[1] == -20.3:
        return "A split far below the largest counts, too, however little: its attention may be large."
    if max(map(abs, outputs[0])) > 100:
        return "Log-sum-exps, weights and attentions are float32: in 16 bits they lose digits, so don't convert them."
    if max(abs(each) for each in lse if each > NONE) >= 90 or not mine["the attention"].isfinite().all():
        return (
            "2³⁰⁰ doesn't fit into float32, and 2⁻³⁰⁰ is 0. Subtract the largest log-sum-exp of the splits: then one "
            "weight is 1, and none is larger."
        )
    if NONE in lse:
        return "Splits without keys have no weight: 2 to the power of minus infinity is 0."
    return (
        "A split's weight is 2 to the power of its log-sum-exp minus the largest one. Return the sum of weight × "
        "attention, divided by the sum of the weights."
    )


def for_the_compiler() -> tuple[tuple, dict]:
    outputs, lse, lens = torch.zeros(2, 2, 4, 16), torch.zeros(2, 2, 4), torch.ones(2, dtype=torch.int32)
    out = torch.zeros(2, 2, 16, dtype=torch.bfloat16)
    return (outputs, lse, lens, out, 32, 16), dict(HEAD_DIM=16, SPLIT_SIZE=4, NUM_SPLITS=4, BLOCK_SPLITS=4)


TASK = Task(
    reference="lessons_lib.kernels.group_decode:merge_splits",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={"the attention": weighted},
    probes=(compiles(for_the_compiler(), kernel=lambda attempt: with_functions(merge_kernel, merge_splits=attempt)),),
)

EXERCISE = TASK.exercise(
    id="08.3",
    title="splits merged",
    time_limit=10.0,
    points=3,
    hints=(
        "A split's attention is divided by its own sum. How large was that sum, next to those of the others? The "
        "log-sum-exp says it: 2 to the power of it is the sum of 2 to the power of the scores.",
        "Weights: 2 to the power of the log-sum-exps. Only their ratio matters, so subtract the largest first, and no "
        "power overflows. Then a weighted mean along the splits, axis 0.",
        "`weights = tl.exp2(lse - tl.max(lse, axis=0))`; then the sum of `outputs * weights[:, None]` along axis 0, "
        "divided by the sum of the weights.",
    ),
)
