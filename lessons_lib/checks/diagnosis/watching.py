"""Watches what an answer does in one case, so that two answers can be compared."""

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from math import inf
from typing import Any

PLAIN = (str, int, float, bool, bytes, type(None))


@dataclass
class Step:
    """What was done to an answer, and what could be seen afterwards.

    Attributes:
        done: in words, such as "`table.append(3)`".
        seen: "returned" or "raised", "argument x" for each argument that was changed, and whatever the exercise looks
            at.
        error: what was raised, for the message only.
        before: the arguments that were changed, as they were.
        place: the number of steps before it.
        subject: what is returned, in words.
    """

    done: str
    seen: dict[str, Any]
    error: BaseException | None = None
    before: dict[str, Any] = field(default_factory=dict)
    place: int = 0
    subject: str = "the result"


class Differs(BaseException):
    """An answer has done something else than the reference, so the rest of the case needn't be done."""


@dataclass
class Watch:
    """Records what an answer does in one case.

    Attributes:
        refusals: names of the exceptions that an answer is asked to raise. Of any other one its text counts as well.
        wanted: what the reference does; None to record the reference.
    """

    refusals: tuple[str, ...] = ()
    wanted: list[Step] | None = None
    steps: list[Step] = field(default_factory=list)

    def __call__(
        self,
        done: str,
        function: Callable[..., Any],
        *args: Any,
        look: Callable[[], dict[str, Any]] = dict,
        returns: Callable[[Any], Any] = lambda result: result,
        subject: str = "the result",
        is_new: bool = False,
        **named: Any,
    ) -> Any:
        """Call something, and note the result or the exception, changed arguments, and what `look` sees afterwards.

        Args:
            returns: what of the result is compared.
            subject: what the result is, in words.
            is_new: whether it must not be one of the arguments, nor a tensor over the same memory.

        Returns:
            What the call returned; None if it raised.

        Raises:
            Differs: what is seen isn't what the reference shows.
        """
        step = Step(done, {}, place=len(self.steps), subject=subject)
        self.steps.append(step)
        given = plain_arguments(function, args, named)
        before = {name: frozen(value) for name, value in given.items()}
        result = None
        try:
            result = function(*args, **named)
            step.seen["returned"] = frozen(returns(result))
            if is_new:
                step.seen["the arguments that the result shares memory with"] = sorted(
                    name for name, value in given.items() if shares(result, value)
                )
        except NotImplementedError:
            raise
        except Exception as error:  # noqa: BLE001 - a learner's code may raise anything
            step.error, step.seen["raised"] = error, self.name_of(error)
            if step.seen["raised"] not in self.refusals:
                look = dict  # an accident: what it leaves behind says nothing
        for name, value in before.items():
            if not same(value, frozen(given[name]), 0.0):
                step.before[name], step.seen[f"argument {name}"] = value, frozen(given[name])
        try:
            step.seen |= {name: frozen(value) for name, value in look().items()}
        except Exception as error:  # noqa: BLE001 - what is looked at may be missing, or of another kind
            step.seen["what can be seen"] = f"{type(error).__name__}: {str(error)[:120]}"
        wanted = step if self.wanted is None else self.wanted[step.place] if step.place < len(self.wanted) else None
        if wanted is None or not same(step.seen, wanted.seen):
            raise Differs
        return result

    def name_of(self, error: BaseException) -> str:
        name = type(error).__name__
        return name if name in self.refusals else f"{name}: {str(error)[:120]}"


def plain_arguments(function: Callable[..., Any], args: tuple, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a call may change by mistake: lists, dicts, sets and tensors."""
    if not any(isinstance(each, list | dict | set) or is_tensor(each) for each in (*args, *named.values())):
        return {}
    try:
        found = dict(inspect.signature(function).bind(*args, **named).arguments)
    except (TypeError, ValueError):  # the call itself will say so
        return {}
    return {name: value for name, value in found.items() if isinstance(value, list | dict | set) or is_tensor(value)}


def shares(one: Any, other: Any) -> bool:
    """Whether a change of one object shows in another."""
    if is_tensor(one) and is_tensor(other):
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and one.numel() > 0
    return one is other


def is_tensor(value: object) -> bool:
    """Without importing torch: many exercises need none."""
    return type(value).__name__ == "Tensor" and "torch" in sys.modules


def frozen(value: Any) -> Any:
    """What is compared: a copy, so that later changes don't show; objects by what they hold."""
    if isinstance(value, PLAIN):
        return value
    if is_tensor(value):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key if isinstance(key, PLAIN) else frozen(key): frozen(each) for key, each in value.items()}
    if type(value) in (list, tuple) and all(isinstance(each, PLAIN) for each in value):
        return value[:]
    if isinstance(value, list | tuple):
        return type(value)(*map(frozen, value)) if hasattr(value, "_fields") else type(value)(map(frozen, value))
    if isinstance(value, set | frozenset):
        return copy.copy(value)
    if is_dataclass(value) and not hasattr(value, "id"):
        return {"a": type(value).__name__} | {each.name: frozen(getattr(value, each.name)) for each in fields(value)}
    return Other(type(value).__name__, str(getattr(value, "id", "")))


def fresh(value: Any) -> Any:
    """A deep copy; faster than `copy.deepcopy` for plain data."""
    if isinstance(value, PLAIN):
        return value
    if type(value) in (list, tuple):
        return value[:] if all(isinstance(each, PLAIN) for each in value) else type(value)(map(fresh, value))
    return copy.deepcopy(value)


@dataclass(frozen=True)
class Other:
    """An object that isn't looked into: its kind and, if it has one, its id."""

    kind: str
    id: str

    def __repr__(self) -> str:
        return self.id or f"<{self.kind}>"


def same(one: Any, other: Any, near: float = 1e-4) -> bool:
    """Equal in type and value; tensors of floats nearly, with NaN equal to NaN, and 0 only to 0."""
    if is_tensor(one) and is_tensor(other):
        return one.shape == other.shape and one.dtype == other.dtype and _same_elements(one, other, near)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], near) for key in one)
    if isinstance(one, list | tuple):
        if {*map(type, one), *map(type, other)} <= {int, str}:
            return bool(one == other)
        return len(one) == len(other) and all(same(mine, want, near) for mine, want in zip(one, other))
    if isinstance(one, float):
        return one == other or abs(one - other) <= near * abs(other) < inf or (one != one and other != other)
    return bool(one == other)


def _same_elements(one: Any, other: Any, near: float) -> bool:
    if not one.is_floating_point() or near == 0:
        return bool(((one == other) | ((one != one) & (other != other))).all())
    zeros = (one == 0) == (other == 0)
    is_near = other.isfinite() & ((one.double() - other.double()).abs() <= 1e-6 + near * other.double().abs())
    return bool((zeros & (is_near | (one == other) | ((one != one) & (other != other)))).all())


def calls(name: str, returns: Callable[[Any], Any] = lambda result: result) -> dict[str, Callable[..., Any]]:
    """`run` and `tell` of an exercise whose cases are the arguments of one call.

    Args:
        name: the function's.
        returns: what of the result is compared.
    """

    def tell(case: tuple) -> str:
        return f"`{name}({', '.join(map(repr, case))})`."

    def run(attempt: Any, case: tuple, watch: Watch) -> None:
        watch(tell(case)[:-1], attempt, *case, returns=returns)

    return {"run": run, "tell": tell}
