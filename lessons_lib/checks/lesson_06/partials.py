"""Shared by the checks of 06.2 and 06.5: initial states, and how to check the one that is returned."""

import torch

from lessons_lib.attention.online_softmax import Partial
from lessons_lib.checks.exercise import Mistake, short

NONE = float("-inf")
FILLED_IN = (
    "Return the maximum itself, −∞ where no key was seen, not the version with 0 filled in. The 0 is only for "
    "the subtractions: "
    "as a maximum it would mean that a key with a score of 0 was seen."
)
NOT_QUITE_0 = (
    "A query that has seen no key has exactly 0 here. Does your code add a small number, to avoid a division by 0? "
    "Every block would add it again. The division comes last, in `attention_of`."
)

HIDDEN_BLOCK = (
    "A block whose keys are all masked adds nothing: maximum, total and output stay as they were. Does your code begin "
    "again with an empty state if a query sees no key of the block?"
)


def partial(maximum, total, output) -> Partial:
    return Partial(*(torch.tensor(field, dtype=torch.float32) for field in (maximum, total, output)))


def clone(seen: Partial) -> Partial:
    return Partial(seen.maximum.clone(), seen.total.clone(), seen.output.clone())


def check_is_partial(got, want: Partial, case: str, otherwise: str = "") -> None:
    """Require the three fields, as tensors of the right shape. `otherwise`: another cause of an output too wide."""
    if not all(hasattr(got, name) for name in ("maximum", "total", "output")):
        idea = (
            "Return `Partial(maximum, total, output)`: the next block continues from there. The division comes "
            "last, in `attention_of`."
        )
        raise Mistake(f"expected a Partial; your function returned {type(got).__name__}.", case=case, idea=idea)
    for name in ("maximum", "total", "output"):
        found, expected = getattr(got, name), getattr(want, name)
        if not isinstance(found, torch.Tensor):
            raise Mistake(
                f"`{name}` should be a tensor; yours is {type(found).__name__}.",
                case=case,
                idea="It has one entry per query. `x.max(dim=1)` returns values and indices: take `.values`.",
            )
        if found.shape != expected.shape:
            idea = (
                "Add an axis with `x[:, None]` only where you combine [Q] with [Q, K] or [Q, D]. The fields "
                "themselves have none."
            )
            if found.dim() == expected.dim() == 1:
                idea = "It has one entry per query. Along `dim=1` are the keys of a query, along `dim=0` the queries."
            elif found.dim() == expected.dim():
                idea = (
                    "[Q] times [Q, D] multiplies along the wrong axis. Make the factor a column: `factor[:, None]`."
                    + otherwise
                )
            raise Mistake(
                f"`{name}` should have the shape {list(expected.shape)}; yours has {list(found.shape)}.",
                case=case,
                idea=idea,
            )


def check_unchanged(before: Partial, now: Partial, name: str, case: str) -> None:
    for field in ("maximum", "total", "output"):
        if not torch.equal(getattr(before, field), getattr(now, field)):
            idea = "`x *= factor` changes the caller's tensor; `x * factor` creates a new one. Return a new Partial."
            raise Mistake(
                f"your code changed `{name}.{field}`, from {short(getattr(before, field))} to "
                f"{short(getattr(now, field))}.",
                case=case,
                idea=idea,
            )


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found.double(), expected.double(), rtol=1e-4, atol=1e-6)


def wrong_field(got: Partial, want: Partial) -> str | None:
    """The first field that is wrong. Where no key was seen, total and output must be exactly 0."""
    for name in ("maximum", "total", "output"):
        found, expected = getattr(got, name), getattr(want, name)
        if not same(found, expected) or (name != "maximum" and bool(found[want.total == 0].any())):
            return name
    return None


def told(tensor: torch.Tensor) -> str:
    """The values, with four digits."""

    def rounded(value):
        return [rounded(item) for item in value] if isinstance(value, list) else f"{value:.4g}"

    return str(rounded(tensor.tolist())).replace("'", "")


def one_query_wrong(name: str, found: torch.Tensor, expected: torch.Tensor) -> str:
    """What to say if a field is right for some queries and wrong for others; "" if it isn't so."""
    right = [same(own, wanted) for own, wanted in zip(found, expected)]
    if all(right) or not any(right):
        return ""
    return (
        f"`{name}` is right for query {right.index(True)} and wrong for query {right.index(False)}. Each query has its "
        "own maximum and its own factor: does your code take something from one query, or from all of them together, "
        "and use it for each?"
    )
