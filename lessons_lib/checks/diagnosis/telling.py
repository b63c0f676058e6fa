"""The first difference between an answer and the reference, in words, and what it means in any exercise."""

from typing import Any

from lessons_lib.checks.diagnosis.watching import Other, Step, is_tensor, same
from lessons_lib.checks.exercise import Mistake, how_it_changed, how_to_copy, short

MISSING = object()


def told(mine: Step, want: Step, refusals: tuple[str, ...], alone: bool) -> str:
    """What is wrong in this step.

    Args:
        alone: whether the case has no other step, so that it needn't be named.
    """
    if isinstance(mine.error, Mistake):
        return mine.error.what
    name = first_of(mine, want)
    got, wanted = mine.seen.get(name, MISSING), want.seen.get(name, MISSING)
    if name.startswith("argument "):
        argument = name.removeprefix("argument ")
        if argument in mine.before:
            how = how_it_changed(argument, mine.before[argument], mine.seen[name])
            return f"your code changed its argument `{argument}`. {how}"
    if "raised" in mine.seen and "raised" not in want.seen:
        if mine.seen["raised"] not in refusals:
            return f"your code raised {type(mine.error).__name__}: {words_of(mine.error)[:300]}"
        refused = f"raised {type(mine.error).__name__}: {str(mine.error)[:120]}"
        if alone and want.seen["returned"] is not None:
            return f"the result should be {short(want.seen['returned'])}; yours {refused}"
        return f"{mine.done} should be fine; yours {refused}"
    if "raised" in want.seen and name in ("returned", "raised"):
        did = f"returned {short(mine.seen['returned'])}." if "returned" in mine.seen else f"raised {raised(mine)}"
        return f"{mine.done} should raise {want.seen['raised']}; yours {did}"
    if got is MISSING and "what can be seen" in mine.seen:
        return f"after {mine.done}, `{name}` can't be read: {mine.seen['what can be seen']}"
    subject = mine.subject if name == "returned" else name if " " in name else f"`{name}`"
    place, got, wanted = deepest(got, wanted)
    if kind(got) != kind(wanted):
        got = brief(got) if got is None or isinstance(got, Shown) else f"{kind(got)}: {brief(got)}"
        wanted = brief(wanted) if wanted is None or isinstance(wanted, Shown) else f"{kind(wanted)}, {brief(wanted)}"
    else:
        got, wanted = brief(got), brief(wanted)
    when = f"after {mine.done}, " if name != "returned" else "" if alone else f"{mine.done}: "
    return f"{when}{subject}{place} should be {wanted}; yours is {got}."


def brief(value: Any) -> str:
    """As `short`, the floats of a tensor with four digits."""

    def rounded(each: Any) -> Any:
        return list(map(rounded, each)) if isinstance(each, list) else Shown(f"{each:.4g}")

    return short(rounded(value.tolist()) if is_tensor(value) and value.is_floating_point() else value)


def words_of(error: BaseException | None) -> str:
    """What an exception says; of a missing key that has an id, the id."""
    return getattr(error.args[0], "id", str(error)) if isinstance(error, KeyError) and error.args else str(error)


def raised(step: Step) -> str:
    return f"{type(step.error).__name__}: {str(step.error)[:120]}"


def first_of(mine: Step, want: Step) -> str:
    """What differs: a changed argument first, then what was returned or raised, then what is seen."""
    names = [name for name in mine.seen if name.startswith("argument ") and name not in want.seen]
    names += [*want.seen, *mine.seen]
    return next(
        name for name in names
        if name not in mine.seen or name not in want.seen or not same(mine.seen[name], want.seen[name])
    )  # fmt: skip


