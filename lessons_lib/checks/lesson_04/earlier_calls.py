"""Finds out whether an answer keeps something from earlier calls that is wrong for a later one."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Case = TypeVar("Case")


def depends_on_earlier_calls(is_right: Callable[[Case], bool], pairs: Iterable[tuple[Case, Case]]) -> bool:
    """Whether in each pair the answer is right in the first case and, called next, wrong in the second.

    The pairs must be of sizes that the answer hasn't seen yet. What one pair has first, another one should have second:
    then no answer that goes by its arguments alone is right in all first cases and wrong in all second ones.

    Args:
        is_right: calls the answer with a case. If it raises, the answer isn't right.
    """

    def judged(case: Case) -> bool:
        try:
            return is_right(case)
        except Exception:  # noqa: BLE001 - the learner's code may raise anything
            return False

    return all(judged(first) and not judged(second) for first, second in pairs)
