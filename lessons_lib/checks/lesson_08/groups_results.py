"""The results of 08.2 against dense attention, and what explains a wrong one."""

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import close, values_text
from lessons_lib.checks.lesson_08.groups_cases import Decodes, make
from lessons_lib.checks.lesson_08.groups_launch import run_case
from lessons_lib.checks.lesson_08.groups_loads import why_cells, why_length, why_queries, why_table
from lessons_lib.checks.lesson_08.groups_wrong_ideas import PADDED, wrong_ideas


def check_result(attempt, recording, program, made: Decodes) -> None:
    kv_head, seq = program.ids
    got, want = made.out[seq, made.heads(kv_head)].double(), made.want(seq, kv_head)
    if close(got, want, made.tolerance):
        return
    row = next(r for r in range(made.group) if not close(got[r], want[r], made.tolerance))
    what = (
        f"out[{seq}, {made.heads(kv_head)[row]}] should be {values_text(want[row])}; yours is {values_text(got[row])}."
    )
    for idea in (
        why_queries(recording, program, made),
        why_length(recording, program, made),
        why_table(recording, program, made),
        *(why_cells(recording, program, tensor, made) for tensor in ("k_cache", "v_cache")),
        _why_values(got, want, seq, kv_head, made),
    ):
        if idea == PADDED and _is_column(attempt):
            idea = (
                "The mask of the scores is a column, `[:, None]`: it hides rows, which are query heads. Keys are along "
                "axis 1 of the scores: `tl.where(is_key[None, :], ...)`."
            )
        if idea:
            raise Mistake(what, case=made.text, idea=idea)
    idea = (
        "You loaded the right queries, keys and values. Per iteration: scores = queries · keys × scale, minus infinity "
        "past the context; then `online_softmax`, which returns weights, maximum, sum and acc in this order; then acc "
        "+= weights · values. Divide once, after the loop."
    )
    if not bool(got.isfinite().all()):
        idea = (
            "You loaded the right slots, and got NaN or infinity. Elements that a mask leaves out are undefined: give "
            "masked loads `other=0.0`, because 0 × NaN is NaN. And `row_max` starts at minus infinity, `row_sum` at 0."
        )
    elif made.q.dtype == torch.float32 and close(got, want, 5e-3):
        idea = (
            "Nearly right: the difference is as small as rounding to 16 bits, and everything is float32 here. Is "
            "something converted to float16 or bfloat16? Convert the weights to the dtype of the values, whichever "
            "that is: `weights.to(values.dtype)`."
        )
    elif made.q.dtype == torch.float32 and bool((got.abs() > 1e6).any()):
        idea = (
            "You loaded the right queries, keys and values. Does a `tl.dot` get bfloat16? The interpreter multiplies "
            "their bits as if they were integers, and everything is float32 here: convert the weights to the dtype of "
            "the values, whichever that is, `weights.to(values.dtype)`."
        )
    elif made.q.dtype == torch.float16 and close(got, want, 5e-2):
        idea = (
            "Nearly right, and right in float32: the difference is larger than rounding the weights to 16 bits "
            "explains. What else do you convert to 16 bits? Scores, `row_max`, `row_sum` and `acc` stay float32."
        )
    raise Mistake(what, case=made.text, idea=idea)


def _is_column(attempt) -> bool:
    """Whether a mask of keys hides query heads: of two heads over one key, the second sees nothing."""
    made = make([1], 2, 1)
    try:
        run_case(attempt, made)
    except Exception:  # noqa: BLE001 - it fails in another way there
        return False
    return bool(made.out[0, 0].isfinite().all()) and not bool(made.out[0, 1].isfinite().any())


def _why_values(got, want, seq: int, kv_head: int, made: Decodes) -> str:
    near = [
        (float((got - formed).abs().max()), idea)
        for idea, formed in wrong_ideas(seq, kv_head, made)
        if close(got, formed, made.tolerance) and not close(formed, want, made.tolerance)
    ]
    return min(near, key=lambda pair: pair[0])[1] if near else ""