def deepest(got: Any, wanted: Any) -> tuple[str, Any, Any]:
    """The one element of a large tensor or a long list in which the values differ first."""
    if is_tensor(got) and is_tensor(wanted) and got.shape == wanted.shape and got.dtype == wanted.dtype:
        if got.numel() <= 12:
            return "", got, wanted
        wrong = [
            index for index in (got != wanted).nonzero().tolist() if not same(got[tuple(index)], wanted[tuple(index)])
        ]
        index = tuple(wrong[0]) if wrong else (0,) * got.dim()
        mine, want = (
            f"{each:.4g}" if isinstance(each, float) else each for each in (got[index].item(), wanted[index].item())
        )
        return f" at [{', '.join(map(str, index))}]", Shown(mine), Shown(want)
    if isinstance(got, list) and isinstance(wanted, list) and len(repr(got)) + len(repr(wanted)) > 200:
        index = next((index for index, pair in enumerate(zip(got, wanted)) if not same(*pair)), None)
        if index is not None:
            return f" at [{index}]", got[index], wanted[index]
    return "", got, wanted


class Shown(str):
    """Text that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def meaning(mine: Step, want: Step) -> str:
    """What the first difference means in any exercise: changed arguments, nothing returned, another kind."""
    name = first_of(mine, want)
    got, wanted = mine.seen.get(name, MISSING), want.seen.get(name, MISSING)
    if name.startswith("argument ") and name.removeprefix("argument ") in mine.before:
        argument = name.removeprefix("argument ")
        how = how_to_copy(argument, mine.before[argument])
        return f"The caller still uses what it passed in. Make a copy first: {how}."
    if name == "raised" and "raised" in mine.seen:
        only = f"If your code refuses the call itself, it only has to raise {want.seen['raised']} instead."
        return f"{only} If it doesn't, test for this case first."
    if "what can be seen" in mine.seen:
        is_open = mine.seen["what can be seen"].startswith("NotImplementedError")
        return "This part isn't written yet." if is_open else "The code that uses yours reads it."
    if got is MISSING or wanted is MISSING:
        return ""
    if got is None:
        return "Is a `return` missing?" + (
            "" if name == "returned" else " Or is it set to the result of a method that returns nothing?"
        )
    return other_kind(got, wanted)


def other_kind(got: Any, wanted: Any) -> str:
    """Of the first place at which the kinds differ: what to do."""
    if isinstance(got, Shown):
        return ""  # it says what differs
    if kind(got) != kind(wanted):
        if is_tensor(wanted):
            return _other_tensor(got, wanted)
        if is_tensor(got):
            return (
                "A plain number is expected: `int(...)`, `float(...)` or `.item()` converts one element."
                if isinstance(wanted, int | float)
                else "No tensor is expected: `.tolist()` converts it."
            )
        if isinstance(got, Other) and got.kind in ("method", "function"):
            return "That is the method itself. Is an `@property` missing above it, or a call's `()`?"
        if isinstance(wanted, Other):
            return f"The {wanted.kind} itself is expected, not {kind(got)}."
        if isinstance(wanted, bool):
            return "True or False is expected: the result of a comparison."
        if isinstance(wanted, int) and isinstance(got, float):
            return "It is a float. `/` gives floats, `//` integers; `int(...)` converts one."
        if isinstance(wanted, list):
            return f"A list is expected, and yours is {kind(got)}."
        return ""
    if isinstance(wanted, dict):
        pairs = [(got[key], wanted[key]) for key in wanted if key in got]
    else:
        pairs = list(zip(got, wanted)) if isinstance(wanted, list | tuple) else []
    return next((text for pair in pairs if (text := other_kind(*pair))), "")


def _other_tensor(got: Any, wanted: Any) -> str:
    if not is_tensor(got):
        return "A torch tensor is expected."
    if got.dtype != wanted.dtype:
        text = f"The dtype should be {str(wanted.dtype).removeprefix('torch.')}."
        if got.is_floating_point() and not wanted.is_floating_point():
            text += " `/`, `torch.zeros(n)` and a tensor made from an empty list are floats, if no dtype is given."
        return text
    if got.shape != wanted.shape:
        return f"The shape should be {list(wanted.shape)}; yours is {list(got.shape)}."
    return f"It should be on {wanted.device}; yours is on {got.device}."


def kind(value: Any) -> str:
    if is_tensor(value):
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    name = value.kind if isinstance(value, Other) else type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
