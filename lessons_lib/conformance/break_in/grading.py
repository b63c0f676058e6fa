"""Tries a learner's tests: the right engine must pass all of them, and each mutant must fail one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.checks.sandbox import TimeLimit
from lessons_lib.conformance.break_in.engine import TooManySteps, right_engine
from lessons_lib.conformance.break_in.mutants import MUTANTS
from lessons_lib.viz.tables.table import Table

Test = Callable[[Any], Any]
MOST_TESTS = 40
MOST_HINTS = 3


@dataclass
class BreakIn:
    """What became of the twelve mutants: number, from 1 -> the name of a test that it fails."""

    killed_by: dict[int, str] = field(default_factory=dict)

    @property
    def survivors(self) -> list[int]:
        return [number for number, _ in enumerate(MUTANTS, start=1) if number not in self.killed_by]

    def table(self) -> Table:
        rows = [
            [number, self.killed_by.get(number, "– survives"), "" if number in self.killed_by else mutant.observable]
            for number, mutant in enumerate(MUTANTS, start=1)
        ]
        caption = f"{len(self.killed_by)} of {len(MUTANTS)} mutants are found"
        return Table(["mutant", "found by", "what can be seen of it"], rows, caption=caption)


def break_in(tests: list[Test]) -> BreakIn:
    """Try tests on the right engine, then on each mutant.

    A mutant is found by a test that raises: an assertion, or an error that the right engine doesn't raise.

    Args:
        tests: functions test(make_engine).

    Raises:
        Mistake: `tests` is no list of functions, or the right engine fails one of them.
    """
    _check_list(tests)
    for test in tests:
        _must_pass(test, "")
    result = BreakIn()
    order = list(tests)
    for number, mutant in enumerate(MUTANTS, start=1):
        for test in order:
            current_case.text = f"{_name(test)} on mutant {number}"
            if error_of(test, mutant.make_engine) is not None:
                result.killed_by[number] = _name(test)
                # Most tests look for one mistake: those that have found none are tried first from now on.
                order = [*(each for each in order if each is not test), test]
                break
    for test in tests:
        _must_pass(test, " The first time it passed: a test may draw nothing without a seed, and keep nothing.")
    return result


def check_break_in_tests(break_in_tests: Callable[[], list[Test]]) -> None:
    """The check of the exercise: a Mistake has earned the share of the mutants that don't survive."""
    current_case.text = "break_in_tests()"
    result = break_in(break_in_tests())
    if left := result.survivors:
        hints = [f"Mutant {number}: {MUTANTS[number - 1].observable}" for number in left[:MOST_HINTS]]
        if len(left) > MOST_HINTS:
            hints.append(f"… and {len(left) - MOST_HINTS} more. `break_in(break_in_tests())` shows all.")
        numbers = ", ".join(map(str, left))
        raise Mistake(
            f"{len(left)} of {len(MUTANTS)} mutants {'survives' if len(left) == 1 else 'survive'}: {numbers}.",
            idea="\n".join(hints),
            earned=len(result.killed_by) / len(MUTANTS),
        )


def _check_list(tests: Any) -> None:
    if not isinstance(tests, list | tuple):
        raise Mistake(
            f"`break_in_tests` returned {type(tests).__name__}; it must be a list of functions.",
            idea="`return [test_length, test_abort]`, without calling them.",
        )
    if not tests:
        raise Mistake("`break_in_tests` returned no test.", idea="One test of one request is enough to begin with.")
    if len(tests) > MOST_TESTS:
        raise Mistake(f"there are {len(tests)} tests; at most {MOST_TESTS} are tried. Twenty are plenty.")
    for test in tests:
        if not callable(test):
            raise Mistake(
                f"`break_in_tests` returned a list with {type(test).__name__} in it; each must be a function.",
                idea="Return the functions themselves: `[test_length]`, not `[test_length(make_engine)]`.",
            )


def _must_pass(test: Test, more: str) -> None:
    current_case.text = f"{_name(test)} on the right engine"
    error = error_of(test, right_engine)
    if isinstance(error, TooManySteps):
        raise Mistake(f"`{_name(test)}` doesn't end on the right engine: {error}", case=current_case.text)
    if isinstance(error, NotImplementedError):
        raise error
    if isinstance(error, AssertionError):
        raise Mistake(
            f"the right engine fails `{_name(test)}`: {error or 'its assertion has no message'}.{more}",
            case=current_case.text,
            idea="The test asks for something that the contract doesn't promise, or computes the right answer wrongly.",
        )
    if error is not None:
        raise Mistake(
            f"`{_name(test)}` raised {type(error).__name__} on the right engine: {error}.{more}",
            case=current_case.text,
            idea="It must take one argument, `make_engine`, and may expect errors with `try` and `except` only.",
        )


def error_of(test: Test, make_engine: Callable[..., Any]) -> BaseException | None:
    """What a test raises; None if it passes. The engines that it made are closed."""
    made: list[Any] = []

    def making(**limits: int) -> Any:
        made.append(make_engine(**limits))
        return made[-1]

    try:
        test(making)
    except (TimeLimit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a failure of pytest is no Exception
        return error.with_traceback(None)
    finally:
        for engine in made:
            getattr(engine, "close", int)()  # the contract has no such method
    return None


def _name(test: Test) -> str:
    return getattr(test, "__name__", type(test).__name__)
