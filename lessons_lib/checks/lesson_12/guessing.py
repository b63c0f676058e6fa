"""Finds the wrong rule that an attempt seems to follow: one that explains its first wrong result and most of the
others.
"""

from collections.abc import Callable, Sequence


def likeliest_idea(rules: Sequence[tuple[Callable[[int], bool | None], str]], first: int, count: int) -> str | None:
    """The message for the likeliest rule, or None.

    Args:
        rules: pairs (function, message). The function maps the index of a case to whether the rule returns what the
            attempt returned; None if the rule doesn't apply.
        first: index of the first case in which the attempt is wrong. A rule has to explain that one.
        count: number of cases.
    """
    fitting = [(explains, idea) for explains, idea in rules if explains(first)]
    if not fitting:
        return None

    def score(rule) -> int:
        said = [rule[0](number) for number in range(count)]
        return said.count(True) - 3 * said.count(False)

    return max(fitting, key=score)[1]
