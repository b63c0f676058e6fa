"""Check arguments of engines and requests. Each function returns the value in its own type, or refuses it with a text
that names it, says what it is and what it must be."""

import operator
import reprlib
from collections.abc import Callable
from dataclasses import field, fields
from numbers import Real
from types import NoneType
from typing import Any, get_args

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


class BadRequest(ValueError):
    """An argument is invalid, of a request or of an engine. Nothing was computed, for any request of the call."""


def must(holds: bool, name: str, value: object, wanted: str) -> None:
    """Refuse a value unless a condition holds."""
    if not holds:
        raise BadRequest(f"{name} is {shortened(value)}; it must be {wanted}.")


def whole(name: str, value: Any, wanted: str, least: float, most: float = float("inf")) -> int:
    """A whole number from `least` to `most`."""
    must(is_whole(value) and least <= integer(value) <= most, name, value, wanted)
    return integer(value)


def number(name: str, value: Any, wanted: str, holds: Callable[[float], bool]) -> float:
    """A number that satisfies a condition."""
    # NaN fails every comparison, so a rule is written as what must hold. `abs(value) < 1e300` also holds back integers
    # that no float can represent.
    must(is_real(value) and abs(value) <= 1e300 and holds(float(value)), name, value, wanted)
    return float(value)


def flag(name: str, value: Any) -> bool:
    """True or False."""
    must(isinstance(value, bool), name, value, "True or False")
    return bool(value)


def strings(name: str, value: Any, wanted: str) -> tuple[str, ...]:
    """Strings that are not empty: one, several, or None."""
    given = () if value is None else (value,) if isinstance(value, str) else value
    # Not any iterable: a generator would be empty the second time, and a set has no order.
    is_list = isinstance(given, (list, tuple))
    must(is_list and all(isinstance(text, str) and text for text in given), name, value, wanted)
    return tuple(given)


def token_ids(name: str, value: Any, wanted: str) -> tuple[int, ...]:
    """Whole numbers from 0 on, or None."""
    given = () if value is None else value
    is_list = isinstance(given, (list, tuple, set, frozenset, range))
    # Most are plain integers, which are checked ten times as fast, and there may be as many as a vocabulary has.
    are_ints = is_list and set(map(type, given)) == {int}
    are_ids = min(given) >= 0 if are_ints else is_list and all(is_whole(token, 0) for token in given)
    must(are_ids, name, value, wanted)
    return tuple(map(int, given))


def function(name: str, value: Any, wanted: str) -> Any:
    """A function."""
    must(callable(value), name, value, wanted)
    return value


def checked(default: Any, check: Callable[..., Any], *arguments: Any) -> Any:
    """A field of a dataclass that `check_fields` checks.

    Args:
        check: function (name, value, *arguments) -> the value.
    """
    return field(default=default, metadata={"check": (check, arguments)})


def check_fields(owner: Any) -> None:
    """Replace the checked fields of a frozen dataclass by values of their own types. None stays None if the type of the
    field allows it."""
    for each in fields(owner):
        value = getattr(owner, each.name)
        if "check" in each.metadata and (value is not None or NoneType not in get_args(each.type)):
            check, arguments = each.metadata["check"]
            object.__setattr__(owner, each.name, check(each.name, value, *arguments))


def integer(value: Any) -> int:
    """Convert a value to a Python integer. TypeError if it isn't one, such as a bool or a whole float."""
    if isinstance(value, bool):
        raise TypeError("a bool is not an integer here.")
    return operator.index(value)


def is_whole(value: object, least: float = float("-inf")) -> bool:
    """True for an integer that is at least `least`."""
    try:
        return integer(value) >= least
    except TypeError:
        return False


def is_real(value: Any) -> bool:
    """True for a number, whole or not. Bools are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def shortened(value: object) -> str:
    """Shorten a value for an error message."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        return f"a huge {type(value).__name__}"
