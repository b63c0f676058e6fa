"""What the exercises on the online softmax share: states to begin with, and how to judge the one that comes back."""

import torch

from lessons_lib.attention.online_softmax import Partial
from lessons_lib.checks.exercise import Mistake, short

NONE = float("-inf")
FILLED_IN = (
    "Return the maximum itself, −∞ where no key was seen, and not the one with 0 filled in. The 0 is only for the subtractions: "
    "as a maximum it would say that a score of 0 was seen."
)


def partial(maximum, total, output) -> Partial:
    return Partial(*(torch.tensor(field, dtype=torch.float32) for field in (maximum, total, output)))


def clone(seen: Partial) -> Partial:
    return Partial(seen.maximum.clone(), seen.total.clone(), seen.output.clone())


def check_is_partial(got, want: Partial, case: str) -> None:
    """It has the three fields, as tensors of the right shape."""
    if not all(hasattr(got, name) for name in ("maximum", "total", "output")):
        idea = "Return `Partial(maximum, total, output)`: the next block goes on from there. Dividing comes last, in `attention_of`."
        raise Mistake(f"a Partial should come back; yours returned {type(got).__name__}.", case=case, idea=idea)
    for name in ("maximum", "total", "output"):
        found, expected = getattr(got, name), getattr(want, name)
        if not isinstance(found, torch.Tensor):
            raise Mistake(
                f"`{name}` should be a tensor; yours is {type(found).__name__}.",
                case=case,
                idea="Each query has a number of its own in it.",
            )
        if found.shape != expected.shape:
            idea = "`x.max(dim=1)` gives values and places: take `.values`. `x[:, None]` adds an axis where [Q] meets [Q, K] or [Q, D], and only there."
            raise Mistake(
                f"`{name}` should have the shape {list(expected.shape)}; yours has {list(found.shape)}.",
                case=case,
                idea=idea,
            )


def check_unchanged(before: Partial, now: Partial, name: str, case: str) -> None:
    for field in ("maximum", "total", "output"):
        if not torch.equal(getattr(before, field), getattr(now, field)):
            idea = "`x *= factor` changes the tensor that the caller still holds; `x * factor` makes a new one. Return a new Partial."
            raise Mistake(
                f"your code changed `{name}.{field}`, from {short(getattr(before, field))} to {short(getattr(now, field))}.",
                case=case,
                idea=idea,
            )


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found.double(), expected.double(), rtol=1e-4, atol=1e-6)


def wrong_field(got: Partial, want: Partial) -> str | None:
    """The first field that is not as it should be."""
    return next(
        (name for name in ("maximum", "total", "output") if not same(getattr(got, name), getattr(want, name))), None
    )


def told(tensor: torch.Tensor) -> str:
    """Numbers with four digits."""

    def number(value):
        return [number(item) for item in value] if isinstance(value, list) else f"{value:.4g}"

    return str(number(tensor.tolist())).replace("'", "")
